//! The page of a model's curvature: one file that needs nothing else.

use gradus_train::curvature::Curvature;
use std::fmt::Write;

const FRAME: &str = include_str!("page/curvature.html");
/// The size of the drawing.
const WIDTH: f64 = 720.0;
/// See [`WIDTH`].
const HEIGHT: f64 = 220.0;
/// Shares below this are not drawn.
const SMALLEST_SHARE: f64 = 1e-8;

/// The page.
pub fn html(found: &Curvature) -> String {
    let limit = found.learning_rate_limit.map_or("none".to_string(), |limit| format!("{limit:.3e}"));
    let mut parts = String::new();
    for part in &found.parts {
        let name = part.name.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            parts,
            "<tr><td>{name}</td><td>{}</td><td>{:.3} ± {:.3}</td><td>{:.4}</td></tr>",
            part.parameters, part.trace, part.trace_error, part.largest_eigenvalue
        );
    }
    [
        ("LOSS", format!("{:.4}", found.loss)),
        ("SHARPNESS", format!("{:.4} ± {:.4}", found.largest_eigenvalue, found.eigenvalue_error)),
        ("TRACE", format!("{:.3} ± {:.3}", found.trace, found.trace_error)),
        ("LIMIT", limit),
        ("PARTS", parts),
        ("SPECTRUM", spectrum(found)),
    ]
    .into_iter()
    .fold(FRAME.to_string(), |page, (name, text)| page.replace(&format!("<!--{name}-->"), &text))
}

/// Eigenvalues as lines, as high as the logarithm of their share.
fn spectrum(found: &Curvature) -> String {
    let (low, high) = (found.smallest_eigenvalue.min(0.0), found.largest_eigenvalue.max(0.0));
    let across = |eigenvalue: f64| (eigenvalue - low) / (high - low).max(f64::MIN_POSITIVE) * (WIDTH - 20.0) + 10.0;
    let up =
        |share: f64| (share.max(SMALLEST_SHARE) / SMALLEST_SHARE).log10() / -SMALLEST_SHARE.log10() * (HEIGHT - 40.0);
    let mut drawing = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"the spectrum\">");
    let floor = HEIGHT - 25.0;
    for line in &found.spectrum {
        let (x, top) = (across(line.eigenvalue), floor - up(line.weight));
        let _ = write!(
            drawing,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{floor}\" y2=\"{top:.1}\"><title>{:.5}: {:.2e}</title></line>",
            line.eigenvalue, line.weight
        );
    }
    for eigenvalue in [low, 0.0, high] {
        let _ = write!(drawing, "<text x=\"{:.1}\" y=\"{}\">{eigenvalue:.3}</text>", across(eigenvalue), HEIGHT - 6.0);
    }
    drawing + "</svg>"
}

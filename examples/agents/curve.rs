//! A learning curve as a picture: SVG, a line a seed.

use std::fmt::Write;

/// Mean returns by steps taken.
pub type Curve = Vec<(u64, f32)>;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 56.0;
/// Points of a line at most.
const POINTS: usize = 120;

/// The picture of some curves, with a line at the return that counts as solved.
pub fn drawn(title: &str, curves: &[Curve], goal: f32) -> String {
    let all = || curves.iter().flatten();
    let last = all().map(|point| point.0).max().unwrap_or(1).max(1) as f64;
    let (low, high) = all().fold((goal, goal), |(low, high), point| (low.min(point.1), high.max(point.1)));
    let room = f64::from(high - low).max(1e-6);
    let x = |steps: f64| MARGIN + steps / last * (WIDTH - 2.0 * MARGIN);
    let y = |value: f32| HEIGHT - MARGIN - f64::from(value - low) / room * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"24\" font-size=\"14\">{title}</text>\n"
    );
    let mut text = |x: f64, y: f64, anchor: &str, text: &str| {
        writeln!(svg, "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\">{text}</text>")
            .expect("a string grows");
    };
    let bottom = HEIGHT - MARGIN;
    text(MARGIN - 6.0, y(low) + 4.0, "end", &format!("{low:.2}"));
    text(MARGIN - 6.0, y(high) + 4.0, "end", &format!("{high:.2}"));
    text(WIDTH - MARGIN + 4.0, y(goal) + 4.0, "start", &format!("{goal:.2}"));
    text(MARGIN, bottom + 18.0, "middle", "0");
    text(WIDTH - MARGIN, bottom + 18.0, "middle", &format!("{last}"));
    text(WIDTH / 2.0, bottom + 34.0, "middle", "steps of all environments");
    let mut line = |points: &str, style: &str| {
        writeln!(svg, "<polyline fill=\"none\" {style} points=\"{points}\"/>").expect("a string grows");
    };
    line(&format!("{MARGIN},{MARGIN} {MARGIN},{bottom} {},{bottom}", WIDTH - MARGIN), "stroke=\"black\"");
    let at = y(goal);
    line(&format!("{MARGIN},{at:.1} {},{at:.1}", WIDTH - MARGIN), "stroke=\"gray\" stroke-dasharray=\"4\"");
    for (index, curve) in curves.iter().enumerate() {
        let every = curve.len().div_ceil(POINTS).max(1);
        let kept = curve.iter().enumerate().filter(|(at, _)| at % every == 0 || at + 1 == curve.len());
        let points: Vec<String> =
            kept.map(|(_, (steps, value))| format!("{:.1},{:.1}", x(*steps as f64), y(*value))).collect();
        let hue = 360 * index / curves.len();
        line(&points.join(" "), &format!("stroke=\"hsl({hue},60%,45%)\" stroke-width=\"1.5\""));
    }
    svg + "</svg>\n"
}

//! `gradus curvature`: how sharply a model's loss curves.

mod page;

use crate::args::CurvatureArgs;
use crate::numbers::count;
use crate::table::{bar, line};
use crate::{defaults, folders, print};
use gradus_train::curvature::{Curvature, Settings, curvature};
use gradus_train::data::Corpus;
use gradus_train::files::atomic;
use gradus_train::{Result, device};
use serde_json::json;

/// Looks at a model on text and prints sharpness, trace and spectrum.
pub fn run(args: &CurvatureArgs) -> Result<()> {
    args.out.as_deref().map_or(Ok(()), atomic::check_file_writable)?;
    let folder = folders::model(&args.folder)?;
    let corpus = Corpus::open(&args.corpus, args.text_field.as_deref())?;
    let backend = device::backend(args.device, args.threads.unwrap_or_else(defaults::threads))?;
    let settings = Settings {
        sequences: args.sequences,
        sequence: args.sequence,
        steps: args.steps,
        samples: args.samples,
        seed: args.seed,
        memory: args.memory,
    };
    let mut tell = |what: &str| {
        if !args.json {
            print::note(format!("looking at {what}"));
        }
    };
    let found = curvature(&folder, &corpus, &*backend, settings, &mut tell)?;
    match args.json {
        true => print::out(format!("{}\n", json!(found)))?,
        false => print::text(text(&found))?,
    }
    // What took long to find is told before anything is written that might fail.
    let Some(path) = &args.out else { return Ok(()) };
    atomic::write_file(path, page::html(&found).as_bytes())?;
    if args.json { Ok(()) } else { print::text(format!("\nthe same as a page: {}\n", path.display())) }
}

fn text(found: &Curvature) -> String {
    let mut text = String::new();
    let Curvature { loss, largest_eigenvalue, eigenvalue_error, smallest_eigenvalue, trace, trace_error, .. } = found;
    line(&mut text, format_args!("loss                 {loss:.4}"));
    line(
        &mut text,
        format_args!("sharpness            {largest_eigenvalue:.4} ± {eigenvalue_error:.4}, the largest eigenvalue"),
    );
    line(&mut text, format_args!("smallest eigenvalue  {smallest_eigenvalue:.4}"));
    line(&mut text, format_args!("trace                {trace:.3} ± {trace_error:.3}"));
    match found.learning_rate_limit {
        Some(limit) => line(
            &mut text,
            format_args!(
                "learning rate        below {limit:.3e} for plain gradient descent; optimizers that scale it differ"
            ),
        ),
        None => line(&mut text, format_args!("learning rate        any: nothing curves upwards here")),
    }
    let (parameters, tokens) = (count(found.parameters as u64), count(found.tokens));
    line(&mut text, format_args!("measured on          {tokens} tokens, of {parameters} weights\n"));
    line(&mut text, format_args!("{:28}{:>14}{:>14}{:>14}{:>12}", "part", "weights", "trace", "±", "sharpness"));
    for part in &found.parts {
        line(
            &mut text,
            format_args!(
                "{:28}{:>14}{:>14.3}{:>14.3}{:>12.4}",
                part.name,
                count(part.parameters as u64),
                part.trace,
                part.trace_error,
                part.largest_eigenvalue
            ),
        );
    }
    line(&mut text, format_args!("\n{:>14}  {}", "eigenvalue", "share of the spectrum"));
    for spectral in &found.spectrum {
        let share = format!("{:.2e}", spectral.weight);
        line(&mut text, format_args!("{:>14.4}  {share:10}{}", spectral.eigenvalue, bar(spectral.weight, 1.0)));
    }
    text
}

//! `gradus profile`: what the steps of a run take, and what is wrong with them.

mod bounds;
mod page;
mod report;
mod text;
mod trace;

use crate::args::ProfileArgs;
use crate::in_options::InOptions;
use crate::resolve::resolve_for_profile;
use crate::{interrupt, print, terminal};
use bounds::Bounds;
use clap::{ArgMatches, FromArgMatches};
use gradus_train::files::atomic;
use gradus_train::{Error, Result, training};
use report::Report;
use std::path::Path;

/// Where the page is written if nothing else is said.
const PAGE: &str = "profile.html";
/// Steps that are looked at if nothing else is said, and as many beside them as they always are.
const STEPS: u64 = 12;

/// Takes a few steps of the run that the options state, and tells what they took.
pub fn run(command_line: &ArgMatches) -> Result<()> {
    let stated = ProfileArgs::from_arg_matches(command_line).map_err(|error| Error::Config(error.to_string()))?;
    let steps = match stated.run.steps {
        Some(0) => return Err(Error::Config("`--steps` 0 leaves nothing to look at; give a number from 1 up".into())),
        steps => steps.unwrap_or(STEPS) as usize,
    };
    let resolved = resolve_for_profile(command_line)?;
    let page = stated.run.out.as_deref().unwrap_or(Path::new(PAGE));
    for path in [Some(page), stated.trace.as_deref(), stated.save_speeds.as_deref()].into_iter().flatten() {
        atomic::check_file_writable(path)?;
    }
    interrupt::listen(Some("stopping after this step"));
    let mut observer = terminal::observer(resolved.quiet || resolved.json, false, "tokens");
    let profiled = training::profile(&resolved.config, steps, &mut InOptions(observer.as_mut()))?;
    // The bar goes before the report comes.
    drop(observer);
    let bounds = Bounds::measured(&profiled)?;
    let report = Report::of(&profiled, &bounds);
    atomic::write_file(page, page::html(&report, &profiled).as_bytes())?;
    if let Some(path) = &stated.trace {
        atomic::write_file(path, trace::json(&profiled.profile).as_bytes())?;
    }
    if let Some(path) = &stated.save_speeds {
        report.save_speeds(path)?;
    }
    if resolved.json {
        return print::out(report.json(page));
    }
    print::text(text::report(&report))?;
    let trace = stated
        .trace
        .map_or(String::new(), |path| format!("trace, for Perfetto or chrome://tracing: {}\n", path.display()));
    print::text(format!("\n{trace}the whole profile, with the memory map: {}\n", page.display()))
}

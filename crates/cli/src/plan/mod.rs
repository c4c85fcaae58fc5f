//! `gradus plan`: what a training run will take, without training and without its memory.

mod map;
mod page;
mod recomputed;
mod report;
mod text;
mod traffic;

use crate::resolve::resolve_for_planning;
use crate::{print, ranks};
use clap::ArgMatches;
use gradus_comm::Link;
use gradus_engine::backend::GpuKind;
use gradus_train::config::{BatchSize, DeviceChoice, TrainConfig};
use gradus_train::files::atomic;
use gradus_train::{Error, Result, device};
pub use map::Map;
pub use page::with_map;
use report::Report;
use std::path::{Path, PathBuf};
use std::time::Duration;
use traffic::Traffic;

/// Where the page is written if nothing else is said.
const PAGE: &str = "plan.html";

/// Plans the run that the options state, prints what comes out and writes the page.
pub fn run(command_line: &ArgMatches) -> Result<()> {
    let planned = resolve_for_planning(command_line)?;
    refuse_gpu_beside_cpu(command_line)?;
    // A file of options states the folder of a run as `out`, not a page: so the command line alone counts.
    let page = command_line.get_one::<PathBuf>("out").map_or(Path::new(PAGE), |path| path);
    let backend = match command_line.get_one::<GpuKind>("gpu") {
        Some(&kind) => device::planned(kind, planned.config.speeds.as_ref()),
        None => device::backend_of(&planned.config)?,
    };
    let link = match (stated_link(command_line), measured_link()?) {
        (_, Measured::ByAnother) => return Ok(()),
        (Some(link), _) | (None, Measured::Here(link)) => Some(link),
        (None, Measured::NoRanks) => None,
    };
    let (mut report, chosen) = Report::of(&planned.config, link, &*backend)?;
    if let Some(link) = link.filter(|_| planned.config.place.ranks > 1) {
        let resolved = TrainConfig { batch: BatchSize::Fixed(report.batch), ..planned.config.clone() };
        report.traffic = Some(Traffic::of(&resolved, link, report.seconds_per_step));
    }
    atomic::write_file(page, page::html(&report, &chosen).as_bytes())?;
    if planned.json {
        return print::out(report.json(page));
    }
    print::text(text::report(&report))?;
    print::text(format!("\nmemory map and curve: {}\n", page.display()))
}

/// The link between ranks, if one is stated.
fn stated_link(command_line: &ArgMatches) -> Option<Link> {
    let megabits = command_line.get_one::<f64>("link")?;
    let latency = command_line.get_one::<f64>("latency").unwrap_or(&0.1);
    Some(Link { latency: Duration::from_secs_f64(latency / 1e3), bytes_per_second: megabits * 1e6 / 8.0 })
}

/// What the ranks of a launcher find their link to be.
enum Measured {
    NoRanks,
    /// The first tells.
    ByAnother,
    Here(Link),
}

/// Measures the link, if a launcher started this process and others.
fn measured_link() -> Result<Measured> {
    if ranks::started().is_none_or(|ranks| ranks < 2) {
        return Ok(Measured::NoRanks);
    }
    let Some(mut transport) = gradus_comm::join()? else { return Ok(Measured::NoRanks) };
    let link = Link::measure(transport.as_mut())?;
    let is_first = transport.rank() == 0;
    gradus_comm::leave()?;
    Ok(link.filter(|_| is_first).map_or(Measured::ByAnother, Measured::Here))
}

/// A file may state the CPU for the run that is asked about; a command line that does contradicts itself.
fn refuse_gpu_beside_cpu(command_line: &ArgMatches) -> Result<()> {
    let is_cpu = command_line.get_one("device") == Some(&DeviceChoice::Cpu);
    if is_cpu && command_line.contains_id("gpu") {
        return Err(Error::Config("--gpu has no effect: --device cpu is planned for; leave one of them out".into()));
    }
    Ok(())
}

//! `gradus bench`: what this machine can do, and what the engine makes of it. Nothing is judged here but time.

mod baseline;
mod entry;
mod kernels;
pub mod limits;
mod machine;
mod overhead;
mod report;
mod selection;
mod steps;
mod vision;

use crate::args::BenchArgs;
use crate::charts::Glyphs;
use crate::{defaults, print};
use baseline::Baseline;
use entry::{Entry, Group, Setting};
use gradus_train::config::DeviceChoice;
use gradus_train::files::atomic;
use gradus_train::{Error, Result, device};
use report::Document;
use std::time::Duration;

/// Measures what the names choose and prints it.
pub fn run(args: &BenchArgs) -> Result<()> {
    let entries = entries();
    let mut chosen = selection::chosen(&entries, &args.names)?;
    if args.list {
        return list(&entries, &chosen);
    }
    let setting = setting(args)?;
    if args.child {
        return measure_as_child(&entries, &args.names, &setting);
    }
    // The limits are quick, and the shares need them.
    for (chosen, entry) in chosen.iter_mut().zip(&entries) {
        *chosen |= entry.group == Group::Limits;
    }
    let chosen: Vec<&Entry> =
        entries.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(entry, _)| entry).collect();
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    if let Some(path) = &args.save {
        atomic::check_file_writable(path)?;
    }
    let document = measure(&chosen, &setting, baseline.as_ref(), args.json)?;
    if let Some(path) = &args.save {
        atomic::write_file(path, json(&document).as_bytes())?;
    }
    if args.json { print::out(json(&document)) } else { Ok(()) }
}

/// Everything that can be measured, in order.
fn entries() -> Vec<Entry> {
    let mut entries = limits::entries();
    entries.extend(kernels::entries());
    entries.push(overhead::entry());
    entries.extend(steps::entries());
    entries
}

fn setting(args: &BenchArgs) -> Result<Setting> {
    let threads = args.threads.unwrap_or_else(defaults::threads);
    let time = args.time.map(|time| Duration::from_secs_f64(time.0));
    Ok(Setting {
        backend: device::backend(DeviceChoice::Cpu, threads)?,
        threads,
        time,
        profile: args.profile,
        is_child: args.child,
    })
}

/// Prints the names of what is chosen.
fn list(entries: &[Entry], chosen: &[bool]) -> Result<()> {
    let mut text = String::new();
    for (entry, _) in entries.iter().zip(chosen).filter(|(_, chosen)| **chosen) {
        text += &format!("{}{}\n", entry.name, if entry.heavy { "  (only if named, or by `all`)" } else { "" });
    }
    print::text(text)
}

/// Measures the one entry that another process asks for, and prints the sample alone.
fn measure_as_child(entries: &[Entry], names: &[String], setting: &Setting) -> Result<()> {
    let entry = entries.iter().find(|entry| names == [&entry.name[..]]);
    let entry = entry.ok_or_else(|| Error::Config("--child takes the whole name of one entry".into()))?;
    let sample = (entry.measure)(setting)?;
    print::out(serde_json::to_string(&sample).expect("a sample is plain data"))
}

/// Measures entries, shows each as soon as it is there, and gives them all.
fn measure(entries: &[&Entry], setting: &Setting, baseline: Option<&Baseline>, quiet: bool) -> Result<Document> {
    let mut document = Document::new(setting.threads);
    let show = |text: String| if quiet { Ok(()) } else { print::text(text) };
    if let Some(caution) = baseline.and_then(|baseline| baseline.caution(&document)) {
        print::note(format!("note: {caution}"));
    }
    show(report::heading(&document))?;
    for (done, entry) in entries.iter().enumerate() {
        show_progress(done, entries.len(), &entry.name);
        let mut result = document.measurement(entry, (entry.measure)(setting)?);
        if let Some(baseline) = baseline {
            baseline.compare(&mut result);
        }
        print::frame(&[]);
        show(report::line(&result))?;
        document.results.push(result);
    }
    if baseline.is_some() {
        show(format!("\n{}\n", baseline::summary(&document)))?;
    }
    Ok(document)
}

/// What is being measured, on a terminal.
fn show_progress(done: usize, all: usize, name: &str) {
    if print::draws() {
        let bar = Glyphs::of_locale().bar(done as f64 / all as f64, 12);
        print::frame(&[format!("{bar} {done}/{all} {name}")]);
    }
}

fn json(document: &Document) -> String {
    serde_json::to_string_pretty(document).expect("a document is plain data") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_has_a_name_of_its_own_under_its_group() {
        let entries = entries();
        let mut names: Vec<&str> = entries.iter().map(|entry| &entry.name[..]).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), entries.len());
        assert!(names.contains(&"steps/124m-256/bf16") && names.contains(&"attention/f32/1024"));
    }

    #[test]
    fn kernels_of_each_kind_run() {
        let setting = Setting {
            backend: device::backend(DeviceChoice::Cpu, 2).unwrap(),
            threads: 2,
            time: Some(Duration::ZERO),
            profile: false,
            is_child: false,
        };
        for name in ["matmul/bf16/128", "layer-norm/backward/8", "attention/f32/256", "overhead/operation"] {
            let entry = entries().into_iter().find(|entry| entry.name == name).unwrap();
            let sample = (entry.measure)(&setting).unwrap();
            assert!(sample.seconds.rounds > 0 && sample.seconds.median >= 0.0, "{name}");
        }
    }
}

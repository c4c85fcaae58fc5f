//! A planned run, as people read it.

use super::recomputed::Recomputed;
use super::report::{CurvePoint, Report};
use crate::numbers::{bytes_to_three_digits as size, count, rounded, short_time};
use crate::table::{bar, line};
use gradus_train::memory::Kind;
use gradus_train::ranks::StepTime;
use std::collections::BTreeMap;

/// The whole report.
pub fn report(report: &Report) -> String {
    let mut text = format!(
        "{} weights, {} sequences of {} tokens a step, {}\n\n",
        rounded(report.parameters as u64),
        report.batch,
        count(report.sequence as u64),
        report.machine
    );
    memory(&mut text, report);
    time(&mut text, report);
    on_link(&mut text, report);
    stages(&mut text, report);
    recomputed(&mut text, &report.recomputed);
    curve(&mut text, report);
    report.traffic.iter().for_each(|traffic| traffic.text(&mut text));
    text
}

fn memory(text: &mut String, report: &Report) {
    let stated = report.budget_bytes.map_or(String::new(), |budget| format!(" of {} stated", size(budget)));
    line(text, format_args!("predicted peak memory: {}{stated}", size(report.peak_bytes)));
    for kind in Kind::ALL {
        let bytes = report.peak_by_kind[&kind];
        line(
            text,
            format_args!("  {:12} {:>9}  {}", kind.name(), size(bytes), bar(bytes as f64, report.peak_bytes as f64)),
        );
    }
    if let Some(others) = report.peak_bytes_of_others {
        line(text, format_args!("predicted of ranks other than the first: {}", size(others)));
    }
    line(text, format_args!("smallest budget that works: {}", size(report.smallest_budget_bytes)));
}

fn time(text: &mut String, report: &Report) {
    line(
        text,
        format_args!(
            "\npredicted step: {}, {} tokens/s, {} of {} sequences at once",
            short_time(report.seconds_per_step),
            rate(report.tokens_per_second),
            report.micro_batch,
            report.batch
        ),
    );
}

/// What a step of several ranks takes, and how much of the exchange shows in it.
fn on_link(text: &mut String, report: &Report) {
    let Some(StepTime { computing, exchanging, step }) = report.on_link else { return };
    let hidden = 100.0 * (1.0 - (step - computing) / exchanging).clamp(0.0, 1.0);
    let [step, computing, exchanging] = [step, computing, exchanging].map(short_time);
    line(
        text,
        format_args!(
            "over the link: {step}, of {computing} computing and {exchanging} exchange, {hidden:.0} % of it hidden"
        ),
    );
}

/// What the stages of a pipeline take, each on a rank of its own.
fn stages(text: &mut String, report: &Report) {
    let Some(bubble) = report.bubble else { return };
    let slowest = report.stages.iter().map(|stage| stage.seconds_per_step).fold(0.0, f64::max);
    line(
        text,
        format_args!(
            "{} stages: a step takes about {}, of which each waits {:.1} % while the pipeline fills and empties",
            report.stages.len(),
            short_time(slowest / (1.0 - bubble)),
            100.0 * bubble
        ),
    );
    for (index, stage) in report.stages.iter().enumerate() {
        let blocks: Vec<usize> = (stage.blocks[0]..stage.blocks[1]).collect();
        let (memory, work) = (size(stage.peak_bytes), short_time(stage.seconds_per_step));
        line(text, format_args!("  stage {index:<3} blocks {:9} {memory:>9}  works {work}", ranges(&blocks)));
    }
}

/// The layers of an operation together: they are much the same.
fn recomputed(text: &mut String, rows: &[Recomputed]) {
    if rows.is_empty() {
        return line(text, format_args!("computed again: nothing"));
    }
    let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
    let bytes: u64 = rows.iter().map(|row| row.bytes).sum();
    line(text, format_args!("computed again, to keep {} less: {} a step", size(bytes), short_time(seconds)));
    line(text, format_args!("  {:24} {:>5}  {:>9}  {:>8}  layers", "operation", "count", "not kept", "adds"));
    let mut by_operation: BTreeMap<&str, Vec<&Recomputed>> = BTreeMap::new();
    rows.iter().for_each(|row| by_operation.entry(&row.operation).or_default().push(row));
    for (operation, rows) in by_operation {
        let (count, bytes): (usize, u64) = (rows.iter().map(|r| r.count).sum(), rows.iter().map(|r| r.bytes).sum());
        let seconds: f64 = rows.iter().map(|row| row.seconds).sum();
        let layers: Vec<usize> = rows.iter().filter_map(|row| row.layer).collect();
        line(
            text,
            format_args!(
                "  {operation:24} {count:>5}  {:>9}  {:>8}  {}",
                size(bytes),
                short_time(seconds),
                ranges(&layers)
            ),
        );
    }
}

/// Rising numbers, those that follow each other joined: 0-3, 5.
fn ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = vec![];
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let texts = ranges.iter().map(|&(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    texts.collect::<Vec<_>>().join(", ")
}

fn curve(text: &mut String, report: &Report) {
    line(text, format_args!("\ntime against memory (* what is planned)"));
    line(text, format_args!("     memory      step   tokens/s  at once  slower than the fastest"));
    let seconds = || report.curve.iter().map(|point| point.seconds_per_step);
    let (fastest, slowest) = (seconds().fold(f64::INFINITY, f64::min), seconds().fold(0.0, f64::max));
    let planned = report.planned();
    for point in &with_planned(report) {
        let slower = (point.seconds_per_step - fastest).max(0.0);
        line(
            text,
            format_args!(
                "{} {:>9} {:>9} {:>10} {:>8}  {:>5.1} %  {}",
                if *point == planned { "*" } else { " " },
                size(point.memory_bytes),
                short_time(point.seconds_per_step),
                rate(point.tokens_per_second),
                point.micro_batch,
                100.0 * slower / fastest,
                bar(slower, slowest - fastest)
            ),
        );
    }
}

/// The curve with what is planned in its place: that need not be on it.
fn with_planned(report: &Report) -> Vec<CurvePoint> {
    let mut points = report.curve.clone();
    points.push(report.planned());
    points.sort_by(|a, b| {
        (a.memory_bytes, a.seconds_per_step)
            .partial_cmp(&(b.memory_bytes, b.seconds_per_step))
            .expect("times are numbers")
    });
    points.dedup();
    points
}

/// Tokens a second.
fn rate(tokens: f64) -> String {
    if tokens < 100.0 { format!("{tokens:.1}") } else { count(tokens as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(ranges(&[0, 1, 2, 3, 5, 7, 8]), "0-3, 5, 7-8");
        assert_eq!(ranges(&[]), "");
    }
}

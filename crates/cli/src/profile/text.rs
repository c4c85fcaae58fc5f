//! A profile, as people read it.

use super::bounds::Bound;
use super::report::{Operation, Part, Report, UNEXPLAINED};
use crate::numbers::{bytes_to_three_digits as size, count, rounded};
use crate::table::{bar, line};
use gradus_train::memory::Kind;

/// Operations and layers that are listed; the page has all of them.
const LISTED: usize = 12;
/// What-ifs that are told.
const WHAT_IFS: usize = 4;
/// Frames of a stack that are told.
const FRAMES: usize = 6;

/// The whole report.
pub fn report(report: &Report) -> String {
    let mut text = String::new();
    line(&mut text, format_args!("{}\n", report.run));
    findings(&mut text, report);
    time(&mut text, report);
    operations(&mut text, report);
    layers(&mut text, report);
    workers(&mut text, report);
    data(&mut text, report);
    allocations(&mut text, report);
    memory(&mut text, report);
    text
}

fn findings(text: &mut String, report: &Report) {
    if report.findings.is_empty() {
        return line(text, format_args!("nothing is wrong: no step waits, allocates or grows\n"));
    }
    report.findings.iter().for_each(|finding| line(text, format_args!("! {}", finding.text)));
    text.push('\n');
}

fn time(text: &mut String, report: &Report) {
    let slower = 100.0 * (report.profiled_step_ms / report.step_ms - 1.0);
    line(
        text,
        format_args!(
            "step: {}, {} tokens/s (median of {} steps; timing them adds {slower:.1} %)",
            milliseconds(report.step_ms),
            count(report.tokens_per_second as u64),
            report.steps
        ),
    );
    for part in &report.parts {
        line(
            text,
            format_args!(
                "  {:10} {:>10} {:>6.1} %  {}",
                part.name,
                milliseconds(part.ms),
                100.0 * part.share,
                bar(part.share, 1.0)
            ),
        );
    }
    let mut parts: Vec<&Part> = report.operations.iter().map(|operation| &operation.part).collect();
    parts.extend(report.parts.iter().filter(|part| part.name == "data"));
    parts.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    for part in parts.iter().take(WHAT_IFS).filter(|part| part.gain_if_twice_as_fast >= 0.01) {
        line(
            text,
            format_args!("  {} twice as fast: step {:.0} % faster", part.name, 100.0 * part.gain_if_twice_as_fast),
        );
    }
}

fn operations(text: &mut String, report: &Report) {
    line(
        text,
        format_args!(
            "\n{:26}{:>6}{:>11}{:>8}  {:>10}{:>10}{:>12}{:>9}{:>11}{:>7}",
            "operation", "count", "time", "", "bound by", "of limit", "GFLOP/s", "GB/s", "predicted", "busy"
        ),
    );
    report.operations.iter().take(LISTED).for_each(|row| operation(text, row));
    further(text, report.operations.iter().skip(LISTED).map(|row| &row.part));
}

fn operation(text: &mut String, row: &Operation) {
    let bound = match row.bound {
        Some(Bound::Arithmetic) => "arithmetic",
        Some(Bound::Memory) => "memory",
        None => "",
    };
    let share = |share: Option<f64>| share.map_or(String::new(), |share| format!("{:.0} %", 100.0 * share));
    line(
        text,
        format_args!(
            "  {:24}{:>6}{:>11}{:>6.1} %  {bound:>10}{:>10}{:>12.1}{:>9.1}{:>11}{:>7}",
            row.part.name,
            row.count,
            milliseconds(row.part.ms),
            100.0 * row.part.share,
            share(row.share_of_limit),
            row.gflop_per_second,
            row.gb_per_second,
            milliseconds(row.predicted_ms),
            share(row.busy_share)
        ),
    );
}

/// The sum of what is not listed.
fn further<'a>(text: &mut String, parts: impl Iterator<Item = &'a Part>) {
    let (count, ms, share) = parts.fold((0, 0.0, 0.0), |sum, part| (sum.0 + 1, sum.1 + part.ms, sum.2 + part.share));
    if count > 0 {
        line(
            text,
            format_args!("  {:24}{:>6}{:>11}{:>6.1} %", format!("{count} others"), "", milliseconds(ms), 100.0 * share),
        );
    }
}

fn layers(text: &mut String, report: &Report) {
    line(
        text,
        format_args!("\n{:26}{:>10}{:>8}{:>11}{:>11}{:>11}", "layer", "time", "", "forward", "backward", "update"),
    );
    for row in report.layers.iter().take(LISTED) {
        line(
            text,
            format_args!(
                "  {:24}{:>10}{:>6.1} %{:>11}{:>11}{:>11}",
                row.part.name,
                milliseconds(row.part.ms),
                100.0 * row.part.share,
                milliseconds(row.forward_ms),
                milliseconds(row.backward_ms),
                milliseconds(row.update_ms)
            ),
        );
    }
    further(text, report.layers.iter().skip(LISTED).map(|row| &row.part));
}

fn workers(text: &mut String, report: &Report) {
    if report.workers.is_empty() {
        return;
    }
    let idle: Vec<String> = report
        .workers
        .iter()
        .map(|worker| format!("{} ({:.1} %)", milliseconds(worker.idle_ms), 100.0 * worker.idle_share))
        .collect();
    line(text, format_args!("\nworkers are idle for: {}", idle.join(", ")));
}

fn data(text: &mut String, report: &Report) {
    if let (Some(fill), Some(rate)) = (report.data.fill_ms, report.data.tokens_per_second) {
        line(
            text,
            format_args!("\ndata: a batch is filled in {}, {} tokens/s", milliseconds(fill), rounded(rate as u64)),
        );
    }
    for stage in &report.data.stages {
        let tokens =
            stage.tokens_per_second.map_or(String::new(), |rate| format!(", {} tokens/s", rounded(rate as u64)));
        line(
            text,
            format_args!(
                "{}: {} in {:.1} s, {}/s{tokens}",
                stage.what,
                size(stage.bytes),
                stage.seconds,
                size(stage.bytes_per_second as u64)
            ),
        );
    }
}

fn allocations(text: &mut String, report: &Report) {
    let Some(allocated) = &report.allocations else {
        return line(text, format_args!("\nallocations in steps: not counted"));
    };
    line(
        text,
        format_args!(
            "\nallocations in {} steps: {} (expected: {})",
            2 * report.steps,
            allocated.total.calls,
            allocated.expected
        ),
    );
    for offender in allocated.found.offenders.iter().take(LISTED) {
        line(
            text,
            format_args!(
                "  {}: {} of those looked at, {}",
                offender.phase.name(),
                offender.seen.calls,
                size(offender.seen.bytes)
            ),
        );
        offender.stack.iter().take(FRAMES).for_each(|frame| line(text, format_args!("      {frame}")));
    }
}

fn memory(text: &mut String, report: &Report) {
    line(
        text,
        format_args!(
            "\nmemory: {} at most while steps were taken ({} predicted)",
            size(report.peak_memory_bytes),
            size(report.predicted_memory_bytes)
        ),
    );
    for kind in Kind::ALL.iter().map(|kind| kind.name()).chain([UNEXPLAINED]) {
        let bytes = report.memory_bytes[kind];
        line(
            text,
            format_args!("  {kind:12} {:>9}  {}", size(bytes), bar(bytes as f64, report.peak_memory_bytes as f64)),
        );
    }
    let mut before = None;
    for point in report.points.iter().filter(|point| point.name != "training") {
        let change = before.map_or(String::new(), |before: u64| {
            let sign = if point.resident < before { "-" } else { "+" };
            format!("{sign}{}", size(point.resident.abs_diff(before)))
        });
        line(text, format_args!("  {:26} {:>9} {change:>10}", format!("at `{}`", point.name), size(point.resident)));
        before = Some(point.resident);
    }
    line(text, format_args!("{}", report.growth));
}

fn milliseconds(ms: f64) -> String {
    match ms {
        ..0.1 => format!("{:.1} µs", 1e3 * ms),
        ..100.0 => format!("{ms:.2} ms"),
        ..10_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

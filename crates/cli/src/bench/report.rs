//! What was measured, as a document for programs and as lines for people.

use super::baseline::Comparison;
use super::entry::{Entry, Group, OperationTime, Sample};
use super::limits;
use super::machine::{Machine, date};
use crate::numbers::{bytes, count};
use gradus_train::profiler::Spread;
use serde::{Deserialize, Serialize};
use std::fmt::Write;

/// Everything that a run of the command measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// The version of this program.
    pub version: String,
    /// When the run began.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// What was found, in order.
    pub results: Vec<Measurement>,
}

impl Document {
    /// A document without results yet.
    pub fn new(threads: usize) -> Document {
        let version = env!("CARGO_PKG_VERSION").to_string();
        Document { version, date: date(), machine: Machine::here(threads), results: vec![] }
    }

    /// The result of this name.
    pub fn result(&self, name: &str) -> Option<&Measurement> {
        self.results.iter().find(|result| result.name == name)
    }

    /// What a sample of an entry means beside the limits measured so far.
    pub fn measurement(&self, entry: &Entry, sample: Sample) -> Measurement {
        let Sample { seconds, peak_memory_bytes, profile } = sample;
        let bound = entry.work.bound.map(|(limit, demand)| (limits::name(limit), demand));
        let share = bound.as_ref().and_then(|(limit, demand)| {
            // The best round: a limit is what the machine can do, not what it did while something else ran.
            let limit_rate = self.result(limit)?.best_rate() * 1e9;
            Some(demand / seconds.median / limit_rate)
        });
        Measurement {
            name: entry.name.clone(),
            group: entry.group,
            seconds,
            rate: entry.work.amount / seconds.median,
            unit: entry.work.unit.to_string(),
            limit: bound.map(|(limit, _)| limit),
            share_of_limit: share,
            peak_memory_bytes,
            profile,
            comparison: None,
        }
    }
}

/// What was found of one entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The entry.
    pub name: String,
    /// Its kind.
    pub group: Group,
    /// The seconds of one run.
    pub seconds: Spread,
    /// How much is done in a second, by the median.
    pub rate: f64,
    /// Of what.
    pub unit: String,
    /// The limit that bounds it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub limit: Option<String>,
    /// How much of that limit it reaches. More than 1 of a limit of memory says that caches helped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub share_of_limit: Option<f64>,
    /// The most memory that its process ever held.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peak_memory_bytes: Option<u64>,
    /// The time by kind of operation.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profile: Vec<OperationTime>,
    /// How it stands beside a saved run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub comparison: Option<Comparison>,
}

impl Measurement {
    /// How much would be done in a second if every round were as short as the best.
    fn best_rate(&self) -> f64 {
        self.rate * self.seconds.median / self.seconds.best
    }
}

/// The lines above the results.
pub fn heading(document: &Document) -> String {
    let Machine { processor, threads, instruction_set, .. } = &document.machine;
    let columns = columns(["", "median", "spread", "rate", "best", "of limit", "memory"]);
    format!("{processor}, {instruction_set}, {threads} thread(s), gradus {}\n\n{columns}\n", document.version)
}

/// A result in one line, and its profile below it.
pub fn line(result: &Measurement) -> String {
    let memory = result.peak_memory_bytes.map_or(String::new(), bytes);
    let share = result.share_of_limit.map_or(String::new(), |share| format!("{:.0} %", share * 100.0));
    let mut text = columns([
        &result.name,
        &seconds(result.seconds.median),
        &format!("± {:.1} %", result.seconds.relative() * 100.0),
        &rate(result.rate, &result.unit),
        rate(result.best_rate(), "").trim_end(),
        &share,
        &memory,
    ]);
    if let Some(comparison) = &result.comparison {
        let _ = write!(text, "  {comparison}");
    }
    let mut text = text.trim_end().to_string() + "\n";
    text.extend(result.profile.iter().map(|row| operation_line(row, result.seconds.median)));
    text
}

fn columns([name, median, spread, rate, best, share, memory]: [&str; 7]) -> String {
    format!("{name:27}{median:>10}{spread:>10}{rate:>25}{best:>11}{share:>10}{memory:>9}")
}

fn operation_line(row: &OperationTime, step_seconds: f64) -> String {
    let OperationTime { operation, count, seconds: time, gflop_per_second, gb_per_second } = row;
    let share = time / step_seconds * 100.0;
    let time = seconds(*time);
    let name = format!("  {operation}");
    format!("{name:34}{count:5} x{time:>11}{share:>6.1} %{gflop_per_second:>9.1} GFLOP/s{gb_per_second:>8.1} GB/s\n")
}

/// A length of time with three or four digits: 1.234 ms.
fn seconds(time: f64) -> String {
    let (number, unit) = match time {
        ..1e-6 => (time * 1e9, "ns"),
        ..1e-3 => (time * 1e6, "us"),
        ..1.0 => (time * 1e3, "ms"),
        _ => (time, "s"),
    };
    format!("{number:.digits$} {unit}", digits = digits(number))
}

fn rate(number: f64, unit: &str) -> String {
    match number {
        1e9.. => format!("{:.2}e9 {unit}", number / 1e9),
        1e3.. => format!("{} {unit}", count(number.round() as u64)),
        _ => format!("{number:.digits$} {unit}", digits = digits(number)),
    }
}

/// Decimals that leave about four digits.
fn digits(number: f64) -> usize {
    match number {
        ..10.0 => 3,
        ..100.0 => 2,
        _ => 1,
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::entry::Work;
    use gradus_kernels::limits::Limit;

    /// A result whose rounds took these seconds.
    pub fn result(name: &str, rounds: [f64; 3]) -> Measurement {
        let entry = entry(name, Work { amount: 3.0, unit: "GB/s", bound: None });
        Document::new(1).measurement(&entry, Sample::timed(Spread::of(rounds.into())))
    }

    fn entry(name: &str, work: Work) -> Entry {
        let measure = Box::new(|_: &_| unreachable!("nothing is measured here"));
        Entry { name: name.into(), group: Group::Kernels, heavy: false, work, measure }
    }

    #[test]
    fn shares_are_of_the_measured_limit() {
        let mut document = Document::new(2);
        document.results.push(Measurement { rate: 40.0, ..result(&limits::name(Limit::Update), [1.0; 3]) });
        let sample = Sample::timed(Spread::of(vec![0.5]));
        let bounded = document.measurement(&entry("x", Work::bytes(10e9, Limit::Update)), sample.clone());
        assert_eq!((bounded.rate, bounded.share_of_limit), (20.0, Some(0.5)));
        assert_eq!(bounded.limit.as_deref(), Some("limits/update"));
        let unknown = document.measurement(&entry("x", Work::bytes(10e9, Limit::Read)), sample);
        assert_eq!(unknown.share_of_limit, None);
    }

    #[test]
    fn a_document_survives_json() {
        let mut document = Document::new(2);
        document.results.push(Measurement {
            share_of_limit: Some(0.25),
            peak_memory_bytes: Some(1 << 30),
            profile: vec![OperationTime {
                operation: "matmul".into(),
                count: 3,
                seconds: 0.25,
                gflop_per_second: 200.0,
                gb_per_second: 10.0,
            }],
            ..result("steps/reference/f32", [1.0, 1.5, 2.0])
        });
        let text = serde_json::to_string(&document).unwrap();
        assert!(text.contains("\"group\":\"kernels\"") && text.contains("\"median\":1.5"), "{text}");
        assert_eq!(serde_json::from_str::<Document>(&text).unwrap(), document);
    }

    #[test]
    fn a_result_is_told_in_one_line() {
        let plain = line(&Measurement { share_of_limit: Some(0.951), ..result("matmul/f32/512", [1.2e-3; 3]) });
        let words: Vec<&str> = plain.split_whitespace().collect();
        assert_eq!(words, ["matmul/f32/512", "1.200", "ms", "±", "0.0", "%", "2,500", "GB/s", "2,500", "95", "%"]);
        assert_eq!(plain.lines().count(), 1);
    }

    #[test]
    fn times_and_rates_have_few_digits() {
        assert_eq!(
            (seconds(3.6e-8), seconds(12.345), seconds(0.25)),
            ("36.00 ns".into(), "12.35 s".into(), "250.0 ms".into())
        );
        assert_eq!(rate(3.58e9, "parameters/s"), "3.58e9 parameters/s");
        assert_eq!(rate(218.04, "GFLOP/s"), "218.0 GFLOP/s");
    }
}

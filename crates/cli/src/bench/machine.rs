//! Where and when something was measured.

use gradus_kernels::Isa;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, as far as it says what it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name.
    pub processor: String,
    /// Cores that the process may use.
    pub cores: usize,
    /// Threads that were used.
    pub threads: usize,
    /// The best instruction set.
    pub instruction_set: String,
    /// Operating system and architecture.
    pub system: String,
}

impl Machine {
    /// This machine, used with so many threads.
    pub fn here(threads: usize) -> Machine {
        Machine {
            processor: processor().unwrap_or_else(|| "unknown processor".into()),
            cores: crate::defaults::threads(),
            threads,
            instruction_set: Isa::detect().to_string(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }
}

fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// The time now in UTC, as in 2026-11-15T13:09:33Z.
pub fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date_of(seconds)
}

/// The date of a number of seconds since 1970.
fn date_of(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let mut month = 0;
    while days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", month + 1, days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

/// The days of a month, counted from 0.
fn days_of_month(year: u64, month: usize) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        month => [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31][month],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date_of(0), "1970-01-01T00:00:00Z");
        assert_eq!(date_of(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date_of(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date_of(1_794_748_173), "2026-11-15T13:09:33Z");
        assert!(date() > date_of(1_700_000_000));
    }
}

//! What a process may hold, and what is said when that is too little.

use super::{Budget, ProcessMemory, Size, available_memory};

/// Where no budget is stated, the rest of what is free is left to others.
const SHARE_TAKEN: f64 = 0.9;
/// What it takes to find out what a small run needs.
const TO_REFUSE: u64 = 1_000_000;
/// How much what a process needs, and what it holds before that is known, differ from run to run: of the latter, 12.5 to 13.7 MB were seen of
/// one program within minutes, by what of its file the system had mapped.
const FROM_RUN_TO_RUN: [u64; 2] = [700_000, 1_500_000];

/// Bytes that the process may have resident in all. To be found once, when a command begins: what is free changes.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    stated: Option<Budget>,
    /// The bytes.
    pub bytes: u64,
    /// The least that can be kept: what was resident before anything was known, and what it takes to refuse.
    pub(super) least: u64,
}

impl Limit {
    /// What is stated, but never more than the machine, and the groups that the process is in, can give it.
    pub fn of(stated: Option<Budget>) -> Limit {
        // What comes from files is counted for whoever read it first, so it may be no part of what the groups count;
        // here it is, and so the process's own part of their sum is only what comes from none.
        let (held, free) = (ProcessMemory::read().anonymous, available_memory());
        let bytes = match stated {
            Some(budget) => budget.bytes().min(held.saturating_add(free)),
            None => held.saturating_add((SHARE_TAKEN * free as f64) as u64),
        };
        Limit { stated, bytes, least: ProcessMemory::read().peak + TO_REFUSE }
    }

    /// As [`Limit::of`], on a device that has so many bytes to give.
    pub fn of_device(stated: Option<Budget>, available: u64) -> Limit {
        let bytes = match stated {
            Some(budget) => budget.of(available).min(available),
            None => (SHARE_TAKEN * available as f64) as u64,
        };
        Limit { stated, bytes, least: 0 }
    }

    /// What is stated, whatever the machine has.
    pub fn of_any_machine(stated: Option<Budget>) -> Limit {
        Limit { stated, bytes: stated.map_or(u64::MAX, Budget::bytes), least: 0 }
    }

    /// Whether a process that needs so many bytes keeps it.
    pub fn fits(&self, needed: u64) -> bool {
        self.bytes >= needed.max(self.least)
    }

    /// The smallest that works for a process that needs so many bytes, as `--memory` takes it.
    pub fn smallest(&self, needed: u64) -> String {
        let [needs, holds] = FROM_RUN_TO_RUN;
        rounded_up(needed.saturating_add(needs).max(self.least + holds))
    }

    /// Whether a budget was stated.
    pub fn is_stated(&self) -> bool {
        self.stated.is_some()
    }

    /// The budget, if that is the limit, rather than what the machine has.
    fn kept(&self) -> Option<Budget> {
        self.stated.filter(|stated| !matches!(stated, Budget::Bytes(size) if size.0 > self.bytes))
    }

    /// That it is too little.
    pub fn not_enough(&self) -> String {
        match self.kept() {
            Some(Budget::Bytes(size)) => format!("`settings.memory` {size} is not enough"),
            Some(Budget::Share(share)) => {
                format!("`settings.memory` {}% ({}) is not enough", share * 100.0, Size(self.bytes))
            }
            None => format!("the machine has {} to give, which is not enough", Size(self.bytes)),
        }
    }

    /// What to state instead, if something was and the machine may have more.
    pub fn advice(&self, smallest: &str) -> String {
        self.kept().map_or(String::new(), |_| format!(", so give `settings.memory` {smallest}"))
    }
}

/// Bytes as `--memory` takes them, never fewer than there are.
fn rounded_up(bytes: u64) -> String {
    match bytes {
        ..1_000_000 => format!("{}KB", bytes.div_ceil(1_000)),
        1_000_000..10_000_000_000 => format!("{:.1}MB", bytes.div_ceil(100_000) as f64 / 10.0),
        _ => format!("{:.2}GB", bytes.div_ceil(10_000_000) as f64 / 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_what_is_stated_or_what_there_is() {
        let there_is = Limit::of(None);
        assert!(there_is.bytes > 1 << 20 && there_is.not_enough().starts_with("the machine has"));
        let small = Limit::of(Some(Budget::Bytes(Size(50_000_000))));
        assert_eq!(
            (small.bytes, small.not_enough()),
            (50_000_000, "`settings.memory` 50.0 MB is not enough".to_string())
        );
        assert_eq!(small.advice("60.0MB"), ", so give `settings.memory` 60.0MB");
        let beyond = Limit::of(Some(Budget::Bytes(Size(1 << 59))));
        assert!(beyond.bytes < 1 << 59 && beyond.not_enough().starts_with("the machine has"));
        assert_eq!(beyond.advice("60.0MB"), "", "stating more would not help");
        assert_eq!(Limit::of_any_machine(Some(Budget::Bytes(Size(1 << 59)))).bytes, 1 << 59);
    }

    #[test]
    fn no_figure_is_smaller_than_what_it_stands_for() {
        for bytes in [999, 999_999, 1_000_001, 12_345_678, 9_999_999_999, 123_456_789_012] {
            let stated = rounded_up(bytes).parse::<Size>().unwrap().0;
            assert!((bytes..=bytes + bytes / 10 + 1000).contains(&stated), "{bytes} as {stated}");
        }
    }
}

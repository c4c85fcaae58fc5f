//! What is shown first of a long run: some of its lines, by where they stand in the file. Memory is the same for any length.

use serde::Deserialize;
use serde::de::IgnoredAny;

/// Stretches of as many lines each that the file is seen as; with more lines, each takes twice as many.
const STRETCHES_MAX: usize = 512;
/// Bytes of all lines that are kept, which a page must hold.
const BYTES_MAX: u64 = 4 << 20;

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Line {
    /// Where it begins.
    pub offset: u64,
    /// Its bytes, without the end of the line.
    pub length: u32,
    loss: f32,
    /// Seconds of all steps up to this one.
    pub seconds: f64,
    /// Whether it is kept for its loss alone: no line like others, and no part of a mean.
    pub is_extreme: bool,
}

/// What is looked at of a line.
#[derive(Deserialize)]
pub struct Facts {
    loss: Option<f32>,
    /// Milliseconds of the step.
    pub step_ms: Option<f64>,
    /// Loss on held-out text, which few lines have.
    pub validation_loss: Option<f64>,
    /// The sharpness of the loss, which few lines have too.
    pub sharpness: Option<f64>,
    gradients: Option<IgnoredAny>,
    alerts: Option<Vec<IgnoredAny>>,
}

impl Facts {
    /// A line with these facts.
    pub fn at(&self, offset: u64, length: u32, seconds: f64) -> Line {
        Line { offset, length, loss: self.loss.unwrap_or(f32::NAN), seconds, is_extreme: false }
    }

    /// Whether it has figures of gradients, and how many alerts it has.
    pub fn health(&self) -> (bool, usize) {
        (self.gradients.is_some(), self.alerts.as_ref().map_or(0, Vec::len))
    }

    /// Whether it is one of all lines, and of those that have what few have.
    fn kinds(&self) -> [bool; 5] {
        let [validation, sharpness] = [self.validation_loss, self.sharpness].map(|figure| figure.is_some());
        [true, validation, sharpness, self.gradients.is_some(), self.alerts.is_some()]
    }
}

/// What is kept of neighbouring lines: those of the lowest and the highest loss, and the last one of each kind.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    lowest: Option<Line>,
    highest: Option<Line>,
    last: [Option<Line>; 5],
}

impl Stretch {
    fn of(line: Line, kinds: [bool; 5]) -> Stretch {
        let extreme = Some(line).filter(|line| !line.loss.is_nan());
        Stretch { lowest: extreme, highest: extreme, last: kinds.map(|is_one| is_one.then_some(line)) }
    }

    /// Both as one.
    fn joined(self, later: Stretch) -> Stretch {
        let better = |a: Option<Line>, b: Option<Line>, is_better: fn(f32, f32) -> bool| match (a, b) {
            (Some(a), Some(b)) => Some(if is_better(b.loss, a.loss) { b } else { a }),
            (a, b) => a.or(b),
        };
        Stretch {
            lowest: better(self.lowest, later.lowest, |a, b| a < b),
            highest: better(self.highest, later.highest, |a, b| a > b),
            last: std::array::from_fn(|kind| later.last[kind].or(self.last[kind])),
        }
    }

    /// Its lines, each once, in their order.
    fn lines(&self) -> impl Iterator<Item = Line> + use<> {
        let extremes = [self.lowest, self.highest].map(|line| line.map(|line| Line { is_extreme: true, ..line }));
        let [all, validated, sharpness, gradients, alerts] = self.last;
        let mut lines = [all, validated, sharpness, gradients, alerts, extremes[0], extremes[1]];
        let offset = |line: &Option<Line>| line.map_or(u64::MAX, |line| line.offset);
        // Stable: of two that are the same, the one that is not there for its loss comes first.
        lines.sort_by_key(offset);
        let is_repeated = move |index: usize| index > 0 && offset(&lines[index - 1]) == offset(&lines[index]);
        (0..lines.len()).filter(move |index| !is_repeated(*index)).filter_map(move |index| lines[index])
    }
}

/// The lines that are kept of a file.
#[derive(Debug, Default)]
pub struct History {
    stretches: Vec<Stretch>,
    /// Lines of the last stretch, and of every full one as a power of two.
    in_last: u64,
    doublings: u32,
}

impl History {
    /// Sees the next line.
    pub fn add(&mut self, line: Line, facts: &Facts) {
        let stretch = Stretch::of(line, facts.kinds());
        match self.stretches.last_mut() {
            Some(last) if self.in_last < 1 << self.doublings => {
                *last = last.joined(stretch);
                self.in_last += 1;
            }
            _ => {
                if self.stretches.len() == STRETCHES_MAX || self.bytes() > BYTES_MAX {
                    self.halve();
                }
                self.stretches.push(stretch);
                self.in_last = 1;
            }
        }
    }

    /// Joins stretches two by two. A last one without another is as good as full: it stays shorter than the rest.
    fn halve(&mut self) {
        let joined = self.stretches.chunks(2).map(|pair| pair.iter().copied().reduce(Stretch::joined).expect("a pair"));
        self.stretches = joined.collect();
        self.doublings += 1;
    }

    fn bytes(&self) -> u64 {
        self.stretches.iter().flat_map(Stretch::lines).map(|line| u64::from(line.length)).sum()
    }

    /// The lines that are kept, in their order.
    pub fn lines(&self) -> Vec<Line> {
        self.stretches.iter().flat_map(Stretch::lines).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A history of so many lines, 100 bytes each, with this loss.
    fn history(count: u64, length: u32, text: impl Fn(u64) -> String) -> History {
        let mut history = History::default();
        for number in 0..count {
            let facts: Facts = serde_json::from_str(&text(number)).unwrap();
            history.add(facts.at(number * u64::from(length + 1), length, number as f64), &facts);
        }
        history
    }

    fn numbers(history: &History, length: u32) -> Vec<u64> {
        history.lines().iter().map(|line| line.offset / u64::from(length + 1)).collect()
    }

    #[test]
    fn a_short_file_is_kept_whole() {
        let all = history(STRETCHES_MAX as u64, 100, |number| format!("{{\"loss\": {number}}}"));
        assert_eq!(numbers(&all, 100), (0..STRETCHES_MAX as u64).collect::<Vec<_>>());
        assert!(all.lines().iter().all(|line| !line.is_extreme), "none is left out of a mean");
    }

    #[test]
    fn a_long_file_is_kept_by_its_extremes_and_what_few_lines_have() {
        let line = |number: u64| match number {
            12_345 => "{\"loss\": 900.0}".to_string(),
            54_321 => "{\"loss\": -900.0}".into(),
            70_000 => "{\"loss\": null, \"alerts\": [\"not finite\"]}".into(),
            _ if number % 10_000 == 5 => "{\"loss\": 2.0, \"validation_loss\": 1.5}".into(),
            _ => format!("{{\"loss\": {}}}", 1.0 + (number * 7 % 13) as f64 / 13.0),
        };
        let long = history(100_000, 100, line);
        let kept = numbers(&long, 100);
        assert!(kept.len() <= 6 * STRETCHES_MAX && kept.len() > STRETCHES_MAX, "{}", kept.len());
        assert!(kept.windows(2).all(|pair| pair[0] < pair[1]), "in order, each once");
        for number in [12_345, 54_321, 70_000, 99_999, 5, 10_005, 90_005] {
            let index = kept.iter().position(|kept| *kept == number).unwrap_or_else(|| panic!("{number}"));
            assert_eq!(long.lines()[index].is_extreme, [12_345, 54_321].contains(&number), "{number}");
        }
    }

    #[test]
    fn wide_lines_are_fewer() {
        let wide = history(20_000, 40_000, |number| format!("{{\"loss\": {number}, \"gradients\": {{}}}}"));
        let bytes: u64 = wide.lines().iter().map(|line| u64::from(line.length)).sum();
        assert!(bytes <= 2 * BYTES_MAX && bytes > BYTES_MAX / 4, "{bytes}");
    }
}

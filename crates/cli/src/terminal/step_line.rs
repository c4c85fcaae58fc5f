//! A step in one line, as wide as the terminal is.

use crate::numbers::{bytes, count, duration};
use gradus_train::run::StepReport;

/// What is told of a step, copied from its report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepFigures {
    /// Which step.
    pub step: u64,
    /// Of how many, where known.
    pub steps: Option<u64>,
    loss: f32,
    tokens_per_second: f64,
    step_ms: f64,
    /// Bytes of memory the process has.
    pub memory_bytes: u64,
    /// Seconds until the run ends, where known.
    pub seconds_left: Option<f64>,
}

impl From<&StepReport> for StepFigures {
    fn from(report: &StepReport) -> StepFigures {
        StepFigures {
            step: report.step,
            steps: report.steps,
            loss: report.loss,
            tokens_per_second: report.tokens_per_second,
            step_ms: report.step_ms,
            memory_bytes: report.memory_bytes,
            seconds_left: report.seconds_left,
        }
    }
}

/// How much of the pace of earlier steps is kept: single steps come and go too unevenly to be read.
const KEPT: f64 = 0.9;

/// How fast steps were lately.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Milliseconds of a step.
    step_ms: Option<f64>,
}

impl Pace {
    /// Takes note of a step, shown or not.
    pub fn see(&mut self, figures: &StepFigures) {
        let step_ms = self.step_ms.map_or(figures.step_ms, |before| KEPT * before + (1.0 - KEPT) * figures.step_ms);
        self.step_ms = Some(step_ms);
    }
}

impl StepFigures {
    /// The line, with the memory or without. What does not fit into the columns is left out: memory first, then the speed,
    /// then the loss; which step it is and when the run ends stay.
    pub fn text(&self, pace: Pace, unit: &str, has_memory: bool, columns: Option<usize>) -> String {
        let steps = self.steps.map_or(String::new(), |steps| format!("/{steps}"));
        let step_ms = pace.step_ms.unwrap_or(self.step_ms).max(f64::MIN_POSITIVE);
        let rate = self.tokens_per_second * self.step_ms / step_ms;
        let mut parts = vec![
            format!("step {}{steps}", self.step),
            format!("loss {:.4}", self.loss),
            format!("{} {unit}/s", count(rate as u64)),
        ];
        parts.extend(has_memory.then(|| bytes(self.memory_bytes)));
        let left = self.seconds_left.map(|seconds| format!("{} left", duration(seconds)));
        let joined = |parts: &[String]| parts.iter().chain(&left).map(|part| &part[..]).collect::<Vec<_>>().join("  ");
        while parts.len() > 1 && columns.is_some_and(|columns| joined(&parts).len() > columns) {
            parts.pop();
        }
        joined(&parts)
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn figures() -> StepFigures {
        StepFigures {
            step: 1200,
            steps: Some(2000),
            loss: 2.5,
            tokens_per_second: 12_345.6,
            step_ms: 8.0,
            memory_bytes: 85_000_000,
            seconds_left: Some(65.0),
        }
    }

    #[test]
    fn a_step_is_told_in_one_line() {
        let whole = "step 1200/2000  loss 2.5000  12,345 tokens/s  85 MB  1m05s left";
        assert_eq!(figures().text(Pace::default(), "tokens", true, None), whole);
        let open = StepFigures { steps: None, seconds_left: None, ..figures() };
        assert_eq!(open.text(Pace::default(), "tokens", true, None), "step 1200  loss 2.5000  12,345 tokens/s  85 MB");
    }

    #[test]
    fn the_time_left_stays_however_narrow_the_terminal() {
        for (columns, told) in [
            (63, "step 1200/2000  loss 2.5000  12,345 tokens/s  85 MB  1m05s left"),
            (62, "step 1200/2000  loss 2.5000  12,345 tokens/s  1m05s left"),
            (40, "step 1200/2000  loss 2.5000  1m05s left"),
            (38, "step 1200/2000  1m05s left"),
            (5, "step 1200/2000  1m05s left"),
        ] {
            assert_eq!(figures().text(Pace::default(), "tokens", true, Some(columns)), told, "{columns} columns");
        }
    }

    #[test]
    fn the_speed_is_that_of_the_last_steps_together() {
        let mut pace = Pace::default();
        let step = |step_ms: f64| StepFigures { step_ms, tokens_per_second: 80_000.0 / step_ms, ..figures() };
        pace.see(&step(8.0));
        assert!(step(8.0).text(pace, "tokens", false, None).contains("  10,000 tokens/s"));
        pace.see(&step(16.0));
        let slow = step(16.0).text(pace, "tokens", false, None);
        assert!(slow.contains("  9,090 tokens/s"), "one slow step: {slow}");
    }
}

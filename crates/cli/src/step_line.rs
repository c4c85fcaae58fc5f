//! A step in one line, as wide as the terminal is.

use crate::numbers::{bytes, count, duration};
use gradus_train::run::StepReport;

/// How much of the pace of earlier steps is kept: single steps come and go too unevenly to be read.
const KEPT: f64 = 0.9;

/// What is told of a step, and how fast steps were lately.
#[derive(Default)]
pub struct StepLine {
    /// Milliseconds of a step, lately.
    pace: Option<f64>,
}

impl StepLine {
    /// Takes note of a step, shown or not.
    pub fn see(&mut self, report: &StepReport) {
        let pace = self.pace.map_or(report.step_ms, |pace| KEPT * pace + (1.0 - KEPT) * report.step_ms);
        self.pace = Some(pace);
    }

    /// The line. What does not fit into the columns is left out: memory first, then the speed, then the loss; which step
    /// it is and when the run ends stay.
    pub fn text(&self, report: &StepReport, columns: Option<usize>) -> String {
        let steps = report.steps.map_or(String::new(), |steps| format!("/{steps}"));
        let pace = self.pace.unwrap_or(report.step_ms).max(f64::MIN_POSITIVE);
        let rate = report.tokens_per_second * report.step_ms / pace;
        let mut parts = vec![
            format!("step {}{steps}", report.step),
            format!("loss {:.4}", report.loss),
            format!("{} tokens/s", count(rate as u64)),
            bytes(report.memory_bytes),
        ];
        let left = report.seconds_left.map(|seconds| format!("{} left", duration(seconds)));
        let joined = |parts: &[String]| parts.iter().chain(&left).map(|part| &part[..]).collect::<Vec<_>>().join("  ");
        while parts.len() > 1 && columns.is_some_and(|columns| joined(&parts).len() > columns) {
            parts.pop();
        }
        joined(&parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> StepReport {
        StepReport {
            step: 1200,
            steps: Some(2000),
            tokens: 700,
            loss: 2.5,
            validation_loss: None,
            gradient_norm: 1.0,
            learning_rate: 0.001,
            loss_scale: None,
            skipped_steps: None,
            tokens_per_second: 12_345.6,
            step_ms: 8.0,
            memory_bytes: 85_000_000,
            peak_memory_bytes: 90_000_000,
            account: None,
            verdict: None,
            alerts: vec![],
            health: None,
            seconds_left: Some(65.0),
        }
    }

    #[test]
    fn a_step_is_told_in_one_line() {
        let line = StepLine::default();
        let whole = "step 1200/2000  loss 2.5000  12,345 tokens/s  85 MB  1m05s left";
        assert_eq!(line.text(&report(), None), whole);
        let open = StepReport { steps: None, seconds_left: None, ..report() };
        assert_eq!(line.text(&open, None), "step 1200  loss 2.5000  12,345 tokens/s  85 MB");
    }

    #[test]
    fn the_time_left_stays_however_narrow_the_terminal() {
        let line = StepLine::default();
        for (columns, told) in [
            (63, "step 1200/2000  loss 2.5000  12,345 tokens/s  85 MB  1m05s left"),
            (62, "step 1200/2000  loss 2.5000  12,345 tokens/s  1m05s left"),
            (40, "step 1200/2000  loss 2.5000  1m05s left"),
            (38, "step 1200/2000  1m05s left"),
            (5, "step 1200/2000  1m05s left"),
        ] {
            assert_eq!(line.text(&report(), Some(columns)), told, "{columns} columns");
        }
    }

    #[test]
    fn the_speed_is_that_of_the_last_steps_together() {
        let mut line = StepLine::default();
        let step = |step_ms: f64| StepReport { step_ms, tokens_per_second: 80_000.0 / step_ms, ..report() };
        line.see(&step(8.0));
        assert!(line.text(&step(8.0), None).contains("  10,000 tokens/s"));
        line.see(&step(16.0));
        assert!(
            line.text(&step(16.0), None).contains("  9,090 tokens/s"),
            "one slow step: {}",
            line.text(&step(16.0), None)
        );
        (0..100).for_each(|_| line.see(&step(16.0)));
        assert!(line.text(&step(16.0), None).contains("  5,000 tokens/s"));
    }
}

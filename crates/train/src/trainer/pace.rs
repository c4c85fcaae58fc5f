//! How long the parts of a run take, and so what is left of it.

/// Share of what was known that a new measurement leaves.
const KEPT: f64 = 0.9;
/// A pass forward beside a whole step, as long as none was measured.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// Seconds that something takes, lately.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lately(Option<f64>);

impl Lately {
    pub fn see(&mut self, seconds: f64) {
        self.0 = Some(self.0.map_or(seconds, |before| KEPT * before + (1.0 - KEPT) * seconds));
    }

    fn or(self, otherwise: f64) -> f64 {
        self.0.unwrap_or(otherwise)
    }
}

/// Seconds of each part of a run, learned as it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    pub step: Lately,
    /// A batch of held-out data.
    pub validation_batch: Lately,
    pub sample: Lately,
    pub save: Lately,
}

/// How much of each part is to come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    pub steps: u64,
    pub validation_batches: u64,
    pub samples: u64,
    pub saves: u64,
}

impl Pace {
    pub fn seconds(&self, work: Work) -> f64 {
        let step = self.step.or(0.0);
        work.steps as f64 * step
            + work.validation_batches as f64 * self.validation_batch.or(FORWARD_SHARE * step)
            + work.samples as f64 * self.sample.or(0.0)
            + work.saves as f64 * self.save.or(0.0)
    }
}

/// How often something that happens every so many steps happens after step `step` and before the last, `steps`.
pub(super) fn times(every: u64, step: u64, steps: u64) -> u64 {
    let until = |last: u64| last.checked_div(every).unwrap_or(0);
    until(steps.saturating_sub(1)).saturating_sub(until(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_counts_all_that_a_run_does() {
        let mut pace = Pace::default();
        let work = Work { steps: 10, validation_batches: 30, samples: 2, saves: 3 };
        assert_eq!(pace.seconds(work), 0.0);
        pace.step.see(2.0);
        assert!((pace.seconds(work) - (20.0 + 20.0)).abs() < 1e-9, "a validation is reckoned from the steps");
        pace.validation_batch.see(0.5);
        pace.sample.see(4.0);
        pace.save.see(7.0);
        assert!((pace.seconds(work) - (20.0 + 15.0 + 8.0 + 21.0)).abs() < 1e-9);
        pace.step.see(4.0);
        assert!((pace.seconds(work) - (22.0 + 15.0 + 8.0 + 21.0)).abs() < 1e-9, "lately");
    }

    #[test]
    fn what_happens_now_and_then_is_counted_up_to_the_end() {
        assert_eq!(times(0, 0, 100), 0);
        assert_eq!([times(10, 0, 100), times(10, 9, 100), times(10, 10, 100), times(10, 95, 100)], [9, 9, 8, 0]);
        assert_eq!((times(7, 100, 100), times(1, 98, 100)), (0, 1));
    }
}

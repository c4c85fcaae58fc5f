//! The learning rate over a run.

use crate::config::ScheduleKind;

/// How the learning rate rises and falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// How it falls.
    pub kind: ScheduleKind,
    /// The highest learning rate.
    pub highest: f64,
    /// The lowest, at the end.
    pub lowest: f64,
    /// Steps of the rise.
    pub warmup_steps: u64,
}

/// The share of a run after which the `wsd` schedule begins to fall.
const WSD_STABLE_SHARE: f64 = 0.8;

impl Schedule {
    /// The learning rate of a step (counted from 0) in a run of which `share` (0 to 1) is done.
    ///
    /// For a run stated in steps, `share` is [`Schedule::share`]; for one stated in time it is the time's.
    pub fn learning_rate(&self, step: u64, share: f64) -> f64 {
        if step < self.warmup_steps {
            return self.highest * (step + 1) as f64 / (self.warmup_steps + 1) as f64;
        }
        let share = share.clamp(0.0, 1.0);
        let fallen = match self.kind {
            ScheduleKind::Constant => 0.0,
            ScheduleKind::Linear => share,
            ScheduleKind::Cosine => 0.5 - 0.5 * (std::f64::consts::PI * share).cos(),
            ScheduleKind::Wsd => ((share - WSD_STABLE_SHARE) / (1.0 - WSD_STABLE_SHARE)).max(0.0),
        };
        self.highest + (self.lowest - self.highest) * fallen
    }

    /// How much of the fall of a run of `steps` steps is done at a step.
    pub fn share(&self, step: u64, steps: u64) -> f64 {
        let falling = steps.saturating_sub(self.warmup_steps).max(1);
        step.saturating_sub(self.warmup_steps) as f64 / falling as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(kind: ScheduleKind, step: u64) -> f64 {
        let schedule = Schedule { kind, highest: 1.0, lowest: 0.1, warmup_steps: 10 };
        schedule.learning_rate(step, schedule.share(step, 110))
    }

    #[test]
    fn it_rises_then_falls_as_stated() {
        for kind in [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Constant, ScheduleKind::Wsd] {
            assert!(rate(kind, 0) > 0.0 && rate(kind, 5) > rate(kind, 4), "{kind:?} rises");
            assert!((rate(kind, 10) - 1.0).abs() < 1e-12, "{kind:?} reaches its height");
            let end = if kind == ScheduleKind::Constant { 1.0 } else { 0.1 };
            assert!((rate(kind, 110) - end).abs() < 1e-12, "{kind:?} ends at {end}");
            for step in 10..110 {
                assert!(rate(kind, step + 1) <= rate(kind, step), "{kind:?} never rises again");
            }
        }
        assert!((rate(ScheduleKind::Cosine, 60) - 0.55).abs() < 1e-12, "half way");
        assert!((rate(ScheduleKind::Linear, 60) - 0.55).abs() < 1e-12, "half way");
        assert_eq!(rate(ScheduleKind::Wsd, 80), 1.0, "stable for most of the run");
    }
}

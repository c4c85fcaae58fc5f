//! The learning rate over a run.
//!
//! It rises over the warm-up and then falls once. How long the decay takes is a choice of its own: a run that is resumed
//! with more steps does not change it, and the rate stays at the lowest after it. A decay that is given another end, or
//! another form, while the run is under way begins anew where it stands: from the present rate to the lowest over what
//! is left, so that the rate never jumps up unless a higher one is asked for.

use crate::config::ScheduleKind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The length of a run, or the end of a decay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// So many steps.
    Steps(u64),
    /// So many seconds of training.
    Seconds(f64),
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Length::Steps(steps) => write!(f, "step {steps}"),
            Length::Seconds(seconds) => write!(f, "{seconds:.0} s of training"),
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Elapsed {
    /// Steps taken.
    pub step: u64,
    /// Seconds of training.
    pub seconds: f64,
}

impl Elapsed {
    /// How far it is in the measure of a length.
    fn along(self, length: Length) -> f64 {
        match length {
            Length::Steps(_) => self.step as f64,
            Length::Seconds(_) => self.seconds,
        }
    }
}

/// A decay of the learning rate. Part of a checkpoint, so that a resumed run goes on with it or sees that another is
/// asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decay {
    /// Its form.
    pub kind: ScheduleKind,
    /// Its end.
    pub until: Length,
    /// The highest learning rate that was stated when it began.
    pub highest: f64,
    /// Where it began.
    from: Elapsed,
    /// How high it began: 1 at the highest rate, 0 at the lowest.
    height: f64,
}

/// The share of a decay after which the `wsd` schedule begins to fall.
const WSD_STABLE_SHARE: f64 = 0.8;

impl Decay {
    /// The decay of a run that begins.
    pub fn new(kind: ScheduleKind, until: Length, highest: f64, warmup_steps: u64) -> Decay {
        Decay { kind, until, highest, from: Elapsed { step: warmup_steps, seconds: 0.0 }, height: 1.0 }
    }

    /// The decay of a run that goes on from a place: the same one, unless its form or its end changes. With another
    /// learning rate as well as another end it begins at that rate.
    pub fn resumed(self, wanted: Decay, at: Elapsed) -> Decay {
        if (self.kind, self.until) == (wanted.kind, wanted.until) {
            return self;
        }
        let from = Elapsed { step: at.step.max(wanted.from.step), ..at };
        let is_anew = self.until != wanted.until && self.highest != wanted.highest;
        Decay { from, height: if is_anew { 1.0 } else { self.height(from) }, ..wanted }
    }

    fn height(&self, at: Elapsed) -> f64 {
        let end = match self.until {
            Length::Steps(steps) => steps as f64,
            Length::Seconds(seconds) => seconds,
        };
        let (from, now) = (self.from.along(self.until), at.along(self.until));
        let left = match self.until {
            Length::Steps(_) => (end - from).max(1.0),
            Length::Seconds(_) => (end - from).max(f64::MIN_POSITIVE),
        };
        let share = ((now - from).max(0.0) / left).min(1.0);
        let decayed = match self.kind {
            ScheduleKind::Constant => 0.0,
            ScheduleKind::Linear => share,
            ScheduleKind::Cosine => 0.5 - 0.5 * (std::f64::consts::PI * share).cos(),
            ScheduleKind::Wsd => ((share - WSD_STABLE_SHARE) / (1.0 - WSD_STABLE_SHARE)).max(0.0),
        };
        self.height * (1.0 - decayed)
    }
}

/// How the learning rate rises and decays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest learning rate.
    pub highest: f64,
    /// The lowest, at the end.
    pub lowest: f64,
    /// Steps of the rise.
    pub warmup_steps: u64,
    /// What follows the rise.
    pub decay: Decay,
}

impl Schedule {
    /// What follows the rise, to an end that must be stated but for a rate that stays: begun anew, or gone on with from
    /// where a run stands.
    pub fn decay(
        kind: ScheduleKind,
        until: Option<Length>,
        highest: f64,
        warmup_steps: u64,
        before: Option<(Decay, Elapsed)>,
    ) -> Decay {
        let wanted = Decay::new(kind, until.unwrap_or(Length::Steps(0)), highest, warmup_steps);
        before.map_or(wanted, |(decay, at)| decay.resumed(wanted, at))
    }

    /// The learning rate of the step that comes next.
    pub fn learning_rate(&self, at: Elapsed) -> f64 {
        if at.step < self.warmup_steps {
            return self.highest * (at.step + 1) as f64 / (self.warmup_steps + 1) as f64;
        }
        self.lowest + (self.highest - self.lowest) * self.decay.height(at)
    }

    /// What a user should know of a run whose length is not that of the decay, in one line. `setting` tells what makes a
    /// decay so long, if anything does.
    pub fn remark(&self, run: Length, at: Elapsed, setting: &dyn Fn(Length) -> Option<String>) -> Option<String> {
        let until = self.decay.until;
        if self.decay.kind == ScheduleKind::Constant || run == until {
            return None;
        }
        let end = |length| match length {
            Length::Steps(step) => Elapsed { step, seconds: at.seconds },
            Length::Seconds(seconds) => Elapsed { step: at.step.max(self.warmup_steps), seconds },
        };
        let last = self.learning_rate(end(until));
        let longer = match (run, until) {
            (Length::Steps(run), Length::Steps(until)) => Some(run > until),
            (Length::Seconds(run), Length::Seconds(until)) => Some(run > until),
            _ => None,
        };
        // What is so, and between what words the setting stands that changes it.
        let (fact, before, after) = match longer {
            None => (
                format!("the learning rate falls until {until}, as the run began"),
                "",
                " lets it fall until the end of the run".to_string(),
            ),
            Some(false) => {
                let at_end = self.learning_rate(end(run));
                let early = format!("the run ends at {run}, before the schedule at {until}");
                (
                    format!("{early}: the last learning rate is {at_end:.1e}"),
                    "",
                    format!(" lets it fall to {:.1e} by then", self.lowest),
                )
            }
            Some(true) if at.along(until) >= end(until).along(until) => (
                format!("the schedule ended at {until}: the learning rate stays at {last:.1e}"),
                "`settings.learning_rate` X ",
                " lets it fall anew from X".to_string(),
            ),
            Some(true) => {
                let stays = format!("the schedule ends at {until}: the learning rate then stays at {last:.1e}");
                (stays, "", " stretches it".to_string())
            }
        };
        Some(setting(run).map_or(fact.clone(), |option| format!("{fact}; {before}{option}{after}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [ScheduleKind; 4] =
        [ScheduleKind::Cosine, ScheduleKind::Linear, ScheduleKind::Constant, ScheduleKind::Wsd];
    /// The end of the decay of the runs here, and steps of their rise.
    const END: u64 = 110;
    const WARMUP: u64 = 10;

    fn at(step: u64) -> Elapsed {
        Elapsed { step, seconds: step as f64 }
    }

    fn decay(kind: ScheduleKind, until: Length) -> Decay {
        Decay::new(kind, until, 1.0, WARMUP)
    }

    fn schedule(decay: Decay) -> Schedule {
        Schedule { highest: decay.highest, lowest: 0.1, warmup_steps: WARMUP, decay }
    }

    fn rate(decay: Decay, step: u64) -> f64 {
        schedule(decay).learning_rate(at(step))
    }

    #[test]
    fn it_rises_then_falls_as_stated_and_stays() {
        for kind in KINDS {
            let decay = decay(kind, Length::Steps(END));
            assert!(rate(decay, 0) > 0.0 && rate(decay, 5) > rate(decay, 4), "{kind:?} rises");
            assert!((rate(decay, WARMUP) - 1.0).abs() < 1e-12, "{kind:?} reaches its height");
            let end = if kind == ScheduleKind::Constant { 1.0 } else { 0.1 };
            assert!((rate(decay, END) - end).abs() < 1e-12, "{kind:?} ends at {end}");
            assert_eq!(rate(decay, 10 * END), rate(decay, END), "{kind:?} stays");
            for step in WARMUP..END {
                assert!(rate(decay, step + 1) <= rate(decay, step), "{kind:?} never rises again");
            }
        }
        assert!((rate(decay(ScheduleKind::Cosine, Length::Steps(END)), 60) - 0.55).abs() < 1e-12, "half way");
        assert!((rate(decay(ScheduleKind::Linear, Length::Steps(END)), 60) - 0.55).abs() < 1e-12, "half way");
        assert_eq!(rate(decay(ScheduleKind::Wsd, Length::Steps(END)), 80), 1.0, "stable for most of the run");
        assert!((rate(decay(ScheduleKind::Linear, Length::Seconds(200.0)), 100) - 0.55).abs() < 1e-12, "by time");
    }

    /// Whatever the end becomes, and whenever, the rate goes on from where it stands and ends at the lowest.
    #[test]
    fn another_end_goes_on_from_the_rate_where_it_stands() {
        for kind in KINDS {
            for (stop, until) in [(4, 200), (50, 200), (95, 200), (50, 70), (95, 100), (END, 200), (150, 200)] {
                let before = decay(kind, Length::Steps(END));
                let after = before.resumed(decay(kind, Length::Steps(until)), at(stop));
                let name = format!("{kind:?} at {stop} until {until}");
                assert!((rate(after, stop) - rate(before, stop)).abs() < 1e-12, "{name}: no jump");
                for step in stop.max(WARMUP)..until + 10 {
                    assert!(rate(after, step + 1) <= rate(after, step) + 1e-12, "{name}: never rises");
                }
                let end = if kind == ScheduleKind::Constant { 1.0 } else { 0.1 };
                assert!((rate(after, until) - end).abs() < 1e-12, "{name}: ends at {end}");
                // A run that is killed and resumed again keeps the decay.
                assert_eq!(after.resumed(decay(kind, Length::Steps(until)), at(until - 1)), after, "{name}");
            }
        }
    }

    #[test]
    fn the_same_end_changes_nothing_and_another_form_never_lifts_the_rate() {
        for kind in KINDS {
            let before = decay(kind, Length::Steps(END));
            assert_eq!(before.resumed(decay(kind, Length::Steps(END)), at(90)), before);
            for other in KINDS {
                let after = before.resumed(decay(other, Length::Steps(END)), at(90));
                assert!((rate(after, 90) - rate(before, 90)).abs() < 1e-12, "{kind:?} to {other:?}");
                assert!(rate(after, 100) <= rate(before, 90) + 1e-12, "{kind:?} to {other:?}");
            }
        }
    }

    #[test]
    fn a_fall_begins_anew_only_at_a_rate_that_is_asked_for() {
        let before = decay(ScheduleKind::Cosine, Length::Steps(END));
        let wanted = Decay { highest: 0.5, ..decay(ScheduleKind::Cosine, Length::Steps(200)) };
        let after = before.resumed(wanted, at(END));
        assert!((rate(after, END) - 0.5).abs() < 1e-12 && rate(after, 200) < 0.11, "{after:?}");
    }

    #[test]
    fn a_run_of_another_length_than_its_fall_is_remarked_on() {
        let setting = |length: Length| Some(format!("a decay to {length}"));
        let remark =
            |kind, run, step| schedule(decay(kind, Length::Steps(END))).remark(Length::Steps(run), at(step), &setting);
        assert_eq!(remark(ScheduleKind::Cosine, END, 0), None);
        assert_eq!(remark(ScheduleKind::Constant, 200, 50), None);
        for (run, step, parts) in [
            (200, 120, ["ended at step 110", "stays at 1.0e-1", "`settings.learning_rate` X a decay to step 200"]),
            (200, 50, ["ends at step 110", "then stays at 1.0e-1", "a decay to step 200 stretches it"]),
            (60, 20, ["run ends at step 60", "is 5.5e-1", "a decay to step 60 lets it fall to 1.0e-1"]),
        ] {
            let text = remark(ScheduleKind::Cosine, run, step).unwrap();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        let by_time = schedule(decay(ScheduleKind::Linear, Length::Steps(END)));
        let text = by_time.remark(Length::Seconds(90.0), at(20), &setting).unwrap();
        assert!(text.contains("falls until step 110") && text.contains("a decay to 90 s of training"), "{text}");
        // Where no setting changes it, none is named.
        let text = by_time.remark(Length::Steps(60), at(20), &|_| None).unwrap();
        assert!(text.starts_with("the run ends at step 60") && text.ends_with("e-1"), "{text}");
    }
}

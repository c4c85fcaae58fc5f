//! A micro-batch that follows the memory: larger while there is room, smaller before there is none.

use super::account;
use super::session::Session;
use crate::Result;
use crate::memory::{Outside, ProcessMemory};
use crate::planning::StepPlans;
use crate::run::{Event, Observer};
use crate::step::StepConfig;
use gradus_engine::plan::Recompute;

/// The band of the budget that the process's memory is kept in.
const LOW: f64 = 0.80;
const HIGH: f64 = 0.95;
/// Steps between two looks at the memory.
const LOOK_EVERY: u64 = 10;

/// What is known of the memory while a run adapts to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adaptive {
    /// The budget of the process.
    budget: u64,
    /// What it holds besides the arena.
    outside: Outside,
    recompute: Recompute,
    /// What was resident when no better micro-batch was found: there is no use in looking again before that changes.
    settled_at: Option<u64>,
}

impl Adaptive {
    pub fn new(budget: u64, outside: Outside, recompute: Recompute) -> Adaptive {
        Adaptive { budget, outside, recompute, settled_at: None }
    }

    /// The arena to look for when so much is resident with the present one; `None` inside of the band.
    fn wanted_arena(&self, resident: u64, arena: usize) -> Option<usize> {
        let share = resident as f64 / self.budget as f64;
        let room = (HIGH * self.budget as f64) as i64 - resident as i64;
        let is_settled = self.settled_at.is_some_and(|before| before.abs_diff(resident) < self.budget / 50);
        let outside = !(LOW..=HIGH).contains(&share) && !is_settled;
        outside.then(|| arena.saturating_add_signed(room as isize))
    }
}

impl Session {
    /// Looks at the memory now and then, and takes another micro-batch if it is outside of its band.
    pub fn adapt(&mut self, step: u64, observer: &mut dyn Observer) -> Result<()> {
        let Some(mut adaptive) = self.adaptive.filter(|_| step.is_multiple_of(LOOK_EVERY)) else { return Ok(()) };
        let arena = self.training.program().plan().regions.total();
        // On a device nothing but the arena changes.
        let resident = match self.backend.memory()? {
            Some(device) => arena as u64 + device.besides,
            None => ProcessMemory::read().now,
        };
        let Some(wanted) = adaptive.wanted_arena(resident, arena) else { return Ok(()) };
        let config = StepConfig { micro_batch: 0, ..self.training.config().clone() };
        let plans = StepPlans::new(&config, self.batch, adaptive.recompute, &*self.backend);
        let chosen = plans.largest_within(wanted)?.map_or_else(|| plans.smallest(), Ok)?;
        let micro_batch = chosen.config.micro_batch;
        let changes = micro_batch != self.training.config().micro_batch;
        adaptive.settled_at = (!changes).then_some(resident);
        self.adaptive = Some(adaptive);
        if !changes {
            return Ok(());
        }
        self.predicted = account::predicted(&chosen, adaptive.outside);
        self.training.relink(chosen)?;
        self.identity.configuration["micro-batch"] = micro_batch.into();
        observer.event(&Event::Adapted { step, micro_batch, memory_bytes: resident });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_kept_in_its_band() {
        let adaptive = Adaptive::new(1000, Outside::default(), Recompute::Auto);
        assert_eq!(adaptive.wanted_arena(900, 500), None);
        assert_eq!(adaptive.wanted_arena(800, 500), None);
        assert_eq!(adaptive.wanted_arena(700, 500), Some(750), "room up to 950");
        assert_eq!(adaptive.wanted_arena(980, 500), Some(470), "30 too many");
        assert_eq!(adaptive.wanted_arena(5000, 500), Some(0));
        let settled = Adaptive { settled_at: Some(700), ..adaptive };
        assert_eq!((settled.wanted_arena(705, 500), settled.wanted_arena(640, 500)), (None, Some(810)));
    }
}

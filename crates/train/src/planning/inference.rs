//! Evaluation and generation within a budget: the first plan that fits, or a refusal with the smallest that would.

use super::refusal::{advice, not_enough, rounded_up};
use crate::memory::{Budget, ProcessMemory, available_memory};
use crate::{Error, Result};
use gradus_engine::plan::Plan;

/// What a process takes beyond what it holds when its arena is planned: code not yet touched, the plan's jobs, texts.
const STILL_TO_COME: u64 = 7_000_000;

/// How much what a process holds by then differs from run to run.
const FROM_RUN_TO_RUN: u64 = 500_000;

/// The memory of a process that computes with a model without training it.
#[derive(Clone, Copy, Debug)]
pub struct InferenceMemory {
    budget: Option<Budget>,
    /// Bytes that the process may have resident.
    limit: u64,
    /// Bytes that it will have resident besides the arena.
    outside: u64,
}

impl InferenceMemory {
    /// Within a budget, and within what the machine has.
    pub fn within(budget: Option<Budget>) -> InferenceMemory {
        let now = ProcessMemory::read().now;
        let limit = budget.map_or(u64::MAX, Budget::bytes).min(now + available_memory());
        InferenceMemory { budget, limit, outside: now + STILL_TO_COME }
    }

    /// The first of some plans, the largest of which comes first, that fits.
    pub fn first_fitting(&self, plans: impl Iterator<Item = Result<Plan>>) -> Result<Plan> {
        let mut smallest = u64::MAX;
        for plan in plans {
            let plan = plan?;
            let needed = plan.regions.total() as u64 + self.outside;
            if needed <= self.limit {
                return Ok(plan);
            }
            smallest = smallest.min(needed);
        }
        let smallest = rounded_up(smallest.saturating_add(FROM_RUN_TO_RUN));
        let advice = advice(self.budget, self.limit, &smallest);
        let not_enough = not_enough(self.budget, self.limit);
        Err(Error::Config(format!("{not_enough}: {smallest} are needed at least{advice}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradus_engine::backend::Cpu;
    use gradus_engine::plan::Options;
    use gradus_engine::{DType, Routine, Trace};

    fn plan(numbers: usize) -> Result<Plan> {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [numbers]);
        Ok(trace.plan(&Cpu::new(1)?, &[Routine::new("double").output("y", &(&x * 2.0))], Options::default())?)
    }

    #[test]
    fn the_largest_that_fits_is_taken_or_the_smallest_named() {
        let plans = || [50_000_000, 5_000_000, 1_000_000].into_iter().map(plan);
        let outside = InferenceMemory::within(None).outside;
        let arena = |extra: u64| InferenceMemory { budget: None, limit: outside + extra, outside };
        let sizes = plans().map(|plan| plan.unwrap().regions.total()).collect::<Vec<_>>();
        let taken = |memory: InferenceMemory| memory.first_fitting(plans()).map(|plan| plan.regions.total());
        assert_eq!(taken(arena(1 << 40)).unwrap(), sizes[0]);
        assert_eq!(taken(arena(sizes[0] as u64 - 1)).unwrap(), sizes[1]);
        assert_eq!(taken(arena(sizes[2] as u64)).unwrap(), sizes[2]);
        let refused = taken(arena(sizes[2] as u64 - 1)).unwrap_err().to_string();
        assert!(refused.contains("are needed at least"), "{refused}");
    }
}

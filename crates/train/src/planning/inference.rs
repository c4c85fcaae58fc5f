//! Work with a model that is not trained within a budget: the first plan that fits, or a refusal with the smallest that would.

use crate::memory::guard::{self, Armed};
use crate::memory::{Budget, Held, Limit, STEP_BYTES};
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Plan, Planner};

/// The memory of a process that computes with a model without training it.
#[derive(Debug)]
pub struct InferenceMemory {
    /// Bytes that the process may have resident.
    limit: Limit,
    besides: Besides,
    /// Keeps the limit as long as this is there, if it is the process's own.
    _guard: Option<Armed>,
}

/// What is held where the arena is, besides what is planned.
#[derive(Debug)]
enum Besides {
    /// Of a process on so many threads.
    Process(Held, usize),
    /// On a device.
    Device(u64),
}

impl InferenceMemory {
    /// Within what is stated and what the backend has. If that is the process's own memory, what it holds is measured, and the
    /// limit guarded from now on.
    pub fn of(
        stated: Option<Budget>,
        backend: &dyn Backend,
        measure: impl FnOnce() -> Result<Held>,
    ) -> Result<InferenceMemory> {
        Ok(match backend.memory()? {
            Some(device) => {
                let limit = Limit::of_device(stated, device.available);
                InferenceMemory { limit, besides: Besides::Device(device.besides), _guard: None }
            }
            None => InferenceMemory::within(stated, measure()?, backend.workers()),
        })
    }

    fn within(stated: Option<Budget>, held: Held, threads: usize) -> InferenceMemory {
        let limit = Limit::of(stated);
        let guard = guard::arm(&limit, guard::OPTION);
        InferenceMemory { limit, besides: Besides::Process(held, threads), _guard: Some(guard) }
    }

    /// The first of some plans, the largest of which comes first, that fits where the work takes so many bytes besides;
    /// and how many bytes are left then.
    pub fn first_fitting(&self, besides: u64, plans: impl Iterator<Item = Result<Plan>>) -> Result<(Plan, u64)> {
        let mut smallest = u64::MAX;
        for plan in plans {
            let plan = plan?;
            if let Some(left) = self.left(besides, &plan) {
                return Ok((plan, left));
            }
            smallest = smallest.min(self.needed(besides, &plan));
        }
        let smallest = self.limit.smallest(smallest);
        let advice = self.limit.advice(&smallest);
        Err(Error::Config(format!("{}: {smallest} are needed at least{advice}", self.limit.not_enough())))
    }

    /// The fastest plan of a planner that fits where the work takes so many bytes besides.
    pub fn fastest_fitting(&self, besides: u64, planner: &Planner<'_>) -> Result<Plan> {
        let fastest = planner.plan(usize::MAX);
        if self.left(besides, &fastest).is_some() {
            return Ok(fastest);
        }
        drop(fastest);
        // The smallest computes most again, so its steps take most besides the arena.
        let smallest = planner.plan(0);
        let room = self.limit.bytes.saturating_sub(self.outside(besides, &smallest));
        let plans = [planner.plan(usize::try_from(room).unwrap_or(usize::MAX)), smallest];
        Ok(self.first_fitting(besides, plans.into_iter().map(Ok))?.0)
    }

    /// How many bytes a plan leaves where the work takes so many besides; none if it does not fit.
    pub fn left(&self, besides: u64, plan: &Plan) -> Option<u64> {
        let needed = self.needed(besides, plan);
        self.limit.fits(needed).then(|| self.limit.bytes - needed)
    }

    fn needed(&self, besides: u64, plan: &Plan) -> u64 {
        plan.regions.total() as u64 + self.outside(besides, plan)
    }

    /// What is held where the arena is while a plan is carried out, besides the arena.
    fn outside(&self, besides: u64, plan: &Plan) -> u64 {
        let steps: usize = plan.routines.iter().map(|routine| routine.steps.len()).sum();
        match self.besides {
            Besides::Process(held, threads) => held.now().with_threads(threads) + besides + steps as u64 * STEP_BYTES,
            Besides::Device(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Size;
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
        let sizes = plans().map(|plan| plan.unwrap().regions.total() as u64).collect::<Vec<_>>();
        // Other tests of this process take memory too, so there is some room.
        let held = Held::measure(|_| Ok(())).unwrap();
        let outside = held.with_threads(1) + 100_000_000;
        let taken = |arena: u64| {
            let budget = Budget::Bytes(Size(outside + arena));
            InferenceMemory::within(Some(budget), held, 1).first_fitting(100_000_000, plans())
        };
        let size = |arena: u64| taken(arena).unwrap().0.regions.total() as u64;
        assert_eq!(size(sizes[0] + 90_000_000), sizes[0]);
        let refused = taken(0).unwrap_err().to_string();
        assert!(refused.contains("are needed at least, so give `settings.memory`"), "{refused}");
        let beyond = InferenceMemory::within(None, held, 1).first_fitting(1 << 60, plans()).unwrap_err().to_string();
        assert!(beyond.starts_with("the machine has") && !beyond.contains("`settings.memory`"), "{beyond}");
    }
}

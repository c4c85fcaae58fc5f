//! A training step within a stated memory: which micro-batch, and what is kept or computed again.
//!
//! Every divisor of the batch is a way to take the step, and each has its own ladder of plans. The ladders do not
//! depend on the budget, so a larger budget never gets a slower plan.

mod curve;
mod kinds;
mod refusal;

pub use crate::memory::Kind;
pub use curve::{CURVE_POINTS, Point};
pub use kinds::{ArenaBytes, kind_of};
pub use refusal::{Change, Refusal};

use crate::Result;
use crate::step::StepConfig;
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Options, Plan, Planner, Recompute};

/// Without a budget, a plan may be slower than the fastest by this share if it takes less memory: the difference
/// cannot be measured.
const NO_LOSS: f64 = 1.02;

/// All ways to take a training step.
pub struct StepPlans<'a> {
    ways: Vec<Way<'a>>,
}

struct Way<'a> {
    config: StepConfig,
    planner: Planner<'a>,
}

/// A way to take a training step, planned to the byte.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// With its micro-batch.
    pub config: StepConfig,
    /// The plan.
    pub plan: Plan,
}

impl Chosen {
    /// The size of the arena.
    pub fn arena(&self) -> usize {
        self.plan.regions.total()
    }

    /// How long a step over the whole batch takes, about.
    pub fn seconds(&self) -> f64 {
        let seconds = |name: &str| {
            let routine = self.plan.routines.iter().find(|routine| routine.name == name);
            routine.map_or(0.0, |routine| routine.seconds())
        };
        match self.config.accumulates() {
            true => {
                let further = self.config.micro_batches - 1;
                seconds("first") + further as f64 * seconds("accumulate") + seconds("update")
            }
            false => seconds("step"),
        }
    }
}

impl<'a> StepPlans<'a> {
    /// The ways to take a step of this configuration: with its own micro-batch, or if that is 0 with every divisor of
    /// the batch.
    pub fn new(
        config: &StepConfig,
        batch: usize,
        recompute: Recompute,
        backend: &'a dyn Backend,
    ) -> Result<StepPlans<'a>> {
        let sizes = (1..=batch).rev().filter(|size| match config.micro_batch {
            0 => batch.is_multiple_of(*size),
            stated => stated == *size,
        });
        let mut ways = vec![];
        for micro_batch in sizes {
            let config = StepConfig { micro_batch, micro_batches: batch / micro_batch, ..config.clone() };
            let options = Options { recompute, ..Options::default() };
            let planner = config.planner(backend, options)?;
            ways.push(Way { config, planner });
        }
        Ok(StepPlans { ways })
    }

    /// The fastest way whose arena has at most this many bytes.
    pub fn fastest_within(&self, arena: usize) -> Option<Chosen> {
        let chosen = self.within(arena).filter(|chosen| chosen.arena() <= arena);
        chosen.min_by(|a, b| a.seconds().total_cmp(&b.seconds()))
    }

    /// The smallest way that is as fast as the fastest, as far as can be told, within this many bytes.
    pub fn frugal_within(&self, arena: usize) -> Option<Chosen> {
        let chosen: Vec<Chosen> = self.within(arena).filter(|chosen| chosen.arena() <= arena).collect();
        let fastest = chosen.iter().map(Chosen::seconds).min_by(f64::total_cmp)?;
        chosen.into_iter().filter(|chosen| chosen.seconds() <= fastest * NO_LOSS).min_by_key(Chosen::arena)
    }

    /// The way with the largest micro-batch that needs nothing computed again beyond its policy, within this many bytes;
    /// if there is none, the fastest.
    pub fn largest_within(&self, arena: usize) -> Option<Chosen> {
        // The largest come first.
        let whole = self.within(usize::MAX).find(|chosen| chosen.arena() <= arena);
        whole.or_else(|| self.fastest_within(arena))
    }

    /// The way that takes the smallest arena.
    pub fn smallest(&self) -> Chosen {
        self.within(0).min_by_key(Chosen::arena).expect("a batch has a divisor")
    }

    /// Each way's plan for this limit, or its smallest.
    fn within(&self, arena: usize) -> impl Iterator<Item = Chosen> {
        let chosen = move |way: &Way<'_>| Chosen { config: way.config.clone(), plan: way.planner.plan(arena) };
        self.ways.iter().map(chosen)
    }
}

//! A training step within a stated memory: which micro-batch, and what is kept or computed again.
//!
//! Every divisor of a lane's part of the batch is a way to take the step, and each has its own ladder of plans. The ladders do not
//! depend on the budget, so a larger budget never gets a slower plan.

mod curve;
mod inference;
mod kinds;
mod model_memory;
mod refusal;
mod rehearsal;
mod run_memory;

pub use crate::memory::Kind;
pub use curve::{CURVE_POINTS, Point};
pub use inference::InferenceMemory;
pub use kinds::{ArenaBytes, Kinds};
pub use model_memory::ModelMemory;
pub use refusal::{Change, Refusal};
pub use rehearsal::small as small_model;
pub use run_memory::RunMemory;

use crate::Result;
use crate::lanes::Lanes;
use crate::memory::STEP_BYTES;
use crate::pipeline::Stage;
use crate::step::{StepConfig, seconds_of_sharpness};
use gradus_engine::backend::Backend;
use gradus_engine::graph::Role;
use gradus_engine::plan::{BufferKind, Estimate, Options, Plan, Planner, Recompute};

/// Without a budget, a plan may be predicted to be slower than the fastest by this factor if it takes less memory. Steps
/// of the reference model in 1 and in 8 micro-batches are predicted 2.8 % apart, and took 718 and 708 ms.
const AS_GOOD: f64 = 1.03;

impl StepConfig {
    /// With the micro-batch that a single rank would take, if none is stated: so that what is dropped does not depend on
    /// how many ranks there are.
    pub(crate) fn with_usual_micro_batch(
        &self,
        batch: usize,
        recompute: Recompute,
        backend: &dyn Backend,
    ) -> Result<StepConfig> {
        if self.micro_batch > 0 || self.place().ranks == 1 {
            return Ok(self.clone());
        }
        let alone = StepConfig { lanes: Lanes::all(self.lanes.count()), stage: Stage::default(), ..self.clone() };
        let chosen = StepPlans::new(&alone, batch, recompute, backend).frugal_within(usize::MAX)?;
        let micro_batch = chosen.map_or(0, |chosen| chosen.config.micro_batch);
        Ok(StepConfig { micro_batch, ..self.clone() })
    }
}

/// Without a budget, what can be made again rather than kept is, as long as all of it is predicted to take at most this factor
/// of the time. Steps of ViT-S over 16 images took 1.20 and 1.24 s with everything kept, and 1.19 to 1.23 s with 230 MB of 1,220
/// less, which was predicted to take 1.8 % more.
const MADE_AGAIN: f64 = 1.02;
/// How closely the smallest such plan is searched for: in so many parts of what the fastest takes more than the smallest.
const SEARCHED_PARTS: usize = 1 << 10;

/// All ways to take a training step.
pub struct StepPlans<'a> {
    ways: Vec<Way<'a>>,
}

struct Way<'a> {
    config: StepConfig,
    options: Options,
    backend: &'a dyn Backend,
    /// Its planner, if that is kept.
    planner: Option<Planner<'a>>,
}

impl<'a> Way<'a> {
    fn planner(&self) -> Result<Planner<'a>> {
        self.config.planner(self.backend, self.options)
    }

    /// Asks its planner. One that is not kept is made for the question: planners of deep models are large.
    fn ask<T>(&self, question: impl FnOnce(&Planner<'a>) -> T) -> Result<T> {
        match &self.planner {
            Some(planner) => Ok(question(planner)),
            None => Ok(question(&self.planner()?)),
        }
    }
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
        self.plan.seconds()
    }

    /// With what the products that measure curvature have in common kept between them, where the curvature is measured, `arena` has
    /// room for it with the heap that it takes, steps take no longer, and measurements less.
    fn linearized_within(self, arena: usize, recompute: Recompute, backend: &dyn Backend) -> Result<Chosen> {
        let weights: usize = self
            .plan
            .buffers
            .iter()
            .filter_map(|buffer| match &buffer.kind {
                BufferKind::State(state) if state.role == Role::Weight => Some(buffer.bytes()),
                _ => None,
            })
            .sum();
        if !self.config.sharpness || arena.saturating_sub(self.arena()) < weights {
            return Ok(self);
        }
        let config = StepConfig { linearized: true, ..self.config.clone() };
        let plan = config.planner(backend, Options { recompute, ..Options::default() })?.plan(arena);
        let steps = |plan: &Plan| plan.routines.iter().map(|routine| routine.steps.len()).sum::<usize>();
        let heap = steps(&plan).saturating_sub(steps(&self.plan)) * STEP_BYTES as usize;
        let fits = plan.regions.total() + heap <= arena;
        let is_faster =
            plan.seconds() <= self.seconds() && seconds_of_sharpness(&plan) < seconds_of_sharpness(&self.plan);
        Ok(if fits && is_faster { Chosen { config, plan } } else { self })
    }
}

impl<'a> StepPlans<'a> {
    /// The ways to take a step of this configuration: with its own micro-batch, or if that is 0 with every divisor of
    /// a lane's part of the batch.
    pub fn new(config: &StepConfig, batch: usize, recompute: Recompute, backend: &'a dyn Backend) -> StepPlans<'a> {
        let of_lane = batch / config.lanes.count();
        let sizes = (1..=of_lane).rev().filter(|size| match config.micro_batch {
            0 => of_lane.is_multiple_of(*size),
            stated => stated == *size,
        });
        let way = |micro_batch| Way {
            config: StepConfig { micro_batch, micro_batches: of_lane / micro_batch, ..config.clone() },
            options: Options { recompute, ..Options::default() },
            backend,
            planner: None,
        };
        StepPlans { ways: sizes.map(way).collect() }
    }

    /// Keeps the planners of all ways, for who asks often and has the memory.
    pub fn kept(mut self) -> Result<StepPlans<'a>> {
        for way in &mut self.ways {
            way.planner = Some(way.planner()?);
        }
        Ok(self)
    }

    /// The fastest way whose arena has at most this many bytes.
    pub fn fastest_within(&self, arena: usize) -> Result<Option<Chosen>> {
        self.fastest_candidate(arena)?.map(|candidate| candidate.planned()).transpose()
    }

    /// The smallest way that is as fast as the fastest, as far as can be told, within this many bytes.
    pub fn frugal_within(&self, arena: usize) -> Result<Option<Chosen>> {
        let candidates = self.candidates(arena)?;
        let Some(fastest) = fastest_of(&candidates, arena).map(|candidate| candidate.seconds) else { return Ok(None) };
        let as_good =
            candidates.iter().filter(|candidate| candidate.arena <= arena && candidate.seconds <= fastest * AS_GOOD);
        as_good.min_by_key(|candidate| candidate.arena).map(|candidate| candidate.planned()).transpose()
    }

    /// Of the way that is the fastest within this many bytes, the smallest plan that is about as fast.
    pub fn thrifty_within(&self, arena: usize) -> Result<Option<Chosen>> {
        let Some(Candidate { way, .. }) = self.fastest_candidate(arena)? else { return Ok(None) };
        way.thrifty(arena)?.planned().map(Some)
    }

    /// The way with the largest micro-batch that needs nothing computed again beyond its policy, within this many bytes;
    /// if there is none, the fastest.
    pub fn largest_within(&self, arena: usize) -> Result<Option<Chosen>> {
        // The largest come first.
        for way in &self.ways {
            let candidate = way.candidate(usize::MAX)?;
            if candidate.arena <= arena {
                return candidate.planned().map(Some);
            }
        }
        self.fastest_within(arena)
    }

    /// The way that takes the smallest arena.
    pub fn smallest(&self) -> Result<Chosen> {
        self.smallest_candidate()?.planned()
    }

    fn fastest_candidate(&self, arena: usize) -> Result<Option<Candidate<'_>>> {
        Ok(fastest_of(&self.candidates(arena)?, arena).copied())
    }

    fn smallest_candidate(&self) -> Result<Candidate<'_>> {
        let smallest =
            self.candidates(0)?.into_iter().min_by_key(|candidate| candidate.arena).expect("a lane has a divisor");
        // Of what takes as little, the fastest.
        Ok(self.fastest_candidate(smallest.arena)?.unwrap_or(smallest))
    }

    /// What each way comes to for this limit, or at its smallest.
    fn candidates(&self, limit: usize) -> Result<Vec<Candidate<'_>>> {
        self.ways.iter().map(|way| way.candidate(limit)).collect()
    }
}

/// The fastest of those that keep a limit.
fn fastest_of<'d, 'a>(candidates: &'d [Candidate<'a>], arena: usize) -> Option<&'d Candidate<'a>> {
    let fitting = candidates.iter().filter(|candidate| candidate.arena <= arena);
    fitting.min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}

impl<'a> Way<'a> {
    /// Its smallest plan that is about as fast as its fastest one within this many bytes.
    fn thrifty(&self, limit: usize) -> Result<Candidate<'_>> {
        let (limit, Estimate { arena, seconds }) = self.ask(|planner| {
            let (fastest, smallest) = (planner.estimate(limit), planner.estimate(0));
            let is_fast = |limit| planner.estimate(limit).seconds <= fastest.seconds * MADE_AGAIN;
            let limit = least_with(is_fast, (smallest.arena.saturating_sub(1), fastest.arena));
            (limit, planner.estimate(limit))
        })?;
        Ok(Candidate { way: self, limit, arena, seconds })
    }

    fn candidate(&self, limit: usize) -> Result<Candidate<'_>> {
        let Estimate { arena, seconds } = self.ask(|planner| planner.estimate(limit))?;
        Ok(Candidate { way: self, limit, arena, seconds })
    }
}

/// The least bytes between these with which a plan is fast enough, as nearly as is searched; the most of them are.
fn least_with(is_fast: impl Fn(usize) -> bool, (mut too_few, mut enough): (usize, usize)) -> usize {
    let step = ((enough - too_few.min(enough)) / SEARCHED_PARTS).max(1);
    while enough.saturating_sub(too_few) > step {
        let middle = too_few + (enough - too_few) / 2;
        if is_fast(middle) { enough = middle } else { too_few = middle }
    }
    enough
}

/// A way for a limit, not planned to the byte yet.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    way: &'a Way<'a>,
    limit: usize,
    arena: usize,
    seconds: f64,
}

impl Candidate<'_> {
    fn planned(&self) -> Result<Chosen> {
        let plan = self.way.ask(|planner| planner.plan(self.limit))?;
        Ok(Chosen { config: self.way.config.clone(), plan })
    }
}

//! From a run's memory to the plan of its step.

use super::refusal::{not_enough, rounded_up};
use super::{Chosen, Refusal, StepPlans};
use crate::config::{Batch, TrainConfig};
use crate::memory::{Budget, Outside, ProcessMemory, Stages, available_memory};
use crate::step::StepConfig;
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::plan::Recompute;

/// The most sequences that `--batch auto` takes.
const LARGEST_BATCH: usize = 4096;
/// Where no budget is stated, the rest of what is free is left to others.
const SHARE_TAKEN: f64 = 0.9;

/// The memory of a run: what the process may hold, and what it holds besides the arena.
#[derive(Clone, Copy, Debug)]
pub struct RunMemory {
    stated: Option<Budget>,
    /// Bytes that the process may have resident.
    pub limit: u64,
    /// Bytes that it will have resident besides the arena.
    pub outside: Outside,
    /// The least that the stages before training need.
    stages: u64,
}

impl RunMemory {
    /// For a run on this machine: what is stated, but never more than there is.
    pub fn of(config: &TrainConfig) -> RunMemory {
        let (now, free) = (ProcessMemory::read().now, available_memory());
        let memory = RunMemory::of_any_machine(config);
        let limit = match memory.stated {
            Some(_) => memory.limit.min(now + free),
            None => now + (SHARE_TAKEN * free as f64) as u64,
        };
        RunMemory { limit, ..memory }
    }

    /// For a run that is only asked about, whatever the machine has.
    pub fn of_any_machine(config: &TrainConfig) -> RunMemory {
        RunMemory {
            stated: config.memory,
            limit: config.memory.map_or(u64::MAX, Budget::bytes),
            outside: Outside::predict(config),
            stages: Stages::within(None, config).smallest,
        }
    }

    /// Refuses a budget that not even the stages before training can keep, where the model is not yet known.
    pub fn check_stages(&self) -> Result<()> {
        match self.limit < self.stages {
            true => Err(Error::Config(format!(
                "{}: what comes before training takes {} by itself",
                not_enough(self.stated, self.limit),
                rounded_up(self.stages),
            ))),
            false => Ok(()),
        }
    }

    /// The least that the process needs with an arena of this size.
    pub fn smallest_budget(&self, arena: usize) -> u64 {
        (arena as u64 + self.outside.total()).max(self.stages)
    }

    fn arena(&self) -> usize {
        self.limit.saturating_sub(self.outside.total()) as usize
    }

    /// Chooses what the configuration leaves open: the batch, the micro-batch, what is computed again.
    pub fn choose(&mut self, config: &mut TrainConfig, backend: &dyn Backend) -> Result<Chosen> {
        config.validate()?;
        if config.batch == Batch::Auto {
            config.batch = Batch::Fixed(self.largest_batch(config, backend)?);
            self.outside = Outside::predict(config);
        }
        let batch = config.batch.size();
        let plans = StepPlans::new(&StepConfig::of(config), batch, config.recompute.policy(), backend)?;
        let chosen = match (config.batch, self.stated) {
            (Batch::Adaptive(_), _) => plans.largest_within(self.arena()),
            (_, Some(_)) => plans.fastest_within(self.arena()),
            (_, None) => plans.frugal_within(self.arena()),
        };
        let chosen = chosen.filter(|_| self.limit >= self.stages);
        let chosen = chosen.map_or_else(|| Err(self.refusal(&plans, config, backend)?), Ok)?;
        config.micro_batch = chosen.config.micro_batch;
        Ok(chosen)
    }

    /// The most sequences that can be computed at once; with nothing computed again, unless the policy says so or not
    /// even one fits otherwise.
    fn largest_batch(&self, config: &TrainConfig, backend: &dyn Backend) -> Result<usize> {
        let policy = match config.recompute.policy() {
            Recompute::Auto => Recompute::None,
            stated => stated,
        };
        let fits = |batch: usize| -> Result<bool> {
            let config = TrainConfig { batch: Batch::Fixed(batch), ..config.clone() };
            let step = StepConfig { micro_batch: batch, micro_batches: 1, ..StepConfig::of(&config) };
            let arena = StepPlans::new(&step, batch, policy, backend)?.smallest().arena();
            Ok(arena as u64 + Outside::predict(&config).total() <= self.limit)
        };
        let (mut fitting, mut beyond) = (1, 2);
        while beyond <= LARGEST_BATCH && fits(beyond)? {
            (fitting, beyond) = (beyond, 2 * beyond);
        }
        while beyond - fitting > 1 && beyond <= LARGEST_BATCH {
            let between = (fitting + beyond) / 2;
            if fits(between)? { fitting = between } else { beyond = between }
        }
        Ok(fitting)
    }

    fn refusal(&self, plans: &StepPlans<'_>, config: &TrainConfig, backend: &dyn Backend) -> Result<Error> {
        let refusal = Refusal::of(plans, &StepConfig::of(config), config.batch.size(), backend)?;
        Ok(Error::Config(refusal.message(self.stated, self.limit, self.outside.total(), self.stages)))
    }
}

//! From a run's memory to the plan of its step.

use super::adaptive::Adaptive;
use crate::config::{Batch, TokenizerKind, TrainConfig};
use crate::memory::{Budget, Outside, ProcessMemory, Stages, available};
use crate::planning::{Chosen, Refusal, StepPlans};
use crate::step::StepConfig;
use crate::{Error, Result};
use gradus_engine::backend::Cpu;
use gradus_engine::plan::Recompute;

/// The most sequences that `--batch auto` takes.
const LARGEST_BATCH: usize = 4096;
/// What the machine has free beyond a tenth is left to others, where no budget is stated.
const SHARE_TAKEN: f64 = 0.9;

/// The memory of a run: what the process may hold, and what it holds besides the arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunMemory {
    stated: Option<Budget>,
    /// Bytes that the process may have resident.
    limit: u64,
    /// Bytes that it will have resident besides the arena.
    outside: u64,
    /// The least that the stages which are still to come before training need.
    stages: u64,
}

impl RunMemory {
    /// For a run whose tokens are ready.
    pub fn of(config: &TrainConfig) -> RunMemory {
        let now = ProcessMemory::read().now;
        let machine = now + (SHARE_TAKEN * available() as f64) as u64;
        let limit = config.memory.map_or(machine, Budget::bytes);
        RunMemory { stated: config.memory, limit, outside: Outside::predict(config).total(), stages: 0 }
    }

    fn arena(&self) -> usize {
        self.limit.saturating_sub(self.outside) as usize
    }

    /// What a run that adapts its micro-batch goes by.
    pub fn adaptive(&self, config: &TrainConfig) -> Option<Adaptive> {
        matches!(config.batch, Batch::Adaptive(_)).then(|| Adaptive::new(self.limit))
    }

    /// Chooses what the configuration leaves open: the batch, the micro-batch, what is computed again.
    pub fn choose(&self, config: &mut TrainConfig, backend: &Cpu) -> Result<Chosen> {
        if config.batch == Batch::Auto {
            config.batch = Batch::Fixed(self.largest_batch(config, backend)?);
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
    fn largest_batch(&self, config: &TrainConfig, backend: &Cpu) -> Result<usize> {
        let policy = match config.recompute.policy() {
            Recompute::Auto => Recompute::None,
            stated => stated,
        };
        let fits = |batch: usize| -> Result<bool> {
            let step = StepConfig { micro_batch: batch, micro_batches: 1, ..StepConfig::of(config) };
            Ok(StepPlans::new(&step, batch, policy, backend)?.smallest().arena() <= self.arena())
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

    fn refusal(&self, plans: &StepPlans<'_>, config: &TrainConfig, backend: &Cpu) -> Result<Error> {
        let refusal = Refusal::of(plans, &StepConfig::of(config), config.batch.size(), backend)?;
        Ok(Error::Config(refusal.message(self.stated, self.limit, self.outside, self.stages)))
    }
}

/// Refuses a budget that cannot be kept before anything is read or written, as far as the model is known by then.
pub(super) fn check_early(config: &TrainConfig) -> Result<()> {
    let vocabulary = match &config.tokenizer {
        TokenizerKind::Bpe => config.vocab_size,
        TokenizerKind::Byte => 256.max(config.vocab_size),
        TokenizerKind::Char | TokenizerKind::File(_) => config.vocab_size,
    };
    if config.memory.is_none() || config.init.is_some() || vocabulary == 0 {
        return Ok(());
    }
    let mut config = config.clone();
    config.model.vocabulary = vocabulary;
    config.model.validate()?;
    let memory = RunMemory { stages: Stages::within(None, &config).smallest, ..RunMemory::of(&config) };
    let backend = Cpu::new(config.threads)?;
    memory.choose(&mut config, &backend).map(drop)
}

//! From a run's memory to the plan of its step.

use super::{Chosen, Refusal, StepPlans, rehearsal};
use crate::config::{BatchSize, HealthInterval, TrainConfig};
use crate::data::READING_BYTES;
use crate::memory::guard::{self, Armed};
use crate::memory::{Held, Limit, Outside, ProcessMemory, Stages, exchanged_on_device};
use crate::step::StepConfig;
use crate::{Error, Result};
use gradus_engine::backend::{Backend, DeviceMemory};
use gradus_engine::plan::Recompute;

/// The most sequences that `--batch auto` takes.
const LARGEST_BATCH: usize = 4096;

/// The system's count of an arena's pages may be off by one part in so many.
const COUNTED_OFF: u64 = 128;

/// What the system may count for an arena.
pub(super) fn counted(arena: usize) -> u64 {
    (arena as u64).saturating_add(arena as u64 / COUNTED_OFF)
}

/// The largest arena that a process which holds so many bytes besides may have.
pub(super) fn arena_besides(limit: &Limit, besides: u64) -> usize {
    let left = limit.bytes.saturating_sub(besides);
    (left - left / (COUNTED_OFF + 1)) as usize
}

/// The memory of a run: what may be held where its arena is, and what is held there besides what is planned.
#[derive(Debug)]
pub struct RunMemory {
    /// Bytes that the process may have resident; on a device, bytes that it may have there.
    pub limit: Limit,
    held: Held,
    /// The memory that the arena is in, if that is a device's.
    device: Option<DeviceMemory>,
    /// What it takes to read the corpus.
    reading: u64,
    /// By how much the heap grew while a step was planned.
    planning: u64,
    /// Keeps the limit while the run lasts.
    guard: Option<Armed>,
}

impl RunMemory {
    /// For a run on this machine, the limit of which is guarded from now on.
    pub fn of(config: &TrainConfig, backend: &dyn Backend) -> Result<RunMemory> {
        if let Some(device) = backend.memory()? {
            return Ok(RunMemory::on_device(Limit::of_device(config.memory, device.available), device));
        }
        let held = rehearsal::of_training(config, backend)?;
        let (limit, device) = (Limit::of(config.memory), None);
        let guard = Some(guard::arm(&limit, guard::OPTION));
        Ok(RunMemory { limit, held, device, reading: READING_BYTES, planning: 0, guard })
    }

    /// On a device, whose own account is all that is kept; the process takes of the host what it needs.
    fn on_device(limit: Limit, device: DeviceMemory) -> RunMemory {
        let (held, device) = (Held::now_resident(), Some(device));
        RunMemory { limit, held, device, reading: READING_BYTES, planning: 0, guard: None }
    }

    /// For a run that is only asked about, whatever the machine has, which is yet to join other ranks and comes to hold so much for that;
    /// `--batch auto` takes what fits here.
    pub fn asked_about(config: &TrainConfig, joining: u64, backend: &dyn Backend) -> Result<RunMemory> {
        if let Some(device) = backend.memory()? {
            return Ok(RunMemory::on_device(Limit::of_device(config.memory, device.available), device));
        }
        let of = if config.batch == BatchSize::Auto { Limit::of } else { Limit::of_any_machine };
        let held = rehearsal::of_training(config, backend)?.joining(joining);
        let (limit, device) = (of(config.memory), None);
        Ok(RunMemory { limit, held, device, reading: READING_BYTES, planning: 0, guard: None })
    }

    /// What it takes to read the corpus is known.
    pub fn reads(&mut self, bytes: u64) {
        self.reading = bytes;
    }

    /// What is held where the arena is, besides it, while the run trains.
    pub fn outside(&self, config: &TrainConfig) -> Outside {
        match self.device {
            Some(device) => Outside { data: exchanged_on_device(config), runtime: device.besides },
            None => Outside::predict(config, self.held),
        }
    }

    /// What words may take while the corpus is read and encoded.
    pub fn words(&self, config: &TrainConfig) -> u64 {
        let limit = if self.device.is_some() { Limit::of(None) } else { self.limit };
        self.stages(config).words(limit.bytes)
    }

    /// What the stages before training take of the host.
    fn stages(&self, config: &TrainConfig) -> Stages {
        Stages::predict(config, self.held, self.reading, self.planning)
    }

    /// The least that is needed with an arena of this size.
    pub fn smallest_budget(&self, config: &TrainConfig, arena: usize) -> u64 {
        let training = counted(arena) + self.outside(config).total();
        if self.device.is_some() { training } else { training.max(self.stages(config).smallest) }
    }

    /// What keeps the limit, once all is chosen.
    pub fn into_guard(self) -> Option<Armed> {
        self.guard
    }

    fn arena(&self, config: &TrainConfig) -> usize {
        arena_besides(&self.limit, self.outside(config).total())
    }

    /// Chooses what the configuration leaves open: the batch, the micro-batch, what is computed again, and whether the
    /// gradients' health is measured, which is left out where it would not fit.
    pub fn choose(&mut self, config: &mut TrainConfig, backend: &dyn Backend) -> Result<Chosen> {
        config.validate()?;
        if config.batch == BatchSize::Auto {
            config.batch = BatchSize::Fixed(self.largest_batch(config, backend)?);
        }
        let (batch, before) = (config.batch.size(), ProcessMemory::read().anonymous);
        let (policy, step) = (config.recompute.policy(), StepConfig::of(config));
        let step = match self.limit.is_stated() {
            true => step,
            false => step.with_usual_micro_batch(batch, policy, backend)?,
        };
        let plans = StepPlans::new(&step, batch, policy, backend);
        let arena = self.arena(config);
        let chosen = match config.batch {
            BatchSize::Adaptive(_) => plans.largest_within(arena)?,
            _ if self.limit.is_stated() => plans.fastest_within(arena)?,
            _ => plans.frugal_within(arena)?,
        };
        let chosen = match config.batch {
            // What is left is for a larger micro-batch.
            BatchSize::Adaptive(_) => chosen,
            _ => chosen.map(|chosen| chosen.linearized_within(arena, policy, backend)).transpose()?,
        };
        self.planning = self.planning.max(ProcessMemory::read().anonymous.saturating_sub(before));
        let chosen = chosen.filter(|chosen| self.limit.fits(self.smallest_budget(config, chosen.arena())));
        let Some(chosen) = chosen else {
            if config.health != HealthInterval::Auto || !config.measures_health() {
                return Err(self.refusal(&plans, config, backend)?);
            }
            config.health = HealthInterval::Off;
            return self.choose(config, backend);
        };
        config.micro_batch = chosen.config.micro_batch;
        Ok(chosen)
    }

    /// The most sequences whose lanes can be computed at once each; with nothing computed again, unless the policy says so or not
    /// even one fits otherwise.
    fn largest_batch(&self, config: &TrainConfig, backend: &dyn Backend) -> Result<usize> {
        let policy = match config.recompute.policy() {
            Recompute::Auto => Recompute::None,
            stated => stated,
        };
        let lanes = config.lanes;
        let fits = |of_lane: usize| -> Result<bool> {
            let config = TrainConfig { batch: BatchSize::Fixed(of_lane * lanes), ..config.clone() };
            let step = StepConfig { micro_batch: of_lane, micro_batches: 1, ..StepConfig::of(&config) };
            let arena = StepPlans::new(&step, of_lane * lanes, policy, backend).smallest()?.arena();
            Ok(arena <= self.arena(&config))
        };
        let (mut fitting, mut beyond) = (1, 2);
        let most = LARGEST_BATCH / lanes;
        while beyond <= most && fits(beyond)? {
            (fitting, beyond) = (beyond, 2 * beyond);
        }
        while beyond - fitting > 1 && beyond <= most {
            let between = (fitting + beyond) / 2;
            if fits(between)? { fitting = between } else { beyond = between }
        }
        Ok(fitting * lanes)
    }

    fn refusal(&self, plans: &StepPlans<'_>, config: &TrainConfig, backend: &dyn Backend) -> Result<Error> {
        let refusal = Refusal::of(plans, &StepConfig::of(config), config.batch.size(), backend)?;
        let needed = |arena: usize| self.smallest_budget(config, arena);
        Ok(Error::Config(refusal.message(&self.limit, &needed)))
    }
}

//! From the memory of any process to the plan of a model's step.

use super::run_memory::{arena_besides, counted};
use super::{Chosen, Refusal, StepPlans};
use crate::memory::guard::{self, Armed, Doing};
use crate::memory::{Held, Limit, Outside, STEP_BYTES, rank_bytes};
use crate::pipeline::Transfer;
use crate::ranks::{Exchanged, compressed_bytes, exchange_bytes, may_give};
use crate::step::{Batch, StepConfig};
use crate::trainer::{Batches, Settings};
use crate::{Error, Result};
use gradus_engine::Shape;
use gradus_engine::backend::{Backend, DeviceMemory};
use gradus_engine::plan::Recompute;

/// Steps of plans for a node of the trace, as all routines have their own and some are computed again.
const STEPS_PER_NODE: u64 = 2;

/// The memory of a process that trains a model of its own.
#[derive(Debug)]
pub struct ModelMemory {
    limit: Limit,
    /// What it holds besides the arena.
    pub outside: Outside,
    /// Keeps the limit, if one is stated.
    pub guard: Option<Armed>,
}

impl ModelMemory {
    /// Within what is stated and what the machine has, of a process that held so much before anything was planned.
    pub fn of(config: &StepConfig, settings: &Settings, held: Held, backend: &dyn Backend) -> Result<ModelMemory> {
        let (batch, stated) = (settings.batch, settings.memory);
        let device = backend.memory()?;
        let of_device = |device: DeviceMemory, exchange: u64| {
            let outside = Outside { data: exchange, runtime: device.besides };
            Ok(ModelMemory { limit: Limit::of_device(stated, device.available), outside, guard: None })
        };
        if let Some(device) = device.filter(|_| config.place().ranks == 1) {
            return of_device(device, 0);
        }
        let micro_batch = config.micro_batch.max(1);
        let micro_batches = batch / config.lanes.count() / micro_batch;
        let smallest = StepConfig { micro_batch, micro_batches, ..config.clone() };
        let traced = smallest.traced(backend).map_err(|error| for_one_size(config, batch, error, backend))?;
        let (of_batch, of_one) =
            (Batch::size(&traced.fields, config.lanes.rows(batch).len()), Batch::size(&traced.fields, 1));
        let steps = traced.trace.to_graph().nodes().len() as u64 * STEPS_PER_NODE;
        let runtime = held.with_threads(backend.workers()) + steps * STEP_BYTES + rank_bytes(config.place());
        let most_sums = traced.summed.iter().map(|summed| summed.sums.len()).max().unwrap_or(1);
        let numbers = traced.summed.iter().map(|summed| summed.numbers).collect();
        let shapes: Vec<Shape> = traced.parameters.iter().map(|parameter| parameter.shape.clone()).collect();
        let others = traced.summed[shapes.len().min(traced.summed.len())..].iter().map(|summed| summed.numbers).sum();
        let exchanged = match may_give(config.shard, &config.lanes) {
            _ if device.is_some() => Exchanged::OnDevices,
            true => Exchanged::Given,
            false => Exchanged::Sums,
        };
        let exchange = match config.keeps_lanes() {
            true => compressed_bytes(config.compression, &config.lanes, &shapes, others),
            false => exchange_bytes(&config.lanes, numbers, shapes.len(), most_sums, exchanged),
        };
        if let Some(device) = device {
            return of_device(device, exchange);
        }
        let transfer = traced.staging.as_ref().map(Transfer::of);
        let stages = transfer.map_or(0, |transfer| transfer.bytes(config.stage, smallest.passes()));
        // Of a source that has only whole batches, a rank takes its rows.
        let whole = if config.lanes.place().ranks > 1 { Batch::size(&traced.fields, batch) as u64 } else { 0 };
        let batches = Batches::bytes(of_batch, settings.ahead) + of_one as u64 + whole;
        let outside = Outside { data: batches + exchange + stages + settings.data_bytes, runtime };
        let limit = Limit::of(stated);
        let guard = stated.map(|_| guard::arm(&limit, "`settings.memory`"));
        guard::doing(Doing::Planning);
        Ok(ModelMemory { limit, outside, guard })
    }

    /// Chooses the micro-batch, if that is open, and what is computed again; or refuses with the smallest budget.
    pub fn choose(
        &self,
        config: &StepConfig,
        batch: usize,
        recompute: Recompute,
        backend: &dyn Backend,
    ) -> Result<Chosen> {
        // On a device, what making again takes was not measured.
        let is_thrifty = config.micro_batch > 0 && backend.memory()?.is_none();
        let config = &match self.limit.is_stated() {
            true => config.clone(),
            false => config.with_usual_micro_batch(batch, recompute, backend)?,
        };
        let plans = StepPlans::new(config, batch, recompute, backend);
        let besides = self.outside.total();
        let arena = arena_besides(&self.limit, besides);
        let chosen = match self.limit.is_stated() {
            true => plans.fastest_within(arena)?,
            false if is_thrifty => plans.thrifty_within(arena)?,
            false => plans.frugal_within(arena)?,
        };
        let chosen = chosen.map(|chosen| chosen.linearized_within(arena, recompute, backend)).transpose()?;
        let needed = |arena: usize| counted(arena) + besides;
        match chosen.filter(|chosen| self.limit.fits(needed(chosen.arena()))) {
            Some(chosen) => Ok(chosen),
            None => Err(Error::Config(Refusal::of(&plans, config, batch, backend)?.message(&self.limit, &needed))),
        }
    }
}

/// The error of a model that can be traced for a whole batch, and for no part of it, where any micro-batch would do.
fn for_one_size(config: &StepConfig, batch: usize, error: Error, backend: &dyn Backend) -> Error {
    let rows = batch / config.lanes.count();
    let whole = StepConfig { micro_batch: rows, micro_batches: 1, ..config.clone() };
    if config.micro_batch > 0 || rows == 1 || whole.traced(backend).is_err() {
        return error;
    }
    Error::Config(format!(
        "{error}; traced for 1 example of the {rows}: take how many there are from `Inputs::rows`, or give \
         `settings.micro_batch` {rows}"
    ))
}

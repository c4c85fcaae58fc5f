//! From a run's memory to the plan of its step.

use crate::config::{Batch, TrainConfig};
use crate::planning::{Chosen, StepPlans};
use crate::step::StepConfig;
use crate::{Error, Result};
use gradus_engine::backend::Cpu;
use gradus_engine::plan::Recompute;

/// Chooses what the configuration leaves open: the batch, the micro-batch, what is computed again.
pub(super) fn chosen(config: &mut TrainConfig, backend: &Cpu) -> Result<Chosen> {
    let available = gradus_engine::available_memory();
    let limit = available - available / 10;
    let batch = config.batch.size();
    let plans = StepPlans::new(&StepConfig::of(config), batch, config.recompute.policy(), backend)?;
    let Some(chosen) = plans.frugal_within(limit) else {
        let needed = plans.smallest().arena();
        return Err(gradus_engine::Error::TooLarge { needed, available: limit }.into());
    };
    config.micro_batch = chosen.config.micro_batch;
    Ok(chosen)
}

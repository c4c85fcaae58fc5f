//! What a process does, done small and before anything is chosen: how much code it needs is measured, not known.

use crate::Result;
use crate::memory::Held;
use crate::models::ModelConfig;
use crate::step::{StepConfig, StepScalars, TrainingStep};
use gradus_engine::backend::Backend;

/// Tokens of a sequence, sequences at once, and how often.
const SEQUENCE: usize = 16;
const MICRO_BATCHES: usize = 2;

/// A model of the same family that is as small as it can be without being another kind of computation.
pub fn small(model: &ModelConfig) -> ModelConfig {
    model.small()
}

/// Of a run: a few steps of the same kind.
pub fn of_training(config: &StepConfig, backend: &dyn Backend) -> Result<Held> {
    let model = small(&config.model);
    let (micro_batch, micro_batches) = (1, MICRO_BATCHES);
    let config = StepConfig { model, micro_batch, micro_batches, sequence: SEQUENCE, ..config.clone() };
    Held::measure(|begin| {
        let mut step = TrainingStep::new(config, backend)?;
        step.initialise(1)?;
        let tokens: Vec<i32> = (0..SEQUENCE as i32).cycle().take(MICRO_BATCHES * SEQUENCE).collect();
        begin();
        step.run(&tokens, &tokens, &StepScalars { step: 0, learning_rate: 0.0, clip_norm: 1.0, seed: 1 })?;
        step.evaluate(&tokens[..SEQUENCE], &tokens[..SEQUENCE]).map(drop)
    })
}

//! What a process does, done small and before anything is chosen: how much code it needs is measured, not known.

use crate::Result;
use crate::config::{LocalSteps, TrainConfig};
use crate::lanes::Lanes;
use crate::language::{LanguageModel, TARGETS, TOKENS};
use crate::memory::Held;
use crate::models::ModelConfig;
use crate::pipeline::Stage;
use crate::step::{StepConfig, StepScalars, TrainingStep};
use gradus_engine::backend::Backend;
use std::rc::Rc;

/// Tokens of a sequence, sequences at once, and how often.
const SEQUENCE: usize = 16;
const MICRO_BATCHES: usize = 2;

/// A model of the same family that is as small as it can be without being another kind of computation.
pub fn small(model: &ModelConfig) -> ModelConfig {
    model.small()
}

/// A step that compresses its lanes and has them meet, with nobody else.
fn by_itself(config: StepConfig) -> StepConfig {
    let local = config.local.map(|local| LocalSteps { every: 1, ..local });
    StepConfig { lanes: Lanes::all(2), compression_warmup: 0, local, ..config }
}

/// Of a run: a few steps of the same kind.
pub fn of_training(config: &TrainConfig, backend: &dyn Backend) -> Result<Held> {
    let model = ModelConfig { dropout: config.dropout as f32, ..small(&config.model) };
    let model = LanguageModel { model: Rc::new(model), sequence: SEQUENCE, ..LanguageModel::of(config) };
    let (micro_batch, micro_batches) = (1, MICRO_BATCHES);
    // Measuring takes no other code but a few reductions, and a plan that is not small.
    let health = false;
    let linearized = config.watch_curvature > 0;
    let config = StepConfig {
        objective: Rc::new(model),
        micro_batch,
        micro_batches,
        health,
        linearized,
        stage: Stage::default(),
        ..StepConfig::of(config)
    };
    let config = if config.keeps_lanes() { by_itself(config) } else { config };
    Held::measure(|begin| {
        let mut step = TrainingStep::new(config, backend)?;
        step.initialize(1)?;
        let (mut batch, mut micro_batch) = (step.batch(), step.micro_batch());
        for name in [TOKENS, TARGETS] {
            for numbers in [&mut batch, &mut micro_batch] {
                let numbers = numbers.numbers_mut::<i32>(name)?;
                numbers.iter_mut().enumerate().for_each(|(index, token)| *token = (index % SEQUENCE) as i32);
            }
        }
        begin();
        let scalars = StepScalars { step: 0, learning_rate: 0.0, clip_norm: 1.0, seed: 1 };
        step.sharpness(&batch, &scalars)?;
        step.run(&batch, &scalars)?;
        step.evaluate(&micro_batch).map(drop)
    })
}

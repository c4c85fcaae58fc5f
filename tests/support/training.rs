//! A small transformer training step, as the tests of replay use it.

use gradus::backend::Backend;
use gradus::models::{CausalModel, ModelConfig};
use gradus::optimizers::{AdamW, GroupedOptimizer, StepNumbers};
use gradus::{DType, Program, Routine, Trace, gradient};

pub const BATCH: usize = 4;
pub const SEQUENCE: usize = 40;

pub fn config() -> ModelConfig {
    ModelConfig::gpt2(97, 64, 2, 4, SEQUENCE)
}

/// Forward, backward, clipping and update of a transformer.
pub fn compile(backend: &dyn Backend) -> Program {
    let config = config();
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [BATCH, SEQUENCE]);
    let targets = trace.input("targets", DType::I32, [BATCH, SEQUENCE]);
    let learning_rate = trace.input("learning_rate", DType::F32, []);
    let parameters = config.declare(&trace);
    let (known, weights) = (parameters.list(), parameters.tensors());
    let loss = config.loss(&parameters, &tokens, &targets).check_finite("the loss");
    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>()).unwrap();
    let (gradients, norm) = gradus::ops::clip_by_global_norm(&gradients.iter().collect::<Vec<_>>(), 1.0);
    let one = &norm * 0.0 + 1.0;
    let step = Routine::new("step").output("loss", &loss).output("norm", &norm);
    let numbers = StepNumbers { learning_rate, scale: one.clone(), one };
    let adamw = GroupedOptimizer::new(AdamW { beta2: 0.95, weight_decay: 0.1, ..AdamW::default() });
    let named = known.iter().map(|parameter| &parameter.name[..]).zip(&weights);
    let step = adamw.update(step, named, &gradients, &numbers);
    let mut program = trace.compile(backend, &[step]).unwrap();
    parameters.initialize(&mut program, 1).unwrap();
    program
}

/// Writes the batch of a step: tokens that follow a rule, so that there is something to learn.
pub fn write_batch(program: &mut Program, step: usize) {
    let token = |row: usize, column: usize| ((row * 31 + column * (row % 3 + 1) + step * 7) % 97) as i32;
    let mut tokens = [0i32; BATCH * SEQUENCE];
    let mut targets = [0i32; BATCH * SEQUENCE];
    for row in 0..BATCH {
        for column in 0..SEQUENCE {
            tokens[row * SEQUENCE + column] = token(row, column);
            targets[row * SEQUENCE + column] = token(row, column + 1);
        }
    }
    program.write("tokens", &tokens).unwrap();
    program.write("targets", &targets).unwrap();
    program.write("learning_rate", &[1e-3f32]).unwrap();
}

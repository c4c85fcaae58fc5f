//! Optimisers: the update of every weight, traced like the rest of the step.

use gradus_engine::ops::{AdamW, AdamWInputs};
use gradus_engine::{DType, Routine, Tensor, Trace};

/// Adds AdamW's update of every weight to a routine, with its moments and its count of steps as states.
#[track_caller]
pub fn adamw(
    trace: &Trace,
    mut routine: Routine,
    rule: AdamW,
    weights: &[(&str, &Tensor)],
    gradients: &[Tensor],
    learning_rate: &Tensor,
) -> Routine {
    let count = trace.zero_state("adamw.step", DType::F32, []);
    let step = &count + 1.0;
    routine = routine.assign(&count, &step);
    for ((name, weight), gradient) in weights.iter().zip(gradients) {
        let first_moment = &trace.zero_state(&format!("adamw.first.{name}"), DType::F32, weight.shape());
        let second_moment = &trace.zero_state(&format!("adamw.second.{name}"), DType::F32, weight.shape());
        let updated =
            rule.update(AdamWInputs { weight, gradient, first_moment, second_moment, learning_rate, step: &step });
        routine = routine
            .assign(weight, &updated.weight)
            .assign(first_moment, &updated.first_moment)
            .assign(second_moment, &updated.second_moment);
    }
    routine
}

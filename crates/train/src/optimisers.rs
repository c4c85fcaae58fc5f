//! Optimisers: the update of every weight, traced like the rest of the step, with its moments as states.

use crate::config::OptimizerKind;
use gradus_engine::ops::{
    Adafactor, AdafactorInputs, AdamW, AdamWInputs, Lion, LionInputs, SecondMoment, Sgd, SgdInputs,
};
use gradus_engine::{DType, Routine, Shape, Tensor, Trace};

/// A rule and its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimiser {
    /// The rule.
    pub kind: OptimizerKind,
    /// Decay of matrices; vectors (biases, gains) are not decayed.
    pub weight_decay: f32,
    /// First moment's share kept; the momentum of SGD.
    pub beta1: f32,
    /// Second moment's share kept.
    pub beta2: f32,
}

/// What all updates of a step need.
#[derive(Clone, Copy)]
pub struct StepInputs<'a> {
    /// The learning rate, a single f32.
    pub learning_rate: &'a Tensor,
    /// The number of the step, from 1, a single f32.
    pub step: &'a Tensor,
}

impl Optimiser {
    /// Adds the update of a weight to a routine.
    #[track_caller]
    pub fn update(
        &self,
        trace: &Trace,
        routine: Routine,
        name: &str,
        weight: &Tensor,
        gradient: &Tensor,
        at: StepInputs<'_>,
    ) -> Routine {
        let state =
            |kind: &str, shape: &Shape| trace.zero_state(&format!("optimizer.{kind}.{name}"), DType::F32, shape);
        let shape = &weight.shape();
        let weight_decay = if shape.rank() >= 2 { self.weight_decay } else { 0.0 };
        let StepInputs { learning_rate, step } = at;
        match self.kind {
            OptimizerKind::Adamw => {
                let rule = AdamW { beta1: self.beta1, beta2: self.beta2, epsilon: 1e-8, weight_decay };
                let (first_moment, second_moment) = (&state("first", shape), &state("second", shape));
                let inputs = AdamWInputs { weight, gradient, first_moment, second_moment, learning_rate, step };
                let new = rule.update(inputs);
                let routine = routine.assign(weight, &new.weight).assign(first_moment, &new.first_moment);
                routine.assign(second_moment, &new.second_moment)
            }
            OptimizerKind::Sgd => {
                let rule = Sgd { momentum: self.beta1, weight_decay, nesterov: false };
                let buffer = &state("momentum", shape);
                let new = rule.update(SgdInputs { weight, gradient, buffer, learning_rate });
                routine.assign(weight, &new.weight).assign(buffer, &new.buffer)
            }
            OptimizerKind::Lion => {
                let rule = Lion { beta1: self.beta1, beta2: self.beta2, weight_decay };
                let moment = &state("first", shape);
                let new = rule.update(LionInputs { weight, gradient, moment, learning_rate });
                routine.assign(weight, &new.weight).assign(moment, &new.moment)
            }
            OptimizerKind::Adafactor => self.adafactor(routine, &state, weight, gradient, at),
        }
    }

    fn adafactor(
        &self,
        routine: Routine,
        state: &dyn Fn(&str, &Shape) -> Tensor,
        weight: &Tensor,
        gradient: &Tensor,
        at: StepInputs<'_>,
    ) -> Routine {
        let second_moment = match Adafactor::moment_shapes(&weight.shape()) {
            SecondMoment::Factored { rows, columns } => {
                SecondMoment::Factored { rows: state("rows", &rows), columns: state("columns", &columns) }
            }
            SecondMoment::Whole(shape) => SecondMoment::Whole(state("second", &shape)),
        };
        let StepInputs { learning_rate, step } = at;
        let inputs = AdafactorInputs { weight, gradient, second_moment: &second_moment, learning_rate, step };
        let new = Adafactor::default().update(inputs);
        let routine = routine.assign(weight, &new.weight);
        match (&second_moment, &new.second_moment) {
            (SecondMoment::Factored { rows, columns }, SecondMoment::Factored { rows: r, columns: c }) => {
                routine.assign(rows, r).assign(columns, c)
            }
            (SecondMoment::Whole(old), SecondMoment::Whole(new)) => routine.assign(old, new),
            _ => unreachable!("the second moment keeps its form"),
        }
    }
}

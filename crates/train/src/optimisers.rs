//! Optimisers: the update of every weight, traced like the rest of the step, with its moments as states.

use crate::config::OptimizerKind;
use crate::models::Weights;
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

/// Single numbers that all updates of a step take.
#[derive(Clone, Copy, Debug)]
pub struct StepNumbers<'a> {
    /// The learning rate.
    pub learning_rate: &'a Tensor,
    /// What gradients are multiplied by as they are read.
    pub scale: &'a Tensor,
    /// By how much the count of steps grows: a 1, which may depend on whatever must be so before anything is updated.
    pub one: &'a Tensor,
}

impl Optimiser {
    /// AdamW with the usual settings of language models.
    pub fn adamw(weight_decay: f32) -> Optimiser {
        Optimiser { kind: OptimizerKind::Adamw, weight_decay, beta1: 0.9, beta2: 0.95 }
    }

    /// Adds the update of every weight to a routine. The steps are counted in a state.
    #[track_caller]
    pub fn update_all(
        &self,
        trace: &Trace,
        mut routine: Routine,
        weights: &Weights,
        gradients: &[Tensor],
        numbers: StepNumbers<'_>,
    ) -> Routine {
        let count = trace.zero_state("optimizer.step", DType::F32, []);
        let step = &(&count + numbers.one);
        routine = routine.assign(&count, step);
        for ((name, weight), gradient) in weights.iter().zip(gradients) {
            routine = self.update(trace, routine, name, (weight, gradient), step, numbers);
        }
        routine
    }

    #[track_caller]
    fn update(
        &self,
        trace: &Trace,
        routine: Routine,
        name: &str,
        (weight, gradient): (&Tensor, &Tensor),
        step: &Tensor,
        numbers: StepNumbers<'_>,
    ) -> Routine {
        let state =
            |kind: &str, shape: &Shape| trace.zero_state(&format!("optimizer.{kind}.{name}"), DType::F32, shape);
        let shape = &weight.shape();
        let weight_decay = if shape.rank() >= 2 { self.weight_decay } else { 0.0 };
        let StepNumbers { learning_rate, scale, .. } = numbers;
        match self.kind {
            OptimizerKind::Adamw => {
                let rule = AdamW { beta1: self.beta1, beta2: self.beta2, epsilon: 1e-8, weight_decay };
                let (first_moment, second_moment) = (&state("first", shape), &state("second", shape));
                let inputs = AdamWInputs { weight, gradient, first_moment, second_moment, learning_rate, step, scale };
                let new = rule.update(inputs);
                let routine = routine.assign(weight, &new.weight).assign(first_moment, &new.first_moment);
                routine.assign(second_moment, &new.second_moment)
            }
            OptimizerKind::Sgd => {
                let rule = Sgd { momentum: self.beta1, weight_decay, nesterov: false };
                let buffer = &state("momentum", shape);
                let new = rule.update(SgdInputs { weight, gradient, buffer, learning_rate, scale });
                routine.assign(weight, &new.weight).assign(buffer, &new.buffer)
            }
            OptimizerKind::Lion => {
                let rule = Lion { beta1: self.beta1, beta2: self.beta2, weight_decay };
                let moment = &state("first", shape);
                let new = rule.update(LionInputs { weight, gradient, moment, learning_rate, scale });
                routine.assign(weight, &new.weight).assign(moment, &new.moment)
            }
            OptimizerKind::Adafactor => self.adafactor(routine, &state, (weight, gradient), step, numbers),
        }
    }

    fn adafactor(
        &self,
        routine: Routine,
        state: &dyn Fn(&str, &Shape) -> Tensor,
        (weight, gradient): (&Tensor, &Tensor),
        step: &Tensor,
        numbers: StepNumbers<'_>,
    ) -> Routine {
        let second_moment = match Adafactor::moment_shapes(&weight.shape()) {
            SecondMoment::Factored { rows, columns } => {
                SecondMoment::Factored { rows: state("rows", &rows), columns: state("columns", &columns) }
            }
            SecondMoment::Whole(shape) => SecondMoment::Whole(state("second", &shape)),
        };
        let StepNumbers { learning_rate, scale, .. } = numbers;
        let second = &second_moment;
        let inputs = AdafactorInputs { weight, gradient, second_moment: second, learning_rate, step, scale };
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

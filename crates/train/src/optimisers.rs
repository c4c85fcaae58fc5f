//! Optimisers: the update of every weight, traced like the rest of the step, with its moments as states.

use crate::config::OptimizerKind;
use crate::models::Weights;
use gradus_engine::ops::{
    Adafactor, AdafactorInputs, AdamW, AdamWInputs, Lion, LionInputs, SecondMoment, Sgd, SgdInputs,
};
use gradus_engine::{DType, Role, Routine, Shape, Tensor, Trace};

/// A rule and its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimiser {
    /// The rule.
    pub kind: OptimizerKind,
    /// Decay of matrices; vectors (biases, gains) are not decayed.
    pub weight_decay: f32,
    /// First moment's share kept; the momentum of SGD. Adafactor has none.
    pub beta1: f32,
    /// Second moment's share kept; that of Lion's only moment. SGD has none, and Adafactor's follows from the step.
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
    /// A rule with the usual settings of language models. Lion goes with a rate that is smaller than AdamW's
    /// and SGD with one that is larger, so their decays, which are times the rate, are as much larger and smaller.
    pub fn usual(kind: OptimizerKind) -> Optimiser {
        let (weight_decay, beta1, beta2) = match kind {
            OptimizerKind::Adamw | OptimizerKind::Adafactor => (0.1, 0.9, 0.95),
            OptimizerKind::Sgd => (0.0003, 0.9, 0.95),
            OptimizerKind::Lion => (0.3, 0.9, 0.99),
        };
        Optimiser { kind, weight_decay, beta1, beta2 }
    }

    /// AdamW with the usual settings of language models but for its decay.
    pub fn adamw(weight_decay: f32) -> Optimiser {
        Optimiser { weight_decay, ..Optimiser::usual(OptimizerKind::Adamw) }
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
        let count = trace.zero_state_with_role("optimizer.step", Role::Optimizer, DType::F32, []);
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
        let state = |kind: &str, shape: &Shape| {
            trace.zero_state_with_role(&format!("optimizer.{kind}.{name}"), Role::Optimizer, DType::F32, shape)
        };
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
            OptimizerKind::Adafactor => {
                let rule = Adafactor { weight_decay, ..Adafactor::default() };
                adafactor(rule, routine, &state, (weight, gradient), step, numbers)
            }
        }
    }
}

fn adafactor(
    rule: Adafactor,
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
    let new = rule.update(inputs);
    let routine = routine.assign(weight, &new.weight);
    match (&second_moment, &new.second_moment) {
        (SecondMoment::Factored { rows, columns }, SecondMoment::Factored { rows: r, columns: c }) => {
            routine.assign(rows, r).assign(columns, c)
        }
        (SecondMoment::Whole(old), SecondMoment::Whole(new)) => routine.assign(old, new),
        _ => unreachable!("the second moment keeps its form"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{Initializer, Parameter};
    use gradus_engine::Array;
    use gradus_engine::backend::Cpu;

    const RATE: f64 = 0.125;
    const STEPS: i32 = 3;
    const WEIGHTS: [f64; 6] = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75];
    const GRADIENTS: [f64; 6] = [1.0, -2.0, 0.5, 4.0, 1.0, -1.0];

    /// The gradient of a step: another one each time, and never zero.
    fn gradient(step: i32, at: usize) -> f64 {
        GRADIENTS[at] * (1.0 - 0.25 * step as f64)
    }

    /// What three steps on a weight of this shape come to on the machine.
    fn trained(optimiser: Optimiser, shape: &[usize]) -> Vec<f32> {
        let trace = Trace::new();
        let parameter = Parameter::new("w", shape, Initializer::Zeros);
        let numbers = WEIGHTS.map(|number| number as f32);
        let weights = Weights::new(&trace, &[parameter], |_| Array::new(shape, &numbers).unwrap());
        let gradient_input = trace.input("gradient", DType::F32, shape);
        let (learning_rate, one) = (&trace.full(RATE as f32, DType::F32, []), &trace.full(1.0, DType::F32, []));
        let numbers = StepNumbers { learning_rate, scale: one, one };
        let step = optimiser.update_all(&trace, Routine::new("step"), &weights, &[gradient_input], numbers);
        let mut program = trace.compile(&Cpu::new(1).unwrap(), &[step]).unwrap();
        for step in 0..STEPS {
            let gradients: Vec<f32> = (0..6).map(|at| gradient(step, at) as f32).collect();
            program.write("gradient", &gradients).unwrap();
            program.run("step").unwrap();
        }
        program.read("w").unwrap().to_vec().unwrap()
    }

    /// Compares with a formula that moves one weight by a step: weight, gradient, moments, step from 1, decay.
    fn follows(kind: OptimizerKind, formula: impl Fn(f64, f64, &mut [f64; 2], i32, f64) -> f64) {
        let optimiser = Optimiser { weight_decay: 0.5, ..Optimiser::usual(kind) };
        // Matrices are decayed, and vectors are not.
        for (shape, decay) in [(&[2, 3][..], 0.5), (&[6], 0.0)] {
            for (at, found) in trained(optimiser, shape).into_iter().enumerate() {
                let mut moments = [0.0; 2];
                let expected = (0..STEPS).fold(WEIGHTS[at], |weight, step| {
                    formula(weight, gradient(step, at), &mut moments, step + 1, decay)
                });
                let error = (found as f64 - expected).abs();
                assert!(error < 2e-6, "{kind:?}, {shape:?}, weight {at}: {found} not {expected}");
            }
        }
    }

    #[test]
    fn adamw_decays_beside_its_gradient() {
        follows(OptimizerKind::Adamw, |w, g, [m, v], t, decay| {
            let w = w * (1.0 - RATE * decay);
            *m = 0.9 * *m + 0.1 * g;
            *v = 0.95 * *v + 0.05 * g * g;
            let (fair_m, fair_v) = (*m / (1.0 - 0.9f64.powi(t)), *v / (1.0 - 0.95f64.powi(t)));
            w - RATE * fair_m / (fair_v.sqrt() + 1e-8)
        });
    }

    #[test]
    fn sgd_decays_beside_its_momentum() {
        follows(OptimizerKind::Sgd, |w, g, [b, _], _, decay| {
            *b = 0.9 * *b + g;
            w * (1.0 - RATE * decay) - RATE * *b
        });
    }

    #[test]
    fn lion_decays_beside_its_sign() {
        follows(OptimizerKind::Lion, |w, g, [m, _], _, decay| {
            let direction = (0.9 * *m + 0.1 * g).signum();
            *m = 0.99 * *m + 0.01 * g;
            w * (1.0 - RATE * decay) - RATE * direction
        });
    }

    /// Its steps depend on the whole tensor, so decay is seen in what two rates of it differ by.
    #[test]
    fn adafactor_decays_beside_its_gradient() {
        let with = |weight_decay| Optimiser { weight_decay, ..Optimiser::usual(OptimizerKind::Adafactor) };
        let (decayed, plain) = (trained(with(0.5), &[2, 3]), trained(with(0.0), &[2, 3]));
        // The directions do not depend on the weights: what they add up to is what the plain steps came to.
        let kept = 1.0 - RATE * 0.5;
        for at in 0..6 {
            let mut weight = WEIGHTS[at];
            for step in directions().iter() {
                weight = weight * kept - RATE * step[at];
            }
            assert!((decayed[at] as f64 - weight).abs() < 2e-6, "weight {at}: {} not {weight}", decayed[at]);
            let plain_weight = WEIGHTS[at] - RATE * directions().iter().map(|step| step[at]).sum::<f64>();
            assert!((plain[at] as f64 - plain_weight).abs() < 2e-6, "weight {at}: {} not {plain_weight}", plain[at]);
        }
        assert_eq!(trained(with(0.5), &[6]), trained(with(0.0), &[6]), "vectors are not decayed");
    }

    /// Where Adafactor's three steps on a 2 x 3 matrix point, by its formulas.
    fn directions() -> Vec<[f64; 6]> {
        let (mut rows, mut columns) = ([0.0; 2], [0.0; 3]);
        let mut directions = vec![];
        for step in 0..STEPS {
            let taken = f64::from(step + 1).powf(-0.8);
            let square = |row: usize, column: usize| gradient(step, 3 * row + column).powi(2) + 1e-30;
            for (row, mean) in rows.iter_mut().enumerate() {
                let new = (0..3).map(|column| square(row, column)).sum::<f64>() / 3.0;
                *mean = (1.0 - taken) * *mean + taken * new;
            }
            for (column, mean) in columns.iter_mut().enumerate() {
                *mean = (1.0 - taken) * *mean + taken * (square(0, column) + square(1, column)) / 2.0;
            }
            let mean = (rows[0] + rows[1]) / 2.0;
            let scaled: [f64; 6] =
                std::array::from_fn(|at| gradient(step, at) / (rows[at / 3] * columns[at % 3] / mean).sqrt());
            let root_mean_square = (scaled.iter().map(|x| x * x).sum::<f64>() / 6.0).sqrt();
            directions.push(scaled.map(|x| x / root_mean_square.max(1.0)));
        }
        directions
    }
}

mod matrices;

use super::*;
use gradus_engine::backend::Cpu;
use gradus_engine::{Array, DType, Program, Routine, Trace};

const RATE: f64 = 0.125;
const STEPS: i32 = 3;
const WEIGHTS: [f64; 6] = [0.5, -1.0, 2.0, 0.25, 1.5, -0.75];
const GRADIENTS: [f64; 6] = [1.0, -2.0, 0.5, 4.0, 1.0, -1.0];

/// The gradient of a step: another one each time, and never zero.
fn gradient(step: i32, at: usize) -> f64 {
    GRADIENTS[at] * (1.0 - 0.25 * step as f64)
}

/// A program after three steps on a weight of this shape.
fn after_steps(optimizer: &GroupedOptimizer, shape: &[usize]) -> Program {
    after_steps_of("w", optimizer, shape)
}

/// The same of a weight of this name.
fn after_steps_of(name: &str, optimizer: &GroupedOptimizer, shape: &[usize]) -> Program {
    let trace = Trace::new();
    let numbers = WEIGHTS.map(|number| number as f32);
    let weight = trace.state(name, Array::new(shape, &numbers).unwrap());
    let gradient_input = trace.input("gradient", DType::F32, shape);
    let numbers = StepNumbers::new(&trace.full(RATE as f32, DType::F32, []));
    let step = optimizer.update(Routine::new("step"), [(name, &weight)], &[gradient_input], &numbers);
    let mut program = trace.compile(&Cpu::new(1).unwrap(), &[step]).unwrap();
    for step in 0..STEPS {
        let gradients: Vec<f32> = (0..6).map(|at| gradient(step, at) as f32).collect();
        program.write("gradient", &gradients).unwrap();
        program.run("step").unwrap();
    }
    program
}

fn numbers(program: &Program, name: &str) -> Vec<f32> {
    program.read(name).unwrap().to_vec().unwrap()
}

/// What three steps on a weight of this shape come to on the machine.
fn trained(kind: OptimizerKind, settings: Hyperparameters, shape: &[usize]) -> Vec<f32> {
    numbers(&after_steps(&kind.grouped(settings), shape), "w")
}

/// Compares with a formula that moves one weight by a step: weight, gradient, moments, step from 1, decay.
fn follows(kind: OptimizerKind, formula: impl Fn(f64, f64, &mut [f64; 2], i32, f64) -> f64) {
    let settings = Hyperparameters { weight_decay: 0.5, ..kind.usual() };
    // Matrices are decayed, and vectors are not.
    for (shape, decay) in [(&[2, 3][..], 0.5), (&[6], 0.0)] {
        for (at, found) in trained(kind, settings, shape).into_iter().enumerate() {
            let mut moments = [0.0; 2];
            let expected = (0..STEPS)
                .fold(WEIGHTS[at], |weight, step| formula(weight, gradient(step, at), &mut moments, step + 1, decay));
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
    let kind = OptimizerKind::Adafactor;
    let with = |weight_decay| Hyperparameters { weight_decay, ..kind.usual() };
    let (decayed, plain) = (trained(kind, with(0.5), &[2, 3]), trained(kind, with(0.0), &[2, 3]));
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
    assert_eq!(trained(kind, with(0.5), &[6]), trained(kind, with(0.0), &[6]), "vectors are not decayed");
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

/// SGD without momentum moves by the sum of its gradients, so that a group's settings can be read off.
#[test]
fn groups_have_rates_and_decays_of_their_own_and_the_first_that_applies_counts() {
    type Groups<'a> = &'a [(&'static str, Group)];
    let sgd = Sgd { momentum: 0.0, weight_decay: 0.5, nesterov: false };
    let group = |learning_rate_factor, weight_decay| Group { learning_rate_factor, weight_decay };
    let moved = |groups: Groups<'_>, shape: &[usize]| {
        let optimizer = groups.iter().fold(GroupedOptimizer::new(sgd), |optimizer, &(name, group)| {
            optimizer.group(move |known, _| known == name, group)
        });
        numbers(&after_steps(&optimizer, shape), "w")
    };
    let expected = |factor: f64, decay: f64, at: usize| {
        let rate = RATE * factor;
        (0..STEPS).fold(WEIGHTS[at], |weight, step| weight * (1.0 - rate * decay) - rate * gradient(step, at))
    };
    let cases: [(Groups<'_>, &[usize], f64, f64); 6] = [
        (&[], &[2, 3], 1.0, 0.5),
        (&[], &[6], 1.0, 0.0),
        (&[("other", group(3.0, None))], &[2, 3], 1.0, 0.5),
        (&[("w", group(0.5, None))], &[6], 0.5, 0.5),
        (&[("w", group(0.5, Some(0.25)))], &[2, 3], 0.5, 0.25),
        (&[("w", group(2.0, Some(0.0))), ("w", group(0.5, None))], &[2, 3], 2.0, 0.0),
    ];
    for (groups, shape, factor, decay) in cases {
        for (at, found) in moved(groups, shape).into_iter().enumerate() {
            let expected = expected(factor, decay, at);
            assert!((found as f64 - expected).abs() < 1e-6, "{groups:?} {shape:?} {at}: {found} not {expected}");
        }
    }
}

#[test]
fn an_average_is_the_mean_of_the_weights_after_each_step_with_later_ones_counting_more() {
    let decay = 0.75f64;
    let optimizer = GroupedOptimizer::new(Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false });
    let program = after_steps(&optimizer.average(decay as f32), &[2, 3]);
    for (at, found) in numbers(&program, "average.w").into_iter().enumerate() {
        let after = |steps: i32| WEIGHTS[at] - RATE * (0..steps).map(|step| gradient(step, at)).sum::<f64>();
        let share = |step: i32| decay.powi(STEPS - step);
        let mean = (1..=STEPS).map(|step| share(step) * after(step)).sum::<f64>() / (1..=STEPS).map(share).sum::<f64>();
        assert!((found as f64 - mean).abs() < 2e-6, "{at}: {found} not {mean}");
        assert!((mean - after(STEPS)).abs() > 1e-3, "an average that is the weight would not be seen");
    }
    assert!(after_steps(&GroupedOptimizer::new(Sgd::default()), &[6]).read("average.w").is_err(), "only if asked for");
}

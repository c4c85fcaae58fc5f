//! The training step: accumulation, optimizers, clipping, and numbers that are not finite.

use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::config::{OptimizerKind, Precision};
use gradus_train::models::ModelConfig;
use gradus_train::optimizers::{Hyperparameters, Sgd, Sophia};
use gradus_train::parameters::{Initializer, Parameters};
use gradus_train::step::{
    Batch, Culprit, Inputs, Objective, Outcome, StepConfig, StepScalars, TrainingStep, is_not_finite,
};
use std::rc::Rc;

const BATCH: usize = 4;
const SEQUENCE: usize = 12;

fn model() -> ModelConfig {
    ModelConfig::gpt2(29, 16, 2, 2, SEQUENCE)
}

fn config() -> StepConfig {
    StepConfig::plain(model(), BATCH)
}

fn new(config: StepConfig) -> TrainingStep {
    let mut step = TrainingStep::new(config, &Cpu::new(2).unwrap()).unwrap();
    step.initialize(3).unwrap();
    step
}

/// Tokens that count upwards, and the next of each.
fn batch(training: &TrainingStep, step: u64) -> Batch {
    let token = |place: usize| ((place * 5 / SEQUENCE + place + step as usize * 11) % 29) as i32;
    let mut batch = training.batch();
    batch.write("tokens", &(0..BATCH * SEQUENCE).map(token).collect::<Vec<_>>()).unwrap();
    batch.write("targets", &(1..=BATCH * SEQUENCE).map(token).collect::<Vec<_>>()).unwrap();
    batch
}

fn train(training: &mut TrainingStep, steps: u64, learning_rate: f32, clip_norm: f32) -> Vec<Outcome> {
    let run = |step| {
        let batch = batch(training, step);
        training.run(&batch, &StepScalars { step, learning_rate, clip_norm, seed: 5 }).unwrap()
    };
    (0..steps).map(run).collect()
}

fn weights(training: &TrainingStep) -> Vec<(String, Vec<f64>)> {
    let read = |name: &String| (name.clone(), training.program().read(name).unwrap().to_f64());
    training.parameters().iter().map(|parameter| read(&parameter.name)).collect()
}

fn largest_difference(a: &[(String, Vec<f64>)], b: &[(String, Vec<f64>)]) -> f64 {
    let numbers = |all: &[(String, Vec<f64>)]| all.iter().flat_map(|(_, numbers)| numbers.clone()).collect::<Vec<_>>();
    numbers(a).iter().zip(numbers(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn accumulating_over_micro_batches_equals_the_whole_batch() {
    let mut whole = new(config());
    let expected = train(&mut whole, 5, 1e-2, 1.0);
    for micro_batch in [1, 2] {
        let mut pieces = new(StepConfig { micro_batch, micro_batches: BATCH / micro_batch, ..config() });
        for (outcome, expected) in train(&mut pieces, 5, 1e-2, 1.0).iter().zip(&expected) {
            assert!((outcome.loss - expected.loss).abs() < 1e-5, "{outcome:?} {expected:?}");
            assert!((outcome.gradient_norm - expected.gradient_norm).abs() < 1e-4 * expected.gradient_norm);
        }
        assert!(largest_difference(&weights(&pieces), &weights(&whole)) < 1e-4);
    }
}

#[test]
fn every_optimizer_learns() {
    let rules = [
        (OptimizerKind::Adamw, 1e-2),
        (OptimizerKind::Sgd, 3e-1),
        (OptimizerKind::Lion, 3e-3),
        (OptimizerKind::Adafactor, 1e-2),
        (OptimizerKind::Muon, 1e-2),
        (OptimizerKind::Sophia, 3e-3),
        (OptimizerKind::Soap, 1e-2),
    ];
    assert_eq!(rules.map(|(kind, _)| kind)[..], *OptimizerKind::ALL);
    for (kind, learning_rate) in rules {
        let mut training = new(StepConfig {
            optimizer: kind.grouped(Hyperparameters { weight_decay: 0.01, beta1: 0.9, beta2: 0.95 }),
            ..config()
        });
        let outcomes = train(&mut training, 80, learning_rate, 1.0);
        let (first, last) = (outcomes[0].loss, outcomes[79].loss);
        assert!(last < 0.7 * first, "{kind:?}: {first} to {last}");
    }
}

/// A loss whose Hessian is a diagonal: any signs tell it, whatever is computed at once.
#[test]
fn curvature_is_estimated_of_the_batch_once_in_ten_steps() {
    const CURVES: [f64; 3] = [0.5, 3.0, 40.0];
    let objective = |parameters: &Parameters, inputs: &Inputs| {
        let weight = parameters.get("w", [3], Initializer::Ones);
        let scale = inputs.get("scale", DType::F32, [3]); // [b, 3]
        (scale * (&weight * &weight)).sum(&[1])
    };
    for micro_batch in [1, 3, 6] {
        let sophia = Sophia { weight_decay: 0.0, beta2: 0.75, ..Sophia::default() };
        let config = StepConfig::new(Rc::new(objective), micro_batch, sophia);
        let mut training =
            TrainingStep::new(StepConfig { micro_batches: 6 / micro_batch, ..config }, &Cpu::new(2).unwrap()).unwrap();
        training.initialize(3).unwrap();
        for step in 0..11 {
            let mut batch = training.batch();
            let scales = (0..18).map(|at| (CURVES[at % 3] / 2.0 * (1 + at / 3) as f64 / 2.5) as f32);
            batch.write("scale", &scales.collect::<Vec<_>>()).unwrap();
            training.run(&batch, &StepScalars { step, learning_rate: 1e-3, clip_norm: 1.0, seed: 5 }).unwrap();
            // Of the first four examples, whose mean is one: a quarter at the first step, and as much of what is left at the eleventh.
            let share = if step < 10 { 0.25 } else { 0.25 + 0.75 * 0.25 };
            let found = training.program().read("optimizer.curvature.w").unwrap().to_f64();
            assert!(found.iter().zip(CURVES).all(|(found, curve)| (found - share * curve).abs() < 1e-5), "{found:?}");
        }
        let infinite = vec![f32::INFINITY; 18];
        let mut batch = training.batch();
        batch.write("scale", &infinite).unwrap();
        let scalars = StepScalars { step: 20, learning_rate: 1e-3, clip_norm: 1.0, seed: 5 };
        let before = training.program().read("optimizer.curvature.w").unwrap();
        assert!(is_not_finite(&training.run(&batch, &scalars).unwrap_err()));
        assert_eq!(training.program().read("optimizer.curvature.w").unwrap(), before, "it is not spoiled");
    }
}

#[test]
fn clipping_bounds_the_step_and_the_reported_norm_is_the_one_before() {
    let sgd = Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false };
    let moved = |clip_norm: f32, clip_value: Option<f32>| {
        let mut training = new(StepConfig { optimizer: sgd.into(), clip_value, ..config() });
        let before = weights(&training);
        let outcome = train(&mut training, 1, 1.0, clip_norm)[0];
        let squares = before
            .iter()
            .zip(weights(&training))
            .flat_map(|((_, a), (_, b))| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).collect::<Vec<_>>());
        (squares.sum::<f64>().sqrt(), outcome.gradient_norm as f64, largest_difference(&before, &weights(&training)))
    };
    let (free, norm, _) = moved(f32::INFINITY, None);
    assert!((free - norm).abs() < 1e-4 * norm, "a step of rate 1 moves by the gradient");
    let (clipped, same_norm, _) = moved(0.25 * norm as f32, None);
    assert!((clipped - 0.25 * norm).abs() < 1e-3 * norm && (same_norm - norm).abs() < 1e-6);
    let (_, _, largest) = moved(f32::INFINITY, Some(1e-3));
    assert!(largest <= 1.001e-3, "{largest}");
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_and_names_the_culprit() {
    for micro_batches in [1, 2] {
        let mut training = new(StepConfig { micro_batch: BATCH / micro_batches, micro_batches, ..config() });
        train(&mut training, 2, 1e-3, 1.0);
        let name = "transformer.h.1.mlp.c_fc.weight";
        let mut broken = training.program().read(name).unwrap().to_vec::<f32>().unwrap();
        let whole = broken.clone();
        broken[7] = f32::NAN;
        training.program_mut().write(name, &broken).unwrap();
        let count = training.program().read("optimizer.step").unwrap();
        let moment = training.program().read("optimizer.first.transformer.wte.weight").unwrap();
        let batch = batch(&training, 9);
        let inputs = StepScalars { step: 9, learning_rate: 1e-3, clip_norm: 1.0, seed: 5 };
        let error = training.run(&batch, &inputs).unwrap_err();
        assert!(is_not_finite(&error), "{error}");
        assert_eq!(training.culprit().unwrap(), Culprit::Weight(name));
        assert_eq!(training.program().read("optimizer.step").unwrap(), count);
        assert_eq!(training.program().read("optimizer.first.transformer.wte.weight").unwrap(), moment);
        training.program_mut().write(name, &whole).unwrap();
        assert!(training.run(&batch, &inputs).unwrap().loss.is_finite(), "it can go on");
    }
}

/// Weights that are finite, and so large that a gradient is not.
#[test]
fn a_gradient_that_is_not_finite_is_named_where_it_starts() {
    let mut training = new(config());
    let name = "transformer.h.1.mlp.c_proj.weight";
    let mut large = training.program().read(name).unwrap().to_vec::<f32>().unwrap();
    large.iter_mut().for_each(|x| *x = x.signum() * 3e38);
    training.program_mut().write(name, &large).unwrap();
    let batch = batch(&training, 9);
    let inputs = StepScalars { step: 9, learning_rate: 1e-3, clip_norm: 1.0, seed: 5 };
    assert!(is_not_finite(&training.run(&batch, &inputs).unwrap_err()));
    assert_eq!(training.culprit().unwrap(), Culprit::Gradient("transformer.ln_f.bias"));
}

#[test]
fn dropout_follows_the_seed_and_the_step_and_evaluation_has_none() {
    let dropping = StepConfig::plain(ModelConfig { dropout: 0.3, ..model() }, BATCH);
    let outcomes = |config: StepConfig| train(&mut new(config), 3, 1e-2, 1.0);
    assert_eq!(outcomes(dropping.clone()), outcomes(dropping.clone()), "the same seed, the same bits");
    assert_ne!(outcomes(dropping.clone())[0].loss, outcomes(config())[0].loss);
    let evaluated = |config: StepConfig| {
        let mut training = new(config);
        let batch = batch(&training, 0);
        training.evaluate(&batch).unwrap()
    };
    assert_eq!(evaluated(dropping), evaluated(config()));
}

#[test]
fn bf16_learns_as_f32_does() {
    let losses = |precision| train(&mut new(StepConfig { precision, ..config() }), 60, 1e-2, 1.0);
    let (single, half) = (losses(Precision::F32), losses(Precision::Bf16));
    assert!((single[0].loss - half[0].loss).abs() < 0.02 * single[0].loss);
    assert!(half[59].loss < 0.8 * half[0].loss && (half[59].loss - single[59].loss).abs() < 0.3, "{:?}", half[59]);
}

/// A weight times a number, and what is said of the losses besides.
struct Scaled {
    counted: Option<usize>,
    loss: fn(&Tensor) -> Tensor,
}

impl Objective for Scaled {
    fn losses(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        inputs.get("x", DType::F32, []) * parameters.get("w", [1], Initializer::Ones)
    }

    fn loss(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        (self.loss)(&self.losses(parameters, inputs))
    }

    fn counted(&self, _: &Batch) -> Option<usize> {
        self.counted
    }
}

fn scaled(counted: Option<usize>, loss: fn(&Tensor) -> Tensor) -> StepConfig {
    StepConfig::new(Rc::new(Scaled { counted, loss }), BATCH, Sgd::default())
}

#[test]
fn steps_that_cannot_be_are_refused_before_they_are_traced() {
    let fine = || scaled(None, Tensor::mean_all);
    for (config, part) in [
        (StepConfig { micro_batches: 0, ..fine() }, "0 micro-batches of 4 examples"),
        (StepConfig { micro_batch: 0, ..fine() }, "1 micro-batches of 0 examples"),
        (StepConfig { micro_batches: usize::MAX, ..fine() }, "a number from 1 up of each"),
        (StepConfig { micro_batches: 1 << 50, ..fine() }, "more than a process can address"),
        (StepConfig { clip_value: Some(f32::NAN), ..fine() }, "clipped at NaN"),
        (StepConfig { clip_value: Some(-1.0), ..fine() }, "clipped at -1"),
        (scaled(None, Tensor::clone), "`Objective::loss` gives f32[4]"),
    ] {
        let error = TrainingStep::new(config, &Cpu::new(1).unwrap()).err().expect(part).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn numbers_that_no_step_can_go_by_are_refused_and_change_nothing() {
    let fine = StepScalars { step: 0, learning_rate: 0.1, clip_norm: 1.0, seed: 0 };
    for (counted, inputs, part) in [
        (None, StepScalars { clip_norm: f32::NAN, ..fine }, "clip at is NaN"),
        (None, StepScalars { clip_norm: -1.0, ..fine }, "clip at is -1"),
        (None, StepScalars { learning_rate: f32::NAN, ..fine }, "learning rate is NaN"),
        (Some(0), fine, "0 of the batch's 4 losses"),
        (Some(5), fine, "5 of the batch's 4 losses"),
    ] {
        let mut training = new(scaled(counted, Tensor::mean_all));
        let mut batch = training.batch();
        batch.write("x", &[1f32, 2., 3., 4.]).unwrap();
        let error = training.run(&batch, &inputs).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        assert_eq!(training.program().read("w").unwrap().to_f64(), [1.0]);
    }
}

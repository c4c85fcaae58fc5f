//! Lanes: sums over a batch by a tree that depends on their number alone.

use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::config::{OptimizerKind, Precision};
use gradus_train::lanes::Lanes;
use gradus_train::layers::{BatchNorm, Linear};
use gradus_train::models::ModelConfig;
use gradus_train::optimizers::Sgd;
use gradus_train::parameters::Parameters;
use gradus_train::step::{Inputs, Outcome, StepConfig, StepScalars, TrainingStep};
use std::rc::Rc;

const BATCH: usize = 32;
const SEQUENCE: usize = 32;
const VOCABULARY: usize = 61;

/// A model with tied embeddings, whose gradients have two sums, and a matrix of more squares than are added together.
fn config(lanes: usize, micro_batch: usize) -> StepConfig {
    let lane = BATCH / lanes;
    let model = ModelConfig::gpt2(VOCABULARY, 32, 2, 2, SEQUENCE);
    let lanes = Lanes::all(lanes);
    StepConfig { micro_batch, micro_batches: lane / micro_batch, lanes, ..StepConfig::plain(model, BATCH) }
}

fn step(training: &mut TrainingStep, step: u64) -> Outcome {
    let token = |place: usize| ((place * place / 7 + place * 3 + step as usize * 11) % VOCABULARY) as i32;
    let mut batch = training.batch();
    // Some targets do not count, and not as many in every sequence.
    let target = |place: usize| if place % 37 == 5 { -100 } else { token(place + 1) };
    batch.write("tokens", &(0..BATCH * SEQUENCE).map(token).collect::<Vec<_>>()).unwrap();
    batch.write("targets", &(0..BATCH * SEQUENCE).map(target).collect::<Vec<_>>()).unwrap();
    training.run(&batch, &StepScalars { step, learning_rate: 1e-2, clip_norm: 1.0, seed: 5 }).unwrap()
}

/// The bits of all that steps leave behind, and of their losses and norms.
fn trained(config: StepConfig, threads: usize) -> (Vec<(String, Vec<u8>)>, Vec<u32>) {
    trained_for(3, config, threads)
}

fn trained_for(steps: u64, config: StepConfig, threads: usize) -> (Vec<(String, Vec<u8>)>, Vec<u32>) {
    let mut training = TrainingStep::new(config, &Cpu::new(threads).unwrap()).unwrap();
    training.initialize(3).unwrap();
    let outcomes: Vec<Outcome> = (0..steps).map(|number| step(&mut training, number)).collect();
    let figures = outcomes.iter().flat_map(|outcome| [outcome.loss.to_bits(), outcome.gradient_norm.to_bits()]);
    (states(&training), figures.collect())
}

fn states(training: &TrainingStep) -> Vec<(String, Vec<u8>)> {
    let kept = training.program().states().filter(|(_, role, _)| role.outlasts_a_step());
    kept.map(|(name, _, _)| (name.to_string(), training.program().bytes(name).unwrap().to_vec())).collect()
}

/// Twelve steps, so that what is made new once in ten is so twice.
#[test]
fn micro_batches_and_threads_change_no_bit_of_matrices_and_curvature() {
    for kind in [OptimizerKind::Muon, OptimizerKind::Sophia, OptimizerKind::Soap] {
        let config = |micro_batch| StepConfig { optimizer: kind.grouped(kind.usual()), ..config(2, micro_batch) };
        let whole = trained_for(12, config(16), 2);
        for (micro_batch, threads) in [(16, 1), (16, 3), (2, 2)] {
            assert!(
                trained_for(12, config(micro_batch), threads) == whole,
                "{kind:?}, {micro_batch} at once, {threads} threads"
            );
        }
    }
}

#[test]
fn micro_batches_and_threads_change_no_bit_of_lanes() {
    for (precision, lanes) in [(Precision::F32, 8), (Precision::Bf16, 8), (Precision::F16, 2)] {
        let config = |micro_batch| StepConfig { precision, ..config(lanes, micro_batch) };
        let whole = trained(config(BATCH / lanes), 2);
        for (micro_batch, threads) in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)] {
            assert!(trained(config(micro_batch), threads) == whole, "{precision:?}, {micro_batch}, {threads} threads");
        }
    }
}

/// So the test above can fail.
#[test]
fn another_tree_gives_other_bits_and_all_but_the_same_numbers() {
    let numbers = |bytes: &[u8]| -> Vec<f32> { bytemuck::pod_collect_to_vec(bytes) };
    let (whole, figures) = trained(config(1, 4), 2);
    for lanes in [2, 4, 8] {
        let (states, others) = trained(config(lanes, 4), 2);
        assert!(states != whole, "{lanes} lanes");
        for (figure, other) in figures.iter().zip(&others) {
            let (figure, other) = (f32::from_bits(*figure), f32::from_bits(*other));
            assert!((figure - other).abs() < 1e-4 * figure.abs(), "{lanes} lanes: {figure} and {other}");
        }
        let weight = |states: &[(String, Vec<u8>)]| {
            numbers(&states.iter().find(|(name, _)| name.ends_with("h.0.mlp.c_fc.weight")).unwrap().1)
        };
        let furthest = weight(&whole).iter().zip(weight(&states)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-3, "{lanes} lanes: {furthest}");
    }
}

/// One lane is what there was before: no sums wait, and nothing is added.
#[test]
fn one_lane_has_no_routines_of_its_own() {
    let names = |lanes: usize| {
        let training = TrainingStep::new(config(lanes, 2), &Cpu::new(1).unwrap()).unwrap();
        let plan = training.program().plan();
        let routines: Vec<(String, usize)> =
            plan.routines.iter().map(|routine| (routine.name.clone(), routine.times_per_step)).collect();
        let waiting = training.program().states().filter(|(name, _, _)| name.starts_with("lanes.0.")).count();
        (routines, waiting)
    };
    let called = |(routines, waiting): (Vec<(String, usize)>, usize)| {
        let routines = routines.into_iter().filter(|(_, times)| *times > 0);
        (routines.map(|(name, times)| format!("{name} x {times}")).collect::<Vec<_>>(), waiting)
    };
    assert_eq!(called(names(1)), (["first x 1", "accumulate x 15", "update x 1"].map(String::from).to_vec(), 0));
    let (routines, waiting) = called(names(4));
    let folds = ["keep.0.0 x 1", "keep.1.1 x 1", "keep.1.0 x 1", "join.2.2 x 1"];
    let expected: Vec<&str> = ["first x 4", "accumulate x 12"].into_iter().chain(folds).chain(["update x 1"]).collect();
    assert_eq!(routines, expected);
    assert!(waiting > 10, "sums wait in states of their own: {waiting}");
}

/// What is counted in a step is the mean over all micro-batches, and figures of gradients are those of the whole batch.
#[test]
fn statistics_and_health_are_those_of_the_batch() {
    let losses = |parameters: &Parameters, inputs: &Inputs| -> Tensor {
        let x = inputs.get("x", DType::F32, [4]); // [b, 4]
        let hidden = Linear::new(&parameters.within("a"), 4, 6).forward(&x);
        let hidden = BatchNorm::new(&parameters.within("norm"), 6).forward(&hidden);
        let error = Linear::new(&parameters.within("b"), 6, 4).forward(&hidden) - x; // [b, 4]
        &error * &error
    };
    let trained = |lanes: usize, micro_batch: usize| {
        let config = StepConfig {
            micro_batch,
            micro_batches: 16 / lanes / micro_batch,
            lanes: Lanes::all(lanes),
            health: true,
            ..StepConfig::new(Rc::new(losses), 16, Sgd::default())
        };
        let mut training = TrainingStep::new(config, &Cpu::new(2).unwrap()).unwrap();
        training.initialize(3).unwrap();
        let mut batch = training.batch();
        batch.write("x", &(0..64).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>()).unwrap();
        let mut health = training.health().unwrap();
        for step in 0..3 {
            let inputs = StepScalars { step, learning_rate: 0.1, clip_norm: 1.0, seed: 5 };
            training.run_measured(&batch, &inputs, &mut health).unwrap();
        }
        let mean = training.program().read("norm.running_mean").unwrap().to_vec::<f32>().unwrap();
        (mean, health.weight("a.weight").unwrap().gradient_norm)
    };
    let (mean, norm) = trained(1, 4);
    let (other_mean, other_norm) = trained(4, 4);
    // The same micro-batches, so the same statistics but for rounding.
    assert!(mean.iter().zip(&other_mean).all(|(a, b)| (a - b).abs() < 1e-5), "{mean:?} {other_mean:?}");
    assert!((norm - other_norm).abs() < 1e-4 * norm, "{norm} {other_norm}");
}

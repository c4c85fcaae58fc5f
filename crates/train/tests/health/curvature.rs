//! The sharpness of the loss is that of its Hessian, and measuring it changes nothing else.

use crate::models::{INPUTS, convolutional, language, points, sequences};
use crate::same_steps::{lines, states};
use crate::support::{Folder, Watcher};
use crate::{reports, trainer};
use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::config::{LocalSteps, Precision};
use gradus_train::models::{Family, ModelConfig};
use gradus_train::parameters::{Initializer, Parameters};
use gradus_train::run::Unwatched;
use gradus_train::step::{Batch, Inputs, Objective, StepConfig, StepScalars, TrainingStep};
use gradus_train::trainer::{Settings, Trainer};
use std::sync::Arc;

fn watching(steps: u64) -> Settings {
    Settings { batch: 8, steps: Some(steps), watch_curvature: 1, ..Settings::default() }
}

fn points_only(step: u64, batch: &mut Batch) -> gradus_train::Result<()> {
    let numbers = batch.numbers_mut::<f32>("x")?.iter_mut().enumerate();
    numbers.for_each(|(index, x)| *x = crate::models::random(1000 * step + index as u64) - 0.25);
    Ok(())
}

/// The squares of a linear function of points: its Hessian is twice the mean of their outer products.
fn linear(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let x = inputs.get("x", DType::F32, [INPUTS]);
    let weight = parameters.get("weight", [INPUTS, 1], Initializer::Normal { deviation: 0.1 });
    let y = x.matmul(&weight).reshape([x.size(0)]) - 1.0;
    &y * &y
}

/// The largest eigenvalue of twice the mean outer product of the first examples, by power iteration, which is enough for a
/// matrix without negative eigenvalues.
fn largest_of_outer_products(x: &[f32], examples: usize) -> f64 {
    let mut vector = [1.0; INPUTS];
    let mut length = 0.0;
    for _ in 0..2000 {
        let mut product = [0.0; INPUTS];
        for row in x.chunks_exact(INPUTS).take(examples) {
            let along: f64 = row.iter().zip(&vector).map(|(x, v)| f64::from(*x) * v).sum();
            product.iter_mut().zip(row).for_each(|(sum, x)| *sum += 2.0 / examples as f64 * along * f64::from(*x));
        }
        length = product.iter().map(|x| x * x).sum::<f64>().sqrt();
        vector = product.map(|x| x / length);
    }
    length
}

#[test]
fn the_sharpness_of_squares_is_known() {
    for batch in [8, 4, 1] {
        let mut trainer = trainer(linear, Settings { batch, ..watching(3) });
        let mut examples = trainer.batch();
        for step in 0..3 {
            points_only(step, &mut examples).unwrap();
            let known = largest_of_outer_products(examples.numbers_mut::<f32>("x").unwrap(), batch.min(4));
            let found = f64::from(trainer.step(&examples).unwrap().sharpness.expect("every step is measured"));
            assert!((found / known - 1.0).abs() < 1e-4, "{found}, not {known}, of {batch} examples");
        }
    }
}

/// The eigenvalue farthest from zero is another.
#[test]
fn what_curves_downwards_is_not_sharp() {
    for (upwards, known) in [(1.0, 2.0), (0.0, 0.0), (-1.0, -2.0)] {
        let saddle = move |parameters: &Parameters, inputs: &Inputs| {
            let [a, b] = ["a", "b"].map(|name| parameters.get(name, [3], Initializer::Constant(0.1)));
            (&a * &a * upwards - &b * &b * 5.0).sum_all() + inputs.get("x", DType::F32, [INPUTS]).sum(&[1]) * 0.0
        };
        let found = reports(&mut trainer(saddle, watching(2)), points_only)[0].sharpness.unwrap();
        assert!((f64::from(found) - known).abs() < 1e-5, "{found}, not {known}");
    }
}

#[test]
fn watching_changes_no_bit_and_is_the_same_on_any_threads_and_in_any_pieces() {
    let run = |watch_curvature: u64, threads: usize, micro_batch: usize, precision: Precision| {
        let settings = Settings { watch_curvature, micro_batch, precision, ..watching(6) };
        let backend = Arc::new(Cpu::new(threads).unwrap());
        let mut trainer = Trainer::new(language(Family::Gpt2), settings, backend).unwrap();
        let mut watcher = Watcher::default();
        trainer.train(sequences(|_| false), &mut watcher).unwrap();
        (states(&trainer), watcher.reports.iter().map(|report| report.sharpness).collect::<Vec<_>>())
    };
    for precision in [Precision::F32, Precision::Bf16] {
        let (off, none) = run(0, 1, 8, precision);
        assert_eq!(none, [None; 6]);
        let (bits, sharpness) = run(2, 1, 8, precision);
        assert!(bits == off, "watching changes the run in {precision:?}");
        let measured: Vec<bool> = sharpness.iter().map(Option::is_some).collect();
        assert_eq!(measured, [false, true, false, true, false, true]);
        assert!(sharpness.iter().flatten().all(|sharpness| *sharpness > 1e-3), "{sharpness:?}");
        assert_eq!(run(2, 3, 4, precision), (bits, sharpness), "on three threads and in two pieces");
    }
    // Statistics of a batch are not those of its pieces, but the first sharpness is before there are any.
    let whole = |micro_batch| {
        let mut trainer = trainer(convolutional, Settings { micro_batch, batch: 32, ..watching(3) });
        reports(&mut trainer, points).iter().map(|report| report.sharpness.unwrap()).next()
    };
    assert_eq!(whole(32), whole(8));
}

/// What the products have in common is kept between them or made for each, and the sharpness has the same bits.
#[test]
fn what_is_kept_between_products_changes_no_bit() {
    let (context, vocabulary) = (16, 40);
    let measured = |linearized: bool| {
        let model = ModelConfig::gpt2(vocabulary, 256, 1, 4, context);
        let config = StepConfig { sharpness: true, linearized, ..StepConfig::plain(model, 4) };
        let mut step = TrainingStep::new(config, &Cpu::new(2).unwrap()).unwrap();
        step.initialize(3).unwrap();
        let sharpness = |number: u64| {
            let mut batch = step.batch();
            for name in ["tokens", "targets"] {
                let tokens = batch.numbers_mut::<i32>(name).unwrap().iter_mut().enumerate();
                tokens.for_each(|(at, token)| *token = ((at * at + 3 * at * number as usize) % vocabulary) as i32);
            }
            let scalars = StepScalars { step: number, learning_rate: 1e-2, clip_norm: 1.0, seed: 5 };
            let found = step.sharpness(&batch, &scalars).unwrap();
            step.run(&batch, &scalars).unwrap();
            found
        };
        let found: Vec<Option<f32>> = (0..3).map(sharpness).collect();
        let plan = step.program().plan();
        (found, plan.routines.iter().any(|routine| routine.name == "sharpness.linearize"), plan.regions.states)
    };
    let [(plain, false, states), (linearized, true, with_kept)] = [false, true].map(measured) else {
        panic!("one of the two has a routine that linearizes")
    };
    assert!(plain == linearized && plain[0] != plain[1] && with_kept > states, "{plain:?} {linearized:?}");
}

#[test]
fn a_run_that_goes_on_measures_what_one_would_that_was_never_stopped() {
    let folder = Folder::new("curvature-resume");
    let stated = |name: &str| Settings { watch_curvature: 3, folder: Some(folder.path().join(name)), ..watching(14) };
    let batches = sequences(|_| false);
    trainer(language(Family::Gpt2), stated("whole")).train(batches, &mut Unwatched).unwrap();
    for stop_at in [Some(7), None] {
        let mut watcher = Watcher { stop_at, ..Watcher::default() };
        trainer(language(Family::Gpt2), stated("pieces")).train(batches, &mut watcher).unwrap();
    }
    let (whole, pieces) = (lines(&folder.path().join("whole")), lines(&folder.path().join("pieces")));
    assert_eq!((whole.len(), pieces.len()), (14, 14));
    for (whole, piece) in whole.iter().zip(&pieces) {
        assert_eq!(whole["sharpness"].is_number(), whole["step"].as_u64().unwrap().is_multiple_of(3), "{whole}");
        assert_eq!((whole.get("sharpness"), whole.get("loss")), (piece.get("sharpness"), piece.get("loss")));
    }
}

#[test]
fn what_has_no_curvature_of_all_weights_in_one_place_is_refused() {
    fn refused(objective: impl Objective + 'static, settings: Settings) -> String {
        let refused = Trainer::new(objective, settings, Arc::new(Cpu::new(1).unwrap()));
        refused.err().expect("it is refused").to_string()
    }
    let several =
        Settings { lanes: 2, local: Some(LocalSteps { every: 2, learning_rate: 0.7, momentum: 0.9 }), ..watching(4) };
    let told = refused(linear, several);
    assert!(told.contains("watch_curvature") && told.contains("local_steps"), "{told}");
}

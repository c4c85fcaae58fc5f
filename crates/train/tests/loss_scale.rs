//! f16, and the scale of the loss: it backs off, grows, lasts and leaves no trace in the numbers.

mod support;

use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::Error;
use gradus_train::config::{Clip, Precision};
use gradus_train::layers::Linear;
use gradus_train::loss_scale::{GOOD_STEPS, LossScale, SCALE};
use gradus_train::models::ModelConfig;
use gradus_train::parameters::Parameters;
use gradus_train::run::Unwatched;
use gradus_train::step::{Batch, Inputs, Outcome, StepConfig, StepScalars, TrainingStep};
use gradus_train::trainer::{Settings, Trainer};
use std::sync::Arc;
use support::{Folder, Watcher};

const BATCH: usize = 4;
const SEQUENCE: usize = 12;
const VOCABULARY: usize = 29;

fn config(precision: Precision, loss_scale: Option<LossScale>) -> StepConfig {
    let model = ModelConfig::gpt2(VOCABULARY, 16, 2, 2, SEQUENCE);
    StepConfig { precision, loss_scale, ..StepConfig::plain(model, BATCH) }
}

fn new(config: StepConfig) -> TrainingStep {
    let mut step = TrainingStep::new(config, &Cpu::new(2).unwrap()).unwrap();
    step.initialize(3).unwrap();
    step
}

/// Steps on tokens that count upwards.
fn train(training: &mut TrainingStep, steps: u64) -> Vec<Outcome> {
    let run = |step: u64| {
        let token = |place: usize| ((place * 5 / SEQUENCE + place + step as usize * 11) % VOCABULARY) as i32;
        let mut batch = training.batch();
        batch.write("tokens", &(0..BATCH * SEQUENCE).map(token).collect::<Vec<_>>()).unwrap();
        batch.write("targets", &(1..=BATCH * SEQUENCE).map(token).collect::<Vec<_>>()).unwrap();
        training.run(&batch, &StepScalars { step, learning_rate: 1e-2, clip_norm: 1.0, seed: 5 }).unwrap()
    };
    (0..steps).map(run).collect()
}

/// The bits of all that a step leaves behind but for the scale, by name.
fn states(training: &TrainingStep) -> Vec<(String, Vec<u8>)> {
    let program = training.program();
    let kept = program.states().filter(|(name, role, _)| role.outlasts_a_step() && !name.starts_with(SCALE));
    kept.map(|(name, _, _)| (name.to_string(), program.bytes(name).unwrap().to_vec())).collect()
}

fn is_skipped(outcome: &Outcome) -> bool {
    outcome.scaling.unwrap().skipped
}

#[test]
fn f16_learns_as_f32_does() {
    let losses = |precision| train(&mut new(config(precision, None)), 60);
    let (single, half) = (losses(Precision::F32), losses(Precision::F16));
    assert!(half.iter().all(|outcome| !is_skipped(outcome)) && single[0].scaling.is_none());
    for (single, half) in single.iter().zip(&half) {
        assert!((single.loss - half.loss).abs() < 0.02 * single.loss, "{single:?} {half:?}");
    }
    assert!((single[0].loss - half[0].loss).abs() < 1e-3 * single[0].loss);
    assert!((single[0].gradient_norm - half[0].gradient_norm).abs() < 5e-3 * single[0].gradient_norm, "unscaled");
    assert!(half[59].loss < 0.8 * half[0].loss, "{:?}", half[59]);
}

/// A scale that is a power of two moves nothing but exponents.
#[test]
fn in_f32_the_scale_changes_no_bit() {
    for (micro_batches, clip_value) in [(1, None), (2, None), (1, Some(1e-3))] {
        let micro_batch = BATCH / micro_batches;
        let cut = |config: StepConfig| StepConfig { micro_batch, micro_batches, clip_value, ..config };
        let mut plain = new(cut(config(Precision::F32, None)));
        let scale = LossScale { initial: 1024.0, interval: 2, ..LossScale::default() };
        let mut scaled = new(cut(config(Precision::F32, Some(scale))));
        let norms = |outcomes: Vec<Outcome>| outcomes.iter().map(|at| [at.loss, at.gradient_norm]).collect::<Vec<_>>();
        assert_eq!(norms(train(&mut plain, 5)), norms(train(&mut scaled, 5)));
        assert!(states(&plain) == states(&scaled), "{micro_batches} micro-batches, clipped by {clip_value:?}");
        assert_eq!(scaled.program().scalar(SCALE).unwrap(), 4096.0, "it grew after 2 and after 4 steps");
    }
}

#[test]
fn an_overflow_changes_nothing_but_the_scale_and_training_goes_on() {
    for micro_batches in [1, 2] {
        let scale = LossScale { initial: 2f32.powi(40), ..LossScale::default() };
        let config = config(Precision::F16, Some(scale));
        let mut training = new(StepConfig { micro_batch: BATCH / micro_batches, micro_batches, ..config });
        let before = states(&training);
        let first = train(&mut training, 1)[0];
        assert!(is_skipped(&first) && first.loss.is_nan() && first.gradient_norm.is_nan());
        assert!(states(&training) == before, "no weight and no moment has changed");
        let outcomes = train(&mut training, 60);
        let skipped = 1 + outcomes.iter().filter(|outcome| is_skipped(outcome)).count();
        let good = outcomes.iter().position(|outcome| !is_skipped(outcome)).unwrap();
        // One halving after another; gradients that grow later may ask for another.
        assert!((good + 1..good + 4).contains(&skipped), "{skipped} skipped, {good} at first");
        let last = outcomes[59].scaling.unwrap();
        assert_eq!((last.loss_scale, last.skipped_steps), (2f32.powi(40 - skipped as i32), skipped as u64));
        assert!(last.loss_scale > 65536.0 / 64.0, "{last:?}");
        assert!(outcomes[59].loss < 0.9 * outcomes[good].loss, "{:?}", outcomes[59]);
    }
}

#[test]
fn the_scale_grows_after_good_steps_in_a_row() {
    let scale = LossScale { initial: 8.0, growth: 4.0, interval: 3, ..LossScale::default() };
    let mut training = new(config(Precision::F16, Some(scale)));
    let scales: Vec<f32> = train(&mut training, 7).iter().map(|at| at.scaling.unwrap().loss_scale).collect();
    assert_eq!(scales, [8.0, 8.0, 32.0, 32.0, 32.0, 128.0, 128.0]);
    // A step that is skipped begins the count anew.
    let program = training.program_mut();
    assert_eq!(program.scalar(GOOD_STEPS).unwrap(), 1.0);
    program.write(SCALE, &[2f32.powi(40)]).unwrap();
    assert!(is_skipped(&train(&mut training, 1)[0]));
    assert_eq!(training.program().scalar(GOOD_STEPS).unwrap(), 0.0);
    // It does not grow beyond what a number can be.
    let scale = LossScale { initial: 2f32.powi(96), interval: 1, ..LossScale::default() };
    let mut training =
        Trainer::new(still, settings(Precision::F32, Some(scale)), Arc::new(Cpu::new(1).unwrap())).unwrap();
    let mut batch = training.batch();
    points(0, &mut batch).unwrap();
    assert_eq!(training.step(&batch).unwrap().loss_scale, Some(2f32.powi(96)));
}

/// A network of two layers: one loss for each point.
fn network(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let (x, class) = (inputs.get("x", DType::F32, [2]), inputs.get("class", DType::I32, [])); // [b, 2], [b]
    let hidden = Linear::new(&parameters.within("hidden"), 2, 16).forward(&x).tanh(); // [b, 16]
    Linear::new(&parameters.within("head"), 16, 3).forward(&hidden).cross_entropy_rows(&class, None)
}

/// The same, whose gradient is zero.
fn still(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    network(parameters, inputs) * 0.0
}

fn points(step: u64, batch: &mut Batch) -> gradus_train::Result<()> {
    let number = |row: usize| ((step as usize * 12 + row) * 37 % 101) as f32 / 50.0 - 1.0;
    for (row, x) in batch.numbers_mut::<f32>("x")?.chunks_exact_mut(2).enumerate() {
        x.copy_from_slice(&[number(row), number(row + 5)]);
    }
    for (row, class) in batch.numbers_mut::<i32>("class")?.iter_mut().enumerate() {
        *class = if number(row) < 0.0 { 0 } else { 1 + i32::from(number(row + 5) > 0.2) };
    }
    Ok(())
}

fn settings(precision: Precision, loss_scale: Option<LossScale>) -> Settings {
    Settings { batch: 12, steps: Some(40), learning_rate: 0.02, seed: 3, precision, loss_scale, ..Settings::default() }
}

fn trainer(settings: Settings) -> Trainer {
    Trainer::new(network, settings, Arc::new(Cpu::new(2).unwrap())).unwrap()
}

#[test]
fn a_run_that_is_gone_on_with_has_the_same_bits_and_the_same_scale() {
    let folder = Folder::new("loss-scale-resume");
    // It overflows at first, and again whenever it has grown too far.
    let scale = LossScale { initial: 2f32.powi(24), interval: 4, ..LossScale::default() };
    for micro_batch in [12, 4] {
        let stated = |name: &str| Settings {
            micro_batch,
            clip: Clip::Adaptive,
            folder: Some(folder.path().join(format!("{name}-{micro_batch}"))),
            ..settings(Precision::F16, Some(scale))
        };
        let all = |trainer: &Trainer| {
            let kept = trainer.program().states().filter(|(_, role, _)| role.outlasts_a_step());
            kept.map(|(name, _, _)| (name.to_string(), trainer.program().bytes(name).unwrap().to_vec())).collect()
        };
        let mut whole = trainer(stated("whole"));
        whole.train(points, &mut Unwatched).unwrap();
        let mut watcher = Watcher { stop_at: Some(17), ..Watcher::default() };
        assert!(trainer(stated("pieces")).train(points, &mut watcher).unwrap().interrupted);
        let mut resumed = trainer(stated("pieces"));
        resumed.train(points, &mut Unwatched).unwrap();
        let (expected, found): (Vec<_>, Vec<_>) = (all(&whole), all(&resumed));
        assert!(expected == found && expected.iter().any(|(name, _)| name == SCALE));
        let lines = std::fs::read_to_string(folder.path().join(format!("pieces-{micro_batch}/metrics.jsonl"))).unwrap();
        let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let skipped: Vec<bool> = lines.iter().map(|line| line["loss"].is_null()).collect();
        let counts: Vec<u64> = lines.iter().map(|line| line["skipped_steps"].as_u64().unwrap()).collect();
        assert!(lines.len() == 40 && skipped[0] && skipped[20..].contains(&true) && !skipped[39], "{skipped:?}");
        assert_eq!(counts[39], skipped.iter().filter(|skipped| **skipped).count() as u64);
        for (index, pair) in lines.windows(2).enumerate() {
            let [before, after] = [&pair[0], &pair[1]].map(|line| line["loss_scale"].as_f64().unwrap());
            let factor = after / before;
            assert!(
                if skipped[index + 1] { factor == 0.5 } else { factor == 1.0 || factor == 2.0 },
                "{index}: {factor}"
            );
        }
    }
}

#[test]
fn f16_is_scaled_by_itself_and_other_precisions_are_not() {
    for (precision, expected) in [(Precision::F32, None), (Precision::Bf16, None), (Precision::F16, Some(65536.0))] {
        let mut trainer = trainer(settings(precision, None));
        let mut batch = trainer.batch();
        points(0, &mut batch).unwrap();
        let report = trainer.step(&batch).unwrap();
        assert_eq!((report.loss_scale, report.skipped_steps), (expected, expected.map(|_| 0)), "{precision:?}");
        assert!(report.loss.is_finite());
    }
}

#[test]
fn gradients_that_no_scale_helps_end_the_run() {
    let scale = LossScale { initial: 1e-3, ..LossScale::default() };
    let mut trainer = trainer(settings(Precision::F16, Some(scale)));
    let mut batch = trainer.batch();
    points(0, &mut batch).unwrap();
    batch.numbers_mut::<f32>("x").unwrap()[7] = f32::NAN;
    (0..3).for_each(|_| assert!(trainer.step(&batch).unwrap().loss.is_nan()));
    let error = trainer.step(&batch).unwrap_err();
    let told = "step 4: the gradient of head.bias is not finite, however small the loss is scaled, 4 steps in a row; start again";
    assert!(matches!(error, Error::Diverged(_)) && error.to_string().starts_with(told), "{error}");
}

#[test]
fn a_scale_that_cannot_be_is_refused_and_so_is_another_way_to_go_on() {
    let usual = LossScale::default();
    for (scale, part) in [
        (LossScale { initial: f32::NAN, ..usual }, "the initial loss scale is NaN"),
        (LossScale { growth: 0.5, ..usual }, "the growth of the loss scale is 0.5"),
        (LossScale { backoff: 1.0, ..usual }, "the backoff of the loss scale is 1"),
        (LossScale { interval: 0, ..usual }, "the interval of the loss scale is 0"),
    ] {
        let refused = TrainingStep::new(config(Precision::F16, Some(scale)), &Cpu::new(1).unwrap());
        let error = refused.err().expect(part).to_string();
        assert!(error.starts_with(part) && error.contains("; give "), "{error}");
    }
    let folder = Folder::new("loss-scale-other");
    let stated = |loss_scale| Settings {
        steps: Some(2),
        folder: Some(folder.path().to_path_buf()),
        ..settings(Precision::F32, loss_scale)
    };
    trainer(stated(None)).train(points, &mut Unwatched).unwrap();
    let refused = Trainer::new(network, stated(Some(usual)), Arc::new(Cpu::new(1).unwrap()));
    let error = refused.err().expect("refused").to_string();
    assert!(error.contains("`settings.loss_scale` null, and has \"dynamic\" now"), "{error}");
}

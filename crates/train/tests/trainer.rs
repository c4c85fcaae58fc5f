//! The trainer on models of one's own: the same bits however it is cut, stopped or driven.

mod support;

use gradus_engine::backend::Cpu;
use gradus_engine::{Array, DType, Tensor};
use gradus_train::config::{Clip, Precision, ScheduleKind};
use gradus_train::layers::{BatchNorm, Linear};
use gradus_train::optimizers::{AdamW, Group, GroupedOptimizer, Muon, Sgd, Soap, Sophia};
use gradus_train::parameters::{Initializer, Parameters};
use gradus_train::run::{Event, Observer, Stop, Unwatched};
use gradus_train::schedule::Length;
use gradus_train::step::{Batch, Inputs, TrainingStep};
use gradus_train::trainer::{Arrays, GoesOn, Hooks, Settings, Trainer};
use gradus_train::{Error, Result};
use std::sync::Arc;
use support::{Folder, Watcher};

const BATCH: usize = 12;

/// A network of two layers on points: one loss for each.
fn network(dropout: f32) -> impl Fn(&Parameters, &Inputs) -> Tensor {
    move |parameters, inputs| {
        let (x, class) = (inputs.get("x", DType::F32, [2]), inputs.get("class", DType::I32, [])); // [b, 2], [b]
        let normal = Initializer::Normal { deviation: 0.5 };
        let bias = |name: &str, size| parameters.get(name, [size], Initializer::Zeros);
        let hidden = x.linear(&parameters.get("hidden.weight", [2, 16], normal), Some(&bias("hidden.bias", 16)));
        let hidden = parameters.dropout(&hidden.tanh(), dropout); // [b, 16]
        let logits = hidden.linear(&parameters.get("head.weight", [16, 3], normal), Some(&bias("head.bias", 3))); // [b, 3]
        logits.cross_entropy_rows(&class, None)
    }
}

/// Points of three classes, other ones at each step.
fn points(step: u64, batch: &mut Batch) -> Result<()> {
    let number = |row: usize| ((step as usize * BATCH + row) * 37 % 101) as f32 / 50.0 - 1.0;
    for (row, x) in batch.numbers_mut::<f32>("x")?.chunks_exact_mut(2).enumerate() {
        x.copy_from_slice(&[number(row), number(row + 5)]);
    }
    for (row, class) in batch.numbers_mut::<i32>("class")?.iter_mut().enumerate() {
        *class = if number(row) < 0.0 { 0 } else { 1 + i32::from(number(row + 5) > 0.2) };
    }
    Ok(())
}

fn settings() -> Settings {
    Settings { batch: BATCH, steps: Some(40), learning_rate: 0.02, seed: 3, ..Settings::default() }
}

fn trainer(settings: Settings, dropout: f32) -> Trainer {
    Trainer::new(network(dropout), settings, Arc::new(Cpu::new(2).unwrap())).unwrap()
}

/// The bits of all that a step leaves behind, by name.
fn states(trainer: &Trainer) -> Vec<(String, Vec<u8>)> {
    let kept = trainer.program().states().filter(|(_, role, _)| role.outlasts_a_step());
    kept.map(|(name, _, _)| (name.to_string(), trainer.program().bytes(name).unwrap().to_vec())).collect()
}

#[test]
fn a_run_that_is_stopped_and_gone_on_with_has_the_same_bits() {
    let folder = Folder::new("trainer-resume");
    let slower_head = GroupedOptimizer::new(AdamW::default())
        .group(|name, _| name.starts_with("head."), Group { learning_rate_factor: 0.5, weight_decay: Some(0.2) })
        .average(0.9);
    for micro_batch in [BATCH, 4] {
        let stated = |name: &str| Settings {
            micro_batch,
            optimizer: slower_head.clone(),
            clip: Clip::Adaptive,
            schedule: ScheduleKind::Cosine,
            warmup_steps: 5,
            folder: Some(folder.path().join(format!("{name}-{micro_batch}"))),
            ..settings()
        };
        let mut whole = trainer(stated("whole"), 0.2);
        let summary = whole.train(points, &mut Unwatched).unwrap();
        assert!(whole.is_done() && summary.steps == 40 && !summary.interrupted);
        let mut watcher = Watcher { stop_at: Some(17), ..Watcher::default() };
        let stopped = trainer(stated("pieces"), 0.2).train(points, &mut watcher).unwrap();
        // It is asked before it tells of the step.
        assert!(stopped.interrupted && stopped.steps == 18);
        let mut resumed = trainer(stated("pieces"), 0.2);
        assert_eq!(resumed.steps_taken(), 18);
        let mut watcher = Watcher::default();
        resumed.train(points, &mut watcher).unwrap();
        assert_eq!(watcher.losses.first().unwrap().0, 19);
        assert_eq!(states(&resumed), states(&whole));
        assert!(states(&whole).iter().any(|(name, _)| name == "average.head.weight"));
        let lines = std::fs::read_to_string(folder.path().join(format!("pieces-{micro_batch}/metrics.jsonl"))).unwrap();
        let steps: Vec<u64> = lines
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, (1..=40).collect::<Vec<_>>());
    }
}

/// It is stopped between two turns of a basis, and two estimates of curvature.
#[test]
fn matrices_and_curvature_go_on_with_the_same_bits() {
    let folder = Folder::new("trainer-matrices");
    let vectors = |optimizer: GroupedOptimizer| optimizer.rule_for(|_, shape| shape.rank() < 2, AdamW::default());
    let rules = [vectors(Muon::default().into()), vectors(Soap::default().into()), Sophia::default().into()];
    for (number, optimizer) in rules.into_iter().enumerate() {
        let stated = |name: &str| Settings {
            optimizer: optimizer.clone(),
            steps: Some(24),
            learning_rate: 0.01,
            folder: Some(folder.path().join(format!("{name}-{number}"))),
            ..settings()
        };
        let mut whole = trainer(stated("whole"), 0.2);
        whole.train(points, &mut Unwatched).unwrap();
        let mut watcher = Watcher { stop_at: Some(13), ..Watcher::default() };
        assert!(trainer(stated("pieces"), 0.2).train(points, &mut watcher).unwrap().interrupted);
        let mut resumed = trainer(stated("pieces"), 0.2);
        assert_eq!(resumed.steps_taken(), 14);
        resumed.train(points, &mut Unwatched).unwrap();
        assert_eq!(states(&resumed), states(&whole), "{optimizer:?}");
    }
}

#[test]
fn what_a_run_cannot_go_on_with_is_refused() {
    let folder = Folder::new("trainer-other");
    let stated = || Settings { steps: Some(2), folder: Some(folder.path().to_path_buf()), ..settings() };
    trainer(stated(), 0.0).train(points, &mut Unwatched).unwrap();
    let refused = |settings: Settings| {
        Trainer::new(network(0.0), settings, Arc::new(Cpu::new(1).unwrap())).err().expect("refused").to_string()
    };
    let other = refused(Settings { seed: 4, ..stated() });
    assert!(other.contains("was trained with `settings.seed` 3") && other.contains("has 4 now"), "{other}");
    let other = refused(Settings { optimizer: Sgd::default().into(), ..stated() });
    assert!(other.contains("`settings.optimizer` \"adamw\""), "{other}");
    let wider = |parameters: &Parameters, inputs: &Inputs| {
        parameters.get("extra", [2], Initializer::Zeros).sum(&[0]) + network(0.0)(parameters, inputs)
    };
    let other = Trainer::new(wider, stated(), Arc::new(Cpu::new(1).unwrap())).err().expect("refused").to_string();
    assert!(other.contains("extra"), "{other}");
    assert_eq!(trainer(Settings { steps: Some(5), ..stated() }, 0.0).steps_taken(), 2, "more steps are no other run");
}

/// Micro-batches, threads, an iterator of arrays and a loop of one's own change nothing.
#[test]
fn however_it_is_driven_the_bits_are_the_same() {
    let mut whole = trainer(settings(), 0.0);
    let room = whole.batch();
    whole.train(points, &mut Unwatched).unwrap();
    let expected = states(&whole);
    let mut pieces = trainer(Settings { micro_batch: 3, ..settings() }, 0.0);
    pieces.train(points, &mut Unwatched).unwrap();
    assert_eq!(states(&pieces), expected, "micro-batches");
    let arrays = (0..).map(move |step| {
        let mut batch = room.clone();
        points(step, &mut batch).unwrap();
        [
            ("x", Array::new([BATCH, 2], batch.numbers::<f32>("x").unwrap()).unwrap()),
            ("class", Array::new([BATCH], batch.numbers::<i32>("class").unwrap()).unwrap()),
        ]
    });
    let mut iterated = trainer(settings(), 0.0);
    iterated.train(Arrays::new(arrays), &mut Unwatched).unwrap();
    assert_eq!(states(&iterated), expected, "an iterator");
    let mut stepped = trainer(settings(), 0.0);
    let (mut batch, mut losses) = (stepped.batch(), vec![]);
    while !stepped.is_done() {
        points(stepped.steps_taken(), &mut batch).unwrap();
        losses.push(stepped.step(&batch).unwrap().loss);
    }
    assert_eq!(states(&stepped), expected, "step by step");
    assert!(losses.len() == 40 && losses[39] < 0.8 * losses[0], "{losses:?}");
}

#[test]
fn batches_that_end_end_the_run() {
    let batch = || {
        [("x", Array::zeros(DType::F32, [BATCH, 2]).unwrap()), ("class", Array::zeros(DType::I32, [BATCH]).unwrap())]
    };
    let summary = trainer(settings(), 0.0).train(Arrays::new((0..7).map(move |_| batch())), &mut Unwatched).unwrap();
    assert_eq!((summary.steps, summary.interrupted), (7, false));
}

#[test]
fn steps_that_are_not_finite_change_nothing_and_five_in_a_row_are_an_error() {
    for micro_batch in [BATCH, 4] {
        let mut trainer = trainer(Settings { micro_batch, ..settings() }, 0.0);
        let mut batch = trainer.batch();
        points(0, &mut batch).unwrap();
        let before = states(&trainer);
        let whole = batch.clone();
        batch.numbers_mut::<f32>("x").unwrap()[7] = f32::NAN;
        for _ in 0..4 {
            assert!(trainer.step(&batch).unwrap().loss.is_nan());
        }
        assert_eq!(states(&trainer), before);
        assert!(trainer.step(&whole).unwrap().loss.is_finite());
        assert_ne!(states(&trainer), before);
        (0..4).for_each(|_| assert!(trainer.step(&batch).unwrap().loss.is_nan()));
        let error = trainer.step(&batch).unwrap_err();
        assert!(
            matches!(error, Error::Diverged(_)) && error.to_string().contains("the gradient of head.bias"),
            "{error}"
        );
    }
}

/// What a model keeps count of is the mean over the micro-batches, and comes with the update.
#[test]
fn statistics_follow_the_whole_batch() {
    let counting = |parameters: &Parameters, inputs: &Inputs| {
        let x = inputs.get("x", DType::F32, []); // [b]
        let mean = parameters.statistics("mean", [1], 8.0);
        parameters.update(&mean, &(&mean * 0.5 + x.mean(&[0]).reshape([1]) * 0.5));
        &x * parameters.get("w", [1], Initializer::Ones)
    };
    for micro_batch in [8, 2] {
        let settings = Settings { batch: 8, micro_batch, ..settings() };
        let mut trainer = Trainer::new(counting, settings, Arc::new(Cpu::new(1).unwrap())).unwrap();
        let mut batch = trainer.batch();
        batch.write("x", &[1f32, 2., 3., 4., 5., 6., 7., 8.]).unwrap();
        trainer.step(&batch).unwrap();
        let mean = trainer.read("mean").unwrap().to_vec::<f32>().unwrap();
        assert_eq!(mean, [0.5 * 8.0 + 0.5 * 4.5], "{micro_batch} at once");
    }
}

#[test]
fn the_mean_over_micro_batches_is_divided_not_multiplied() {
    let counting = |parameters: &Parameters, inputs: &Inputs| {
        let x = inputs.get("x", DType::F32, []); // [b]
        let last = parameters.statistics("last", [1], 0.0);
        parameters.update(&last, &x.mean(&[0]).reshape([1]));
        &x * parameters.get("w", [1], Initializer::Ones)
    };
    let settings = Settings { batch: 7, micro_batch: 1, ..settings() };
    let mut trainer = Trainer::new(counting, settings, Arc::new(Cpu::new(1).unwrap())).unwrap();
    let mut batch = trainer.batch();
    batch.write("x", &[3f32; 7]).unwrap();
    trainer.step(&batch).unwrap();
    // 21 times the seventh as it is in f32 is a little more.
    assert_eq!(trainer.read("last").unwrap().to_f64(), [3.0]);
}

#[test]
fn a_compiled_function_computes_in_the_precision_of_the_settings() {
    let product = |parameters: &Parameters, inputs: &Inputs| {
        Linear::without_bias(parameters, 1, 1).forward(&inputs.get("x", DType::F32, [1]))
    };
    let numbers = [Precision::F32, Precision::Bf16].map(|precision| {
        let settings = Settings { precision, ..settings() };
        let mut trainer = Trainer::new(product, settings, Arc::new(Cpu::new(1).unwrap())).unwrap();
        trainer.program_mut().write("weight", &[1f32]).unwrap();
        let mut program = trainer.compile(1, product).unwrap();
        program.write("x", &[1.001f32]).unwrap();
        program.run("forward").unwrap();
        program.scalar("output").unwrap()
    });
    assert_eq!(numbers, [1.001, 1.0]);
}

/// Held-out points, looked at by whoever hangs on the run.
struct HeldOut(Vec<u64>);

impl Hooks for HeldOut {
    fn validation_loss(&mut self, training: &mut TrainingStep, _: usize, goes_on: GoesOn<'_>) -> Result<Option<f32>> {
        let mut batch = training.micro_batch();
        points(1000, &mut batch)?;
        self.0.push(1);
        Ok(goes_on(0, 1).then_some(training.evaluate(&batch)?))
    }

    fn sample(&mut self, training: &mut TrainingStep) -> Result<Option<String>> {
        Ok(Some(format!("{:?}", training.program().read("head.bias")?.to_f64())))
    }
}

#[test]
fn hooks_validate_and_sample_and_observers_hear_of_all() {
    let folder = Folder::new("trainer-hooks");
    let path = folder.path().join("run");
    let settings = Settings {
        steps: Some(10),
        micro_batch: BATCH,
        validate_every: 4,
        sample_every: 5,
        save_every: 3,
        folder: Some(path.clone()),
        ..settings()
    };
    let mut watcher = Watcher::default();
    let summary = trainer(settings, 0.0).with_hooks(HeldOut(vec![])).train(points, &mut watcher).unwrap();
    assert_eq!(watcher.validations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [4, 8, 10]);
    assert_eq!((watcher.samples.len(), watcher.losses.len(), watcher.saved.len()), (2, 10, 4));
    assert_eq!(summary.validation_loss, watcher.validations.last().map(|(_, loss)| *loss));
    assert!(path.join("samples/step-00000005.txt").is_file());
    assert_eq!(std::fs::read_dir(path.join("checkpoints")).unwrap().count(), 2, "two are kept");
}

#[test]
fn models_and_settings_that_cannot_be_are_refused_in_a_line() {
    let refused = |objective: fn(&Parameters, &Inputs) -> Tensor, settings: Settings| {
        let error = Trainer::new(objective, settings, Arc::new(Cpu::new(1).unwrap())).err().expect("refused");
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        text
    };
    let fine: fn(&Parameters, &Inputs) -> Tensor = |parameters, inputs| network(0.0)(parameters, inputs);
    let text = refused(|parameters, inputs| network(0.0)(parameters, inputs).mean_all(), settings());
    assert!(text.contains("leave the mean over them out"), "{text}");
    let text = refused(|_, inputs| inputs.get("x", DType::F32, []), settings());
    assert!(text.contains("no parameters"), "{text}");
    let text = refused(|_, inputs| inputs.get("x", DType::F32, [2]) + inputs.get("x", DType::F32, [3]), settings());
    assert!(text.contains("input \"x\"") && text.contains("trainer.rs"), "{text}");
    let text = refused(|_, inputs| inputs.get("clip_norm", DType::F32, [2]), settings());
    assert!(text.contains("\"clip_norm\"") && text.contains("tests/trainer.rs"), "{text}");
    let text = refused(
        |parameters, inputs| {
            parameters.get("idle", [2], Initializer::Ones);
            network(0.0)(parameters, inputs)
        },
        settings(),
    );
    assert!(text.contains("on weight \"idle\""), "{text}");
    let text = refused(
        |parameters, inputs| network(0.0)(parameters, inputs) * parameters.trace().input("own", DType::F32, []),
        settings(),
    );
    assert!(text.contains("\"own\" is made by the model itself") && text.contains("tests/trainer.rs:"), "{text}");
    let text = refused(
        |parameters, inputs| {
            let x = inputs.get("x", DType::F32, [2]).reshape([BATCH, 2]);
            x * parameters.get("w", [1], Initializer::Ones)
        },
        settings(),
    );
    assert!(text.contains("tests/trainer.rs:") && text.contains("from `Inputs::rows`"), "{text}");
    let text = refused(
        |parameters, inputs| {
            let norm = BatchNorm::new(parameters, 2);
            norm.forward(&norm.forward(&inputs.get("x", DType::F32, [2])))
        },
        settings(),
    );
    assert!(text.contains("the step assigns it already") && text.contains("tests/trainer.rs:"), "{text}");
    let named: fn(&Parameters, &Inputs) -> Tensor = |parameters, inputs| {
        network(0.0)(parameters, inputs) * parameters.get("optimizer.step", [1], Initializer::Ones)
    };
    let text = refused(named, settings());
    assert!(text.contains("a state named \"optimizer.step\" itself"), "{text}");
    for (settings, part) in [
        (Settings { micro_batch: 5, ..settings() }, "`settings.micro_batch` 5 does not divide `settings.batch` 12"),
        (Settings { steps: None, schedule: ScheduleKind::Linear, ..settings() }, "has no end"),
        (Settings { batch: 0, ..settings() }, "batch"),
        (Settings { folder: Some("".into()), ..settings() }, "`settings.folder` is empty"),
        (Settings { learning_rate: f64::NAN, ..settings() }, "learning_rate"),
    ] {
        let text = refused(fine, settings);
        assert!(text.contains(part), "{text}");
    }
    let mut trainer = trainer(settings(), 0.0);
    let mut batch = trainer.batch();
    assert!(batch.write("y", &[0f32]).unwrap_err().to_string().contains("it has x, class"));
    assert!(batch.write("x", &[0f32; 3]).unwrap_err().to_string().contains("24 numbers"));
    assert!(batch.write("x", &[0i32; 24]).unwrap_err().to_string().contains("f32[12, 2]"));
    let small = trainer.micro_batch();
    if small.rows() != BATCH {
        assert!(trainer.step(&small).unwrap_err().to_string().contains("12 at a time"));
    }
}

/// A number of examples that is written down is no error where there are never fewer at once.
#[test]
fn a_micro_batch_that_is_stated_is_the_only_one_that_is_traced() {
    let fixed = |parameters: &Parameters, inputs: &Inputs| {
        inputs.get("x", DType::F32, [2]).reshape([BATCH, 2]) * parameters.get("w", [1], Initializer::Ones)
    };
    Trainer::new(fixed, Settings { micro_batch: BATCH, ..settings() }, Arc::new(Cpu::new(1).unwrap())).unwrap();
}

#[test]
fn remarks_name_the_settings_that_there_are() {
    let stated =
        Settings { steps: Some(3), schedule: ScheduleKind::Linear, decay: Some(Length::Steps(9)), ..settings() };
    let mut watcher = Watcher::default();
    trainer(stated, 0.0).train(points, &mut watcher).unwrap();
    assert!(watcher.notes.iter().any(|note| note.contains("`settings.decay` Steps(3)")), "{:?}", watcher.notes);
}

/// Names that the sums over micro-batches might take too.
#[test]
fn weights_may_be_called_as_sums_are() {
    let twice = |parameters: &Parameters, inputs: &Inputs| {
        let x = inputs.get("x", DType::F32, []);
        let weight = |name: &str| parameters.get(name, [1], Initializer::Ones);
        (&x * weight("w") + weight("w.1")) * weight("w") + weight("loss") * weight("statistics.0")
    };
    let step = |micro_batch: usize| {
        let settings = Settings { batch: 4, micro_batch, optimizer: Sgd::default().into(), ..settings() };
        let mut trainer = Trainer::new(twice, settings, Arc::new(Cpu::new(1).unwrap())).unwrap();
        let mut batch = trainer.batch();
        batch.write("x", &[1f32, 2., 3., 4.]).unwrap();
        trainer.step(&batch).unwrap();
        ["w", "w.1", "loss", "statistics.0"].map(|name| trainer.read(name).unwrap().to_f64()[0])
    };
    assert_eq!(step(1), step(4));
    assert!(step(1).iter().all(|number| *number != 1.0));
}

/// Asks to stop at once.
struct Impatient(bool);

impl Observer for Impatient {
    fn event(&mut self, event: &Event<'_>) {
        self.0 |= matches!(event, Event::Finished(_));
    }

    fn should_stop(&self) -> Stop {
        Stop::AfterStep
    }
}

#[test]
fn a_run_without_a_folder_stops_too_and_goes_on_in_the_same_process() {
    let mut whole = trainer(settings(), 0.1);
    whole.train(points, &mut Unwatched).unwrap();
    let mut pieces = trainer(settings(), 0.1);
    let mut impatient = Impatient(false);
    for step in 1..=3 {
        let summary = pieces.train(points, &mut impatient).unwrap();
        assert!(summary.interrupted && summary.steps == step && impatient.0);
    }
    pieces.train(points, &mut Unwatched).unwrap();
    assert_eq!(states(&pieces), states(&whole));
}

#[test]
fn a_batch_of_which_an_input_is_not_written_is_refused() {
    let some = |_: u64, batch: &mut Batch| batch.numbers_mut::<f32>("x").map(|x| x.fill(0.5));
    let error = trainer(settings(), 0.0).train(some, &mut Unwatched).unwrap_err().to_string();
    assert!(error.contains("\"class\"") && error.contains("write every input"), "{error}");
    let mut by_hand = trainer(settings(), 0.0);
    let mut batch = by_hand.batch();
    some(0, &mut batch).unwrap();
    assert!(by_hand.step(&batch).is_err());
    points(0, &mut batch).unwrap();
    by_hand.step(&batch).unwrap();
}

#[test]
fn a_step_that_is_refused_is_not_counted() {
    let mut trainer = trainer(settings(), 0.0);
    let mut batch = trainer.batch();
    points(0, &mut batch).unwrap();
    batch.numbers_mut::<i32>("class").unwrap()[3] = 99;
    trainer.step(&batch).unwrap_err();
    assert_eq!(trainer.steps_taken(), 0);
    points(0, &mut batch).unwrap();
    trainer.step(&batch).unwrap();
    assert_eq!(trainer.steps_taken(), 1);
}

#[test]
fn a_weight_of_another_shape_is_not_compiled() {
    let trainer = trainer(settings(), 0.0);
    let other =
        |parameters: &Parameters, _: &Inputs| parameters.get("hidden.weight", [16, 2], Initializer::Zeros).sum(&[0]);
    assert!(trainer.compile(1, other).is_err());
}

#[test]
fn settings_that_would_lose_a_run_are_refused() {
    use gradus_train::schedule::Length;
    let infinite = Settings { seconds: Some(f64::INFINITY), ..settings() };
    let never = Settings { seconds: Some(f64::NAN), ..settings() };
    let decay = Settings { decay: Some(Length::Seconds(f64::INFINITY)), ..settings() };
    let warmup = Settings { warmup_steps: u64::MAX, ..settings() };
    for wrong in [infinite, never, decay, warmup] {
        let made = Trainer::new(network(0.0), wrong, Arc::new(Cpu::new(1).unwrap()));
        assert!(made.err().expect("refused").to_string().contains("out of range"));
    }
}

#[test]
fn a_weight_is_read_after_a_step_that_was_not_finite() {
    let mut trainer = trainer(settings(), 0.0);
    let before = trainer.read("hidden.weight").unwrap();
    let mut batch = trainer.batch();
    points(0, &mut batch).unwrap();
    batch.numbers_mut::<f32>("x").unwrap()[0] = f32::NAN;
    assert!(trainer.step(&batch).unwrap().loss.is_nan());
    assert_eq!(trainer.read("hidden.weight").unwrap(), before);
}

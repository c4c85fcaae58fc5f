//! What ranks exchange in few bytes, gradients that are compressed and lanes that meet seldom: the same bits on any number of
//! ranks, and training goes on well.

mod support;

use gradus_comm::{Transport, in_process};
use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::Result;
use gradus_train::config::{Clip, Compression, HealthInterval, LocalSteps, Precision, ScheduleKind, Sharding};
use gradus_train::language::LanguageModel;
use gradus_train::layers::Linear;
use gradus_train::models::ModelConfig;
use gradus_train::optimizers::Sgd;
use gradus_train::parameters::Parameters;
use gradus_train::ranks::Ranks;
use gradus_train::run::Unwatched;
use gradus_train::step::{Batch, Inputs, Objective};
use gradus_train::trainer::{Settings, Trainer};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use support::{Folder, Watcher};

const SEQUENCE: usize = 32;
const VOCABULARY: usize = 61;

type States = BTreeMap<String, Vec<u8>>;

fn methods() -> [Compression; 5] {
    ["top-k:0.05", "threshold:0.002", "8bit", "4bit", "power-sgd:2"].map(|text| text.parse().unwrap())
}

fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let ends = in_process(ranks).into_iter().map(|end| Box::new(end) as Box<dyn Transport>);
        let threads: Vec<_> = ends.map(|end| scope.spawn(move || work(Ranks::new(end)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The bits of all that training leaves behind here, by name.
fn states(trainer: &Trainer) -> States {
    let kept = trainer.program().states().filter(|(_, role, _)| role.outlasts_a_step());
    kept.map(|(name, _, _)| (name.to_string(), trainer.program().bytes(name).unwrap().to_vec())).collect()
}

/// What all ranks have together; what several have is the same. Parts of a sum's error are one after another. Where lanes have
/// replicas, what an optimizer remembers only holds the last lane's.
fn together(all: Vec<States>) -> States {
    let has_replicas = all[0].contains_key("local.begun");
    let mut whole = States::new();
    for (name, bytes) in all.into_iter().flatten().filter(|(name, _)| !(has_replicas && name.starts_with("optimizer.")))
    {
        if name.starts_with("error.sum.") {
            whole.entry(name).or_default().extend(bytes);
        } else if let Some(known) = whole.insert(name.clone(), bytes.clone()) {
            assert!(known == bytes, "{name} differs between ranks");
        }
    }
    whole
}

/// A model with tied embeddings, some of whose activations are dropped; not all its sizes are whole units.
fn language_model() -> LanguageModel {
    let model = ModelConfig { dropout: 0.1, ..ModelConfig::gpt2(VOCABULARY, 48, 1, 2, SEQUENCE) };
    LanguageModel::new(Rc::new(model))
}

fn tokens(step: u64, batch: &mut Batch) -> Result<()> {
    let token = |place: usize| ((place * place / 7 + place * 3 + step as usize * 11) % VOCABULARY) as i32;
    let target = |place: usize| if place % 37 == 5 || place / SEQUENCE == 3 { -100 } else { token(place + 1) };
    batch.numbers_mut::<i32>("tokens")?.iter_mut().enumerate().for_each(|(place, number)| *number = token(place));
    batch.numbers_mut::<i32>("targets")?.iter_mut().enumerate().for_each(|(place, number)| *number = target(place));
    Ok(())
}

fn settings(compress: Compression) -> Settings {
    Settings {
        batch: 8,
        lanes: 4,
        micro_batch: 1,
        steps: Some(6),
        learning_rate: 0.01,
        clip: Clip::Norm(0.5),
        schedule: ScheduleKind::Constant,
        seed: 3,
        compress,
        compress_warmup: 2,
        ..Settings::default()
    }
}

/// What all ranks come to together, and the loss of the last step.
fn trained(ranks: usize, settings: &Settings) -> (States, f32) {
    let all = on_ranks(ranks, |ranks| {
        let backend = Arc::new(Cpu::new(1).unwrap());
        let mut trainer = Trainer::on_ranks(language_model(), settings.clone(), backend, ranks).unwrap();
        let summary = trainer.train(tokens, &mut Unwatched).unwrap();
        (states(&trainer), summary.loss)
    });
    let loss = all[0].1;
    assert!(loss.is_finite() && all.iter().all(|(_, other)| other.to_bits() == loss.to_bits()));
    (together(all.into_iter().map(|(states, _)| states).collect()), loss)
}

#[test]
fn the_number_of_ranks_changes_no_bit() {
    let plain = trained(1, &settings(Compression::None)).0;
    for method in methods() {
        let (expected, _) = trained(1, &settings(method));
        assert!(plain.iter().any(|(name, bytes)| expected[name] != *bytes), "{method} leaves something out");
        let is_error = |name: &&String| name.starts_with("error.");
        let nonzero =
            expected.iter().filter(|(name, _)| is_error(name)).filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        assert!(nonzero.count() > 4, "{method} keeps what it leaves out");
        for ranks in [2, 3, 4] {
            assert!(trained(ranks, &settings(method)).0 == expected, "{method} on {ranks} ranks");
        }
    }
}

#[test]
fn scaled_losses_are_compressed_alike_on_any_number_of_ranks() {
    for method in [Compression::Bits8, Compression::PowerSgd(2)] {
        let settings = Settings { precision: Precision::F16, clip: Clip::Adaptive, ..settings(method) };
        let (expected, _) = trained(1, &settings);
        assert!(trained(3, &settings).0 == expected, "{method}");
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    for method in methods().into_iter().skip(1).step_by(2).chain([Compression::PowerSgd(2)]) {
        let folder = Folder::new(&format!("compressed-{}", method.to_string().replace([':', '.'], "-")));
        let within = |name: &str, steps: u64| Settings {
            steps: Some(steps),
            folder: Some(folder.path().join(name)),
            ..settings(method)
        };
        let (unbroken, _) = trained(2, &within("unbroken", 7));
        let mut states = States::new();
        for (ranks, steps) in [(4, 3), (1, 5), (3, 7)] {
            (states, _) = trained(ranks, &within("pieces", steps));
        }
        assert!(states == unbroken, "{method}");
        let saved = |name: &str| {
            let file = std::fs::read(folder.path().join(name).join("checkpoints/step-00000007/optimizer.safetensors"));
            file.unwrap()
        };
        assert!(saved("pieces") == saved("unbroken"), "{method}: checkpoints are whole, errors and all");
        let error = refused(Path::new(&folder.path().join("pieces")));
        assert!(error.contains("was trained with `settings.compress`"), "{error}");
    }
}

/// What is said to a run that goes on without its errors.
fn refused(folder: &Path) -> String {
    let settings = Settings { folder: Some(folder.to_path_buf()), compress_warmup: 0, ..settings(Compression::None) };
    Trainer::new(language_model(), settings, Arc::new(Cpu::new(1).unwrap())).err().unwrap().to_string()
}

/// A network over points whose losses may be refused where they are computed.
fn network(checked: bool) -> impl Objective {
    move |parameters: &Parameters, inputs: &Inputs| -> Tensor {
        let x = inputs.get("x", DType::F32, [40]);
        let hidden = Linear::new(&parameters.within("a"), 40, 50).forward(&x).gelu();
        let error = Linear::new(&parameters.within("b"), 50, 40).forward(&hidden) - x;
        let losses = &error * &error;
        if checked { losses.check_finite("a loss") } else { losses }
    }
}

#[test]
fn a_refused_step_changes_no_error() {
    for (method, checked) in methods().into_iter().flat_map(|method| [(method, false), (method, true)]) {
        let settings = Settings { compress_warmup: 0, ..settings(method) };
        // The batch of the last step is refused, or there is no such step.
        let run = |ranks: usize, steps: u64| {
            let points = |step: u64, batch: &mut Batch| {
                let numbers = batch.numbers_mut::<f32>("x")?;
                numbers.iter_mut().enumerate().for_each(|(place, x)| *x = (place as f32 * 0.7 + step as f32).sin());
                if step == 3 {
                    numbers[40 * 5] = f32::INFINITY;
                }
                Ok(())
            };
            let all = on_ranks(ranks, |ranks| {
                let settings = Settings { steps: Some(steps), ..settings.clone() };
                let backend = Arc::new(Cpu::new(1).unwrap());
                let mut trainer = Trainer::on_ranks(network(checked), settings, backend, ranks).unwrap();
                let mut watcher = Watcher::default();
                trainer.train(points, &mut watcher).unwrap();
                let skipped = watcher.losses.iter().filter(|(_, loss)| loss.is_nan()).count();
                (states(&trainer), skipped)
            });
            assert!(all.iter().all(|(_, skipped)| *skipped == usize::from(steps > 3)), "{method}");
            together(all.into_iter().map(|(states, _)| states).collect())
        };
        let expected = run(1, 3);
        for ranks in [1, 3] {
            assert!(run(ranks, 4) == expected, "{method} on {ranks} ranks, checked: {checked}");
        }
    }
}

/// Waves that begin anywhere.
fn waves(step: u64, batch: &mut Batch) -> Result<()> {
    let wave = |place: usize| ((place % 40) as f32 * 0.3 + (place / 40) as f32 + step as f32).sin();
    batch.numbers_mut::<f32>("x")?.iter_mut().enumerate().for_each(|(place, x)| *x = wave(place));
    Ok(())
}

#[test]
fn fewer_bytes_are_sent_and_the_loss_falls_as_without() {
    let run = |compress: Compression| {
        let settings = Settings { steps: Some(40), compress_warmup: 4, clip: Clip::None, ..settings(compress) };
        let all = on_ranks(4, |ranks| {
            let mut trainer =
                Trainer::on_ranks(network(false), settings.clone(), Arc::new(Cpu::new(1).unwrap()), ranks).unwrap();
            let mut watcher = Watcher::default();
            trainer.train(waves, &mut watcher).unwrap();
            (watcher.losses.last().unwrap().1, watcher.reports.last().unwrap().bytes_sent.unwrap())
        });
        all[0]
    };
    let (plain_loss, plain_bytes) = run(Compression::None);
    // The loss is sent as it is, and so are a step's few words.
    for (method, fewer, most) in [
        (Compression::Bits8, 3.6, 1.3 * plain_loss),
        (Compression::Bits4, 6.0, 1.3 * plain_loss),
        (Compression::PowerSgd(4), 15.0, 1.5 * plain_loss),
        // One number in ten waits for ten steps, of which there are few here: it began at 0.5.
        (Compression::TopK(0.1), 4.5, 0.1),
    ] {
        let (loss, bytes) = run(method);
        assert!(plain_bytes as f64 / bytes as f64 > fewer, "{method}: {bytes} of {plain_bytes} bytes");
        assert!(loss < most, "{method}: {loss} and {plain_loss}");
    }
}

/// A loss whose gradient is the same whatever the weights.
fn slope(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    Linear::new(&parameters.within("a"), 40, 50).forward(&inputs.get("x", DType::F32, [40]))
        * inputs.get("y", DType::F32, [50])
}

#[test]
fn what_few_bits_leave_out_of_factors_is_in_the_errors_of_lanes() {
    let run = |compress: Compression| {
        let settings = Settings {
            steps: Some(9),
            learning_rate: 1.0,
            warmup_steps: 0,
            compress_warmup: 0,
            clip: Clip::None,
            optimizer: Sgd { momentum: 0.0, weight_decay: 0.0, nesterov: false }.into(),
            ..settings(compress)
        };
        let mut trainer = Trainer::new(slope, settings, Arc::new(Cpu::new(1).unwrap())).unwrap();
        let points = |_: u64, batch: &mut Batch| {
            for name in ["x", "y"] {
                let numbers = batch.numbers_mut::<f32>(name)?;
                numbers.iter_mut().enumerate().for_each(|(place, number)| *number = (place as f32 * 1.3).sin());
            }
            Ok(())
        };
        trainer.train(points, &mut Unwatched).unwrap();
        states(&trainer)
    };
    let numbers = |states: &States, name: &str| -> Vec<f32> { bytemuck::pod_collect_to_vec(&states[name]) };
    let (plain, low_rank) = (run(Compression::None), run(Compression::PowerSgd(2)));
    let weight = "a.weight";
    let errors: Vec<Vec<f32>> = (0..4).map(|lane| numbers(&low_rank, &format!("error.{lane}.{weight}"))).collect();
    let (whole, reached) = (numbers(&plain, weight), numbers(&low_rank, weight));
    let mut largest = 0.0f32;
    for at in 0..whole.len() {
        let missing: f32 = errors.iter().map(|error| error[at]).sum();
        assert!((reached[at] - missing - whole[at]).abs() < 1e-5, "{at}: {} {missing} {}", reached[at], whole[at]);
        largest = largest.max(missing.abs());
    }
    assert!(largest > 1e-3, "something is left out: {largest}");
}

/// Lanes that meet every three steps, with what they exchange made smaller or not.
fn local(compress: Compression) -> Settings {
    let local = Some(LocalSteps { every: 3, learning_rate: 0.7, momentum: 0.9 });
    Settings { local, compress_warmup: 0, ..settings(compress) }
}

#[test]
fn lanes_that_meet_seldom_are_the_same_on_any_number_of_ranks() {
    let all_together = trained(1, &settings(Compression::None)).0;
    for method in [Compression::None, Compression::Bits4] {
        let (expected, _) = trained(1, &local(method));
        assert!(all_together.iter().any(|(name, bytes)| expected.get(name) != Some(bytes)));
        let lanes: Vec<&Vec<u8>> = (0..4).map(|lane| &expected[&format!("replica.{lane}.optimizer.step")]).collect();
        assert!(lanes.iter().all(|steps| ***steps == 6f32.to_ne_bytes()));
        let moments = |lane: usize| -> Vec<&Vec<u8>> {
            let start = format!("replica.{lane}.optimizer.");
            expected.iter().filter(|(name, _)| name.starts_with(&start)).map(|(_, bytes)| bytes).collect()
        };
        assert!(moments(0) != moments(1), "each lane remembers its own");
        for ranks in [2, 3, 4] {
            let other = trained(ranks, &local(method)).0;
            assert!(other == expected, "{method} on {ranks} ranks");
        }
    }
}

#[test]
fn lanes_go_on_by_themselves_on_another_number_of_ranks() {
    let folder = Folder::new("local-resumed");
    let within = |name: &str, steps: u64| Settings {
        steps: Some(steps),
        folder: Some(folder.path().join(name)),
        save_every: 1,
        ..local(Compression::Bits8)
    };
    let (unbroken, _) = trained(2, &within("unbroken", 9));
    // The first session is stopped between two meetings.
    let stopped = on_ranks(4, |ranks| {
        let backend = Arc::new(Cpu::new(1).unwrap());
        let mut trainer = Trainer::on_ranks(language_model(), within("pieces", 9), backend, ranks).unwrap();
        let mut watcher = Watcher { stop_at: Some(3), ..Watcher::default() };
        trainer.train(tokens, &mut watcher).unwrap().steps
    });
    assert_eq!(stopped, [4; 4]);
    trained(1, &within("pieces", 6));
    let (states, _) = trained(3, &within("pieces", 9));
    assert!(states == unbroken);
    let saved = |name: &str| {
        std::fs::read(folder.path().join(name).join("checkpoints/step-00000009/optimizer.safetensors")).unwrap()
    };
    assert!(saved("pieces") == saved("unbroken"));
}

#[test]
fn lanes_that_meet_seldom_learn_as_well_with_few_bytes() {
    let run = |settings: Settings| {
        let all = on_ranks(4, |ranks| {
            let settings = Settings { steps: Some(60), clip: Clip::None, ..settings.clone() };
            let mut trainer =
                Trainer::on_ranks(network(false), settings, Arc::new(Cpu::new(1).unwrap()), ranks).unwrap();
            let mut watcher = Watcher::default();
            trainer.train(waves, &mut watcher).unwrap();
            let bytes: u64 = watcher.reports.iter().map(|report| report.bytes_sent.unwrap()).sum();
            (watcher.losses.last().unwrap().1, bytes)
        });
        all[0]
    };
    let (loss, bytes) = run(settings(Compression::None));
    let every = LocalSteps { every: 10, learning_rate: 0.7, momentum: 0.9 };
    let (local_loss, local_bytes) = run(Settings { local: Some(every), ..local(Compression::Bits4) });
    // A step's few words are there in every step.
    assert!(bytes as f64 / local_bytes as f64 > 25.0, "{local_bytes} of {bytes} bytes");
    // It began at 0.5, and lanes have met six times.
    assert!(local_loss < 0.1, "{local_loss} and {loss}");
}

#[test]
fn what_local_steps_cannot_be_taken_with_is_refused() {
    let refused = |settings: Settings| {
        Trainer::new(language_model(), settings, Arc::new(Cpu::new(1).unwrap())).err().unwrap().to_string()
    };
    for (settings, part) in [
        (Settings { steps: Some(7), ..local(Compression::None) }, "choose a multiple"),
        (Settings { precision: Precision::F16, ..local(Compression::None) }, "`settings.precision` bf16 or f32"),
        (Settings { health: HealthInterval::Steps(2), ..local(Compression::None) }, "`settings.health` off"),
        (Settings { shard: Sharding::Optimizer, ..local(Compression::None) }, "choose `settings.shard` none"),
    ] {
        let error = refused(settings);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let settings = Settings { shard: Sharding::Optimizer, ..settings(Compression::Bits8) };
    let error = Trainer::new(language_model(), settings, Arc::new(Cpu::new(1).unwrap())).err().unwrap().to_string();
    assert!(error.contains("choose `settings.shard` none, or `settings.compress` none"), "{error}");
}

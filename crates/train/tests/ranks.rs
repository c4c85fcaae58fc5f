//! Ranks that share out the lanes of a run: the same bits on any number of them.

mod support;

use gradus_comm::{Transport, in_process};
use gradus_engine::backend::{Backend, Cpu};
use gradus_engine::testing::SharedDevice;
use gradus_engine::{DType, Role, Tensor};
use gradus_train::Result;
use gradus_train::config::{Clip, HealthInterval, OptimizerKind, Precision, ScheduleKind, Sharding, TrainConfig};
use gradus_train::language::LanguageModel;
use gradus_train::layers::{BatchNorm, Linear};
use gradus_train::models::ModelConfig;
use gradus_train::optimizers::{Adafactor, AdamW, GroupedOptimizer, Lion, Sgd};
use gradus_train::parameters::Parameters;
use gradus_train::ranks::Ranks;
use gradus_train::run::{Summary, Unwatched};
use gradus_train::step::{Batch, Inputs, Objective};
use gradus_train::trainer::{Settings, Trainer};
use gradus_train::training::{follow, train_on};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use support::{Folder, Watcher, tiny};

const BATCH: usize = 16;
const SEQUENCE: usize = 32;
const VOCABULARY: usize = 61;

type States = Vec<(String, Vec<u8>)>;

/// Does something on each of so many ranks, all at once.
fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let ends = in_process(ranks).into_iter().map(|end| Box::new(end) as Box<dyn Transport>);
        let threads: Vec<_> = ends.map(|end| scope.spawn(move || work(Ranks::new(end)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// The bits of all that training leaves behind, by name.
fn states(trainer: &Trainer) -> States {
    let kept = trainer.program().states().filter(|(_, role, _)| role.outlasts_a_step());
    kept.map(|(name, _, _)| (name.to_string(), trainer.program().bytes(name).unwrap().to_vec())).collect()
}

/// A model with tied embeddings, some of whose activations are dropped.
fn language_model() -> LanguageModel {
    let model = ModelConfig { dropout: 0.1, ..ModelConfig::gpt2(VOCABULARY, 32, 2, 2, SEQUENCE) };
    LanguageModel::new(Rc::new(model))
}

/// Tokens, some of which do not count as targets, and not as many in every sequence.
fn tokens(step: u64, batch: &mut Batch) -> Result<()> {
    let token = |place: usize| ((place * place / 7 + place * 3 + step as usize * 11) % VOCABULARY) as i32;
    let target = |place: usize| if place % 37 == 5 || place / SEQUENCE == 3 { -100 } else { token(place + 1) };
    batch.numbers_mut::<i32>("tokens")?.iter_mut().enumerate().for_each(|(place, number)| *number = token(place));
    batch.numbers_mut::<i32>("targets")?.iter_mut().enumerate().for_each(|(place, number)| *number = target(place));
    Ok(())
}

fn settings() -> Settings {
    Settings {
        batch: BATCH,
        lanes: 8,
        micro_batch: 1,
        steps: Some(6),
        learning_rate: 0.02,
        clip: Clip::Norm(0.5),
        schedule: ScheduleKind::Cosine,
        seed: 3,
        ..Settings::default()
    }
}

/// What all ranks come to, which must be the same.
fn trained(ranks: usize, threads: usize, settings: &Settings) -> (States, Summary) {
    trained_on(&|| Arc::new(Cpu::new(threads).unwrap()), ranks, settings)
}

/// The same on devices, each of which is made for a rank.
fn trained_on(device: &(dyn Fn() -> Arc<dyn Backend> + Sync), ranks: usize, settings: &Settings) -> (States, Summary) {
    let all = on_ranks(ranks, |ranks| {
        let mut trainer = Trainer::on_ranks(language_model(), settings.clone(), device(), ranks).unwrap();
        let summary = trainer.train(tokens, &mut Unwatched).unwrap();
        (states(&trainer), summary)
    });
    let is_sharded = settings.shard.is_of_updates();
    assert!(all.iter().all(|(states, summary)| (is_sharded || *states == all[0].0) && summary.loss == all[0].1.loss));
    assert!(all.iter().all(|(states, _)| weights(states) == weights(&all[0].0)));
    all.into_iter().next().unwrap()
}

/// The weights among the states: what no optimizer remembers.
fn weights(states: &States) -> Vec<&(String, Vec<u8>)> {
    let is_remembered =
        |name: &str| ["optimizer.", "average.", "loss_scale"].iter().any(|start| name.starts_with(start));
    states.iter().filter(|(name, _)| !is_remembered(name)).collect()
}

#[test]
fn the_number_of_ranks_and_threads_changes_no_bit() {
    let (expected, summary) = trained(1, 1, &settings());
    assert!(summary.loss.is_finite());
    let with_overlap = [(1, 2), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2), (5, 1), (8, 1), (8, 2)];
    let without = [(2, 2), (3, 1), (8, 1)];
    let all = with_overlap.map(|run| (run, true)).into_iter().chain(without.map(|run| (run, false)));
    for ((ranks, threads), overlap) in all {
        let (states, other) = trained(ranks, threads, &Settings { overlap, ..settings() });
        assert!(states == expected, "{ranks} ranks of {threads} threads, overlap {overlap}");
        assert_eq!(other.loss.to_bits(), summary.loss.to_bits(), "the loss is that of the whole batch");
    }
    let (others, _) = trained(2, 1, &Settings { lanes: 4, ..settings() });
    assert!(others != expected, "other lanes are another sum");
}

#[test]
fn precisions_and_open_micro_batches_are_the_same_on_any_number_of_ranks() {
    let optimizer = GroupedOptimizer::new(AdamW::default()).average(0.9);
    for precision in [Precision::Bf16, Precision::F16] {
        let settings =
            Settings { precision, micro_batch: 0, clip: Clip::Adaptive, optimizer: optimizer.clone(), ..settings() };
        let (expected, _) = trained(1, 2, &settings);
        for ranks in [3, 4] {
            assert!(trained(ranks, 1, &settings).0 == expected, "{ranks} ranks in {precision:?}");
        }
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let folder = Folder::new("ranks-resumed");
    let within = |name: &str, steps: u64| Settings {
        steps: Some(steps),
        folder: Some(folder.path().join(name)),
        schedule: ScheduleKind::Constant,
        ..settings()
    };
    let (unbroken, _) = trained(1, 1, &within("unbroken", 9));
    let mut states = vec![];
    for (ranks, steps) in [(4, 3), (1, 6), (3, 9)] {
        let summary;
        (states, summary) = trained(ranks, 1, &within("pieces", steps));
        assert_eq!(summary.steps, steps);
    }
    assert!(states == unbroken);
    let lines = std::fs::read_to_string(folder.path().join("pieces/metrics.jsonl")).unwrap();
    assert_eq!(lines.lines().count(), 9, "only the first rank writes");
    let refused = on_ranks(2, |ranks| {
        let settings = Settings { lanes: 4, ..within("pieces", 12) };
        Trainer::on_ranks(language_model(), settings, Arc::new(Cpu::new(1).unwrap()), ranks).err().unwrap().to_string()
    });
    assert!(refused[0].contains("was trained with `settings.lanes` 8, and has 4 now"), "{refused:?}");
}

#[test]
fn parts_of_what_the_optimizer_remembers_give_the_same_bits() {
    let adamw = GroupedOptimizer::new(AdamW::default()).average(0.9);
    for optimizer in [adamw, Sgd::default().into(), Lion::default().into()] {
        let whole = Settings { optimizer, ..settings() };
        let sharded = Settings { shard: Sharding::Optimizer, ..whole.clone() };
        let (expected, summary) = trained(1, 2, &whole);
        for (ranks, overlap) in [(2, true), (3, true), (8, true), (3, false)] {
            let (states, other) = trained(ranks, 1, &Settings { overlap, ..sharded.clone() });
            assert!(weights(&states) == weights(&expected), "{ranks} ranks, overlap {overlap}");
            assert_eq!(other.loss.to_bits(), summary.loss.to_bits());
        }
        assert!(trained(1, 1, &sharded).0 == expected, "one rank has all of it");
    }
    let refused = |settings: Settings| {
        on_ranks(2, |ranks| {
            let backend = Arc::new(Cpu::new(1).unwrap());
            Trainer::on_ranks(language_model(), settings.clone(), backend, ranks).err().unwrap().to_string()
        })
    };
    let sharded = || Settings { shard: Sharding::Optimizer, ..settings() };
    let adafactor = refused(Settings { optimizer: Adafactor::default().into(), ..sharded() });
    assert!(adafactor[0].contains("which adafactor has not; choose `settings.optimizer` adamw"), "{adafactor:?}");
    let measured = refused(Settings { health: HealthInterval::Steps(3), ..sharded() });
    assert!(measured[1].contains("choose `settings.health` off"), "{measured:?}");
}

/// Twelve steps, so that a basis is turned twice.
#[test]
fn matrices_are_updated_alike_on_all_ranks_or_refused() {
    let of = |kind: OptimizerKind| Settings { optimizer: kind.grouped(kind.usual()), steps: Some(12), ..settings() };
    for kind in [OptimizerKind::Muon, OptimizerKind::Soap] {
        let (expected, _) = trained(1, 2, &of(kind));
        assert!(trained(3, 1, &of(kind)).0 == expected, "{kind:?}");
    }
    let refused = |settings: Settings| {
        on_ranks(2, |ranks| {
            let backend = Arc::new(Cpu::new(1).unwrap());
            Trainer::on_ranks(language_model(), settings.clone(), backend, ranks).err().unwrap().to_string()
        })
    };
    for (settings, problem) in [
        (of(OptimizerKind::Sophia), "sophia needs the curvature of a batch that several ranks have parts of"),
        (Settings { shard: Sharding::Optimizer, ..of(OptimizerKind::Muon) }, "which muon has not"),
        (Settings { shard: Sharding::Optimizer, ..of(OptimizerKind::Soap) }, "which soap has not"),
        (Settings { stages: 2, ..of(OptimizerKind::Soap) }, "soap needs all weights of the model in one place"),
    ] {
        let told = refused(settings);
        assert!(told.iter().all(|told| told.contains(problem)), "{told:?}");
    }
}

#[test]
fn checkpoints_of_parts_are_those_of_the_whole() {
    let folder = Folder::new("ranks-sharded");
    let within = |name: &str, steps: u64, shard: Sharding| Settings {
        steps: Some(steps),
        folder: Some(folder.path().join(name)),
        schedule: ScheduleKind::Constant,
        shard,
        ..settings()
    };
    let (unbroken, _) = trained(1, 1, &within("unbroken", 12, Sharding::None));
    let mut states = vec![];
    for (ranks, steps, shard) in
        [(4, 3, Sharding::Optimizer), (1, 5, Sharding::Optimizer), (3, 9, Sharding::Optimizer), (2, 12, Sharding::None)]
    {
        (states, _) = trained(ranks, 1, &within("pieces", steps, shard));
    }
    assert!(states == unbroken);
}

/// Settings by which gradients are given away as they come, where each rank has one of so many lanes.
fn giving(lanes: usize) -> Settings {
    Settings { shard: Sharding::Gradients, lanes, micro_batch: BATCH / lanes, ..settings() }
}

#[test]
fn gradients_that_are_given_away_give_the_same_bits() {
    let average = GroupedOptimizer::new(AdamW::default()).average(0.9);
    let usual = giving(4);
    let runs = [
        (usual.clone(), &[(4, true), (4, false), (3, true), (2, true)][..]),
        (Settings { optimizer: average, clip: Clip::Value(0.01), ..giving(2) }, &[(2, true), (2, false)]),
        (Settings { precision: Precision::Bf16, ..usual.clone() }, &[(4, true)]),
        (Settings { precision: Precision::F16, ..usual }, &[(4, true)]),
        (giving(8), &[(8, true), (5, true)]),
    ];
    for (settings, runs) in runs {
        let (expected, summary) = trained(1, 2, &Settings { shard: Sharding::None, ..settings.clone() });
        assert!(summary.loss.is_finite());
        assert!(trained(1, 1, &settings).0 == expected, "one rank has all of it");
        for &(ranks, overlap) in runs {
            let (states, other) = trained(ranks, 1, &Settings { overlap, ..settings.clone() });
            let about =
                format!("{ranks} ranks of {} lanes, overlap {overlap}, {:?}", settings.lanes, settings.precision);
            assert!(weights(&states) == weights(&expected), "{about}");
            assert_eq!(other.loss.to_bits(), summary.loss.to_bits(), "{about}");
        }
    }
}

#[test]
fn a_run_goes_on_whether_gradients_are_given_away_or_not() {
    let folder = Folder::new("ranks-given");
    let within = |name: &str, steps: u64, shard: Sharding| Settings {
        steps: Some(steps),
        folder: Some(folder.path().join(name)),
        schedule: ScheduleKind::Constant,
        shard,
        ..giving(4)
    };
    let (unbroken, _) = trained(1, 1, &within("unbroken", 12, Sharding::None));
    let mut states = vec![];
    for (ranks, steps, shard) in
        [(4, 3, Sharding::Gradients), (1, 5, Sharding::Gradients), (3, 9, Sharding::Gradients), (2, 12, Sharding::None)]
    {
        (states, _) = trained(ranks, 1, &within("pieces", steps, shard));
    }
    assert!(states == unbroken);
}

/// A rank that gives gradients away keeps its share of their sums, those of both uses of the tied table, to a unit of 1024 numbers a weight
/// at most; and the arena is smaller by what it does not keep.
#[test]
fn a_rank_keeps_its_share_of_sums() {
    let kept = |ranks: usize, shard: Sharding| -> Vec<(usize, usize)> {
        on_ranks(ranks, |ranks| {
            let backend = Arc::new(Cpu::new(1).unwrap());
            let settings = Settings { shard, ..giving(ranks.place().ranks) };
            let trainer = Trainer::on_ranks(language_model(), settings, backend, ranks).unwrap();
            let sums = trainer.program().states().filter(|(_, role, _)| *role == Role::Gradient);
            (sums.map(|(_, _, ty)| ty.bytes()).sum(), trainer.program().plan().regions.total())
        })
    };
    for ranks in [2, 4, 8] {
        let (whole, parts) = (kept(ranks, Sharding::Optimizer), kept(ranks, Sharding::Gradients));
        let (of_whole, all) = (whole[0].0, parts.iter().map(|(bytes, _)| bytes).sum::<usize>());
        // Each has the sum of the losses.
        assert_eq!(all, of_whole + 4 * (ranks - 1));
        for ((_, usual), (bytes, arena)) in whole.iter().zip(&parts) {
            assert!(*bytes <= of_whole / ranks + 2 * 4 * 1024 * 2, "{ranks} ranks: {parts:?} of {of_whole}");
            assert!(*arena < *usual, "{ranks} ranks: {arena} of {usual}");
        }
    }
}

/// A rank remembers its share, to a unit of 1024 numbers a weight at most.
#[test]
fn a_rank_remembers_its_share() {
    let remembered = |ranks: usize| -> Vec<usize> {
        on_ranks(ranks, |ranks| {
            let settings = Settings { shard: Sharding::Optimizer, ..settings() };
            let backend = Arc::new(Cpu::new(1).unwrap());
            let trainer = Trainer::on_ranks(language_model(), settings, backend, ranks).unwrap();
            let states = trainer.program().states().filter(|(_, role, _)| *role == Role::Optimizer);
            states.map(|(_, _, ty)| ty.bytes()).sum()
        })
    };
    let whole = remembered(1)[0];
    for ranks in [2, 4, 8] {
        let parts = remembered(ranks);
        // The steps are counted by each.
        assert_eq!(parts.iter().sum::<usize>(), whole + 4 * (ranks - 1));
        let largest = *parts.iter().max().unwrap();
        assert!(largest <= whole / ranks + 2 * 4 * 1024 * 2, "{ranks} ranks: {parts:?} of {whole}");
    }
}

/// Points with a network whose losses may be such that they are refused where they are computed.
fn network(checked: bool) -> impl Objective {
    move |parameters: &Parameters, inputs: &Inputs| -> Tensor {
        let x = inputs.get("x", DType::F32, [4]); // [b, 4]
        let hidden = Linear::new(&parameters.within("a"), 4, 6).forward(&x);
        let hidden = BatchNorm::new(&parameters.within("norm"), 6).forward(&hidden);
        let error = Linear::new(&parameters.within("b"), 6, 4).forward(&hidden) - x; // [b, 4]
        let losses = &error * &error;
        if checked { losses.check_finite("a loss") } else { losses }
    }
}

/// What each rank comes to, and the steps that it skipped, if one number of a step is infinite.
fn skipping(
    ranks: usize,
    settings: &Settings,
    checked: bool,
    device: &(dyn Fn() -> Arc<dyn Backend> + Sync),
) -> Vec<(States, Vec<u64>)> {
    let points = |step: u64, batch: &mut Batch| {
        let numbers = batch.numbers_mut::<f32>("x")?;
        numbers.iter_mut().enumerate().for_each(|(place, x)| *x = (place as f32 * 0.7 + step as f32).sin());
        if step == 2 {
            numbers[4 * 5] = f32::INFINITY;
        }
        Ok(())
    };
    on_ranks(ranks, |ranks| {
        let mut trainer = Trainer::on_ranks(network(checked), settings.clone(), device(), ranks).unwrap();
        let mut watcher = Watcher::default();
        trainer.train(points, &mut watcher).unwrap();
        let skipped = watcher.losses.iter().filter(|(_, loss)| loss.is_nan()).map(|(step, _)| *step).collect();
        (states(&trainer), skipped)
    })
}

#[test]
fn a_step_that_is_not_finite_on_one_rank_is_skipped_on_all() {
    let settings = Settings { micro_batch: 2, ..settings() };
    // A rank of eight has a lane to itself, whose gradients may be given away.
    let none = [(false, Sharding::None), (true, Sharding::None)];
    let parts = [(false, Sharding::Optimizer), (false, Sharding::Gradients), (true, Sharding::Gradients)];
    for (checked, shard) in none.into_iter().chain(parts) {
        let settings = Settings { shard, ..settings.clone() };
        let run = |ranks: usize| skipping(ranks, &settings, checked, &|| Arc::new(Cpu::new(1).unwrap()));
        let alone = run(1);
        assert_eq!(alone[0].1, [3]);
        for ranks in [2, 3, 8] {
            let all = run(ranks);
            let same = |(states, skipped): &(States, Vec<u64>)| {
                weights(states) == weights(&alone[0].0) && *skipped == alone[0].1
            };
            assert!(all.iter().all(same), "{ranks} ranks, checked: {checked}, {shard:?}");
        }
    }
}

/// Numbers that are exchanged: those of all weights, of a tied table once more for its second use, and the loss.
fn exchanged(states: &States) -> usize {
    let numbers = |(_, bytes): &(String, Vec<u8>)| bytes.len() / size_of::<f32>();
    let weights = weights(states).into_iter().filter(|(name, _)| !name.starts_with("step"));
    weights.map(numbers).sum::<usize>() + VOCABULARY * 32 + 1
}

/// What lies where no host sees it, as in the memory of GPUs: what ranks send, get and add up there gives the bits of one rank.
#[test]
fn devices_whose_memory_no_host_sees_give_the_same_bits() {
    let optimizer = GroupedOptimizer::new(AdamW::default()).average(0.9);
    let steps = 4;
    for (shard, optimizer) in [(Sharding::None, optimizer.clone()), (Sharding::Optimizer, AdamW::default().into())] {
        let settings = Settings { shard, optimizer, steps: Some(steps), ..settings() };
        let (expected, summary) = trained(1, 1, &settings);
        for ranks in [1, 2, 3, 4, 8] {
            let device = SharedDevice::new(Arc::new(Cpu::new(1).unwrap()));
            let (states, other) = trained_on(&|| Arc::new(device.clone()), ranks, &settings);
            assert!(weights(&states) == weights(&expected), "{ranks} ranks, {shard:?}");
            assert_eq!(other.loss.to_bits(), summary.loss.to_bits());
            let (sent, added) = (device.traffic().sent.load(Relaxed), device.traffic().added.load(Relaxed));
            println!("{ranks} ranks, {shard:?}: {sent} numbers sent and {added} added in {steps} steps");
            // Ranks that are a power of two have one block each, and others more.
            if ranks.is_power_of_two() && shard == Sharding::None {
                let once = (steps as usize * (ranks - 1) * exchanged(&expected)) as u64;
                assert_eq!(
                    (sent, added),
                    (2 * once, once),
                    "{ranks} ranks: the traffic of a ring, and a sum for each number"
                );
            }
        }
    }
}

#[test]
fn a_run_goes_on_with_other_devices_and_refuses_the_same_steps() {
    let folder = Folder::new("ranks-on-devices");
    let within = |name: &str, steps: u64, shard: Sharding| Settings {
        steps: Some(steps),
        folder: Some(folder.path().join(name)),
        schedule: ScheduleKind::Constant,
        shard,
        ..settings()
    };
    let (unbroken, _) = trained(1, 1, &within("unbroken", 9, Sharding::None));
    let shared = SharedDevice::new(Arc::new(Cpu::new(1).unwrap()));
    let device = || -> Arc<dyn Backend> { Arc::new(shared.clone()) };
    let mut states = vec![];
    for (ranks, steps, shard) in [(4, 3, Sharding::Optimizer), (2, 6, Sharding::None), (3, 9, Sharding::None)] {
        (states, _) = trained_on(&device, ranks, &within("pieces", steps, shard));
    }
    assert!(states == unbroken);
    let refused = on_ranks(2, |ranks| {
        let settings = Settings { stages: 2, ..settings() };
        Trainer::on_ranks(language_model(), settings, device(), ranks).err().unwrap().to_string()
    });
    assert!(
        refused.iter().all(|told| told.contains("on the CPU, and this is the shared device; choose")),
        "{refused:?}"
    );
    let refused =
        on_ranks(4, |ranks| Trainer::on_ranks(language_model(), giving(4), device(), ranks).err().unwrap().to_string());
    assert!(refused.iter().all(|told| told.contains("choose `settings.device` cpu, or `settings.shard` optimizer")));
    let settings = Settings { micro_batch: 2, ..settings() };
    let alone = skipping(1, &settings, true, &|| Arc::new(Cpu::new(1).unwrap()));
    for (checked, ranks) in [(true, 2), (false, 3)] {
        let all = skipping(ranks, &settings, checked, &device);
        assert!(all.iter().all(|rank| *rank == alone[0]), "{ranks} ranks, checked: {checked}");
    }
}

#[test]
fn what_ranks_cannot_do_is_refused() {
    let refused = on_ranks(3, |ranks| {
        let settings = Settings { lanes: 2, ..settings() };
        Trainer::on_ranks(language_model(), settings, Arc::new(Cpu::new(1).unwrap()), ranks).err().unwrap().to_string()
    });
    assert!(refused.iter().all(|problem| problem.contains("3 ranks cannot share 2 lanes")), "{refused:?}");
    // A rank that ends is told by the others.
    let ended = on_ranks(2, |ranks| {
        let is_first = ranks.is_first();
        let mut trainer =
            Trainer::on_ranks(language_model(), settings(), Arc::new(Cpu::new(1).unwrap()), ranks).unwrap();
        let source = move |step: u64, batch: &mut Batch| {
            tokens(step, batch)?;
            if step == 3 && !is_first {
                batch.numbers_mut::<i32>("tokens")?.fill(1000);
            }
            Ok(())
        };
        trainer.train(source, &mut Unwatched).unwrap_err().to_string()
    });
    assert!(ended[0].contains("rank 1 is gone"), "{ended:?}");
}

/// A run on text, with validation, samples and a model folder.
#[test]
fn a_run_on_text_has_the_same_files_on_any_number_of_ranks() {
    let folder = Folder::new("ranks-text");
    let config = |name: &str| TrainConfig {
        lanes: 4,
        batch: "8".parse().unwrap(),
        micro_batch: 1,
        steps: Some(12),
        eval_every: 5,
        sample_every: 6,
        save_every: 4,
        ..tiny(folder.path(), name)
    };
    let run = |ranks: usize, config: &TrainConfig, resume: bool| {
        on_ranks(ranks, |ranks| {
            let mut watcher = Watcher::default();
            let summary = match ranks.is_first() {
                true => train_on(Some(ranks), config, resume, &mut watcher).unwrap(),
                false => follow(ranks, &mut watcher).unwrap(),
            };
            (summary.loss.to_bits(), summary.validation_loss.map(f32::to_bits), watcher.validations)
        })
    };
    let weights = |name: &str| std::fs::read(folder.path().join(name).join("model/model.safetensors")).unwrap();
    let figures = |name: &str| -> Vec<String> {
        let lines = std::fs::read_to_string(folder.path().join(name).join("metrics.jsonl")).unwrap();
        let keys = ["step", "loss", "gradient_norm", "validation_loss", "gradients", "verdict"];
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            keys.map(|key| line[key].to_string()).join(" ")
        };
        lines.lines().map(line).collect()
    };
    let alone = run(1, &config("one"), false);
    for (ranks, name) in [(2, "two"), (3, "three")] {
        let all = run(ranks, &config(name), false);
        assert!(all.iter().all(|rank| *rank == alone[0]), "{name}: {all:?} {alone:?}");
        assert!(weights(name) == weights("one"));
        assert_eq!(figures(name), figures("one"));
        assert!(same_text(&folder.path().join(name), &folder.path().join("one")));
    }
    let half = |steps: u64| TrainConfig { steps: Some(steps), decay_steps: Some(12), ..config("pieces") };
    run(4, &half(6), false);
    let resumed = TrainConfig { micro_batch: 1, ..half(12) };
    run(3, &resumed, true);
    assert!(weights("pieces") == weights("one"), "4 ranks, and then 3");
}

fn same_text(a: &Path, b: &Path) -> bool {
    let sample = |folder: &Path| std::fs::read(folder.join("samples/step-00000012.txt")).unwrap();
    sample(a) == sample(b)
}

//! Stages: the blocks of a model over ranks, to the same bits as on one.

mod support;

use gradus_comm::{Transport, in_process};
use gradus_engine::Role;
use gradus_engine::backend::Cpu;
use gradus_train::Result;
use gradus_train::config::{Clip, HealthInterval, Precision, ScheduleKind, Sharding, TrainConfig};
use gradus_train::language::LanguageModel;
use gradus_train::models::ModelConfig;
use gradus_train::optimizers::{Adafactor, AdamW, GroupedOptimizer};
use gradus_train::parameters::Parameters;
use gradus_train::pipeline::Stage;
use gradus_train::ranks::Ranks;
use gradus_train::run::Unwatched;
use gradus_train::step::{Batch, Inputs, StepConfig, TrainingStep};
use gradus_train::trainer::{Settings, Trainer};
use gradus_train::training::{follow, train_on};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use support::{Folder, Watcher, tiny};

const SEQUENCE: usize = 32;
const VOCABULARY: usize = 61;

/// The bits of all that lasts, by name.
type States = BTreeMap<String, Vec<u8>>;

/// Does something on each of so many ranks, all at once.
fn on_ranks<T: Send>(ranks: usize, work: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let ends = in_process(ranks).into_iter().map(|end| Box::new(end) as Box<dyn Transport>);
        let threads: Vec<_> = ends.map(|end| scope.spawn(move || work(Ranks::new(end)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn gpt2() -> ModelConfig {
    ModelConfig { dropout: 0.1, ..ModelConfig::gpt2(VOCABULARY, 32, 3, 2, SEQUENCE) }
}

fn llama() -> ModelConfig {
    ModelConfig { dropout: 0.1, kv_heads: 1, ..ModelConfig::llama(VOCABULARY, 32, 3, 2, SEQUENCE) }
}

fn tokens(step: u64, batch: &mut Batch) -> Result<()> {
    let token = |place: usize| ((place * place / 7 + place * 3 + step as usize * 11) % VOCABULARY) as i32;
    let target = |place: usize| if place % 37 == 5 || place / SEQUENCE == 3 { -100 } else { token(place + 1) };
    batch.numbers_mut::<i32>("tokens")?.iter_mut().enumerate().for_each(|(place, number)| *number = token(place));
    batch.numbers_mut::<i32>("targets")?.iter_mut().enumerate().for_each(|(place, number)| *number = target(place));
    Ok(())
}

fn settings() -> Settings {
    Settings {
        batch: 16,
        lanes: 4,
        health: HealthInterval::Off,
        micro_batch: 2,
        steps: Some(4),
        learning_rate: 0.02,
        clip: Clip::Norm(0.5),
        schedule: ScheduleKind::Cosine,
        seed: 3,
        ..Settings::default()
    }
}

/// What training comes to: the states of all ranks together, which agree where several have one, and the bits of the last loss.
fn trained(model: &ModelConfig, ranks: usize, threads: usize, settings: &Settings) -> (States, u32) {
    let all = on_ranks(ranks, |ranks| {
        let backend = Arc::new(Cpu::new(threads).unwrap());
        let objective = LanguageModel::new(Rc::new(model.clone()));
        let mut trainer = Trainer::on_ranks(objective, settings.clone(), backend, ranks).unwrap();
        let summary = trainer.train(tokens, &mut Unwatched).unwrap();
        let kept = trainer.program().states().filter(|(_, role, _)| role.outlasts_a_step());
        let states: Vec<(String, Vec<u8>)> =
            kept.map(|(name, _, _)| (name.to_string(), trainer.program().bytes(name).unwrap().to_vec())).collect();
        (states, summary.loss.to_bits())
    });
    let mut states = States::new();
    for (of_rank, loss) in &all {
        assert_eq!(*loss, all[0].1);
        for (name, bytes) in of_rank {
            let known = states.entry(name.clone()).or_insert_with(|| bytes.clone());
            assert!(known == bytes, "{name} differs between ranks");
        }
    }
    (states, all[0].1)
}

#[test]
fn stages_pipelines_and_threads_change_no_bit() {
    let untied = ModelConfig { tie_embeddings: false, ..gpt2() };
    let tied = ModelConfig { tie_embeddings: true, ..llama() };
    for model in [gpt2(), untied, llama(), tied] {
        let expected = trained(&model, 1, 1, &settings());
        assert!(f32::from_bits(expected.1).is_finite());
        for (stages, pipelines, threads) in [(2, 1, 1), (2, 1, 2), (3, 1, 1), (1, 2, 1), (2, 2, 1), (3, 2, 2)] {
            let staged = Settings { stages, ..settings() };
            let found = trained(&model, stages * pipelines, threads, &staged);
            assert!(found == expected, "{stages} stages x {pipelines}, {threads} threads: {model:?}");
        }
    }
}

#[test]
fn precisions_odd_batches_and_optimizers_are_as_on_one_rank() {
    let averaged = GroupedOptimizer::new(AdamW::default()).average(0.9);
    let cases = [
        // All in one micro-batch, on one lane: fewer than stages.
        (3, 1, Settings { lanes: 1, micro_batch: 16, ..settings() }),
        // As many as can be.
        (2, 1, Settings { lanes: 1, micro_batch: 1, clip: Clip::Value(0.01), ..settings() }),
        (2, 1, Settings { precision: Precision::Bf16, micro_batch: 0, optimizer: averaged, ..settings() }),
        (3, 1, Settings { precision: Precision::F16, clip: Clip::Adaptive, ..settings() }),
        // Three pipelines of four lanes.
        (2, 3, Settings { optimizer: Adafactor::default().into(), ..settings() }),
    ];
    for (stages, pipelines, settings) in cases {
        let expected = trained(&gpt2(), 1, 2, &settings);
        let staged = Settings { stages, ..settings };
        assert!(trained(&gpt2(), stages * pipelines, 1, &staged) == expected, "{stages} x {pipelines}: {staged:?}");
    }
}

#[test]
fn a_run_goes_on_with_other_stages() {
    let folder = Folder::new("pipeline-resumed");
    let within = |name: &str, steps: u64, stages: usize| Settings {
        steps: Some(steps),
        stages,
        folder: Some(folder.path().join(name)),
        schedule: ScheduleKind::Constant,
        ..settings()
    };
    let unbroken = trained(&gpt2(), 1, 1, &within("unbroken", 8, 1));
    let mut found = None;
    for (ranks, steps, stages) in [(4, 2, 2), (1, 4, 1), (3, 6, 3), (2, 8, 1)] {
        found = Some(trained(&gpt2(), ranks, 1, &within("pieces", steps, stages)));
        // Files are the same to the byte, whoever has what.
        if steps == 2 {
            trained(&gpt2(), 1, 1, &within("alone", 2, 1));
            for file in ["weights.safetensors", "optimizer.safetensors"] {
                let read =
                    |run: &str| std::fs::read(folder.path().join(run).join("checkpoints/step-00000002").join(file));
                assert!(read("pieces").unwrap() == read("alone").unwrap(), "{file}");
            }
        }
    }
    assert!(found == Some(unbroken));
}

/// What a rank holds of the model falls, and what is tied is held twice.
#[test]
fn a_rank_has_its_own_blocks_alone() {
    let held = |ranks: usize, role: Role| -> Vec<usize> {
        on_ranks(ranks, |ranks| {
            let settings = Settings { stages: ranks.place().ranks, ..settings() };
            let objective = LanguageModel::new(Rc::new(gpt2()));
            let trainer = Trainer::on_ranks(objective, settings, Arc::new(Cpu::new(1).unwrap()), ranks).unwrap();
            let states = trainer.program().states().filter(|(_, known, _)| *known == role);
            states.map(|(_, _, ty)| ty.bytes()).sum()
        })
    };
    let table = 4 * VOCABULARY * 32;
    for (role, copies) in [(Role::Weight, 1), (Role::Optimizer, 2)] {
        let whole = held(1, role)[0];
        let parts = held(3, role);
        let counts = if role == Role::Optimizer { 2 * 4 } else { 0 };
        assert_eq!(parts.iter().sum::<usize>(), whole + copies * table + counts, "{role:?}");
        assert!(parts.iter().all(|part| *part < whole / 2), "{role:?}: {parts:?} of {whole}");
    }
}

#[test]
fn a_step_that_is_not_finite_is_skipped_by_all_stages() {
    let skipped = |ranks: usize, stages: usize| {
        let all = on_ranks(ranks, |ranks| {
            let settings = Settings { stages, ..settings() };
            let objective = LanguageModel::new(Rc::new(gpt2()));
            let mut trainer = Trainer::on_ranks(objective, settings, Arc::new(Cpu::new(1).unwrap()), ranks).unwrap();
            // A weight of the first stage.
            let name = "transformer.wpe.weight";
            if let Ok(size) = trainer.program().size(name) {
                let mut numbers = vec![0.01f32; size];
                numbers[5] = f32::INFINITY;
                trainer.program_mut().write(name, &numbers).unwrap();
            }
            let mut watcher = Watcher::default();
            let ended = trainer.train(tokens, &mut watcher).map(drop).map_err(|error| error.to_string());
            (watcher.losses.iter().map(|(_, loss)| loss.is_nan()).collect::<Vec<_>>(), ended)
        });
        assert!(all.iter().all(|rank| *rank == all[0]), "{all:?}");
        all.into_iter().next().unwrap()
    };
    let alone = skipped(1, 1);
    assert!(alone.0.iter().all(|skipped| *skipped) && !alone.0.is_empty());
    assert_eq!(skipped(3, 3), alone);
    assert_eq!(skipped(4, 2), alone);
}

#[test]
fn what_stages_cannot_do_is_refused() {
    let refused = |ranks: usize, settings: Settings| {
        on_ranks(ranks, |ranks| {
            let objective = LanguageModel::new(Rc::new(gpt2()));
            let backend = Arc::new(Cpu::new(1).unwrap());
            Trainer::on_ranks(objective, settings.clone(), backend, ranks).err().unwrap().to_string()
        })
        .swap_remove(0)
    };
    let stages = |stages: usize| Settings { stages, ..settings() };
    for (ranks, settings, part) in [
        (3, stages(2), "3 ranks cannot be pipelines of `settings.stages` 2"),
        (2, stages(0), "`settings.stages` 0"),
        (4, stages(4), "4 is more than the 3 blocks of the model; choose 3 at most"),
        (2, Settings { shard: Sharding::Optimizer, ..stages(2) }, "`settings.shard` optimizer and `settings.stages` 2"),
        (2, Settings { health: HealthInterval::Steps(3), ..stages(2) }, "`settings.health` and `settings.stages` 2"),
        (2, Settings { stages: 1, lanes: 1, ..settings() }, "2 ranks cannot share 1 lanes"),
    ] {
        let problem = refused(ranks, settings);
        assert!(problem.contains(part), "{problem}");
    }
    let own = on_ranks(2, |ranks| {
        let losses = |parameters: &Parameters, inputs: &Inputs| {
            let x = inputs.get("x", gradus_engine::DType::F32, [4]);
            let weight = parameters.get("w", [4, 4], gradus_train::parameters::Initializer::Ones);
            x.matmul(&weight)
        };
        Trainer::on_ranks(losses, stages(2), Arc::new(Cpu::new(1).unwrap()), ranks).err().unwrap().to_string()
    });
    assert!(own[0].contains("`Objective::staged`"), "{own:?}");
    let stage = Stage { index: 1, count: 2 };
    let alone = StepConfig { stage, ..StepConfig::plain(gpt2(), 2) };
    let mut alone = TrainingStep::new(alone, &Cpu::new(1).unwrap()).unwrap();
    let micro_batch = alone.micro_batch();
    let problem = alone.evaluate(&micro_batch).unwrap_err().to_string();
    assert!(problem.contains("a stage takes no step without the others"), "{problem}");
    // A stage that ends is told by the others.
    let ended = on_ranks(2, |ranks| {
        let is_first = ranks.is_first();
        let objective = LanguageModel::new(Rc::new(gpt2()));
        let mut trainer = Trainer::on_ranks(objective, stages(2), Arc::new(Cpu::new(1).unwrap()), ranks).unwrap();
        let source = move |step: u64, batch: &mut Batch| {
            tokens(step, batch)?;
            if step == 2 && !is_first {
                batch.numbers_mut::<i32>("targets")?.fill(1000);
            }
            Ok(())
        };
        trainer.train(source, &mut Unwatched).unwrap_err().to_string()
    });
    assert!(ended[0].contains("rank 1 is gone"), "{ended:?}");
}

/// A run on text, with validation and a model folder.
#[test]
fn a_run_on_text_has_the_same_model_and_figures() {
    let folder = Folder::new("pipeline-text");
    let config = |name: &str, stages: usize| TrainConfig {
        lanes: 4,
        stages,
        batch: "8".parse().unwrap(),
        micro_batch: 1,
        steps: Some(8),
        eval_every: 5,
        save_every: 4,
        health: HealthInterval::Off,
        ..tiny(folder.path(), name)
    };
    let run = |ranks: usize, config: &TrainConfig| {
        on_ranks(ranks, |ranks| {
            let mut watcher = Watcher::default();
            let summary = match ranks.is_first() {
                true => train_on(Some(ranks), config, false, &mut watcher).unwrap(),
                false => follow(ranks, &mut watcher).unwrap(),
            };
            (summary.loss.to_bits(), summary.validation_loss.map(f32::to_bits), watcher.validations)
        })
    };
    let weights = |name: &str| std::fs::read(folder.path().join(name).join("model/model.safetensors")).unwrap();
    let alone = run(1, &config("one", 1));
    assert!(alone[0].1.is_some());
    for (ranks, stages) in [(2, 2), (4, 2)] {
        let name = format!("{ranks}-{stages}");
        let all = run(ranks, &config(&name, stages));
        assert!(all.iter().all(|rank| *rank == alone[0]), "{name}: {all:?} {alone:?}");
        assert!(weights(&name) == weights("one"), "{name}");
    }
}

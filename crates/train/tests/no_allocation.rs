//! The training loop, with data loading and metrics, allocates nothing between steps once it is warm.

mod support;

use gradus_comm::{Transport, in_process};
use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::Result;
use gradus_train::config::{HealthInterval, Sharding, TrainConfig};
use gradus_train::language::LanguageModel;
use gradus_train::models::ModelConfig;
use gradus_train::optimizers::{AdamW, GroupedOptimizer};
use gradus_train::parameters::{Initializer, Parameters};
use gradus_train::ranks::Ranks;
use gradus_train::run::{Event, Observer, Stop, Unwatched};
use gradus_train::step::{Batch, Inputs};
use gradus_train::trainer::{Settings, Trainer};
use gradus_train::training::train;
use std::alloc::{GlobalAlloc, Layout, System};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::{Folder, tiny};

/// Counts calls while told to, from every thread.
struct Counting;

static COUNTED: AtomicBool = AtomicBool::new(false);
static CALLS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if COUNTED.load(Ordering::Relaxed) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts from the third step to the last but one: after the last, the run is measured and saved.
struct FromStepToStep;

impl Observer for FromStepToStep {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Step(report) = event {
            COUNTED.store((3..99).contains(&report.step), Ordering::SeqCst);
        }
    }

    fn should_stop(&self) -> Stop {
        Stop::No
    }
}

fn losses(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let x = inputs.get("x", DType::F32, [8]); // [b, 8]
    let weight = parameters.get("w", [8, 8], Initializer::Normal { deviation: 0.1 });
    let error = parameters.dropout(&x.matmul(&weight).tanh(), 0.1) - x; // [b, 8]
    &error * &error
}

fn fill(step: u64, batch: &mut Batch) -> Result<()> {
    let numbers = batch.numbers_mut::<f32>("x")?.iter_mut().enumerate();
    numbers.for_each(|(index, x)| *x = (step as f32 + index as f32).sin());
    Ok(())
}

/// A model of one's own, on batches that are filled in place, ahead and by the caller.
fn own_model() {
    for micro_batch in [16, 4] {
        let optimizer = GroupedOptimizer::new(AdamW::default()).average(0.99);
        let health = HealthInterval::Steps(3);
        let settings = Settings { batch: 16, micro_batch, optimizer, steps: Some(100), health, ..Settings::default() };
        let mut trainer = Trainer::new(losses, settings.clone(), Arc::new(Cpu::new(2).unwrap())).unwrap();
        trainer.train(fill, &mut FromStepToStep).unwrap();
        assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0, "calls in steps 4..=99 of a model of one's own");
        let mut trainer =
            Trainer::new(losses, Settings { steps: None, ..settings }, Arc::new(Cpu::new(2).unwrap())).unwrap();
        let mut batch = trainer.batch();
        for step in 0..20 {
            COUNTED.store(step >= 3, Ordering::SeqCst);
            fill(step, &mut batch).unwrap();
            trainer.step(&batch).unwrap();
        }
        COUNTED.store(false, Ordering::SeqCst);
        assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0, "calls in steps that the caller takes");
    }
}

/// Ranks that exchange their sums, with all of what the optimizer remembers and with parts of it.
fn several_ranks() {
    // Of the three, two have one lane, and may give gradients away as they come.
    for (shard, micro_batch) in [(Sharding::None, 2), (Sharding::Optimizer, 2), (Sharding::Gradients, 4)] {
        let settings = Settings { batch: 16, micro_batch, lanes: 4, steps: Some(100), shard, ..Settings::default() };
        std::thread::scope(|scope| {
            for end in in_process(3) {
                let settings = settings.clone();
                scope.spawn(move || {
                    let is_first = end.rank() == 0;
                    let (ranks, backend) = (Ranks::new(Box::new(end)), Arc::new(Cpu::new(1).unwrap()));
                    let mut trainer = Trainer::on_ranks(losses, settings, backend, ranks).unwrap();
                    match is_first {
                        true => trainer.train(fill, &mut FromStepToStep).unwrap(),
                        false => trainer.train(fill, &mut Unwatched).unwrap(),
                    }
                });
            }
        });
        assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0, "calls in steps 4..=99 of three ranks, {shard:?}");
    }
}

/// Two pipelines of two stages each.
fn stages() {
    let tokens = |step: u64, batch: &mut Batch| {
        for name in ["tokens", "targets"] {
            let numbers = batch.numbers_mut::<i32>(name)?.iter_mut().enumerate();
            numbers.for_each(|(place, token)| *token = ((place + step as usize) % 13) as i32);
        }
        Ok(())
    };
    let settings = Settings { batch: 8, micro_batch: 1, lanes: 4, steps: Some(100), stages: 2, ..Settings::default() };
    std::thread::scope(|scope| {
        for end in in_process(4) {
            let settings = settings.clone();
            scope.spawn(move || {
                let is_first = end.rank() == 0;
                let (ranks, backend) = (Ranks::new(Box::new(end)), Arc::new(Cpu::new(1).unwrap()));
                let model = LanguageModel::new(Rc::new(ModelConfig::gpt2(13, 16, 2, 2, 8)));
                let mut trainer = Trainer::on_ranks(model, settings, backend, ranks).unwrap();
                match is_first {
                    true => trainer.train(tokens, &mut FromStepToStep).unwrap(),
                    false => trainer.train(tokens, &mut Unwatched).unwrap(),
                }
            });
        }
    });
    assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0, "calls in steps 4..=99 of two pipelines");
}

fn main() {
    let folder = Folder::new("no-allocation");
    for (name, micro_batch, threads) in [("one", 4, 1), ("several", 2, 2), ("more", 1, 4)] {
        let config = TrainConfig { steps: Some(100), micro_batch, threads, ..tiny(folder.path(), name) };
        train(&config, false, &mut FromStepToStep).unwrap();
        assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0, "calls in steps 4..=99, {name}");
    }
    let config = TrainConfig { steps: Some(100), micro_batch: 1, lanes: 2, ..tiny(folder.path(), "lanes") };
    train(&config, false, &mut FromStepToStep).unwrap();
    assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0, "calls in steps 4..=99, two lanes");
    for (compress, local_steps) in
        [("8bit", 0), ("top-k:0.1", 0), ("threshold:0.001", 0), ("power-sgd:2", 0), ("4bit", 10)]
    {
        let config = TrainConfig {
            steps: Some(100),
            micro_batch: 1,
            lanes: 2,
            compress: compress.parse().unwrap(),
            local_steps,
            health: HealthInterval::Off,
            ..tiny(folder.path(), &format!("compressed-{}-{local_steps}", &compress[..3]))
        };
        train(&config, false, &mut FromStepToStep).unwrap();
        assert_eq!(CALLS.swap(0, Ordering::SeqCst), 0, "calls in steps 4..=99, {compress}, local: {local_steps}");
    }
    own_model();
    several_ranks();
    stages();
    // The counter itself must count, or the test could not fail.
    COUNTED.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![0u8; 100]));
    COUNTED.store(false, Ordering::SeqCst);
    assert_eq!(CALLS.load(Ordering::SeqCst), 2);
}

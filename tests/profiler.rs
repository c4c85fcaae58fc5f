//! The profiler finds what is wrong, and names it: an operation that allocates, a loop that leaks, a slow source of data. Of a
//! training in which nothing is wrong it says nothing.
//!
//! A program of its own, not one of the test harness, whose allocations would be counted.

use gradus::backend::Cpu;
use gradus::layers::Linear;
use gradus::ops::{
    Case, Cost, Cut, Differentiation, Effect, Form, Linearization, Lowering, Numbers, NumbersMut, Operation, Reals,
    SliceKernel,
};
use gradus::profiler::{Counting, FindingKind, Phase, Profile, Profiler, Watch};
use gradus::{Batch, DType, Inputs, Mismatch, Parameters, Result, Settings, Tensor, TensorType, Trainer, Unwatched};
use std::alloc::System;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting(System);

/// Gives what it is given, by way of a vector.
#[derive(Debug)]
struct Wasteful;

impl Operation for Wasteful {
    fn name(&self) -> &'static str {
        "wasteful"
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.gradient(0))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).cloned()]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(1, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        vec![inputs[0].clone()]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Slices(self)
    }

    fn cases() -> Vec<Case> {
        vec![]
    }
}

impl SliceKernel for Wasteful {
    fn cut(&self, _inputs: &[TensorType]) -> Cut {
        Cut::Whole
    }

    fn run(&self, inputs: &[Numbers<'_>], outputs: &mut [NumbersMut<'_>]) {
        let copied = inputs[0].of::<f32>().to_vec();
        outputs[0].of::<f32>().copy_from_slice(std::hint::black_box(&copied));
    }
}

fn trainer(operation: fn(&Tensor) -> Tensor, micro_batch: usize) -> Trainer {
    let losses = move |parameters: &Parameters, inputs: &Inputs| {
        let x = inputs.get("x", DType::F32, [256]); // [b, 256]
        let hidden = operation(&Linear::new(&parameters.within("first"), 256, 256).forward(&x)).gelu();
        let error = Linear::new(&parameters.within("last"), 256, 256).forward(&hidden) - x;
        &error * &error
    };
    let settings = Settings { batch: 256, micro_batch, ..Settings::default() };
    Trainer::new(losses, settings, Arc::new(Cpu::new(2).unwrap())).unwrap()
}

fn same(x: &Tensor) -> Tensor {
    x.clone()
}

fn fill(step: u64, batch: &mut Batch) -> gradus::train::Result<()> {
    let numbers = batch.numbers_mut::<f32>("x")?.iter_mut().enumerate();
    numbers.for_each(|(index, x)| *x = (step as f32 + index as f32).sin());
    Ok(())
}

fn kinds(profile: &Profile) -> Vec<FindingKind> {
    profile.findings().iter().map(|finding| finding.kind).filter(|kind| *kind != FindingKind::Idle).collect()
}

/// What the parts and the operations of a step take adds up to it, and most of it is told.
fn check_sums(profile: &Profile) {
    let step = profile.step_seconds();
    let parts = profile.parts();
    let names: Vec<&str> = parts.iter().map(|part| &part.name[..]).collect();
    assert_eq!(names, ["forward", "backward", "update", "data", "other"]);
    let sum: f64 = parts.iter().map(|part| part.seconds).sum();
    assert!((sum / step - 1.0).abs() < 1e-9, "{sum} of {step}");
    let other = parts[4].seconds / step;
    assert!((-0.001..0.5).contains(&other), "{other} of the step is not told of: {parts:?}");
    assert!(parts[..3].iter().all(|part| part.seconds > 0.0), "{parts:?}");
    let passes: f64 = parts[..3].iter().map(|part| part.seconds).sum();
    let by_name: f64 = profile.by(|operation| operation.name.to_string()).iter().map(|share| share.seconds).sum();
    assert!((by_name / passes - 1.0).abs() < 1e-9, "{by_name} of {passes}");
    let workers = profile.workers();
    for worker in &workers {
        assert!(worker.busy >= 0.0 && (worker.busy + worker.idle - step).abs() < 1e-9 * step, "{worker:?} of {step}");
    }
    // Where others use the machine, one worker may have done all there was before the other had a turn.
    assert!(workers.len() == 2 && workers.iter().any(|worker| worker.busy > 0.0), "{workers:?}");
}

fn nothing_is_said_of_a_training_in_order() {
    for micro_batch in [256, 16] {
        let mut trainer = trainer(same, micro_batch);
        let profile = trainer.profile(fill, 9).unwrap();
        check_sums(&profile);
        assert_eq!(kinds(&profile), [], "{:?}", profile.findings());
        let allocations = profile.allocations.as_ref().expect("the allocator counts");
        assert_eq!(allocations.total().calls, 0, "{allocations:?}");
        assert_eq!((profile.plain.len(), profile.timed.len(), trainer.steps_taken()), (9, 9, 21));
        // The kinds of memory are told for the process, and the first step is seen to touch what it is planned to.
        assert!(profile.account.measured() > 0 && !profile.resident.is_empty());
        // What follows is a training like any other.
        trainer
            .step(&{
                let mut batch = trainer.batch();
                fill(0, &mut batch).unwrap();
                batch
            })
            .unwrap();
    }
}

fn an_operation_that_allocates_is_named() {
    let mut trainer = trainer(|x| x.trace().apply_one(Wasteful, &[x]), 64);
    let profile = trainer.profile(fill, 6).unwrap();
    assert_eq!(kinds(&profile), [FindingKind::Allocations], "{:?}", profile.findings());
    let text = &profile.findings()[0].text;
    assert!(text.contains("the operation wasteful") && text.contains("tests/profiler.rs"), "{text}");
    let allocations = profile.allocations.as_ref().unwrap();
    // Four micro-batches a step, each with one vector.
    assert_eq!(allocations.of(Phase::Step).calls, 4 * 12);
    assert_eq!(allocations.of(Phase::Step).bytes, 4 * 12 * 64 * 256 * 4);
    assert_eq!((allocations.of(Phase::Data).calls, allocations.of(Phase::Loop).calls), (0, 0));
    let stack = allocations.offenders[0].stack.join("\n");
    assert!(stack.contains("tests/profiler.rs"), "the stack names the kernel:\n{stack}");
}

fn a_slow_source_is_named() {
    let slow = |step: u64, batch: &mut Batch| {
        std::thread::sleep(Duration::from_millis(60));
        fill(step, batch)
    };
    let profile = trainer(same, 256).profile(slow, 6).unwrap();
    check_sums(&profile);
    assert_eq!(kinds(&profile), [FindingKind::Data], "{:?}", profile.findings());
    let text = &profile.findings()[0].text;
    assert!(text.starts_with("the data source is slow"), "{text}");
    assert!(profile.fill_seconds().unwrap() >= 0.06);
}

fn a_source_that_leaks_is_named_with_what_it_allocates() {
    static KEPT: Mutex<Vec<Vec<u8>>> = Mutex::new(vec![]);
    let leaking = |step: u64, batch: &mut Batch| {
        KEPT.lock().unwrap().push(vec![step as u8; 1000]);
        fill(step, batch)
    };
    let profile = trainer(same, 256).profile(leaking, 12).unwrap();
    assert_eq!(kinds(&profile), [FindingKind::Allocations, FindingKind::Leak], "{:?}", profile.findings());
    let findings = profile.findings();
    assert!(findings[0].text.starts_with("filling batches allocates"), "{}", findings[0].text);
    assert!(
        findings[1].text.contains("the heap grows by") && findings[1].text.contains("each step"),
        "{}",
        findings[1].text
    );
    assert!((900.0..1300.0).contains(&profile.leaks[0].bytes_per_turn), "{:?}", profile.leaks);
}

fn a_loop_that_leaks_is_named() {
    let mut profiler = Profiler::new();
    let mut clean = vec![0u8; 100];
    for turn in 0..12 {
        std::mem::forget(Box::new([turn as u64; 5]));
        profiler.point("my loop");
        clean = std::hint::black_box(vec![turn; clean.len()]);
        profiler.point("another");
    }
    // Both points are in the loop, and so both see what it leaks.
    let leaks = profiler.leaks();
    assert_eq!(leaks.len(), 2);
    assert_eq!((&leaks[0].name[..], leaks[0].bytes_per_turn, leaks[0].on_heap), ("my loop", 40.0, true));
    assert_eq!(profiler.difference("my loop", "another").unwrap().heap, Some(0));
    let mut profiler = Profiler::new();
    profiler.repeat("training", 9, || trainer(same, 256).train(Ends, &mut Unwatched).map(|_| ())).unwrap();
    assert_eq!(profiler.leaks(), [], "trainings in one process leave nothing behind");
}

/// Two batches.
struct Ends;

impl gradus::train::trainer::BatchSource for Ends {
    fn fill(&mut self, step: u64, batch: &mut Batch) -> gradus::train::Result<bool> {
        fill(step, batch).map(|()| step < 2)
    }
}

fn what_ends_too_early_is_told() {
    let problem = trainer(same, 256).profile(Ends, 5).unwrap_err().to_string();
    assert!(problem.contains("ended before the profile was whole"), "{problem}");
}

fn who_allocates_is_found_in_any_code() {
    let watch = Watch::begin();
    let numbers = std::hint::black_box(vec![1u8; 77]);
    let found = watch.end();
    drop(numbers);
    assert_eq!((found.total().calls, found.total().bytes), (1, 77));
    assert!(found.offenders[0].stack[0].contains("who_allocates_is_found"), "{:?}", found.offenders);
}

fn main() {
    nothing_is_said_of_a_training_in_order();
    an_operation_that_allocates_is_named();
    a_slow_source_is_named();
    a_source_that_leaks_is_named_with_what_it_allocates();
    a_loop_that_leaks_is_named();
    what_ends_too_early_is_told();
    who_allocates_is_found_in_any_code();
}

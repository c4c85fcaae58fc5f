//! CUDA: every operation linked for a device, its kernels compiled where NVIDIA's compiler is, and run where a device is.

use gradus::backend::{Cuda, GpuKind};
use gradus::ops::{self, ListedOperation};
use gradus::testing::{check_on, plans_for};
use gradus::{DType, Program, Routine, Trace};
use gradus_cuda::{Command, can_compile, compile};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The operations, or the one that `GRADUS_TEST_OP` names.
fn operations() -> Vec<ListedOperation> {
    let only = std::env::var("GRADUS_TEST_OP").ok();
    ops::all().into_iter().filter(|entry| only.as_ref().is_none_or(|only| only == entry.type_name)).collect()
}

/// The sources of all kernels that an operation's cases need, and the function in each.
fn sources(entry: &ListedOperation) -> BTreeMap<String, (&'static str, String)> {
    let cuda = Cuda::of_kind(GpuKind::H200);
    let mut sources = BTreeMap::new();
    for (what, plan) in plans_for(&cuda, entry) {
        let commands = cuda.commands(&plan, 1 << 32).unwrap_or_else(|error| panic!("{what}: {error}"));
        for command in commands.into_iter().flatten().flatten() {
            if let Command::Launch(launch) = command {
                sources.entry(launch.source).or_insert((launch.entry, what.clone()));
            }
        }
    }
    sources
}

#[test]
fn every_operation_is_linked_for_a_device() {
    for entry in operations() {
        sources(&entry);
    }
}

#[test]
#[ignore = "takes NVIDIA's compiler, and minutes: run by bench/cuda"]
fn every_kernel_compiles() {
    can_compile().unwrap();
    for entry in operations() {
        let sources = sources(&entry);
        println!("{}: {} kernels", entry.type_name, sources.len());
        for (source, (entry, what)) in sources {
            compile(entry, &source).unwrap_or_else(|error| panic!("{what}: {error}\n{source}"));
        }
    }
}

/// What an operation's cases came to on a device: nothing, or what was wrong first.
fn on_a_device(cuda: &Cuda, entry: &ListedOperation) -> Option<String> {
    let held = catch_unwind(AssertUnwindSafe(|| check_on(cuda, entry)));
    let message = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(_) => "panicked".to_string(),
    };
    held.err().map(message)
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn every_operation_on_a_device_equals_the_reference() {
    let (operations, next, wrong) = (operations(), AtomicUsize::new(0), Mutex::new(vec![]));
    // Most of the time goes to compiling, so several operations are tried at once, each worker on a stream of its own.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let cuda = Cuda::new(0).unwrap();
                while let Some(entry) = operations.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = on_a_device(&cuda, entry);
                    println!("{:<30} {}", entry.type_name, found.as_deref().unwrap_or("as the reference"));
                    wrong.lock().unwrap().extend(found.map(|_| entry.type_name));
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "other numbers than the reference: {wrong:?}");
}

/// A loss that looks at its targets, and a state that counts.
fn counted(cuda: &Cuda) -> (Program, Vec<Duration>) {
    let trace = Trace::new();
    let logits = trace.input("logits", DType::F32, [4, 7]);
    let targets = trace.input("targets", DType::I32, [4]);
    let count = trace.zero_state("count", DType::F32, [3]);
    let loss = logits.cross_entropy_rows(&targets, None);
    let step = Routine::new("step").output("loss", &loss).assign(&count, &(&count + 1.0));
    let program = trace.compile(cuda, &[step]).unwrap();
    let times = vec![Duration::ZERO; program.plan().routines[0].steps.len()];
    (program, times)
}

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn bad_data_on_a_device_changes_no_state() {
    let (mut program, mut times) = counted(&Cuda::new(0).unwrap());
    program.write("logits", &[0.5f32; 28]).unwrap();
    program.write("targets", &[0, 6, 3, 1]).unwrap();
    let count = |program: &Program| program.read("count").unwrap().to_vec::<f32>().unwrap();
    program.run("step").unwrap();
    assert_eq!(count(&program), [1.0; 3]);
    for (loss, expected) in program.read("loss").unwrap().to_vec::<f32>().unwrap().into_iter().zip([7f32.ln(); 4]) {
        assert!((loss - expected).abs() < 1e-6, "{loss}");
    }
    program.write("targets", &[0, 6, 7, 1]).unwrap();
    let error = program.run("step").unwrap_err().to_string();
    assert!(error.contains('7'), "{error}");
    assert_eq!(count(&program), [1.0; 3], "bad data changes nothing");
    assert!(program.run_timed("step", &mut times).is_err());
    assert_eq!(count(&program), [1.0; 3], "bad data changes nothing, step by step");
    program.write("targets", &[0, 6, 5, 1]).unwrap();
    program.run_timed("step", &mut times).unwrap();
    program.run("step").unwrap();
    assert_eq!(count(&program), [3.0; 3]);
    assert!(times.iter().sum::<Duration>() > Duration::ZERO);
}

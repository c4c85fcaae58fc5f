//! CUDA: every operation linked for a device, its kernels compiled where NVIDIA's compiler is, and run where a device is.

use gradus::backend::{Cuda, GpuKind};
use gradus::ops::{self, ListedOperation};
use gradus::testing::{check_on, plans_for};
use gradus_cuda::{Command, can_compile, compile};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

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

#[test]
#[ignore = "takes a CUDA device: run by bench/cuda"]
fn every_operation_on_a_device_equals_the_reference() {
    let cuda = Cuda::new(0).unwrap();
    let mut wrong = vec![];
    for entry in operations() {
        let held = catch_unwind(AssertUnwindSafe(|| check_on(&cuda, &entry)));
        println!("{:<30} {}", entry.type_name, if held.is_ok() { "as the reference" } else { "WRONG" });
        wrong.extend(held.is_err().then_some(entry.type_name));
    }
    assert!(wrong.is_empty(), "other numbers than the reference: {wrong:?}");
}

//! A budget that is stated is guarded where the program's allocator is the one that guards. Alone in its process, which ends.

#![cfg(target_os = "linux")]

use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::memory::Budget;
use gradus_train::memory::guard::Guarded;
use gradus_train::parameters::{Initializer, Parameters};
use gradus_train::run::Unwatched;
use gradus_train::step::{Batch, Inputs};
use gradus_train::trainer::{Settings, Trainer};
use std::process::Command;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

/// Set in the process that takes too much.
const CHILD: &str = "GRADUS_TEST_TAKES_TOO_MUCH";
const TOO_MUCH: usize = 1 << 30;

fn scaled(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    inputs.get("x", DType::F32, []) * parameters.get("w", [1], Initializer::Ones)
}

fn trainer() -> Trainer {
    let memory = Some(Budget::megabytes(200));
    let settings = Settings { batch: 4, steps: Some(2), memory, ..Settings::default() };
    Trainer::new(scaled, settings, Arc::new(Cpu::new(1).unwrap())).unwrap()
}

fn take_too_much() {
    let modest = |_: u64, batch: &mut Batch| batch.write("x", &[1f32; 4]);
    trainer().train(modest, &mut Unwatched).unwrap();
    // The trainer is gone, and its limit with it.
    assert_eq!(vec![0u8; TOO_MUCH].len(), TOO_MUCH);
    let greedy = |_: u64, batch: &mut Batch| batch.write("x", &[vec![0u8; TOO_MUCH].len() as f32; 4]);
    eprintln!("begun");
    trainer().train(greedy, &mut Unwatched).unwrap();
}

#[test]
fn what_takes_more_than_the_budget_ends_the_process_with_one_line() {
    if std::env::var_os(CHILD).is_some() {
        return take_too_much();
    }
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).arg("--nocapture").env(CHILD, "1").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    let line = "error: `settings.memory` 200 MB is not enough: training takes more than is left; give more `settings.memory`\n";
    assert!(told.ends_with(&format!("begun\n{line}")), "{told}");
}

//! What replay costs: the overhead of a step of tiny operations, and whole training steps.
//!
//! `cargo bench --bench replay` prints medians; nothing here is a test.

use gradus::backend::Cpu;
use gradus::models::{Model, ModelConfig, Weights};
use gradus::optimisers::{Optimiser, StepNumbers};
use gradus::plan::Options;
use gradus::{Array, DType, Program, Routine, Trace, gradient};
use std::time::Instant;

/// The median of several timings of `work`, in seconds, after one that does not count.
fn median(rounds: usize, mut work: impl FnMut()) -> f64 {
    work();
    let mut seconds: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[rounds / 2]
}

/// A thousand operations on four numbers each, which the planner may not join, beside the same arithmetic in a
/// plain loop.
fn overhead(threads: usize) {
    const OPERATIONS: usize = 1000;
    let trace = Trace::new();
    let mut x = trace.state("x", Array::new([4], &[0.1f32, 0.2, 0.3, 0.4]).expect("four numbers"));
    let state = x.clone();
    for _ in 0..OPERATIONS {
        x = &x * 0.999;
    }
    let routine = Routine::new("step").assign(&state, &x);
    let apart = Options { simplify: false, ..Options::default() };
    let cpu = Cpu::new(threads).expect("a CPU");
    let mut program = trace.compile_with(&cpu, &[routine], apart).expect("a program");
    let steps = program.plan().routines[0].steps.len();
    let replay = median(201, || program.run("step").expect("a replay"));
    let mut numbers = [0.1f32, 0.2, 0.3, 0.4];
    let arithmetic = median(201, || {
        for _ in 0..OPERATIONS {
            numbers = std::hint::black_box(numbers.map(|x| x * 0.999));
        }
    });
    let each = (replay - arithmetic) / steps as f64;
    println!(
        "{steps} operations on 4 numbers, {threads} thread(s): {:.3} us an operation beyond its arithmetic",
        each * 1e6
    );
}

fn training_step(name: &str, config: &ModelConfig, batch: usize, threads: usize) {
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [batch, config.context]);
    let targets = trace.input("targets", DType::I32, [batch, config.context]);
    let weights = Weights::new(&trace, &config.parameters(), |parameter| parameter.numbers(1));
    let loss = Model::new(config, &weights).loss(&tokens, &targets);
    let gradients = gradient(&loss, &weights.tensors()).expect("gradients");
    let (learning_rate, one) = (trace.full(3e-4, DType::F32, []), trace.full(1.0, DType::F32, []));
    let step = Routine::new("step").output("loss", &loss);
    let numbers = StepNumbers { learning_rate: &learning_rate, scale: &one, one: &one };
    let step = Optimiser::adamw(0.1).update_all(&trace, step, &weights, &gradients, numbers);
    let start = Instant::now();
    let mut program: Program = trace.compile(&Cpu::new(threads).expect("a CPU"), &[step]).expect("a program");
    let compile = start.elapsed();
    let count = batch * config.context;
    let ids: Vec<i32> = (0..count as i32).map(|index| index * 7919 % config.vocabulary as i32).collect();
    program.write("tokens", &ids).expect("tokens");
    program.write("targets", &ids).expect("targets");
    let seconds = median(5, || program.run("step").expect("a replay"));
    println!(
        "{name}, {threads} thread(s): {:.0} tokens/s, {:.1} ms a step, arena {:.1} MB, compiled in {:.0} ms",
        count as f64 / seconds,
        seconds * 1e3,
        program.plan().regions.total() as f64 / 1e6,
        compile.as_secs_f64() * 1e3,
    );
}

fn main() {
    for threads in [1, 2] {
        overhead(threads);
    }
    let reference = ModelConfig::gpt2(788, 256, 6, 8, 128);
    for threads in [1, 2] {
        training_step("reference case", &reference, 32, threads);
    }
}

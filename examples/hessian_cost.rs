//! What a Hessian-vector product of a language model costs beside its gradient, in time and memory.
//!
//! `cargo run --example hessian_cost -- gpt2 256` takes the name of a preset and the length of the sequence; without arguments
//! a small model is looked at.

use gradus::backend::Cpu;
use gradus::models::{CausalModel, ModelConfig};
use gradus::plan::{Options, Recompute};
use gradus::train::{Error, Result};
use gradus::{DType, Program, Routine, Tensor, Trace, gradient, hessian_vector_product};
use std::collections::HashMap;
use std::time::Instant;

/// Replays that are timed; the median counts.
const REPLAYS: usize = 5;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (preset, sequence) = match &arguments[..] {
        [preset, sequence] => (preset.as_str(), sequence.parse().map_err(|_| Error::Config("a length".into()))?),
        _ => ("tiny", 32),
    };
    let unknown = || Error::Config(format!("there is no preset {preset:?}"));
    let mut model = ModelConfig::preset(preset).ok_or_else(unknown)?;
    model.vocabulary = model.vocabulary.max(64);
    let first = measured(&model, sequence, false)?;
    let second = measured(&model, sequence, true)?;
    println!("gradient                {:8.3} s  {:8.1} MB", first.0, first.1);
    println!("Hessian-vector product  {:8.3} s  {:8.1} MB", second.0, second.1);
    println!("ratio                   {:8.2}    {:8.2}", second.0 / first.0, second.1 / first.1);
    Ok(())
}

/// Seconds of a replay, and megabytes of the arena.
fn measured(model: &ModelConfig, sequence: usize, second: bool) -> Result<(f64, f64)> {
    let trace = Trace::new();
    let [tokens, targets] = ["tokens", "targets"].map(|name| trace.input(name, DType::I32, [1, sequence]));
    let parameters = model.declare(&trace);
    let loss = model.loss(&parameters, &tokens, &targets);
    let weights = parameters.tensors();
    let weights: Vec<&Tensor> = weights.iter().collect();
    let input = |(index, weight): (usize, &&Tensor)| trace.input(&format!("v{index}"), DType::F32, weight.shape());
    let found = match second {
        false => gradient(&loss, &weights)?,
        true => {
            let vectors: Vec<Tensor> = weights.iter().enumerate().map(input).collect();
            hessian_vector_product(&loss, &weights, &vectors.iter().collect::<Vec<_>>())?
        }
    };
    let mut routine = Routine::new("run").output("loss", &loss);
    for (index, tensor) in found.iter().enumerate() {
        routine = routine.output(&format!("g{index}"), tensor);
    }
    let backend = Cpu::new(2)?;
    let plan = trace.plan(&backend, &[routine], Options { recompute: Recompute::None, ..Options::default() })?;
    let bytes = plan.regions.total();
    if std::env::var_os("GRADUS_PLAN").is_some() {
        println!("{plan}");
    }
    let mut program = Program::link(plan, &backend)?;
    parameters.initialize(&mut program, 1)?;
    let text: Vec<i32> = (0..=sequence).map(|at| (at * at % model.vocabulary) as i32).collect();
    program.write("tokens", &text[..sequence])?;
    program.write("targets", &text[1..])?;
    if second {
        for index in 0..weights.len() {
            let signs: Vec<f32> =
                (0..weights[index].shape().elements()).map(|at| [1.0, -1.0][at * 7 % 5 % 2]).collect();
            program.write(&format!("v{index}"), &signs)?;
        }
    }
    let mut seconds: Vec<f64> = vec![];
    for _ in 0..REPLAYS {
        let started = Instant::now();
        program.run("run")?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    if std::env::var_os("GRADUS_TIMES").is_some() {
        print_times(&mut program)?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds[REPLAYS / 2], bytes as f64 / 1e6))
}

/// What each kind of step takes of a replay, the longest first.
fn print_times(program: &mut Program) -> Result<()> {
    let mut timing = program.timing("run")?;
    program.run_timed("run", &mut timing)?;
    let mut kinds: HashMap<String, (f64, usize)> = HashMap::new();
    for (step, took) in program.plan().routines[0].steps.iter().zip(&timing.steps) {
        let kind = format!(
            "{} -> {:?}",
            step.op.name(),
            step.outputs.iter().map(|output| output.ty().to_string()).collect::<Vec<_>>()
        );
        let of_kind = kinds.entry(kind).or_default();
        *of_kind = (of_kind.0 + took.as_secs_f64() * 1e3, of_kind.1 + 1);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|(_, a), (_, b)| b.0.total_cmp(&a.0));
    for (kind, (milliseconds, count)) in kinds {
        println!("{milliseconds:9.1} ms {count:5} {kind}");
    }
    Ok(())
}

//! What a Hessian-vector product of a language model costs beside its gradient, in time and memory: by itself, and where several are
//! made at one point, after what does not depend on the vector was computed once.
//!
//! `cargo run --example hessian_cost -- gpt2 256` takes the name of a preset and the length of the sequence; without arguments
//! a small model is looked at.

use gradus::backend::Cpu;
use gradus::curvature::Linearized;
use gradus::models::{CausalModel, ModelConfig};
use gradus::plan::{Options, Recompute};
use gradus::train::{Error, Result};
use gradus::{DType, Parameters, Program, Routine, Tensor, Trace, gradient, loss_and_hessian_vector_product};
use std::collections::HashMap;
use std::time::Instant;

/// Replays that are timed; the median counts.
const REPLAYS: usize = 5;

/// What is compiled, and looked at.
#[derive(Clone, Copy, PartialEq)]
enum What {
    Gradient,
    Product,
    Linearized,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (preset, sequence) = match &arguments[..] {
        [preset, sequence] => (preset.as_str(), sequence.parse().map_err(|_| Error::Config("a length".into()))?),
        _ => ("tiny", 32),
    };
    let unknown = || Error::Config(format!("there is no preset {preset:?}"));
    let mut model = ModelConfig::preset(preset).ok_or_else(unknown)?;
    model.vocabulary = model.vocabulary.max(64);
    let (gradient, bytes) = measured(&model, sequence, What::Gradient)?;
    let tell = |name: &str, seconds: f64, of: usize| {
        let (ratio, more) = (seconds / gradient[0], of as f64 / bytes as f64);
        println!("{name:24}{seconds:8.3} s {ratio:6.2}   {:8.1} MB {more:6.2}", of as f64 / 1e6);
    };
    tell("gradient", gradient[0], bytes);
    let (product, bytes) = measured(&model, sequence, What::Product)?;
    tell("Hessian-vector product", product[0], bytes);
    let (linearized, bytes) = measured(&model, sequence, What::Linearized)?;
    tell("linearizing", linearized[0], bytes);
    tell("a product after that", linearized[1], bytes);
    Ok(())
}

/// Seconds of a replay of each routine, and bytes of the arena.
fn measured(model: &ModelConfig, sequence: usize, what: What) -> Result<(Vec<f64>, usize)> {
    let trace = Trace::new();
    let [tokens, targets] = ["tokens", "targets"].map(|name| trace.input(name, DType::I32, [1, sequence]));
    let parameters = model.declare(&trace);
    let loss = model.loss(&parameters, &tokens, &targets);
    let routines = routines(&parameters, &loss, what)?;
    let backend = Cpu::new(2)?;
    let plan = trace.plan(&backend, &routines, Options { recompute: Recompute::None, ..Options::default() })?;
    let bytes = plan.regions.total();
    if std::env::var_os("GRADUS_PLAN").is_some() {
        println!("{plan}");
    }
    let mut program = Program::link(plan, &backend)?;
    parameters.initialize(&mut program, 1)?;
    let text: Vec<i32> = (0..=sequence).map(|at| (at * at % model.vocabulary) as i32).collect();
    program.write("tokens", &text[..sequence])?;
    program.write("targets", &text[1..])?;
    if what != What::Gradient {
        for (index, weight) in parameters.tensors().iter().enumerate() {
            let signs: Vec<f32> = (0..weight.shape().elements()).map(|at| [1.0, -1.0][at * 7 % 5 % 2]).collect();
            program.write(&vector_name(index), &signs)?;
        }
    }
    let seconds = (0..routines.len()).map(|index| median(&mut program, index)).collect::<Result<_>>()?;
    Ok((seconds, bytes))
}

fn vector_name(index: usize) -> String {
    format!("v{index}")
}

/// The routines that are timed, in the order in which they are replayed.
fn routines(parameters: &Parameters, loss: &Tensor, what: What) -> Result<Vec<Routine>> {
    let (trace, weights) = (parameters.trace(), parameters.tensors());
    let weights: Vec<&Tensor> = weights.iter().collect();
    let giving = |routine: Routine, found: &[Tensor]| {
        let parts = found.iter().enumerate();
        parts.fold(routine, |routine, (index, tensor)| routine.output(&format!("g{index}"), tensor))
    };
    let with_loss = |name: &str, loss: &Tensor| Routine::new(name).output("loss", loss);
    if what == What::Gradient {
        return Ok(vec![giving(with_loss("gradient", loss), &gradient(loss, &weights)?)]);
    }
    let input = |(index, weight): (usize, &&Tensor)| trace.input(&vector_name(index), DType::F32, weight.shape());
    let vectors: Vec<Tensor> = weights.iter().enumerate().map(input).collect();
    let vectors: Vec<&Tensor> = vectors.iter().collect();
    let (loss, products) = loss_and_hessian_vector_product(loss, &weights, &vectors)?;
    if what == What::Product {
        return Ok(vec![giving(with_loss("product", &loss), &products)]);
    }
    let weight_bytes = weights.iter().map(|weight| weight.ty().bytes()).sum();
    let linearized = Linearized::of("kept", &products, &vectors, weight_bytes)?;
    println!("kept: {:.1} MB in {} states", linearized.bytes() as f64 / 1e6, linearized.names().count());
    Ok(vec![linearized.keep(with_loss("linearize", &loss)), giving(Routine::new("product"), linearized.products())])
}

/// Seconds of a replay.
fn median(program: &mut Program, index: usize) -> Result<f64> {
    let routine = &program.plan().routines[index].name.clone()[..];
    let mut seconds: Vec<f64> = vec![];
    for _ in 0..REPLAYS {
        let started = Instant::now();
        program.run(routine)?;
        seconds.push(started.elapsed().as_secs_f64());
    }
    if std::env::var_os("GRADUS_TIMES").is_some() {
        print_times(program, index)?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[REPLAYS / 2])
}

/// What each kind of step takes of a replay, the longest first.
fn print_times(program: &mut Program, index: usize) -> Result<()> {
    let routine = &program.plan().routines[index].name.clone()[..];
    let mut timing = program.timing(routine)?;
    program.run_timed(routine, &mut timing)?;
    let mut kinds: HashMap<String, (f64, usize)> = HashMap::new();
    for (step, took) in program.plan().routines[index].steps.iter().zip(&timing.steps) {
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

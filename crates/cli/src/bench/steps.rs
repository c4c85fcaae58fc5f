//! Whole training steps as entries, each measured in a process of its own so that its memory can be told.

use super::entry::{Entry, Group, OperationTime, Sample, Setting, Work};
use super::kernels::tokens;
use super::vision;
use gradus_engine::DType;
use gradus_engine::plan::{Recompute, Step};
use gradus_kernels::limits::Limit;
use gradus_train::config::Precision;
use gradus_train::language::{TARGETS, TOKENS};
use gradus_train::memory::ProcessMemory;
use gradus_train::models::ModelConfig;
use gradus_train::planning::StepPlans;
use gradus_train::profiler::Benchmark;
use gradus_train::step::{StepConfig, StepScalars, TrainingStep};
use gradus_train::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time for each configuration.
const TIME: Duration = Duration::from_secs(12);
/// Steps whose operations are timed: enough to even out, few beside the rounds.
const PROFILED_STEPS: usize = 3;
/// The learning rate, at which nothing grows without bound.
const LEARNING_RATE: f32 = 3e-4;
/// The norm that gradients are clipped to, as in a usual run.
const CLIP_NORM: f32 = 1.0;

/// A model and a batch.
#[derive(Clone)]
struct Configuration {
    name: &'static str,
    model: ModelConfig,
    batch: usize,
    heavy: bool,
}

fn configurations() -> [Configuration; 4] {
    let gpt2 = |context| ModelConfig::gpt2(50_257, 768, 12, 12, context);
    [
        Configuration { name: "reference", model: ModelConfig::gpt2(788, 256, 6, 8, 128), batch: 32, heavy: false },
        Configuration { name: "11m", model: ModelConfig::gpt2(4096, 320, 8, 8, 256), batch: 8, heavy: false },
        Configuration { name: "124m-64", model: gpt2(64), batch: 4, heavy: true },
        Configuration { name: "124m-256", model: gpt2(256), batch: 4, heavy: true },
    ]
}

/// Every configuration in every precision.
pub fn entries() -> Vec<Entry> {
    let both = |configuration: Configuration| {
        [Precision::F32, Precision::Bf16].map(|precision| entry(configuration.clone(), precision))
    };
    configurations().into_iter().flat_map(both).chain(vision::entries()).collect()
}

fn entry(configuration: Configuration, precision: Precision) -> Entry {
    let Configuration { name, model, batch, heavy } = configuration;
    let tokens = batch * model.context;
    let amount = Amount { count: tokens as f64, unit: "tokens/s", operations: operations_per_token(&model) };
    step_entry(name, precision, heavy, amount, move || Stepped {
        config: StepConfig { precision, ..StepConfig::plain(model.clone(), batch) },
        is_thrifty: false,
        data: text(tokens, model.vocabulary),
    })
}

/// How much work a step is: so many of something, each of which needs this arithmetic at least.
pub struct Amount {
    pub count: f64,
    pub unit: &'static str,
    pub operations: f64,
}

/// A step, and the numbers that it is given each time.
pub struct Stepped {
    pub config: StepConfig,
    /// Whether it is planned as a run without a budget is, rather than with everything kept for the gradient.
    pub is_thrifty: bool,
    pub data: Vec<(&'static str, Vec<i32>)>,
}

fn text(tokens_at_once: usize, vocabulary: usize) -> Vec<(&'static str, Vec<i32>)> {
    let ids = tokens(tokens_at_once + 1, vocabulary);
    vec![(TOKENS, ids[..tokens_at_once].to_vec()), (TARGETS, ids[1..].to_vec())]
}

/// A training step as an entry.
pub fn step_entry(
    name: &str,
    precision: Precision,
    heavy: bool,
    amount: Amount,
    stepped: impl Fn() -> Stepped + 'static,
) -> Entry {
    let dtype = precision.dtype();
    let limit = if dtype == DType::Bf16 { Limit::bf16() } else { Limit::f32() };
    let name = format!("steps/{name}/{dtype}");
    let Amount { count, unit, operations } = amount;
    Entry {
        name: name.clone(),
        group: Group::Steps,
        heavy,
        work: Work { amount: count, unit, bound: Some((limit, count * operations)) },
        measure: Box::new(move |setting| match setting.is_child {
            true => measure(stepped(), setting),
            false => measure_apart(&name, setting),
        }),
    }
}

/// The arithmetic that a token needs at least, forward and backward: six operations for each weight of a product, and
/// attention over half of the pairs. What a program computes twice does not count, so that programs can be compared.
fn operations_per_token(model: &ModelConfig) -> f64 {
    let feed_forward = 2 * model.width * model.feed_forward;
    let weights = model.layers * (4 * model.width * model.width + feed_forward) + model.vocabulary * model.width;
    let attention = model.layers * model.width * model.context;
    6.0 * (weights + attention) as f64
}

/// Has this program measure the entry in a new process, and reads what it prints.
fn measure_apart(name: &str, setting: &Setting) -> Result<Sample> {
    let program = std::env::current_exe().map_err(Error::io("find", Path::new("this program")))?;
    let mut command = Command::new(&program);
    command.args(["bench", name, "--child", "--threads", &setting.threads.to_string()]);
    if let Some(time) = setting.time {
        command.args(["--time", &time.as_secs_f64().to_string()]);
    }
    if setting.profile {
        command.arg("--profile");
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(Error::io("start", &program))?;
    let sample = output.status.success().then(|| serde_json::from_slice(&output.stdout).ok()).flatten();
    sample.ok_or_else(|| Error::Config(format!("{name}: the process that measured it ended with {}", output.status)))
}

/// Measures in this process, which must have done nothing else.
fn measure(Stepped { config, is_thrifty, data }: Stepped, setting: &Setting) -> Result<Sample> {
    let backend = &*setting.backend;
    let thrifty = match is_thrifty {
        true => StepPlans::new(&config, config.micro_batch, Recompute::Auto, backend).thrifty_within(usize::MAX)?,
        false => None,
    };
    let mut step = match thrifty {
        Some(chosen) => TrainingStep::link(chosen, backend)?,
        None => TrainingStep::new(config, backend)?,
    };
    step.initialize(1)?;
    let mut given = step.batch();
    for (name, numbers) in data {
        given.write(name, &numbers)?;
    }
    let mut scalars = StepScalars { step: 0, learning_rate: LEARNING_RATE, clip_norm: CLIP_NORM, seed: 1 };
    let seconds = Benchmark::lasting(setting.time.unwrap_or(TIME)).run(|| {
        step.run(&given, &scalars)?;
        scalars.step += 1;
        Ok(())
    })?;
    let peak = ProcessMemory::read().peak;
    let profile = if setting.profile { profile(&mut step)? } else { vec![] };
    Ok(Sample { seconds, peak_memory_bytes: (peak > 0).then_some(peak), profile })
}

/// The time by kind of operation, longest first. The inputs are those of the last step.
fn profile(step: &mut TrainingStep) -> Result<Vec<OperationTime>> {
    const ROUTINE: &str = "step";
    let program = step.program_mut();
    let index = program.plan().routines.iter().position(|routine| routine.name == ROUTINE).expect("a step");
    let mut timing = program.timing(ROUTINE)?;
    for _ in 0..PROFILED_STEPS {
        program.run_timed(ROUTINE, &mut timing)?;
    }
    let mut kinds: BTreeMap<&str, Total> = BTreeMap::new();
    for (step, time) in program.plan().routines[index].steps.iter().zip(&timing.steps) {
        let total = kinds.entry(step.op.name()).or_default();
        total.add(step, time.as_secs_f64() / PROFILED_STEPS as f64);
    }
    let mut rows: Vec<OperationTime> = kinds.into_iter().map(|(kind, total)| total.row(kind)).collect();
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    Ok(rows)
}

/// What the operations of a kind take together.
#[derive(Default)]
struct Total {
    count: usize,
    seconds: f64,
    operations: f64,
    bytes: f64,
}

impl Total {
    fn add(&mut self, step: &Step, seconds: f64) {
        let cost = step.cost();
        self.count += 1;
        self.seconds += seconds;
        self.operations += cost.operations as f64;
        self.bytes += cost.bytes as f64;
    }

    fn row(&self, kind: &str) -> OperationTime {
        OperationTime {
            operation: kind.to_string(),
            count: self.count,
            seconds: self.seconds,
            gflop_per_second: self.operations / self.seconds / 1e9,
            gb_per_second: self.bytes / self.seconds / 1e9,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, for the reference case: 12 matrices of 256 x 256 a layer, the table of tokens, and attention.
    #[test]
    fn the_arithmetic_of_a_token_is_that_of_its_products() {
        let [reference, ..] = configurations();
        let products = 6 * 12 * 256 * 256 + 788 * 256 + 6 * 256 * 128;
        assert_eq!(operations_per_token(&reference.model), 6.0 * products as f64);
    }
}

//! Times training steps of GPT-2 on a CUDA device: tokens a second, share of the tensor cores, memory planned and taken, what
//! the host does meanwhile.
//!
//! `cuda_steps [NAME ...] [--profile] [--at-once=N]`: without names, all cases. `--profile` adds the time by operation, `--at-once`
//! takes micro-batches of so many sequences, with nothing computed again. Where there is no
//! device, steps are only planned, for an H200. Batches are random tokens; AdamW, bf16, clipping by norm.

use gradus::backend::{Backend, Cuda, GpuKind};
use gradus::plan::{Options, Recompute};
use gradus_train::Result;
use gradus_train::config::Precision;
use gradus_train::language::{TARGETS, TOKENS};
use gradus_train::models::ModelConfig;
use gradus_train::planning::{Chosen, StepPlans};
use gradus_train::step::{StepConfig, StepScalars, TrainingStep};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

#[path = "../tests/support/counting.rs"]
mod counting;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

/// Operations a second of the tensor cores of an H200 in bf16, by its data sheet.
const PEAK: f64 = 989e12;
const WARM_UP: usize = 5;
const ROUNDS: usize = 20;
/// Steps are repeated for so long at least, since the system shares out cores by milliseconds; and not more often than this.
const LEAST: Duration = Duration::from_millis(500);
const MOST_ROUNDS: usize = 1000;
const PROFILED: usize = 3;

/// A model, a batch, and the bytes that all of it may take on the device, if that is stated.
struct Case {
    name: &'static str,
    model: ModelConfig,
    batch: usize,
    budget: Option<u64>,
}

fn cases() -> Vec<Case> {
    let medium = || ModelConfig::gpt2(50_257, 1024, 24, 16, 1024);
    let small = || ModelConfig::gpt2(50_257, 768, 12, 12, 1024);
    let case = |name, model, batch, budget| Case { name, model, batch, budget };
    vec![
        case("124m-64", small(), 64, None),
        case("124m-64-20gb", small(), 64, Some(20_000_000_000)),
        case("124m-64-14gb", small(), 64, Some(14_000_000_000)),
        case("124m-32", small(), 32, None),
        case("350m-32", medium(), 32, None),
        case("reference", ModelConfig::gpt2(788, 256, 6, 8, 128), 32, None),
    ]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (options, names): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with("--"));
    let has = |option: &str| options.iter().any(|given| *given == option);
    let (cuda, is_here) = match Cuda::new(0) {
        Ok(cuda) => (cuda, true),
        Err(reason) => {
            println!("planned for an H200, not run: {reason}");
            (Cuda::of_kind(GpuKind::H200), false)
        }
    };
    println!(
        "case            tokens/s  of peak      step      best     arena     taken  at once  linked  a core  allocations"
    );
    let at_once = options.iter().find_map(|option| option.strip_prefix("--at-once=")?.parse().ok());
    for case in cases().iter().filter(|case| names.is_empty() || names.iter().any(|name| **name == case.name)) {
        let chosen = chosen(case, at_once, &cuda)?;
        let (arena, at_once) = (chosen.arena() as f64 / 1e9, chosen.config.micro_batch);
        let planned = chosen.plan.seconds() * 1e3;
        if !is_here {
            assert!(case.budget.is_none_or(|budget| arena * 1e9 <= budget as f64), "{} keeps its budget", case.name);
            println!("{:<15}                    {planned:>6.2} ms predicted  {arena:>5.2} GB  {at_once}", case.name);
            continue;
        }
        let (began, free) = (Instant::now(), free(&cuda)?);
        let mut step = TrainingStep::link(chosen, &cuda)?;
        let linked = began.elapsed().as_secs_f64();
        let Measured { seconds, core, allocations } = measure(case, &mut step)?;
        let (median, best) = (seconds[seconds.len() / 2], seconds[0]);
        let tokens = (case.batch * case.model.context) as f64;
        let share = 100.0 * tokens * operations_per_token(&case.model) / median / PEAK;
        let [median_ms, best_ms] = [median, best].map(|seconds| seconds * 1e3);
        let row = format!("{:<15} {:>8.0}   {share:>5.1} %", case.name, tokens / median);
        let row = format!(
            "{row}  {median_ms:>6.2} ms {best_ms:>6.2} ms  {arena:>5.2} GB {:>6.2} GB",
            free - self::free(&cuda)?
        );
        println!("{row}  {at_once:>7} {linked:>5.1} s  {:>4.0} %  {allocations:>11}", 100.0 * core);
        if has("--profile") {
            profile(&mut step)?;
        }
    }
    Ok(())
}

/// The fastest plan within the budget; without one, the whole batch at once with nothing computed again.
fn chosen(case: &Case, at_once: Option<usize>, cuda: &Cuda) -> Result<Chosen> {
    let micro_batch = at_once.unwrap_or(case.batch);
    let plain = StepConfig::plain(case.model.clone(), micro_batch);
    let plain = StepConfig { precision: Precision::Bf16, micro_batches: case.batch / micro_batch, ..plain };
    let Some(budget) = case.budget.filter(|_| at_once.is_none()) else {
        let plan = plain.planner(cuda, Options::default())?.plan(usize::MAX);
        return Ok(Chosen { config: plain, plan });
    };
    let besides = cuda.memory()?.map_or(0, |memory| memory.besides);
    let open = StepConfig { micro_batch: 0, ..plain };
    let plans = StepPlans::new(&open, case.batch, Recompute::Auto, cuda);
    match plans.fastest_within(budget.saturating_sub(besides) as usize)? {
        Some(chosen) => Ok(chosen),
        None => plans.smallest(),
    }
}

/// What of the device's memory is free, in GB.
fn free(cuda: &Cuda) -> Result<f64> {
    Ok(cuda.memory()?.map_or(0.0, |memory| memory.available as f64 / 1e9))
}

/// What steps took.
struct Measured {
    /// Of each, rising.
    seconds: Vec<f64>,
    /// The share of a core that all threads of the process had.
    core: f64,
    /// Calls of the allocator.
    allocations: usize,
}

/// Seconds that all threads of this process have run, to the nanosecond: a short step takes less than what `stat` counts in.
fn core_seconds() -> f64 {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let nanoseconds = |thread: std::io::Result<std::fs::DirEntry>| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    };
    threads.filter_map(nanoseconds).sum::<f64>() / 1e9
}

fn measure(case: &Case, step: &mut TrainingStep) -> Result<Measured> {
    step.initialize(1)?;
    let mut batch = step.batch();
    for name in [TOKENS, TARGETS] {
        let mut state = 1u64;
        for token in batch.numbers_mut::<i32>(name)? {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *token = ((state >> 33) % case.model.vocabulary as u64) as i32;
        }
    }
    let mut seconds = Vec::with_capacity(WARM_UP + MOST_ROUNDS);
    let mut measured_from = (Instant::now(), 0.0);
    for number in 0..WARM_UP + MOST_ROUNDS {
        if number >= WARM_UP + ROUNDS && measured_from.0.elapsed() >= LEAST {
            break;
        }
        if number == WARM_UP {
            measured_from = (Instant::now(), core_seconds());
            counting::count(true);
        }
        let began = Instant::now();
        step.run(&batch, &StepScalars { step: number as u64, learning_rate: 1e-4, clip_norm: 1.0, seed: 1 })?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    let (allocations, _) = counting::counted();
    let core = (core_seconds() - measured_from.1) / measured_from.0.elapsed().as_secs_f64();
    seconds.drain(..WARM_UP);
    seconds.sort_by(f64::total_cmp);
    Ok(Measured { seconds, core, allocations })
}

/// Six operations for each weight of a product, and attention over half of the pairs.
fn operations_per_token(model: &ModelConfig) -> f64 {
    let feed_forward = 2 * model.width * model.feed_forward;
    let weights = model.layers * (4 * model.width * model.width + feed_forward) + model.vocabulary * model.width;
    6.0 * (weights + model.layers * model.width * model.context) as f64
}

/// Prints what each kind of step takes when they run one after another.
fn profile(step: &mut TrainingStep) -> Result<()> {
    let program = step.program_mut();
    let routines = program.plan().routines.clone();
    for routine in routines.iter().filter(|routine| routine.times_per_step > 0) {
        let mut timing = program.timing(&routine.name[..])?;
        for _ in 0..PROFILED {
            program.run_timed(&routine.name[..], &mut timing)?;
        }
        let mut kinds: BTreeMap<String, (f64, usize)> = BTreeMap::new();
        for (step, time) in routine.steps.iter().zip(&timing.steps) {
            let result = step.outputs.last().map(|output| output.ty().to_string()).unwrap_or_default();
            let attributes: String = step.op.attributes().chars().take(50).collect();
            let (total, count) = kinds.entry(format!("{} [{attributes}] {result}", step.op.name())).or_default();
            *total += time.as_secs_f64() * 1e3 / PROFILED as f64;
            *count += 1;
        }
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
        let total: f64 = kinds.iter().map(|(_, (milliseconds, _))| milliseconds).sum();
        println!("  {}: {total:.2} ms one after another", routine.name);
        for (kind, (milliseconds, count)) in kinds.iter().take(30) {
            println!("  {milliseconds:>9.3} ms {count:>4} x {kind}");
        }
    }
    Ok(())
}

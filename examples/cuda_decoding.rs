//! Times decoding of GPT-2 124M on a CUDA device: tokens a second of all texts together.
//!
//! `cuda_decoding [TEXTS ...] [--profile]`: without numbers, 64 and 256 texts. Each goes on from one token by 512; weights are
//! random, in bf16. `--profile` adds what each kind of step takes in the middle of the texts. Where there is no device, the steps
//! of a token are only planned, for an H200.

use gradus::backend::{Cuda, GpuKind};
use gradus::plan::{Plan, PlannedRoutine, Step};
use gradus_train::Result;
use gradus_train::config::Precision;
use gradus_train::generate::{Generator, Sampling, Texts};
use gradus_train::models::{ModelConfig, Parameter};
use std::collections::BTreeMap;
use std::time::Instant;

const TOKENS: usize = 512;
const ROUNDS: usize = 3;
const PROFILED: usize = 20;
const SAMPLING: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 1 };

fn main() -> Result<()> {
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|count| count.parse().ok()).collect();
    let profiles = std::env::args().any(|argument| argument == "--profile");
    let model = ModelConfig::gpt2(50_257, 768, 12, 12, 1024);
    let counts = if counts.is_empty() { vec![64, 256] } else { counts };
    let texts = |count: usize| Texts { count, prompt_tokens: 1, max_tokens: TOKENS };
    let cuda = match Cuda::new(0) {
        Ok(cuda) => cuda,
        Err(reason) => {
            println!("planned for an H200, not run: {reason}");
            let cuda = Cuda::of_kind(GpuKind::H200);
            return counts.into_iter().try_for_each(|count| {
                let plan = Generator::plan(&model, Precision::Bf16, &cuda, texts(count))?;
                print_planned(&cuda, &plan, count)
            });
        }
    };
    println!("texts   tokens/s    a token  {TOKENS} tokens each");
    for count in counts {
        let weights = |parameter: &Parameter| parameter.numbers(1);
        let mut generator = Generator::new(&model, weights, Precision::Bf16, &cuda, texts(count))?;
        let mut seconds = vec![];
        // The first round is not counted.
        for _ in 0..=ROUNDS {
            let began = Instant::now();
            let written = generator.generate(&[0], &SAMPLING, TOKENS, &[], &mut |_, _| Ok(()))?;
            seconds.push(began.elapsed().as_secs_f64());
            assert!(
                written.len() == count && written.iter().all(|text| text.len() == TOKENS),
                "all of them are written"
            );
        }
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        let median = seconds[ROUNDS / 2];
        let (rate, milliseconds) = ((count * TOKENS) as f64 / median, median / TOKENS as f64 * 1e3);
        println!("{count:>5} {rate:>10.0} {milliseconds:>7.3} ms");
        if profiles {
            profile(&mut generator)?;
        }
    }
    Ok(())
}

/// The routine that takes one more token of each text.
fn next(plan: &Plan) -> &PlannedRoutine {
    plan.routines.iter().find(|routine| routine.name == Generator::NEXT).expect("texts that are decoded over a cache")
}

/// What steps are counted together by.
fn kind(step: &Step) -> String {
    let result = step.outputs.last().map(|output| output.ty().to_string()).unwrap_or_default();
    let attributes: String = step.op.attributes().chars().take(50).collect();
    format!("{} [{attributes}] {result}", step.op.name())
}

/// Prints what each kind of step takes when they run one after another, half of each text being written.
fn profile(generator: &mut Generator) -> Result<()> {
    generator.generate(&[0], &SAMPLING, TOKENS / 2, &[], &mut |_, _| Ok(()))?;
    let program = generator.program_mut();
    let steps = next(program.plan()).steps.clone();
    let mut timing = program.timing(Generator::NEXT)?;
    for _ in 0..PROFILED {
        program.run_timed(Generator::NEXT, &mut timing)?;
    }
    let mut kinds: BTreeMap<String, (f64, usize)> = BTreeMap::new();
    for (step, time) in steps.iter().zip(&timing.steps) {
        let (total, count) = kinds.entry(kind(step)).or_default();
        *total += time.as_secs_f64() * 1e6 / PROFILED as f64;
        *count += 1;
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
    let total: f64 = kinds.iter().map(|(_, (microseconds, _))| microseconds).sum();
    println!("  {total:.1} us one after another");
    for (kind, (microseconds, count)) in &kinds {
        println!("  {microseconds:>8.1} us {:>7.2} us each {count:>4} x {kind}", microseconds / *count as f64);
    }
    Ok(())
}

/// Prints what a device would do for a token, by kinds of steps.
fn print_planned(cuda: &Cuda, plan: &Plan, count: usize) -> Result<()> {
    let commands = cuda.commands(plan, 1 << 32)?;
    let mut kinds: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (routine, commands) in plan.routines.iter().zip(&commands) {
        for (step, commands) in routine.steps.iter().zip(commands).filter(|_| routine.name == Generator::NEXT) {
            let (steps, all) = kinds.entry(kind(step)).or_default();
            (*steps, *all) = (*steps + 1, *all + commands.len());
        }
    }
    println!("{count} texts: {} commands a token", kinds.values().map(|(_, all)| all).sum::<usize>());
    for (kind, (steps, commands)) in kinds {
        println!("  {steps:>4} steps {commands:>4} commands: {kind}");
    }
    Ok(())
}

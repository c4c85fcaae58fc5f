//! What a replay costs beyond its arithmetic.

use super::entry::{Entry, Group, Sample, Setting, Work};
use gradus_engine::plan::Options;
use gradus_engine::{Array, Program, Routine, Trace};
use gradus_train::Result;
use gradus_train::profiler::Benchmark;
use std::time::{Duration, Instant};

/// Operations of the replay, which the planner may not join.
const OPERATIONS: usize = 1000;
const NUMBERS: [f32; 4] = [0.1, 0.2, 0.3, 0.4];
/// A factor that never lets the numbers vanish: arithmetic on the smallest ones is slower.
const FACTOR: f32 = -1.0;
const TIME: Duration = Duration::from_millis(300);

/// One operation of a replay of many tiny ones, less the same arithmetic in a plain loop.
pub fn entry() -> Entry {
    Entry {
        name: "overhead/operation".into(),
        group: Group::Overhead,
        heavy: false,
        work: Work { amount: 1.0, unit: "operations/s", bound: None },
        measure: Box::new(measure),
    }
}

fn measure(setting: &Setting) -> Result<Sample> {
    let time = setting.time.unwrap_or(TIME);
    let mut numbers = NUMBERS;
    let arithmetic = Benchmark::lasting(time).run(|| {
        for _ in 0..OPERATIONS {
            numbers = std::hint::black_box(numbers.map(|x| x * FACTOR));
        }
        Ok(())
    })?;
    let mut program = program(setting)?;
    let seconds = Benchmark::lasting(time).run_counted(|| {
        let begin = Instant::now();
        program.run("step")?;
        // A loop that was slower than the replay says that there is no overhead to be seen.
        Ok((begin.elapsed().as_secs_f64() - arithmetic.median).max(0.0) / OPERATIONS as f64)
    })?;
    Ok(Sample::timed(seconds))
}

fn program(setting: &Setting) -> Result<Program> {
    let trace = Trace::new();
    let state = trace.state("x", Array::new([NUMBERS.len()], &NUMBERS)?);
    let mut x = state.clone();
    for _ in 0..OPERATIONS {
        x = &x * FACTOR;
    }
    let apart = Options { simplify: false, ..Options::default() };
    let routine = Routine::new("step").assign(&state, &x);
    Ok(trace.compile_with(&*setting.backend, &[routine], apart)?)
}

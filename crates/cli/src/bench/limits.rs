//! The machine's limits as entries.

use super::entry::{Entry, Group, Sample, Setting, Work};
use gradus_kernels::Pool;
use gradus_kernels::limits::{Limit, Probe};
use gradus_train::profiler::{Benchmark, Spread};
use gradus_train::{Error, Result};
use std::time::{Duration, Instant};

/// Time for each limit: they are measured whatever is asked for, so that shares can be told.
pub const TIME: Duration = Duration::from_millis(300);

/// Every limit of this machine.
pub fn entries() -> Vec<Entry> {
    Limit::available().into_iter().map(entry).collect()
}

/// The name of a limit's entry.
pub fn name(limit: Limit) -> String {
    format!("limits/{limit}")
}

/// One run of it is 10^9 operations or bytes.
fn entry(limit: Limit) -> Entry {
    let unit = if limit.is_arithmetic() { "GFLOP/s" } else { "GB/s" };
    Entry {
        name: name(limit),
        group: Group::Limits,
        heavy: false,
        work: Work { amount: 1.0, unit, bound: None },
        measure: Box::new(move |setting| measure(limit, setting)),
    }
}

fn measure(limit: Limit, setting: &Setting) -> Result<Sample> {
    Ok(Sample::timed(seconds(limit, setting.threads, setting.time.unwrap_or(TIME))?))
}

/// The seconds that 10^9 operations or bytes take at this limit.
pub fn seconds(limit: Limit, threads: usize, time: Duration) -> Result<Spread> {
    let refused = |error: std::io::Error| Error::Config(format!("cannot start {threads} threads: {error}"));
    let pool = Pool::new(threads).map_err(refused)?;
    let mut probe = Probe::new(limit, threads);
    Benchmark::lasting(time).run_counted(|| {
        let begin = Instant::now();
        probe.run(&pool);
        Ok(begin.elapsed().as_secs_f64() * 1e9 / probe.amount() as f64)
    })
}

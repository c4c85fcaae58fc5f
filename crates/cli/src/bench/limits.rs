//! The machine's limits as entries.

use super::entry::{Benchmark, Group, Sample, Setting, Work};
use super::statistics::spread_of;
use gradus_kernels::Pool;
use gradus_kernels::limits::{Limit, Probe};
use gradus_train::{Error, Result};
use std::time::{Duration, Instant};

/// Time for each limit: they are measured whatever is asked for, so that shares can be told.
const TIME: Duration = Duration::from_millis(300);

/// Every limit of this machine.
pub fn entries() -> Vec<Benchmark> {
    Limit::available().into_iter().map(entry).collect()
}

/// The name of a limit's entry.
pub fn name(limit: Limit) -> String {
    format!("limits/{limit}")
}

/// One run of it is 10^9 operations or bytes.
fn entry(limit: Limit) -> Benchmark {
    let unit = if limit.is_arithmetic() { "GFLOP/s" } else { "GB/s" };
    Benchmark {
        name: name(limit),
        group: Group::Limits,
        heavy: false,
        work: Work { amount: 1.0, unit, bound: None },
        measure: Box::new(move |setting| measure(limit, setting)),
    }
}

fn measure(limit: Limit, setting: &Setting) -> Result<Sample> {
    let refused = |error: std::io::Error| Error::Config(format!("cannot start {} threads: {error}", setting.threads));
    let pool = Pool::new(setting.threads).map_err(refused)?;
    let mut probe = Probe::new(limit, setting.threads);
    let seconds = spread_of(setting.time.unwrap_or(TIME), || {
        let begin = Instant::now();
        probe.run(&pool);
        Ok(begin.elapsed().as_secs_f64() * 1e9 / probe.amount() as f64)
    })?;
    Ok(Sample::timed(seconds))
}

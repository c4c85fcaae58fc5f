//! What the machine allows at best, and which of its limits bounds an operation.

use crate::bench::limits;
use gradus_engine::DType;
use gradus_kernels::limits::Limit;
use gradus_train::Result;
use gradus_train::profiler::ProfiledOperation;
use gradus_train::training::Profiled;
use serde::Serialize;

/// What is moved by an operation and may be found in caches by the next.
const CACHE_BYTES: u64 = 16 << 20;

/// Seconds that one operation or byte takes at least; none for a device, whose limits are not measured.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    measured: Vec<(Limit, f64)>,
}

/// What bounds an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Bound {
    Arithmetic,
    Memory,
}

impl Bounds {
    /// The limits of this machine, with the threads of the run. Measured once the run has ended and its memory is free.
    pub fn measured(profiled: &Profiled) -> Result<Bounds> {
        if profiled.backend.memory()?.is_some() {
            return Ok(Bounds::default());
        }
        let mut limits = vec![Limit::f32(), Limit::Update, Limit::CacheCopy];
        if !limits.contains(&Limit::bf16()) {
            limits.push(Limit::bf16());
        }
        let each = |limit: Limit| {
            // The best round: a limit is what the machine can do, not what it did while something else ran.
            Ok((limit, limits::seconds(limit, profiled.config.threads, limits::TIME)?.best / 1e9))
        };
        Ok(Bounds { measured: limits.into_iter().map(each).collect::<Result<_>>()? })
    }

    /// The limits, with operations or bytes a second.
    pub fn rates(&self) -> impl Iterator<Item = (String, f64)> {
        self.measured.iter().map(|(limit, seconds)| (limit.to_string(), 1.0 / seconds))
    }

    /// The seconds that all replays of an operation take at least, and by which limit.
    pub fn least(&self, operation: &ProfiledOperation) -> Option<(Bound, f64)> {
        let arithmetic = if operation.dtype == DType::Bf16 { Limit::bf16() } else { Limit::f32() };
        let memory = if operation.cost.bytes > CACHE_BYTES { Limit::Update } else { Limit::CacheCopy };
        let seconds = |limit: Limit, amount: u64| {
            let (_, each) = self.measured.iter().find(|(known, _)| *known == limit)?;
            Some(each * amount as f64 * operation.replays as f64)
        };
        let arithmetic = seconds(arithmetic, operation.cost.operations)?;
        let memory = seconds(memory, operation.cost.bytes)?;
        Some(if arithmetic >= memory { (Bound::Arithmetic, arithmetic) } else { (Bound::Memory, memory) })
    }
}

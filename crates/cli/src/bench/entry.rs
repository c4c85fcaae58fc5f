//! What can be measured: a name, the work of one run, and how to time it.

use gradus_engine::backend::Backend;
use gradus_kernels::limits::Limit;
use gradus_train::Result;
use gradus_train::profiler::Spread;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Kinds of entries, each with a name to choose it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// What the machine can do at best.
    Limits,
    /// Single operations.
    Kernels,
    /// What a replay costs beyond its arithmetic.
    Overhead,
    /// Whole training steps.
    Steps,
}

impl Group {
    /// Every group, in the order of measuring.
    pub const ALL: [Group; 4] = [Group::Limits, Group::Kernels, Group::Overhead, Group::Steps];

    /// The name to choose it by.
    pub fn name(self) -> &'static str {
        match self {
            Group::Limits => "limits",
            Group::Kernels => "kernels",
            Group::Overhead => "overhead",
            Group::Steps => "steps",
        }
    }
}

/// One thing that can be measured.
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub group: Group,
    /// Whether it takes too long or too much memory to be measured unasked.
    pub heavy: bool,
    /// What one run does.
    pub work: Work,
    /// Times it.
    pub measure: Measure,
}

/// How an entry is timed.
pub type Measure = Box<dyn Fn(&Setting) -> Result<Sample>>;

/// What one run of an entry does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// How much, in the unit whose rate is told: GFLOP for GFLOP/s.
    pub amount: f64,
    /// The unit of the rate.
    pub unit: &'static str,
    /// The limit that bounds it, and how many operations or bytes one run takes of that.
    pub bound: Option<(Limit, f64)>,
}

impl Work {
    /// Arithmetic, bounded by this limit.
    pub fn operations(count: f64, limit: Limit) -> Work {
        Work { amount: count / 1e9, unit: "GFLOP/s", bound: Some((limit, count)) }
    }

    /// Bytes moved, bounded by this limit.
    pub fn bytes(count: f64, limit: Limit) -> Work {
        Work { amount: count / 1e9, unit: "GB/s", bound: Some((limit, count)) }
    }
}

/// How to measure.
pub struct Setting {
    /// The device.
    pub backend: Arc<dyn Backend>,
    /// The number of its threads.
    pub threads: usize,
    /// Time for each entry, if not what suits it.
    pub time: Option<Duration>,
    /// Whether to tell the time of each operation of a step.
    pub profile: bool,
    /// Whether this process was started to measure one entry alone.
    pub is_child: bool,
}

/// What measuring an entry gave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The seconds of one run.
    pub seconds: Spread,
    /// The most memory that the process ever held, where it did nothing else.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub peak_memory_bytes: Option<u64>,
    /// The time by kind of operation, longest first.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub profile: Vec<OperationTime>,
}

impl Sample {
    /// Seconds alone.
    pub fn timed(seconds: Spread) -> Sample {
        Sample { seconds, peak_memory_bytes: None, profile: vec![] }
    }
}

/// What all operations of a kind take of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperationTime {
    /// The operation.
    pub operation: String,
    /// How often it occurs in a step.
    pub count: usize,
    /// Its time in a step.
    pub seconds: f64,
    /// Its arithmetic a second, as the plan counts it.
    pub gflop_per_second: f64,
    /// Its bytes a second, as the plan counts them: every operand and result once.
    pub gb_per_second: f64,
}

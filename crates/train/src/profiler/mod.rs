//! What a program's time and memory go to.
//!
//! [`Profiler`] looks at memory at named points, [`Benchmark`] times work again and again, [`Watch`] finds who allocates, and
//! [`Profile`] is what the steps of a training take, by operation, layer and worker
//! ([`Trainer::profile`](crate::trainer::Trainer::profile)). [`Counting`] is the allocator that counts for them. What is not
//! profiled pays nothing for it.

mod allocations;
mod benchmark;
mod growth;
mod parts;
mod points;
mod record;
mod training;

pub(crate) use allocations::replays;
pub use allocations::{Allocations, Count, Counting, Offender, Phase, Watch};
pub use benchmark::{Benchmark, Spread};
pub use growth::Leak;
pub use parts::{Pass, Share};
pub use points::{Difference, Point, Profiler};
pub use record::{Finding, FindingKind, Profile, ProfiledOperation, ProfiledStep, Span, Worker};
pub(crate) use training::profile;

//! What training does to a model: figures of every weight's gradient and update, and a verdict with reasons.
//!
//! [`Measures`] traces the figures beside any gradients and reads them into a [`Health`]; a [`Monitor`] follows losses and
//! healths from step to step and raises an [`Alert`] when something goes wrong. A training step has both
//! ([`crate::step::TrainingStep::run_measured`], [`crate::trainer::Settings::health`]); a program or a tape of one's own
//! takes what it needs ([`Measures::new`], [`on_tape`]).

mod faults;
mod health;
mod interval;
mod losses;
mod measures;
mod monitor;
mod verdict;

pub use health::{Health, Watched, WeightHealth, layer_of};
pub use interval::HealthInterval;
pub(crate) use measures::{Figures, Reading, count_non_finite, non_finite_name};
pub use measures::{Measured, Measures, on_tape};
pub use monitor::{Monitor, Observation};
pub use verdict::{Alert, Verdict};

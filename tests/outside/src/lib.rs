//! What a crate adds to gradus without touching it: an operation with kernel and gradient, a model, an optimizer.

#![forbid(unsafe_code)]

mod hadamard;
mod mixer;
mod signum;

pub use hadamard::{Hadamard, hadamard};
pub use mixer::Mixer;
pub use signum::Signum;

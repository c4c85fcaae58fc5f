//! Gradus: a training engine for neural networks.

pub use gradus_engine::*;

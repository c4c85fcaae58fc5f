//! The engine: trace, differentiate, plan, link, replay.

mod arena;
mod array;
mod autodiff;
#[macro_use]
pub mod backend;
mod dtype;
mod error;
pub mod graph;
mod handles;
pub mod ops;
pub mod plan;
mod process;
mod program;
mod shape;
mod tape;
pub mod testing;
mod trace;

pub use array::Array;
pub use autodiff::{gradient, gradient_or_zeros, gradient_terms};
pub use dtype::{DType, Native};
pub use error::{Error, Location, Mismatch, Result};
pub use graph::Role;
pub use handles::{Handles, RoutineKey, TensorKey};
pub use ops::custom_gradient;
pub use process::{ProcessMemory, available_memory};
pub use program::{Program, Routine};
pub use shape::{Layout, Shape, TensorType};
pub use tape::GradientTape;
pub use trace::{Tensor, Trace};

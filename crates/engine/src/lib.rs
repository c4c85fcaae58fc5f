//! The engine: trace, differentiate, plan, link, replay.

mod array;
mod autodiff;
#[macro_use]
pub mod backend;
mod dtype;
mod error;
pub mod graph;
pub mod ops;
mod shape;
mod trace;

pub use array::Array;
pub use autodiff::gradient;
pub use dtype::{DType, Native};
pub use error::{Error, Place, Result};
pub use shape::{Layout, Shape, TensorType};
pub use trace::{Tensor, Trace};

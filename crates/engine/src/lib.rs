//! The engine: trace, differentiate, plan, link, replay.

mod arena;
mod array;
mod autodiff;
#[macro_use]
pub mod backend;
pub mod curvature;
mod dtype;
mod error;
pub mod graph;
mod handles;
mod linearize;
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
pub use curvature::{
    fisher_diagonal, gauss_newton_vector_product, hessian, hessian_vector_product, jacobian,
    loss_and_hessian_vector_product, vector_jacobian_product,
};
pub use dtype::{DType, Native};
pub use error::{Error, Location, Mismatch, Result};
pub use graph::Role;
pub use handles::{Handles, RoutineKey, TensorKey};
pub use linearize::jacobian_vector_product;
pub use ops::custom_gradient;
pub use process::{ProcessMemory, available_memory};
pub use program::{Program, Routine};
pub use shape::{Layout, Shape, TensorType};
pub use tape::GradientTape;
pub use trace::{Tensor, Trace};

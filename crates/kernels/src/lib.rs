//! Arithmetic on slices: what a step of a training program finally does.
//!
//! A kernel is a [`Job`]: a struct that knows its operands and sizes and is cut into parts by the size of the
//! problem, never by the number of threads, so that every number of threads gives the same bits. The body of a
//! job is written once, as plain loops, and compiled for each instruction set by `multiversion!`; which
//! version runs is decided when the job is built, not when it runs.

pub mod attention;
pub mod conv;
pub mod copy;
pub mod cross_entropy;
pub mod cumulative;
pub mod dropout;
mod element;
pub mod elementwise;
pub mod embedding;
mod fault;
pub mod finite;
pub mod gather;
pub mod gemm;
pub mod integers;
mod isa;
mod job;
pub mod lanes;
pub mod limits;
pub mod math;
pub mod norm;
mod operand;
mod pool;
pub mod pooling;
pub mod random;
pub mod reduce;
pub mod rotary;
pub mod sample;
pub mod softmax;
mod streaming;
mod strided;
mod sync;
pub mod top_k;
pub mod uniform;
pub mod updates;
mod vectors;
mod window;

pub use element::Element;
pub use fault::{Fault, FaultCell};
pub use half::{bf16, f16};
pub use isa::Isa;
#[cfg(test)]
pub(crate) use job::run_alone;
pub use job::{Job, chunk, parts_of};
pub use operand::{In, Out};
pub use pool::Pool;

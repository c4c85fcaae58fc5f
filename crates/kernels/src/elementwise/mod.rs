//! Scalar programs run on every element.
//!
//! [`Map`] is the job. It takes blocks that fit the first cache through the program one instruction at a time, so
//! that each instruction is one vector loop. [`Epilogue`] does the same at the end of another kernel.

mod functions;
mod map;
mod program;
#[cfg(test)]
mod tests;

pub use map::{Epilogue, Map};

use crate::{In, Out, bf16, f16};

/// An operand's elements.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum InputElements {
    F32(In<f32>),
    Bf16(In<bf16>),
    F16(In<f16>),
    I32(In<i32>),
    U32(In<u32>),
}

/// The result's elements.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum OutputElements {
    F32(Out<f32>),
    Bf16(Out<bf16>),
    F16(Out<f16>),
    I32(Out<i32>),
    U32(Out<u32>),
}

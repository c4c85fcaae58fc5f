//! Kernels that are plain functions on slices: an operation of one's own needs nothing more, and no `unsafe`.

use crate::dtype::Native;
use crate::{DType, Shape, TensorType};

/// A kernel that is a plain function from slices to slices. A job of ours calls it, on operands and results that lie
/// apart: whatever it does, it reaches nothing else, and a panic in it becomes an error of the replay.
pub trait SliceKernel {
    /// How the work on operands of these types is cut.
    fn cut(&self, inputs: &[TensorType]) -> Cut;

    /// Computes one part of the results. It may be called for several parts at the same time, in any order.
    fn run(&self, inputs: &[Numbers<'_>], outputs: &mut [NumbersMut<'_>]);
}

/// How the work of a kernel on slices is cut into parts. The sizes alone decide how many rows are a part, so that every
/// number of threads gives the same bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// One part computes everything.
    Whole,
    /// A part computes rows along the first axis of all results from the same rows of these operands, and the whole of all
    /// others.
    Rows(Vec<usize>),
}

/// The numbers of an operand, or those of its rows that belong to a part; last axis fastest.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    pub(crate) ty: &'a TensorType,
    pub(crate) bytes: &'a [u8],
}

/// The numbers of a result, or those of its rows that belong to a part, to be written. What they hold before is of no
/// meaning.
#[derive(Debug)]
pub struct NumbersMut<'a> {
    pub(crate) ty: &'a TensorType,
    pub(crate) bytes: &'a mut [u8],
}

impl<'a> Numbers<'a> {
    /// The numbers.
    ///
    /// # Panics
    /// If they are of another type: an operation takes only types that its kernel computes.
    pub fn of<T: Native>(&self) -> &'a [T] {
        assert_eq!(T::DTYPE, self.ty.dtype, "an operand is read as another type");
        bytemuck::cast_slice(self.bytes)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The shape of the whole operand.
    pub fn shape(&self) -> &'a Shape {
        &self.ty.shape
    }
}

impl NumbersMut<'_> {
    /// The numbers, to be written.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn of<T: Native>(&mut self) -> &mut [T] {
        assert_eq!(T::DTYPE, self.ty.dtype, "a result is written as another type");
        bytemuck::cast_slice_mut(self.bytes)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// The shape of the whole result.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }
}

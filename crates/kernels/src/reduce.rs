//! Reductions of strided operands.

use crate::{Element, In, Isa, Out};

/// What is reduced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum.
    Sum,
    /// The sum of squares.
    SumOfSquares,
    /// The largest number; NaN if there is one.
    Max,
}

/// How a reduction is cut up: fixed by the problem.
#[derive(Clone, Debug)]
pub struct Shape {}

impl Shape {
    /// Kept and reduced axes as (size, stride), outermost first.
    pub fn new(_kept: &[(usize, usize)], _reduced: &[(usize, usize)]) -> Shape {
        Shape {}
    }

    /// Elements of scratch for partial results.
    pub fn partials(&self) -> usize {
        0
    }
}

/// The jobs of a reduction, in order.
pub fn jobs<T: Element>(
    _isa: Isa,
    _reduction: Reduction,
    _shape: Shape,
    _x: In<T>,
    _partials: Out<f32>,
    _y: Out<T>,
    _add: impl FnMut(crate::elementwise::Map),
) {
}

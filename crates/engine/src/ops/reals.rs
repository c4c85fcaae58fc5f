//! Plain f64 arrays in which the operations' meanings are written.

use crate::shape::Layout;
use crate::{Shape, TensorType};

/// Numbers without rounding worth speaking of; integers too are held as f64.
#[derive(Clone, Debug, PartialEq)]
pub struct Reals {
    /// The sizes of the axes.
    pub shape: Shape,
    /// The numbers, last axis fastest.
    pub data: Vec<f64>,
}

impl Reals {
    /// These numbers in this shape.
    pub fn new(shape: impl Into<Shape>, data: Vec<f64>) -> Reals {
        let shape = shape.into();
        assert_eq!(shape.elements(), data.len(), "numbers for {shape}");
        Reals { shape, data }
    }

    /// Zeros of a result's shape.
    pub fn zeros(ty: &TensorType) -> Reals {
        Reals { shape: ty.shape.clone(), data: vec![0.0; ty.shape.elements()] }
    }

    /// A number for each index.
    pub fn from_fn(shape: &Shape, mut number: impl FnMut(&[usize]) -> f64) -> Reals {
        Reals { shape: shape.clone(), data: indices(shape).map(|index| number(&index)).collect() }
    }

    /// The number at an index.
    pub fn at(&self, index: &[usize]) -> f64 {
        self.data[self.position(index)]
    }

    /// The number at an index, to change it.
    pub fn at_mut(&mut self, index: &[usize]) -> &mut f64 {
        let position = self.position(index);
        &mut self.data[position]
    }

    /// The rows along the last axis.
    pub fn rows(&self) -> impl Iterator<Item = &[f64]> {
        let (rows, columns) = self.shape.rows_and_columns();
        (0..rows).map(move |row| &self.data[row * columns..(row + 1) * columns])
    }

    /// The numbers that a layout picks, in the layout's order.
    pub fn picked(&self, layout: &Layout) -> Reals {
        Reals::from_fn(&layout.shape, |index| {
            let at = layout.offset + index.iter().zip(&layout.strides).map(|(i, stride)| i * stride).sum::<usize>();
            self.data[at]
        })
    }

    fn position(&self, index: &[usize]) -> usize {
        debug_assert_eq!(index.len(), self.shape.rank());
        index.iter().zip(self.shape.iter()).fold(0, |at, (i, size)| at * size + i)
    }
}

/// All indices of a shape, last axis fastest.
pub fn indices(shape: &Shape) -> impl Iterator<Item = Vec<usize>> {
    let shape = shape.clone();
    (0..shape.elements()).map(move |mut position| {
        let mut index = vec![0; shape.rank()];
        for axis in (0..shape.rank()).rev() {
            index[axis] = position % shape[axis];
            position /= shape[axis];
        }
        index
    })
}

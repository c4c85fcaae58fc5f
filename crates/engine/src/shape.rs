//! Shapes, and layouts: where the elements of a tensor lie in a buffer.

use crate::DType;
use std::fmt;
use std::ops::Deref;

/// The sizes of a tensor's axes. No axes: a single number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// A shape of these sizes.
    pub fn new(sizes: impl Into<Vec<usize>>) -> Shape {
        Shape(sizes.into())
    }

    /// The number of elements; the largest there is if it would overflow, which no tensor of a trace has.
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |count: usize, &size| count.saturating_mul(size))
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The last axis' size, 1 for a single number; and how many rows of that size there are.
    pub fn rows_and_columns(&self) -> (usize, usize) {
        let columns = self.0.last().copied().unwrap_or(1);
        let rows = self.0.iter().rev().skip(1).fold(1, |rows: usize, &size| rows.saturating_mul(size));
        (rows, columns)
    }

    /// The same sizes with one axis replaced.
    pub(crate) fn with(&self, axis: usize, size: usize) -> Shape {
        let mut sizes = self.0.clone();
        sizes[axis] = size;
        Shape(sizes)
    }

    /// The same sizes without the last `count` axes.
    pub fn without_last(&self, count: usize) -> Shape {
        Shape(self.0[..self.0.len().saturating_sub(count)].to_vec())
    }

    /// The shape that both broadcast to, aligned at the last axis; sizes must be equal or 1.
    pub fn broadcast(&self, other: &Shape) -> Option<Shape> {
        let rank = self.rank().max(other.rank());
        let size = |shape: &Shape, axis: usize| (axis + shape.rank()).checked_sub(rank).map_or(1, |at| shape[at]);
        let join = |axis| match (size(self, axis), size(other, axis)) {
            (a, b) if a == b => Some(a),
            (1, size) | (size, 1) => Some(size),
            _ => None,
        };
        (0..rank).map(join).collect::<Option<Vec<_>>>().map(Shape)
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[")?;
        for (index, size) in self.0.iter().enumerate() {
            write!(f, "{}{size}", if index > 0 { ", " } else { "" })?;
        }
        write!(f, "]")
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Shape {
        Shape(sizes.to_vec())
    }
}
impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Shape {
        Shape(sizes.to_vec())
    }
}
impl From<Vec<usize>> for Shape {
    fn from(sizes: Vec<usize>) -> Shape {
        Shape(sizes)
    }
}
impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Shape {
        shape.clone()
    }
}
impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(sizes: I) -> Shape {
        Shape(sizes.into_iter().collect())
    }
}

/// What a tensor is before it has bytes: element type and shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The sizes of the axes.
    pub shape: Shape,
}

impl TensorType {
    /// A type of these elements and sizes.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> TensorType {
        TensorType { dtype, shape: shape.into() }
    }

    /// Bytes of the elements, lying densely.
    pub fn bytes(&self) -> usize {
        self.shape.elements().saturating_mul(self.dtype.size())
    }

    /// Whether the sizes can be reckoned with: empty axes aside, the bytes are no more than a process can address.
    /// Tensors of a trace all are so, and no product of some of their sizes overflows.
    pub(crate) fn is_addressable(&self) -> bool {
        const ADDRESSABLE: usize = 1 << 47;
        let bytes = self.shape.iter().fold(self.dtype.size(), |bytes, &size| bytes.saturating_mul(size.max(1)));
        bytes <= ADDRESSABLE
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

/// Where the elements of a view lie in its buffer, counted in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The sizes of the axes.
    pub shape: Shape,
    /// How far apart neighbours along each axis lie; 0 repeats the same element.
    pub strides: Vec<usize>,
    /// Where the first element lies.
    pub offset: usize,
}

impl Layout {
    /// Elements one after another, last axis fastest; strides that would overflow are the largest there is.
    pub fn dense(shape: &Shape) -> Layout {
        let mut strides = vec![0; shape.rank()];
        let mut step: usize = 1;
        for axis in (0..shape.rank()).rev() {
            strides[axis] = step;
            step = step.saturating_mul(shape[axis]);
        }
        Layout { shape: shape.clone(), strides, offset: 0 }
    }

    /// Whether the elements lie one after another (axes of size 1 have no say).
    pub fn is_dense(&self) -> bool {
        self.is_dense_from(0)
    }

    /// Whether, with the axes before `first` fixed, the elements lie one after another.
    pub fn is_dense_from(&self, first: usize) -> bool {
        let mut step: usize = 1;
        for axis in (first..self.shape.rank()).rev() {
            if self.shape[axis] > 1 && self.strides[axis] != step {
                return false;
            }
            step = step.saturating_mul(self.shape[axis]);
        }
        true
    }

    /// One past the furthest element that the view touches, or the largest number if that would overflow; 0 if it has none.
    pub fn end(&self) -> usize {
        if self.shape.elements() == 0 {
            return 0;
        }
        let reach =
            |end: usize, (&size, &stride): (&usize, &usize)| end.saturating_add((size - 1).saturating_mul(stride));
        self.shape.iter().zip(&self.strides).fold(self.offset, reach).saturating_add(1)
    }

    /// The view with another shape over the same elements, if strides can say it.
    pub fn reshaped(&self, shape: &Shape) -> Option<Layout> {
        if shape.elements() == 0 || self.is_dense() {
            return Some(Layout { offset: self.offset, ..Layout::dense(shape) });
        }
        // Walk both shapes from the last axis: a run of old axes that lie regularly can be cut anew.
        let old: Vec<(usize, usize)> =
            self.shape.iter().copied().zip(self.strides.iter().copied()).filter(|&(size, _)| size != 1).collect();
        let mut strides = vec![0; shape.rank()];
        let mut remaining = old.len();
        let (mut available, mut step) = (1, 1);
        for axis in (0..shape.rank()).rev() {
            if shape[axis] == 1 {
                continue;
            }
            if available == 1 {
                remaining = remaining.checked_sub(1)?;
                (available, step) = old[remaining];
            }
            while available < shape[axis] {
                remaining = remaining.checked_sub(1)?;
                let (size, stride) = old[remaining];
                if stride != available * step {
                    return None;
                }
                available *= size;
            }
            // `step` is that of the innermost axis of the run; what is used up moves it outwards.
            if available % shape[axis] != 0 {
                return None;
            }
            strides[axis] = step;
            step *= shape[axis];
            available /= shape[axis];
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(layout: &Layout) -> Vec<usize> {
        let mut out = vec![layout.offset];
        for (&size, &stride) in layout.shape.iter().zip(&layout.strides) {
            out = out.iter().flat_map(|&at| (0..size).map(move |index| at + index * stride)).collect();
        }
        out
    }

    #[test]
    fn reshaping_a_view_keeps_the_order_of_its_elements() {
        let views = [
            (vec![4, 6], vec![6, 1]),
            (vec![6, 4], vec![1, 6]),
            (vec![2, 3, 4], vec![24, 8, 1]),
            (vec![2, 3, 4], vec![0, 4, 1]),
            (vec![3, 2, 4], vec![4, 12, 1]),
            (vec![2, 1, 12], vec![24, 5, 2]),
        ];
        let shapes: [&[usize]; 7] = [&[24], &[4, 6], &[2, 12], &[2, 3, 4], &[2, 2, 6], &[1, 24, 1], &[2, 3, 2, 2]];
        let mut free = 0;
        for (sizes, strides) in views {
            let view = Layout { shape: sizes.into(), strides, offset: 3 };
            for shape in shapes {
                if let Some(reshaped) = view.reshaped(&shape.into()) {
                    assert_eq!(positions(&reshaped), positions(&view), "{view:?} as {shape:?}");
                    free += 1;
                }
            }
        }
        assert!(free >= 20, "only {free} reshapes were free");
    }

    #[test]
    fn sizes_that_cannot_be_multiplied_are_the_largest() {
        let huge = Layout::dense(&[2, usize::MAX, 3, 2].into());
        assert_eq!(huge.strides, [usize::MAX, 6, 2, 1]);
        assert_eq!((huge.end(), huge.shape.rows_and_columns()), (usize::MAX, (usize::MAX, 2)));
        assert!(huge.is_dense());
    }
}

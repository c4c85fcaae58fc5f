//! Operands of kernels: where they lie on the device, and how.

/// The type of an operand's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Element {
    F32,
    Bf16,
    F16,
    I32,
    U32,
}

impl Element {
    /// Its name in sources.
    pub fn name(self) -> &'static str {
        match self {
            Element::F32 => "float",
            Element::Bf16 => "bf16",
            Element::F16 => "f16",
            Element::I32 => "i32",
            Element::U32 => "u32",
        }
    }

    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Element::Bf16 | Element::F16 => 2,
            _ => 4,
        }
    }
}

/// An operand of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The type of its elements.
    pub element: Element,
    /// The sizes of its axes.
    pub shape: Vec<usize>,
    /// How far apart neighbours along each axis lie, in elements; 0 repeats one.
    pub strides: Vec<usize>,
    /// The device address of the first element.
    pub address: u64,
}

/// Bytes that a thread reads or writes at once, at most.
pub(crate) const WIDEST: usize = 16;

/// How many elements of a type a thread reads or writes at once, at most.
pub(crate) fn widest(element: Element) -> usize {
    WIDEST / element.size()
}

/// How many elements a thread reads or writes at once of each of these dense operands, so that rows of so many elements are
/// made of whole vectors.
pub fn common_vector(row: usize, operands: &[&Operand]) -> usize {
    let fits = |&count: &usize| {
        row.is_multiple_of(count) && operands.iter().all(|operand| count == 1 || operand.vector(count) == count)
    };
    let most = operands.iter().map(|operand| widest(operand.element)).min().unwrap_or(1);
    std::iter::successors(Some(most), |&count| Some(count / 2)).find(fits).unwrap_or(1)
}

impl Operand {
    /// One whose elements lie one after another.
    pub fn dense(element: Element, shape: &[usize], address: u64) -> Operand {
        let mut strides = vec![1; shape.len()];
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis] * shape[axis];
        }
        Operand { element, shape: shape.to_vec(), strides, address }
    }

    /// The elements along some axes, the first ones of all others.
    pub fn along(&self, axes: &[usize]) -> Operand {
        let (shape, strides) = axes.iter().map(|&axis| (self.shape[axis], self.strides[axis])).unzip();
        Operand { element: self.element, shape, strides, address: self.address }
    }

    /// How many elements it has.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the elements lie one after another.
    pub fn is_dense(&self) -> bool {
        let mut step = 1;
        self.axes().iter().rev().all(|&(size, stride)| {
            let fits = stride == step;
            step *= size;
            fits
        })
    }

    /// The axes as sizes and strides, those of size 1 left out and neighbours that lie regularly joined.
    pub fn axes(&self) -> Vec<(usize, usize)> {
        let mut joined: Vec<(usize, usize)> = vec![];
        for (&size, &stride) in self.shape.iter().zip(&self.strides).filter(|&(&size, _)| size != 1) {
            match joined.last_mut() {
                Some((outer, step)) if *step == size * stride => (*outer, *step) = (*outer * size, stride),
                _ => joined.push((size, stride)),
            }
        }
        joined
    }

    /// How many elements, a power of two up to `most`, can be read at once wherever a multiple of that many begins: they
    /// lie side by side, at an address that is a multiple of their size.
    pub fn vector(&self, most: usize) -> usize {
        let axes = self.axes();
        let Some(&(inner, 1)) = axes.last() else { return 1 };
        let fits = |count: usize| {
            inner.is_multiple_of(count)
                && self.address.is_multiple_of((count * self.element.size()) as u64)
                && axes[..axes.len() - 1].iter().all(|&(_, stride)| stride.is_multiple_of(count))
        };
        std::iter::successors(Some(most), |&count| Some(count / 2))
            .find(|&count| count <= 1 || fits(count))
            .unwrap_or(1)
    }

    /// One past the furthest element, counted from the first.
    pub fn end(&self) -> usize {
        if self.elements() == 0 {
            return 0;
        }
        self.shape.iter().zip(&self.strides).map(|(&size, &stride)| (size - 1) * stride).sum::<usize>() + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operand(shape: &[usize], strides: &[usize], address: u64) -> Operand {
        Operand { element: Element::Bf16, shape: shape.to_vec(), strides: strides.to_vec(), address }
    }

    #[test]
    fn axes_are_joined_where_they_lie_regularly() {
        assert_eq!(operand(&[2, 3, 4], &[12, 4, 1], 0).axes(), [(24, 1)]);
        assert_eq!(operand(&[2, 3, 4], &[4, 8, 1], 0).axes(), [(2, 4), (3, 8), (4, 1)]);
        assert_eq!(operand(&[5, 3, 4], &[0, 4, 1], 0).axes(), [(5, 0), (12, 1)]);
        assert_eq!(operand(&[1, 1], &[7, 3], 0).axes(), []);
        assert!(operand(&[1, 3, 1], &[9, 1, 5], 0).is_dense());
        assert!(!operand(&[3, 2], &[1, 3], 0).is_dense());
    }

    #[test]
    fn vectors_are_whole_and_aligned() {
        assert_eq!(operand(&[4, 16], &[16, 1], 256).vector(8), 8);
        assert_eq!(operand(&[4, 12], &[12, 1], 256).vector(8), 8, "one row of 48");
        assert_eq!(operand(&[4, 12], &[20, 1], 256).vector(8), 4);
        assert_eq!(operand(&[4, 16], &[16, 1], 264).vector(8), 4, "the address");
        assert_eq!(operand(&[4, 16], &[1, 4], 256).vector(8), 1, "transposed");
        assert_eq!(operand(&[4, 16], &[0, 1], 256).vector(8), 8, "repeated rows");
        assert_eq!(common_vector(12, &[&operand(&[4, 12], &[12, 1], 256)]), 4, "rows of 12");
    }
}

//! Axes that come, go and join: made of reshapes and [`Tensor::concat`].

use super::*;
use crate::Shape;

impl Tensor {
    /// With a new axis of size 1 before this one; the one past the last is allowed, and negative ones count from it.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        let shape = self.shape();
        let rank = shape.rank() as isize + 1;
        let index = if axis < 0 { axis + rank } else { axis };
        if self.is_poisoned() {
            return self.clone();
        }
        if !(0..rank).contains(&index) {
            return self.parameter_error("unsqueeze", format!("there is no axis {axis}; axes are {}..{rank}", -rank));
        }
        let (before, after) = shape.split_at(index as usize);
        self.reshape([before, &[1], after].concat())
    }

    /// Without an axis of size 1.
    #[track_caller]
    pub fn squeeze(&self, axis: isize) -> Tensor {
        let Some(axis) = self.axis("squeeze", axis) else { return self.trace().poisoned() };
        let shape = self.shape();
        if shape[axis] != 1 {
            let problem = format!("axis {axis} has {} elements; only an axis of one can go", shape[axis]);
            return self.parameter_error("squeeze", problem);
        }
        self.reshape([&shape[..axis], &shape[axis + 1..]].concat())
    }

    /// The axes from this one to the last as one.
    #[track_caller]
    pub fn flatten(&self, axis: isize) -> Tensor {
        let Some(axis) = self.axis("flatten", axis) else { return self.trace().poisoned() };
        let shape = self.shape();
        self.reshape([&shape[..axis], &[Shape::from(&shape[axis..]).elements()]].concat())
    }

    /// Tensors of one shape, along a new axis.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], axis: isize) -> Tensor {
        let Some(first) = tensors.first() else { return Tensor::of_nothing("stack") };
        let mut pieces = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            if !tensor.is_poisoned() && !first.is_poisoned() && tensor.shape() != first.shape() {
                let problem =
                    format!("all must have the shape of the first, {}, not {}", first.shape(), tensor.shape());
                return first.parameter_error("stack", problem);
            }
            pieces.push(tensor.unsqueeze(axis));
        }
        Tensor::concat(&pieces.iter().collect::<Vec<_>>(), axis)
    }
}

/// Cases of these methods.
pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("axes that come and go", &[&[2, 1, 3]], |x| {
            vec![x[0].unsqueeze(-1), x[0].unsqueeze(0), x[0].squeeze(1), x[0].flatten(1), x[0].flatten(-1)]
        }),
        Case::new("stacked", &[&[2, 3], &[2, 3], &[2, 3]], |x| {
            vec![Tensor::stack(&[&x[0], &x[1], &x[2]], 1), Tensor::stack(&[&x[1], &x[0]], -1)]
        }),
    ]
}

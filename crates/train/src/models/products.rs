//! Matrix products in a model's precision.

use crate::parameters::Parameters;
use gradus_engine::{DType, Tensor};

/// What comes after a product, which decides the precision of its result.
#[derive(Clone, Copy)]
pub(super) enum Next {
    /// Further products or attention: the precision of products.
    Products,
    /// The residual stream or the loss: f32.
    Residual,
}

/// In the precision of products.
#[track_caller]
pub(super) fn rounded(parameters: &Parameters, x: &Tensor) -> Tensor {
    x.cast(parameters.precision().dtype())
}

/// `x @ weight + bias` with a weight of [inputs, outputs].
#[track_caller]
pub(super) fn linear(
    parameters: &Parameters,
    x: &Tensor,
    (weight, bias): (&Tensor, Option<&Tensor>),
    next: Next,
) -> Tensor {
    let precision = parameters.precision();
    let stored = match next {
        Next::Products => precision.dtype(),
        Next::Residual => DType::F32,
    };
    x.cast(precision.dtype()).linear_as(weight, bias, precision.product_types(stored))
}

/// One of the parts of a projection as heads: [b, t, n * d] to [b, n, t, d].
#[track_caller]
pub(super) fn heads(x: &Tensor, count: usize, size: usize) -> Tensor {
    x.reshape([x.size(0), x.size(1), count, size]).transpose(1, 2)
}

/// Heads side by side again: [b, h, t, d] to [b, t, h * d].
#[track_caller]
pub(super) fn joined(heads: &Tensor) -> Tensor {
    let joint = heads.size(1).saturating_mul(heads.size(3));
    heads.transpose(1, 2).reshape([heads.size(0), heads.size(2), joint])
}

//! What happens to a row of results once its sums are complete.

use crate::{Element, math};

/// A function applied to each result of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Activation {
    /// The result as it is.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// GELU in its tanh form.
    GeluTanh,
    /// GELU in its exact form.
    GeluErf,
    /// `x * sigmoid(x)`.
    Silu,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl Activation {
    /// Every activation.
    pub const ALL: [Activation; 7] = [
        Activation::None,
        Activation::Relu,
        Activation::GeluTanh,
        Activation::GeluErf,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
    ];
}

/// Adds the bias and applies the activation to a row.
#[inline(always)]
pub(super) fn finish<T: Element>(row: &mut [f32], bias: Option<&[T]>, activation: Activation) {
    if let Some(bias) = bias {
        for (x, bias) in row.iter_mut().zip(bias) {
            *x += bias.to_f32();
        }
    }
    match activation {
        Activation::None => {}
        Activation::Relu => map(row, math::relu),
        Activation::GeluTanh => map(row, math::gelu_tanh),
        Activation::GeluErf => map(row, math::gelu_erf),
        Activation::Silu => map(row, math::silu),
        Activation::Tanh => map(row, math::tanh),
        Activation::Sigmoid => map(row, math::sigmoid),
    }
}

#[inline(always)]
fn map(row: &mut [f32], function: impl Fn(f32) -> f32) {
    for x in row {
        *x = function(*x);
    }
}

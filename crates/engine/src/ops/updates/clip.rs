//! Gradients kept from growing too large.

use super::*;

/// Added to the norm, so that zero gradients are not divided by zero.
const NORM_EPSILON: f32 = 1e-6;

/// The gradients of a model, at least one, scaled together so that the norm of all of them is at most `max_norm`;
/// and the norm before that.
#[track_caller]
pub fn clip_by_global_norm(gradients: &[&Tensor], max_norm: f32) -> (Vec<Tensor>, Tensor) {
    let norm = Tensor::global_norm(gradients);
    // A norm that is not a number comes first in the minimum, so that it is not lost.
    let scale = (max_norm / (&norm + NORM_EPSILON)).minimum(&norm.ones_like());
    let mut clipped = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        // In f32, so that a 16-bit gradient is rounded once and its scale is not.
        clipped.push((gradient.cast(DType::F32) * &scale).cast(gradient.dtype()));
    }
    (clipped, norm)
}

/// The gradients with every element between `-limit` and `limit`.
#[track_caller]
pub fn clip_by_value(gradients: &[&Tensor], limit: f32) -> Vec<Tensor> {
    let mut clipped = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        clipped.push(gradient.clamp(-limit, limit));
    }
    clipped
}

/// Cases of both: gradients that are clipped, and gradients that are not.
pub(super) fn cases() -> Vec<Case> {
    let by_norm = |max_norm: f32| {
        move |x: &[Tensor]| {
            let (mut clipped, norm) = clip_by_global_norm(&[&x[0], &x[1]], max_norm);
            clipped.push(norm);
            clipped
        }
    };
    let uniform = |shape: &[usize]| CaseInput::uniform(shape, -2.0, 2.0);
    let inputs = || vec![uniform(&[7, 5]), uniform(&[3])];
    vec![
        Case::with_inputs("clipped by norm", inputs(), by_norm(0.5)),
        Case::with_inputs("within the norm", inputs(), by_norm(100.0)),
        Case::with_inputs("clipped by value", inputs(), |x| clip_by_value(&[&x[0], &x[1]], 0.77)),
    ]
}

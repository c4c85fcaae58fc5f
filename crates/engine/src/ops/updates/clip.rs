//! Gradients kept from growing too large.

use super::*;

/// Added to the norm, so that zero gradients are not divided by zero.
const NORM_EPSILON: f32 = 1e-6;

/// The gradients of a model, at least one, scaled together so that the norm of all of them is at most `max_norm`;
/// and the norm before that.
#[track_caller]
pub fn clip_by_global_norm(gradients: &[&Tensor], max_norm: f32) -> (Vec<Tensor>, Tensor) {
    check_limit("clip_by_global_norm", gradients, max_norm);
    let norm = Tensor::global_norm(gradients);
    // A norm that is not a number comes first in the minimum, so that it is not lost.
    let scale = (max_norm / (&norm + NORM_EPSILON)).minimum(&norm.ones_like());
    let mut clipped = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        // In f32: a 16-bit scale would be rough.
        clipped.push((gradient.cast(DType::F32) * &scale).cast(gradient.dtype()));
    }
    (clipped, norm)
}

/// The gradients with every element between `-limit` and `limit`.
#[track_caller]
pub fn clip_by_value(gradients: &[&Tensor], limit: f32) -> Vec<Tensor> {
    check_limit("clip_by_value", gradients, limit);
    let mut clipped = Vec::with_capacity(gradients.len());
    for gradient in gradients {
        clipped.push(gradient.clamp(-limit, limit));
    }
    clipped
}

/// Records an error unless the limit is a number above zero.
#[track_caller]
fn check_limit(name: &str, gradients: &[&Tensor], limit: f32) {
    if let (Some(gradient), true) = (gradients.first(), limit.is_nan() || limit <= 0.0) {
        gradient.parameter_error(name, format!("the limit is {limit}; it must be above 0"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, Error, Trace, backend};

    #[test]
    fn the_norm_of_all_gradients_is_cut_to_the_limit() {
        let trace = Trace::new();
        let half = |numbers: &[f64]| Array::from_f64(TensorType::new(DType::F16, [numbers.len()]), numbers).unwrap();
        let (x, y) = (trace.constant(half(&[3.0, 0.0])), trace.constant(half(&[-4.0])));
        let numbers = |tensor: &Tensor| {
            backend::evaluate(&trace.to_graph(), &[tensor.handle().unwrap()], |_| None).remove(0).data
        };
        let (clipped, norm) = clip_by_global_norm(&[&x, &y], 1.0);
        assert_eq!(numbers(&norm), [5.0]);
        assert!((numbers(&clipped[0])[0] - 0.6).abs() < 1e-6 && (numbers(&clipped[1])[0] + 0.8).abs() < 1e-6);
        assert_eq!((clipped[0].dtype(), norm.dtype()), (DType::F16, DType::F32));
        let (kept, _) = clip_by_global_norm(&[&x, &y], 5.1);
        assert_eq!((numbers(&kept[0]), numbers(&kept[1])), (vec![3.0, 0.0], vec![-4.0]));
        assert_eq!(numbers(&clip_by_value(&[&y], 1.5)[0]), [-1.5]);
    }

    #[test]
    fn a_limit_that_is_not_positive_is_an_error_at_the_line_that_gave_it() {
        for limit in [0.0, -1.0, f32::NAN] {
            let trace = Trace::new();
            let x = trace.input("x", DType::F32, [3]);
            let line = line!() + 1;
            clip_by_global_norm(&[&x], limit);
            let Err(Error::Parameter { at, .. }) = trace.check() else { panic!("{limit} was taken") };
            assert_eq!((at.0.file(), at.0.line()), (file!(), line));
        }
    }
}

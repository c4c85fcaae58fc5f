//! Convolution as methods of [`Tensor`], and the shapes that the cases share.

use super::{Conv1dOptions, Conv2d, Conv2dInputGradient, Conv2dOptions, Conv2dWeightGradient, output_shape, size};
use crate::error::Mismatch;
use crate::{Error, Tensor};

/// The last two axes of a tensor.
pub(super) fn plane(tensor: &Tensor) -> [usize; 2] {
    let shape = tensor.shape();
    [size(&shape, 2), size(&shape, 3)]
}

impl Conv2dOptions {
    #[track_caller]
    pub(super) fn convolve(self, x: &Tensor, weight: &Tensor) -> Tensor {
        x.trace().apply_one(Conv2d { options: self }, &[x, weight])
    }

    #[track_caller]
    pub(super) fn input_gradient(self, g: &Tensor, weight: &Tensor, input: [usize; 2]) -> Tensor {
        g.trace().apply_one(Conv2dInputGradient { options: self, input }, &[g, weight])
    }

    #[track_caller]
    pub(super) fn weight_gradient(self, x: &Tensor, g: &Tensor, kernel: [usize; 2]) -> Tensor {
        x.trace().apply_one(Conv2dWeightGradient { options: self, kernel }, &[x, g])
    }
}

impl Tensor {
    /// Convolution of images `[n, c, h, w]` with filters `[o, c / groups, kh, kw]`, which are not turned around, and
    /// a number added for each filter: `[n, o, oh, ow]`.
    #[track_caller]
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: Conv2dOptions) -> Tensor {
        let y = options.convolve(self, weight);
        let Some(bias) = bias.filter(|_| !y.is_poisoned()) else { return y };
        let filters = y.shape()[1];
        if let Err(mismatch) = Mismatch::unless_shape("the bias", &bias.ty(), &[filters].into()) {
            let inputs = vec![self.ty(), weight.ty(), bias.ty()];
            return self.trace().fail(Error::mismatch("conv2d", inputs, mismatch, self.trace().location()));
        }
        y + bias.reshape([filters, 1, 1])
    }

    /// Convolution of rows `[n, c, l]` with filters `[o, c / groups, k]`, and a number added for each filter:
    /// `[n, o, ol]`.
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: Conv1dOptions) -> Tensor {
        let Some(x) = self.as_planes("conv1d") else { return self.trace().poisoned() };
        let Some(weight) = weight.as_planes("conv1d") else { return self.trace().poisoned() };
        x.conv2d(&weight, bias, options.into()).without_plane_rows()
    }

    /// `[a, b, l]` as `[a, b, 1, l]`; `None`, and an error of the trace, if there are not three axes.
    #[track_caller]
    pub(in crate::ops) fn as_planes(&self, op: &str) -> Option<Tensor> {
        if self.is_poisoned() {
            return None;
        }
        let shape = self.shape();
        let &[first, second, length] = &shape[..] else {
            let mismatch = Mismatch::Shape(format!("takes tensors of 3 axes, not {}; reshape it", shape.rank()));
            self.trace().fail(Error::mismatch(op, vec![self.ty()], mismatch, self.trace().location()));
            return None;
        };
        Some(self.reshape([first, second, 1, length]))
    }

    /// `[a, b, 1, l]` as `[a, b, l]`.
    #[track_caller]
    pub(in crate::ops) fn without_plane_rows(&self) -> Tensor {
        let shape = self.shape();
        match &shape[..] {
            &[first, second, 1, length] => self.reshape([first, second, length]),
            _ => self.clone(),
        }
    }
}

/// A case: its name, the shapes of input and weights, and the options.
pub(super) type Row = (&'static str, [usize; 4], [usize; 4], Conv2dOptions);

/// The shapes that the cases of the three operations share.
pub(super) fn shapes() -> Vec<Row> {
    let plain = Conv2dOptions::default();
    let padded = Conv2dOptions { padding: [1, 1], ..plain };
    vec![
        ("one number", [1, 1, 1, 1], [1, 1, 1, 1], plain),
        ("plain", [2, 3, 5, 6], [4, 3, 3, 2], plain),
        ("padded", [1, 2, 4, 5], [3, 2, 3, 3], padded),
        ("strided", [2, 2, 7, 8], [9, 2, 3, 3], Conv2dOptions { stride: [2, 3], ..padded }),
        ("stride larger than the window", [1, 2, 7, 7], [3, 2, 2, 1], Conv2dOptions { stride: [3, 3], ..plain }),
        ("dilated", [1, 2, 9, 8], [2, 2, 3, 2], Conv2dOptions { dilation: [2, 3], padding: [2, 1], ..plain }),
        ("groups", [2, 4, 5, 5], [6, 2, 3, 3], Conv2dOptions { groups: 2, ..padded }),
        ("depthwise", [2, 5, 6, 5], [5, 1, 3, 3], Conv2dOptions { groups: 5, stride: [2, 1], ..padded }),
        (
            "all of it",
            [1, 6, 9, 10],
            [4, 3, 2, 3],
            Conv2dOptions { stride: [2, 2], padding: [1, 2], dilation: [3, 2], groups: 2 },
        ),
        ("one element", [3, 6, 7, 9], [10, 3, 1, 1], Conv2dOptions { groups: 2, ..plain }),
        ("one element, no images", [0, 3, 7, 9], [4, 3, 1, 1], plain),
        ("no images", [0, 2, 4, 4], [3, 2, 3, 3], plain),
        ("more than one part", [4, 6, 16, 16], [12, 6, 3, 3], padded),
    ]
}

/// The shape of the output.
pub(super) fn output_of(x: &[usize; 4], weight: &[usize; 4], options: Conv2dOptions) -> Vec<usize> {
    let geometry = options.geometry(&(*x).into(), &(*weight).into()).expect("a case that fits");
    output_shape(&geometry).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Trace};

    /// The message for a convolution that does not fit.
    fn refused(x: &[usize], weight: &[usize], bias: Option<usize>, options: Conv2dOptions) -> String {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, x);
        let weight = trace.input("weight", DType::F32, weight);
        let bias = bias.map(|size| trace.input("bias", DType::F32, [size]));
        let y = x.conv2d(&weight, bias.as_ref(), options);
        y.handle().expect_err("a convolution that does not fit").to_string()
    }

    #[test]
    fn what_does_not_fit_is_said_in_words() {
        let plain = Conv2dOptions::default();
        let dilated = Conv2dOptions { dilation: [3, 3], padding: [1, 1], ..plain };
        let (x, weight) = (&[1, 2, 4, 8][..], &[3, 2, 3, 3][..]);
        assert!(refused(x, weight, None, dilated).contains("the smallest input that fits has 5"));
        assert!(refused(x, &[3, 1, 3, 3], None, plain).contains("need weights for 2 channels, not 1"));
        assert!(refused(x, &[3, 2, 3, 0], None, plain).contains("must be at least 1"));
        assert!(refused(&[2, 4, 8], weight, None, plain).contains("must have 4 axes [n, c, h, w], not 3"));
        assert!(refused(x, &[3, 2], None, plain).contains("must have 4 axes [o, c / groups, kh, kw], not 2"));
        assert!(refused(x, weight, Some(4), plain).contains("the bias must be of shape [3], not [4]"));
        for groups in [0, 2, 3] {
            let options = Conv2dOptions { groups, ..plain };
            assert!(refused(x, weight, None, options).contains("choose a divisor of both"), "{groups} groups");
        }
        for options in [
            Conv2dOptions { stride: [0, 1], ..plain },
            Conv2dOptions { dilation: [usize::MAX, 1], ..plain },
            Conv2dOptions { padding: [1, usize::MAX], ..plain },
        ] {
            assert!(refused(x, weight, None, options).contains("must be at"), "{options:?}");
        }
    }

    #[test]
    fn an_error_along_one_axis_names_the_users_line() {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [2, 3]);
        let weight = trace.input("weight", DType::F32, [4, 3, 3]);
        let (y, line) = (x.conv1d(&weight, None, Conv1dOptions::default()), line!());
        let message = y.handle().expect_err("rows without an axis").to_string();
        assert!(message.contains(&format!("methods.rs:{line}: conv1d")), "{message}");
    }
}

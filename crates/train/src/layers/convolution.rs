//! Convolutions.

use super::given;
use crate::config::Precision;
use crate::parameters::{Initializer, Parameters};
use gradus_engine::Tensor;
use gradus_engine::ops::{Conv1dOptions, Conv2dOptions};

/// A convolution of images [n, channels, h, w]. Weights: `weight` [filters, channels / groups, kh, kw], `bias` `[filters]`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    filters: Filters,
    options: Conv2dOptions,
}

/// A convolution of rows [n, channels, l]. Weights: `weight` [filters, channels / groups, k], `bias` `[filters]`.
#[derive(Clone, Debug)]
pub struct Conv1d {
    filters: Filters,
    options: Conv1dOptions,
}

#[derive(Clone, Debug)]
struct Filters {
    weight: Tensor,
    bias: Option<Tensor>,
    precision: Precision,
}

impl Filters {
    #[track_caller]
    fn new(parameters: &Parameters, shape: &[usize], has_bias: bool) -> Filters {
        let fan_in = shape[1..].iter().fold(1, |product: usize, &size| product.saturating_mul(size));
        let initializer = Initializer::uniform_in_fan(fan_in);
        let weight = parameters.get("weight", shape, initializer);
        let bias = if has_bias { Some(parameters.get("bias", [shape[0]], initializer)) } else { None };
        Filters { weight, bias, precision: parameters.precision() }
    }

    /// Operand, weights and bias in the precision of products.
    #[track_caller]
    fn operands(&self, x: &Tensor) -> (Tensor, Tensor, Option<Tensor>) {
        let computed = self.precision.dtype();
        let bias = self.bias.as_ref().map(|bias| bias.cast(computed));
        (x.cast(computed), self.weight.cast(computed), bias)
    }
}

impl Conv2d {
    /// So many filters of this size, with a bias.
    #[track_caller]
    pub fn new(p: &Parameters, channels: usize, filters: usize, kernel: [usize; 2], options: Conv2dOptions) -> Conv2d {
        let shape = [filters, in_a_group(channels, options.groups), kernel[0], kernel[1]];
        Conv2d { filters: Filters::new(p, &shape, true), options }
    }

    /// As [`Conv2d::new`], without a bias: before a batch norm, which has one.
    #[track_caller]
    pub fn without_bias(
        p: &Parameters,
        channels: usize,
        filters: usize,
        kernel: [usize; 2],
        options: Conv2dOptions,
    ) -> Conv2d {
        let shape = [filters, in_a_group(channels, options.groups), kernel[0], kernel[1]];
        Conv2d { filters: Filters::new(p, &shape, false), options }
    }

    /// [n, channels, h, w] to [n, filters, oh, ow].
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let (operand, weight, bias) = self.filters.operands(x);
        operand.conv2d(&weight, bias.as_ref(), self.options).cast(given(x, self.filters.precision))
    }
}

impl Conv1d {
    /// So many filters of this size, with a bias.
    #[track_caller]
    pub fn new(p: &Parameters, channels: usize, filters: usize, kernel: usize, options: Conv1dOptions) -> Conv1d {
        let shape = [filters, in_a_group(channels, options.groups), kernel];
        Conv1d { filters: Filters::new(p, &shape, true), options }
    }

    /// As [`Conv1d::new`], without a bias.
    #[track_caller]
    pub fn without_bias(
        p: &Parameters,
        channels: usize,
        filters: usize,
        kernel: usize,
        options: Conv1dOptions,
    ) -> Conv1d {
        let shape = [filters, in_a_group(channels, options.groups), kernel];
        Conv1d { filters: Filters::new(p, &shape, false), options }
    }

    /// [n, channels, l] to [n, filters, ol].
    #[track_caller]
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let (operand, weight, bias) = self.filters.operands(x);
        operand.conv1d(&weight, bias.as_ref(), self.options).cast(given(x, self.filters.precision))
    }
}

/// Channels that a filter sees. Groups that do not divide the channels are refused by the convolution.
fn in_a_group(channels: usize, groups: usize) -> usize {
    channels / groups.max(1)
}

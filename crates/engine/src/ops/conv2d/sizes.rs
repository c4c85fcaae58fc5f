//! The sizes of a convolution, and which elements meet in it.

use crate::error::Mismatch;
use crate::ops::{Cost, Work};
use crate::{Shape, TensorType};
use gradus_kernels::conv::Geometry;

/// How the window moves. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv2dOptions {
    /// How far the window moves from one output to the next.
    pub stride: [usize; 2],
    /// Zeros around the input, on each side.
    pub padding: [usize; 2],
    /// How far apart the input elements under a filter lie.
    pub dilation: [usize; 2],
    /// Groups of channels that do not mix; as many as there are channels for a depthwise convolution.
    pub groups: usize,
}

impl Default for Conv2dOptions {
    fn default() -> Conv2dOptions {
        Conv1dOptions::default().into()
    }
}

/// How the window moves along rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv1dOptions {
    /// How far the window moves from one output to the next.
    pub stride: usize,
    /// Zeros around the input, on each side.
    pub padding: usize,
    /// How far apart the input elements under a filter lie.
    pub dilation: usize,
    /// Groups of channels that do not mix; as many as there are channels for a depthwise convolution.
    pub groups: usize,
}

impl Default for Conv1dOptions {
    fn default() -> Conv1dOptions {
        Conv1dOptions { stride: 1, padding: 0, dilation: 1, groups: 1 }
    }
}

impl From<Conv1dOptions> for Conv2dOptions {
    /// Of rows as planes of one row.
    fn from(options: Conv1dOptions) -> Conv2dOptions {
        let Conv1dOptions { stride, padding, dilation, groups } = options;
        Conv2dOptions { stride: [1, stride], padding: [0, padding], dilation: [1, dilation], groups }
    }
}

/// The size of what a sliding window gives along one axis.
pub(in crate::ops) fn window_outputs(
    input: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
) -> Result<usize, Mismatch> {
    // Far more than memory holds, and far less than what would overflow.
    const LIMIT: usize = 1 << 30;
    if [kernel, stride, dilation].contains(&0) {
        let problem = "the window's size, stride and dilation must be at least 1".to_string();
        return Err(Mismatch::Parameter(problem));
    }
    if [input, kernel, stride, padding, dilation].iter().any(|&size| size > LIMIT) {
        return Err(Mismatch::Parameter(format!("sizes, strides and paddings must be at most {LIMIT}")));
    }
    let reach = (kernel - 1) * dilation + 1;
    let smallest = reach.saturating_sub(2 * padding).max(1);
    if input < smallest {
        let problem = format!(
            "a window that reaches over {reach} elements does not fit into {input} with padding {padding}; \
             the smallest input that fits has {smallest}"
        );
        return Err(Mismatch::Shape(problem));
    }
    Ok((input + 2 * padding - reach) / stride + 1)
}

impl Conv2dOptions {
    /// The sizes of a convolution from its input's and its weights' shapes, or why they do not fit.
    pub(super) fn geometry(&self, x: &Shape, weight: &Shape) -> Result<Geometry, Mismatch> {
        let &[images, all_channels, h, w] = &x[..] else {
            return Err(Mismatch::Shape(format!("the input must have 4 axes [n, c, h, w], not {}", x.rank())));
        };
        let &[all_filters, channels, kh, kw] = &weight[..] else {
            let problem = format!("the weights must have 4 axes [o, c / groups, kh, kw], not {}", weight.rank());
            return Err(Mismatch::Shape(problem));
        };
        let groups = self.groups;
        if groups == 0 || groups > all_channels.max(1) || all_channels % groups != 0 || all_filters % groups != 0 {
            return Err(Mismatch::Parameter(format!(
                "{groups} groups do not divide {all_channels} input channels and {all_filters} filters; \
                 choose a divisor of both"
            )));
        }
        if channels != all_channels / groups {
            return Err(Mismatch::Shape(format!(
                "{all_channels} input channels in {groups} groups need weights for {} channels, not {channels}",
                all_channels / groups
            )));
        }
        let (input, kernel) = ([h, w], [kh, kw]);
        let size = |axis: usize| {
            let (stride, padding, dilation) = (self.stride[axis], self.padding[axis], self.dilation[axis]);
            window_outputs(input[axis], kernel[axis], stride, padding, dilation)
        };
        Ok(Geometry {
            images,
            groups,
            channels,
            filters: all_filters / groups,
            input,
            kernel,
            output: [size(0)?, size(1)?],
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
        })
    }

    pub(super) fn attributes(&self) -> String {
        let Conv2dOptions { stride, padding, dilation, groups } = self;
        format!("stride {stride:?}, padding {padding:?}, dilation {dilation:?}, groups {groups}")
    }
}

/// The size of an axis; 0 if it is not there, which a check of the whole shape reports.
pub(super) fn size(shape: &Shape, axis: usize) -> usize {
    shape.get(axis).copied().unwrap_or(0)
}

pub(super) fn input_shape(g: &Geometry) -> Shape {
    [g.images, g.groups * g.channels, g.input[0], g.input[1]].into()
}

pub(super) fn weight_shape(g: &Geometry) -> Shape {
    [g.groups * g.filters, g.channels, g.kernel[0], g.kernel[1]].into()
}

pub(super) fn output_shape(g: &Geometry) -> Shape {
    [g.images, g.groups * g.filters, g.output[0], g.output[1]].into()
}

/// A multiplication and an addition for every output element and weight of its filter.
pub(super) fn cost(g: &Geometry, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
    // Channels and kernel are sizes of the weight, so that their product can be counted.
    let products = output_shape(g).elements().saturating_mul(g.channels * g.kernel[0] * g.kernel[1]) as u64;
    Cost { work: Work::Convolution, operations: products.saturating_mul(2), bytes: Cost::traffic(inputs, outputs) }
}

/// Calls `visit` with the index in input, weights and output of every product of the convolution: all that is
/// to be said of its meaning, and of that of its gradients.
pub(super) fn every_product(g: &Geometry, mut visit: impl FnMut(&[usize; 4], &[usize; 4], &[usize; 4])) {
    for output @ [image, filter, oy, ox] in indices4(&output_shape(g)) {
        for [channel, ky, kx] in indices3([g.channels, g.kernel[0], g.kernel[1]]) {
            // Positions in the padded input, so that none is negative.
            let y = oy * g.stride[0] + ky * g.dilation[0];
            let x = ox * g.stride[1] + kx * g.dilation[1];
            let is_inside = |at: usize, axis: usize| (g.padding[axis]..g.padding[axis] + g.input[axis]).contains(&at);
            if is_inside(y, 0) && is_inside(x, 1) {
                let plane = filter / g.filters * g.channels + channel;
                let input = [image, plane, y - g.padding[0], x - g.padding[1]];
                visit(&input, &[filter, channel, ky, kx], &output);
            }
        }
    }
}

fn indices3([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| [i, j, k])))
}

fn indices4(shape: &Shape) -> impl Iterator<Item = [usize; 4]> {
    let last = [shape[1], shape[2], shape[3]];
    (0..shape[0]).flat_map(move |first| indices3(last).map(move |[i, j, k]| [first, i, j, k]))
}

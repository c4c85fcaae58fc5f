//! The axes of a correlation: which sources each target reads, and under which element of the filter.

use crate::window::inside;

/// An element of the filter along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Which.
    pub index: usize,
    /// The source it reads for target 0.
    pub offset: isize,
}

/// One axis of a correlation: targets `start + step * t` for `t` below `count`, where tap `k` of target `t` reads
/// source `source_step * t + taps[k].offset`, or zero where that is outside. Taps that are outside for every target are
/// not among them.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    pub start: usize,
    pub step: usize,
    pub count: usize,
    pub source_step: usize,
    pub sources: usize,
    pub taps: Vec<Tap>,
}

/// The geometry of one axis of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct AxisSizes {
    pub input: usize,
    pub kernel: usize,
    pub output: usize,
    pub stride: usize,
    pub padding: usize,
    pub dilation: usize,
}

impl super::Geometry {
    pub(super) fn axis(&self, axis: usize) -> AxisSizes {
        AxisSizes {
            input: self.input[axis],
            kernel: self.kernel[axis],
            output: self.output[axis],
            stride: self.stride[axis],
            padding: self.padding[axis],
            dilation: self.dilation[axis],
        }
    }
}

impl AxisSizes {
    /// From outputs to the inputs they read.
    pub fn forward(&self) -> Axis {
        let tap = |index| Tap { index, offset: (index * self.dilation) as isize - self.padding as isize };
        let axis = Axis {
            start: 0,
            step: 1,
            count: self.output,
            source_step: self.stride,
            sources: self.input,
            taps: (0..self.kernel).map(tap).collect(),
        };
        axis.without_idle_taps()
    }

    /// From inputs to the outputs they went to. A stride sends neighbouring inputs to different taps; inputs a
    /// stride apart share theirs, and there is one axis for each such set: so no product with zero is computed.
    pub fn backward(&self) -> Vec<Axis> {
        let stride = self.stride as isize;
        let phase = |start: usize| {
            let shift = |index: usize| (start + self.padding) as isize - (index * self.dilation) as isize;
            let tap = |index| Tap { index, offset: shift(index).div_euclid(stride) };
            let axis = Axis {
                start,
                step: self.stride,
                count: (self.input - start).div_ceil(self.stride),
                source_step: 1,
                sources: self.output,
                taps: (0..self.kernel).filter(|&index| shift(index).rem_euclid(stride) == 0).map(tap).collect(),
            };
            axis.without_idle_taps()
        };
        (0..self.stride.min(self.input)).map(phase).collect()
    }
}

impl Axis {
    fn without_idle_taps(mut self) -> Axis {
        let Axis { source_step, sources, count, .. } = self;
        self.taps.retain(|tap| !inside(source_step, tap.offset, sources, count).is_empty());
        self
    }

    /// Of the source under a tap of target 0, the place among those that a step leaves out, and how many steps it is
    /// away.
    pub fn split(&self, tap: Tap) -> (usize, isize) {
        let step = self.source_step as isize;
        (tap.offset.rem_euclid(step) as usize, tap.offset.div_euclid(step))
    }
}

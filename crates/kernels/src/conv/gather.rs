//! Gathering: the sources that a chunk of positions has under one tap of the filter, as a row of numbers.

use super::tile::LANES;
use crate::Element;
use crate::window::inside;
use std::ops::Range;

/// An element of the filter along one axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tap {
    /// Which.
    pub index: usize,
    /// The source it reads for target 0.
    pub offset: isize,
}

/// One axis of a correlation: targets `start + step * t` for `t` below `count`, where tap `k` of target `t` reads
/// source `source_step * t + taps[k].offset`, or zero where that is outside.
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
        Axis {
            start: 0,
            step: 1,
            count: self.output,
            source_step: self.stride,
            sources: self.input,
            taps: (0..self.kernel).map(tap).collect(),
        }
    }

    /// From inputs to the outputs they went to. A stride sends neighbouring inputs to different taps; inputs a
    /// stride apart share theirs, and there is one axis for each such set: so no product with zero is computed.
    pub fn backward(&self) -> Vec<Axis> {
        let stride = self.stride as isize;
        let phase = |start: usize| {
            let shift = |index: usize| (start + self.padding) as isize - (index * self.dilation) as isize;
            let tap = |index| Tap { index, offset: shift(index).div_euclid(stride) };
            Axis {
                start,
                step: self.stride,
                count: (self.input - start).div_ceil(self.stride),
                source_step: 1,
                sources: self.output,
                taps: (0..self.kernel).filter(|&index| shift(index).rem_euclid(stride) == 0).map(tap).collect(),
            }
        };
        (0..self.stride.min(self.input)).map(phase).collect()
    }
}

/// The sources under one tap, for a range of positions counted along the rows of the targets. What `out` holds
/// behind them is overwritten too: whole blocks are written from left to right, each over the excess of the one
/// before, since most rows are too short for anything finer to pay.
#[inline(always)]
pub(super) fn gather<T: Element>(
    plane: &[T],
    [rows, columns]: [&Axis; 2],
    [row_tap, column_tap]: [Tap; 2],
    positions: Range<usize>,
    out: &mut [f32],
) {
    let columns_inside = inside(columns.source_step, column_tap.offset, columns.sources, columns.count);
    let rows_inside = inside(rows.source_step, row_tap.offset, rows.sources, rows.count);
    let (mut row, mut first) = (positions.start / columns.count, positions.start % columns.count);
    let mut done = 0;
    while done < positions.len() {
        let last = columns.count.min(first + positions.len() - done);
        if rows_inside.contains(&row) {
            let start = columns_inside.start.clamp(first, last);
            let end = columns_inside.end.clamp(start, last);
            zero(&mut out[done..], start - first);
            if start < end {
                let source_row = (row * rows.source_step).wrapping_add_signed(row_tap.offset);
                let source_column = (start * columns.source_step).wrapping_add_signed(column_tap.offset);
                let source = &plane[source_row * columns.sources + source_column..];
                load(source, columns.source_step, &mut out[done + start - first..], end - start);
            }
            zero(&mut out[done + end - first..], last - end);
        } else {
            zero(&mut out[done..], last - first);
        }
        done += last - first;
        (row, first) = (row + 1, 0);
    }
}

/// Zeros at the first `count` places, and maybe some more.
#[inline(always)]
fn zero(target: &mut [f32], count: usize) {
    for start in (0..count).step_by(LANES) {
        match target[start..].first_chunk_mut::<LANES>() {
            Some(block) => *block = [0.0; LANES],
            None => target[start..count].fill(0.0),
        }
    }
}

/// Every `step`-th element, as f32, at the first `count` places, and maybe some more.
#[inline(always)]
fn load<T: Element>(source: &[T], step: usize, target: &mut [f32], count: usize) {
    if step > 1 {
        for (to, from) in target[..count].iter_mut().zip(source.iter().step_by(step)) {
            *to = from.to_f32();
        }
        return;
    }
    for start in (0..count).step_by(LANES) {
        let (source, target) = (&source[start..], &mut target[start..]);
        if let (Some(from), Some(to)) = (source.first_chunk::<LANES>(), target.first_chunk_mut::<LANES>()) {
            for lane in 0..LANES {
                to[lane] = from[lane].to_f32();
            }
        } else {
            for (to, from) in target[..count - start].iter_mut().zip(source) {
                *to = from.to_f32();
            }
        }
    }
}

//! Moving elements between layouts.

use crate::isa::multiversion;
use crate::{In, Isa, Job, Out, chunk, parts_of};
use bytemuck::Pod;

/// Elements of a part.
const PART_ELEMENTS: usize = 32 * 1024;

/// One axis of a copy: its size, and how far apart neighbours lie on either side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// How many elements.
    pub size: usize,
    /// The step in the source.
    pub from_stride: usize,
    /// The step in the target.
    pub to_stride: usize,
}

/// Copies elements from one strided layout to another.
pub struct StridedCopy<T> {
    from: In<T>,
    to: Out<T>,
    /// All axes but the last, outermost first.
    outer: Vec<Axis>,
    /// The last axis.
    inner: Axis,
    rows: usize,
    rows_per_part: usize,
    body: unsafe fn(&StridedCopy<T>, usize),
}

impl<T: Pod + Send + Sync> StridedCopy<T> {
    /// A copy over these axes, outermost first.
    pub fn new(isa: Isa, from: In<T>, to: Out<T>, axes: &[Axis]) -> StridedCopy<T> {
        let mut outer = joined(axes);
        let inner = outer.pop().unwrap_or(Axis { size: 1, from_stride: 1, to_stride: 1 });
        let rows = if inner.size == 0 { 0 } else { outer.iter().map(|axis| axis.size).product() };
        let rows_per_part = (PART_ELEMENTS / inner.size.max(1)).max(1);
        StridedCopy { from, to, outer, inner, rows, rows_per_part, body: rows_of::select(isa) }
    }
}

/// Neighbouring axes that lie regularly on both sides are one axis; axes of size 1 are none.
fn joined(axes: &[Axis]) -> Vec<Axis> {
    let mut joined: Vec<Axis> = vec![];
    for axis in axes.iter().filter(|axis| axis.size != 1) {
        match joined.last_mut() {
            Some(last)
                if last.from_stride == axis.size * axis.from_stride && last.to_stride == axis.size * axis.to_stride =>
            {
                *last = Axis { size: last.size * axis.size, ..*axis };
            }
            _ => joined.push(*axis),
        }
    }
    joined
}

impl<T: Pod + Send + Sync> Job for StridedCopy<T> {
    fn parts(&self) -> usize {
        parts_of(self.rows, self.rows_per_part)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: the caller's promise; rows of the target are disjoint, and each part has its own.
        unsafe { (self.body)(self, part) }
    }
}

multiversion! {
    /// The rows of a part.
    fn rows_of<T: Pod>(job: &StridedCopy<T>, part: usize) {
        let Axis { size, from_stride, to_stride } = job.inner;
        for mut row in chunk(part, job.rows_per_part, job.rows) {
            let (mut from, mut to) = (0, 0);
            for axis in job.outer.iter().rev() {
                from += row % axis.size * axis.from_stride;
                to += row % axis.size * axis.to_stride;
                row /= axis.size;
            }
            // SAFETY: the layouts lie inside the operands; source and target are different buffers, and the
            // elements of the target's row are this part's own (where they lie apart, none between is borrowed).
            unsafe {
                let source = job.from.slice(from..from + (size - 1) * from_stride + 1);
                if to_stride != 1 {
                    (0..size).for_each(|i| *job.to.as_ptr().add(to + i * to_stride) = source[i * from_stride]);
                    continue;
                }
                let target = job.to.slice(to..to + size);
                match from_stride {
                    1 => target.copy_from_slice(source),
                    0 => target.fill(source[0]),
                    _ => (0..size).for_each(|i| target[i] = source[i * from_stride]),
                }
            }
        }
    }
}

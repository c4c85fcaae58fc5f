//! Frames: the sources of a rectangle of targets, copied to scratch with zeros around them, so that under every tap of the
//! filter they lie in rows, at a distance that is the same for every target.
//!
//! Where targets are a step apart in the source, sources that a step apart lie side by side: each residue of the step
//! has its own plane. So nothing is copied more than once, however large the filter is, and a product reads the sources
//! of a tap where they lie.

use super::axis::Axis;
use super::tile::LANES;
use crate::Element;
use crate::window::inside;
use std::ops::Range;

/// How the sources of rectangles of at most these sizes lie.
#[derive(Clone, Debug)]
pub(super) struct Frame {
    pub axes: [Axis; 2],
    residues: [Vec<usize>; 2],
    /// How many steps the nearest tap is away.
    low: [isize; 2],
    /// Rows of a plane, and numbers of a row.
    rows: usize,
    pub pitch: usize,
    /// Where the sources of each tap begin, from those of its channel on: the taps of a row one after another.
    pub taps: Vec<usize>,
}

impl Frame {
    pub fn new(axes: [Axis; 2], rectangle: [usize; 2]) -> Frame {
        let residues = [axes[0].residues(), axes[1].residues()];
        let shifts = [axes[0].shifts(), axes[1].shifts()];
        let size = |axis: usize| rectangle[axis] + (shifts[axis].1 - shifts[axis].0) as usize;
        let (rows, pitch) = (size(0), size(1));
        let mut taps = vec![];
        for (row_residue, row) in axes[0].places() {
            for (column_residue, column) in axes[1].places() {
                let plane = row_residue * residues[1].len() + column_residue;
                taps.push((plane * rows + row) * pitch + column);
            }
        }
        Frame { axes, residues, low: [shifts[0].0, shifts[1].0], rows, pitch, taps }
    }

    /// Numbers of a channel.
    #[inline(always)]
    pub fn channel(&self) -> usize {
        self.residues[0].len() * self.residues[1].len() * self.rows * self.pitch
    }

    /// Rows of a channel that a target reads from.
    pub fn rows_read(&self) -> usize {
        self.axes[0].taps.len() * self.residues[1].len()
    }

    /// Numbers behind the last channel that a product may read, and a copy may write.
    pub const SLACK: usize = 64;

    /// Copies what a rectangle of targets reads of a channel's plane. Whole blocks are written from left to right, each
    /// over the excess of the one before, since most rows are too short for anything finer to pay.
    #[inline(always)]
    pub fn fill<T: Element>(&self, plane: &[T], rectangle: [&Range<usize>; 2], out: &mut [f32]) {
        let [rows, columns] = &self.axes;
        let mut at = 0;
        for &row_residue in &self.residues[0] {
            for &column_residue in &self.residues[1] {
                let first = |axis: usize, step: usize, residue: usize| {
                    (rectangle[axis].start as isize + self.low[axis]) * step as isize + residue as isize
                };
                let first_row = first(0, rows.source_step, row_residue);
                let first_column = first(1, columns.source_step, column_residue);
                let found = inside(columns.source_step, first_column, columns.sources, self.pitch);
                for row in 0..self.rows {
                    let source_row = first_row + (row * rows.source_step) as isize;
                    let out = &mut out[at..];
                    at += self.pitch;
                    if !(0..rows.sources as isize).contains(&source_row) || found.is_empty() {
                        zero(out, self.pitch);
                        continue;
                    }
                    zero(out, found.start);
                    let column = (found.start * columns.source_step).wrapping_add_signed(first_column);
                    let source = &plane[source_row as usize * columns.sources + column..];
                    load(source, columns.source_step, &mut out[found.start..], found.len());
                    zero(&mut out[found.end..], self.pitch - found.end);
                }
            }
        }
    }
}

/// Zeros at the first `count` places, and maybe some more.
#[inline(always)]
pub(super) fn zero(target: &mut [f32], count: usize) {
    for start in (0..count).step_by(LANES) {
        match target[start..].first_chunk_mut::<LANES>() {
            Some(block) => *block = [0.0; LANES],
            None => target[start..count].fill(0.0),
        }
    }
}

/// Every `step`-th element, as f32, at the first `count` places, and maybe some more.
#[inline(always)]
pub(super) fn load<T: Element>(source: &[T], step: usize, target: &mut [f32], count: usize) {
    match step {
        1 => load_blocks::<T, LANES>(source, target, count, |numbers| *numbers),
        2 => load_blocks::<T, { 2 * LANES }>(source, target, count, |numbers| parted(numbers)[0]),
        _ => {
            for (to, from) in target[..count].iter_mut().zip(source.iter().step_by(step)) {
                *to = from.to_f32();
            }
        }
    }
}

/// What is taken of `SPAN` elements at a time.
#[inline(always)]
fn load_blocks<T: Element, const SPAN: usize>(
    source: &[T],
    target: &mut [f32],
    count: usize,
    take: impl Fn(&[f32; SPAN]) -> [f32; LANES],
) {
    let step = SPAN / LANES;
    for start in (0..count).step_by(LANES) {
        let (source, target) = (&source[start * step..], &mut target[start..]);
        if let (Some(from), Some(to)) = (source.first_chunk::<SPAN>(), target.first_chunk_mut::<LANES>()) {
            // Loaded before they are stored: for all that the compiler knows, source and target might be the same, and it
            // would move one number at a time.
            let (from, mut numbers) = (*from, [0.0; SPAN]);
            for lane in 0..SPAN {
                numbers[lane] = from[lane].to_f32();
            }
            *to = take(&numbers);
        } else {
            for (to, from) in target[..LANES.min(count - start)].iter_mut().zip(source.iter().step_by(step)) {
                *to = from.to_f32();
            }
        }
    }
}

/// The numbers at even and at odd places: halves of words, which vectors have instructions for.
#[inline(always)]
pub(super) fn parted(numbers: &[f32; 2 * LANES]) -> [[f32; LANES]; 2] {
    let words: [u64; LANES] = bytemuck::cast(*numbers);
    let mut halves = [[0.0; LANES]; 2];
    for lane in 0..LANES {
        let word = words[lane].to_le();
        halves[0][lane] = f32::from_bits(word as u32);
        halves[1][lane] = f32::from_bits((word >> 32) as u32);
    }
    halves
}

/// Numbers in turn: the reverse of [`parted`].
#[inline(always)]
pub(super) fn joined([even, odd]: &[[f32; LANES]; 2]) -> [f32; 2 * LANES] {
    let mut words = [0u64; LANES];
    for lane in 0..LANES {
        words[lane] = (even[lane].to_bits() as u64 | (odd[lane].to_bits() as u64) << 32).to_le();
    }
    bytemuck::cast(words)
}

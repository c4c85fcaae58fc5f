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
    source_step: [usize; 2],
    sources: [usize; 2],
    /// Which of the places that a step leaves out are read at all.
    residues: [Vec<usize>; 2],
    /// How many steps the nearest tap is away.
    low: [isize; 2],
    /// Rows of a plane, and numbers of a row.
    rows: usize,
    pub pitch: usize,
}

impl Frame {
    /// For targets along any of these axes, whose steps and sources are the same.
    pub fn new(axes: [&[Axis]; 2], rectangle: [usize; 2]) -> Frame {
        let splits = axes.map(|axes| -> Vec<(usize, isize)> {
            axes.iter().flat_map(|axis| axis.taps.iter().map(|&tap| axis.split(tap))).collect()
        });
        let residues = splits.each_ref().map(|splits| {
            let mut residues: Vec<usize> = splits.iter().map(|split| split.0).collect();
            residues.sort_unstable();
            residues.dedup();
            residues
        });
        let shifts = || splits.each_ref().map(|splits| splits.iter().map(|split| split.1));
        let low = shifts().map(|shifts| shifts.min().unwrap_or(0));
        let high = shifts().map(|shifts| shifts.max().unwrap_or(0));
        let size = |axis: usize| rectangle[axis] + (high[axis] - low[axis]) as usize;
        let of_first = |of: fn(&Axis) -> usize| axes.map(|axes| axes.first().map_or(1, of));
        Frame {
            source_step: of_first(|axis| axis.source_step),
            sources: of_first(|axis| axis.sources),
            low,
            rows: size(0),
            pitch: size(1),
            residues,
        }
    }

    /// Where the sources of each tap begin, from those of their channel on: the taps of a row one after another.
    pub fn taps(&self, [rows, columns]: [&Axis; 2]) -> Vec<usize> {
        let place = |axis: usize, (residue, shift): (usize, isize)| {
            (self.residues[axis].partition_point(|&other| other < residue), (shift - self.low[axis]) as usize)
        };
        let mut taps = vec![];
        for &row_tap in &rows.taps {
            let (row_residue, row) = place(0, rows.split(row_tap));
            for &column_tap in &columns.taps {
                let (column_residue, column) = place(1, columns.split(column_tap));
                let plane = row_residue * self.residues[1].len() + column_residue;
                taps.push((plane * self.rows + row) * self.pitch + column);
            }
        }
        taps
    }

    /// Numbers of a channel.
    #[inline(always)]
    pub fn channel(&self) -> usize {
        self.residues[0].len() * self.residues[1].len() * self.rows * self.pitch
    }

    /// Rows of a channel that a target reads from, whose filter has so many.
    pub fn rows_read(&self, filter_rows: usize) -> usize {
        filter_rows * self.residues[1].len()
    }

    /// Numbers behind the last channel that a product may read, and a copy may write.
    pub const SLACK: usize = 64;

    /// Copies what a rectangle of targets reads of a channel's plane. Whole blocks are written from left to right, each
    /// over the excess of the one before, since most rows are too short for anything finer to pay.
    #[inline(always)]
    pub fn fill<T: Element>(&self, plane: &[T], rectangle: [&Range<usize>; 2], out: &mut [f32]) {
        let first = |axis: usize, residue: usize| {
            (rectangle[axis].start as isize + self.low[axis]) * self.source_step[axis] as isize + residue as isize
        };
        let size = self.rows * self.pitch;
        let in_pairs = self.source_step[1] == 2 && self.residues[1].len() == 2;
        let mut at = 0;
        for &row_residue in &self.residues[0] {
            if in_pairs {
                self.fill_pair(plane, [first(0, row_residue), first(1, 0)], &mut out[at..at + 2 * size]);
                at += 2 * size;
                continue;
            }
            for &column_residue in &self.residues[1] {
                self.fill_plane(plane, [first(0, row_residue), first(1, column_residue)], &mut out[at..]);
                at += size;
            }
        }
    }

    /// The source row of a row of a plane that begins at this source; `None` outside.
    #[inline(always)]
    fn source_row<'a, T>(&self, plane: &'a [T], first_row: isize, row: usize) -> Option<&'a [T]> {
        let row = first_row + (row * self.source_step[0]) as isize;
        (0..self.sources[0] as isize).contains(&row).then(|| &plane[row as usize * self.sources[1]..])
    }

    /// The sources from this one on, a step apart.
    #[inline(always)]
    fn fill_plane<T: Element>(&self, plane: &[T], [first_row, first_column]: [isize; 2], out: &mut [f32]) {
        let step = self.source_step[1];
        let found = inside(step, first_column, self.sources[1], self.pitch);
        for row in 0..self.rows {
            let out = &mut out[row * self.pitch..];
            match self.source_row(plane, first_row, row).filter(|_| !found.is_empty()) {
                None => zero(out, self.pitch),
                Some(source) => {
                    let column = (found.start * step).wrapping_add_signed(first_column);
                    zero(out, found.start);
                    load(&source[column..], step, &mut out[found.start..], found.len());
                    zero(&mut out[found.end..], self.pitch - found.end);
                }
            }
        }
    }

    /// The sources from this one on: every other one, and those between.
    #[inline(always)]
    fn fill_pair<T: Element>(&self, plane: &[T], [first_row, first_column]: [isize; 2], out: &mut [f32]) {
        let (even, odd) = out.split_at_mut(self.rows * self.pitch);
        let found = inside(2, first_column, self.sources[1], self.pitch);
        // Where the last source has no other beside it, the other is zero.
        let pairs = found.start..inside(2, first_column + 1, self.sources[1], self.pitch).end.max(found.start);
        for row in 0..self.rows {
            let (even, odd) = (&mut even[row * self.pitch..], &mut odd[row * self.pitch..]);
            let Some(source) = self.source_row(plane, first_row, row).filter(|_| !found.is_empty()) else {
                zero(even, self.pitch);
                zero(odd, self.pitch);
                continue;
            };
            let column = (2 * found.start).wrapping_add_signed(first_column);
            zero(even, found.start);
            zero(odd, found.start);
            load_pairs(&source[column..], [&mut even[pairs.start..], &mut odd[pairs.start..]], pairs.len());
            zero(&mut even[pairs.end..], self.pitch - pairs.end);
            zero(&mut odd[pairs.end..], self.pitch - pairs.end);
            if pairs.end < found.end {
                even[pairs.end] = source[column + 2 * pairs.len()].to_f32();
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

/// Elements in turn, as f32, to the first `count` places of either half, and maybe some more.
#[inline(always)]
fn load_pairs<T: Element>(source: &[T], [even, odd]: [&mut [f32]; 2], count: usize) {
    for start in (0..count).step_by(LANES) {
        let (source, even, odd) = (&source[2 * start..], &mut even[start..], &mut odd[start..]);
        let whole = source.first_chunk::<{ 2 * LANES }>();
        match (whole, even.first_chunk_mut::<LANES>(), odd.first_chunk_mut::<LANES>()) {
            (Some(from), Some(even), Some(odd)) => {
                let (from, mut numbers) = (*from, [0.0; 2 * LANES]);
                for lane in 0..2 * LANES {
                    numbers[lane] = from[lane].to_f32();
                }
                [*even, *odd] = parted(&numbers);
            }
            _ => {
                let pairs = source.as_chunks::<2>().0.iter().take(LANES.min(count - start));
                for (index, [first, second]) in pairs.enumerate() {
                    (even[index], odd[index]) = (first.to_f32(), second.to_f32());
                }
            }
        }
    }
}

/// Writes numbers in turn, of which the first may be one more than the second.
#[inline(always)]
pub(super) fn store_pairs<T: Element>([even, odd]: [&[f32]; 2], target: &mut [T]) {
    let (blocks, last) = target.as_chunks_mut::<{ 2 * LANES }>();
    let whole = blocks.len() * LANES;
    let halves = even.as_chunks::<LANES>().0.iter().zip(odd.as_chunks::<LANES>().0);
    for (to, (even, odd)) in blocks.iter_mut().zip(halves) {
        *to = joined(&[*even, *odd]).map(T::from_f32);
    }
    for (to, from) in last.iter_mut().step_by(2).zip(&even[whole..]) {
        *to = T::from_f32(*from);
    }
    for (to, from) in last.iter_mut().skip(1).step_by(2).zip(&odd[whole..]) {
        *to = T::from_f32(*from);
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

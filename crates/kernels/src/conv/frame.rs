//! Frames: the sources of a rectangle of targets, copied to scratch with zeros around them, so that under every tap of the
//! filter they lie in rows, at a distance that is the same for every target.
//!
//! Where targets are a step apart in the source, sources that a step apart lie side by side: each residue of the step
//! has its own plane. So nothing is copied more than once, however large the filter is, and a product reads the sources
//! of a tap where they lie.

use super::axis::Axis;
use super::rows::{load, load_halves, load_pairs, zero};
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

    /// The rows of a source plane that so many targets read, about.
    #[inline(always)]
    pub fn source_rows(&self, targets: &Range<usize>) -> Range<usize> {
        let first = targets.start as isize + self.low[0];
        let inside = |row: isize| (row * self.source_step[0] as isize).clamp(0, self.sources[0] as isize) as usize;
        inside(first)..inside(first + self.rows as isize)
    }

    /// The first row and column of a source plane that a rectangle of targets reads, zeros around it counted.
    #[inline(always)]
    pub fn first(&self, rectangle: [&Range<usize>; 2]) -> [isize; 2] {
        [0, 1].map(|axis| (rectangle[axis].start as isize + self.low[axis]) * self.source_step[axis] as isize)
    }

    /// Numbers behind the last channel that a product may read, and a copy may write.
    pub const SLACK: usize = 64;

    /// Copies what a rectangle of targets reads of a channel's plane: row by row, where zeros are written over the begin of what
    /// is written next.
    #[inline(always)]
    pub fn fill<T: Element>(&self, plane: &[T], rectangle: [&Range<usize>; 2], out: &mut [f32]) {
        let corner = self.first(rectangle);
        let first = |axis: usize, residue: usize| corner[axis] + residue as isize;
        let in_pairs = self.source_step[1] == 2 && self.residues[1].len() == 2;
        let at_once = if in_pairs { &self.residues[1][..1] } else { &self.residues[1] };
        let size = self.rows * self.pitch;
        let mut at = 0;
        for &row_residue in &self.residues[0] {
            let first_row = first(0, row_residue);
            let rows = inside(self.source_step[0], first_row, self.sources[0], self.rows);
            for &column_residue in at_once {
                let first_column = first(1, column_residue);
                let columns = |first: isize| inside(self.source_step[1], first, self.sources[1], self.pitch);
                let found = [columns(first_column), columns(first_column + 1)];
                let planes = if in_pairs { 2 } else { 1 };
                let out = &mut out[at..];
                for plane in 0..planes {
                    zero(&mut out[plane * size..], rows.start * self.pitch + found[0].start);
                }
                for row in rows.clone() {
                    let line = (row * self.source_step[0]).wrapping_add_signed(first_row) * self.sources[1];
                    let source = &plane[line..line + self.sources[1]];
                    match in_pairs {
                        true => self.fill_pair(source, first_column, &found, out.split_at_mut(size), row),
                        false => self.fill_row(source, first_column, &found[0], &mut out[row * self.pitch..]),
                    }
                }
                for plane in 0..planes {
                    let end = plane * size + rows.end * self.pitch;
                    zero(&mut out[end..(plane + 1) * size], size - rows.end * self.pitch);
                }
                at += planes * size;
            }
        }
    }

    /// The sources of a row from this one on, a step apart: there are some at these places. Behind them are zeros, up to those of
    /// the next row.
    #[inline(always)]
    fn fill_row<T: Element>(&self, source: &[T], first: isize, found: &Range<usize>, out: &mut [f32]) {
        let step = self.source_step[1];
        if !found.is_empty() {
            let column = (found.start * step).wrapping_add_signed(first);
            let (source, out) = (&source[column..], &mut out[found.clone()]);
            match step {
                1 => load(source, out),
                2 => load_halves(source, out),
                _ => out.iter_mut().zip(source.iter().step_by(step)).for_each(|(to, from)| *to = from.to_f32()),
            }
        }
        zero(&mut out[found.end..], self.pitch - found.end + found.start);
    }

    /// The sources of a row from this one on: every other one, and those between.
    #[inline(always)]
    fn fill_pair<T: Element>(
        &self,
        source: &[T],
        first: isize,
        [found, others]: &[Range<usize>; 2],
        (even, odd): (&mut [f32], &mut [f32]),
        row: usize,
    ) {
        let at = row * self.pitch;
        // Where the last source has no other beside it, the other is zero.
        let pairs = found.start..others.end.max(found.start);
        let (even, odd) = (&mut even[at..], &mut odd[at..]);
        if !found.is_empty() {
            let source = &source[(2 * found.start).wrapping_add_signed(first)..];
            load_pairs(&source[..2 * pairs.len()], [&mut even[pairs.clone()], &mut odd[pairs.clone()]]);
        }
        let zeros = self.pitch - pairs.end + found.start;
        zero(&mut even[pairs.end..], zeros);
        zero(&mut odd[pairs.end..], zeros);
        if pairs.end < found.end {
            even[pairs.end] = source[source.len() - 1].to_f32();
        }
    }
}

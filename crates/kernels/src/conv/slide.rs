//! Filters of 3 x 3 that slide over one plane: each source is loaded once under its three columns, and rows of targets are under way
//! in registers while rows of sources pass by.

use super::tile::{DOTS, LANES, RowsProduct};
use super::vector::{Plain, Vector};
use crate::Isa;
use crate::isa::multiversion;
use crate::vectors::{CACHE_LINE, ask_far};
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, __m512};

/// Rows and columns of a filter.
pub(super) const SIDE: usize = 3;

/// The taps of a filter of 3 x 3 whose sources are neighbours in rows so far apart, from the first source to the last.
pub(super) fn taps_that_slide(places: &[usize], pitch: usize) -> Option<[usize; SIDE * SIDE]> {
    let mut taps = [0; SIDE * SIDE];
    for (index, tap) in taps.iter_mut().enumerate() {
        let place = index / SIDE * pitch + index % SIDE;
        *tap = places.iter().position(|&other| other == place)?;
    }
    (places.len() == taps.len()).then_some(taps)
}

/// Taps in the order of their sources.
pub(super) const ROW_BY_ROW: [usize; SIDE * SIDE] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

/// Rows that will be read next: where they begin, and how many bytes they have.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextRows {
    first: *const u8,
    bytes: usize,
}

impl NextRows {
    /// Of so many elements each, if there are any.
    pub fn of<T>(elements: &[T], columns: usize) -> NextRows {
        let bytes = if elements.is_empty() { 0 } else { columns * size_of::<T>() };
        NextRows { first: elements.as_ptr().cast(), bytes }
    }

    /// Asks for a row.
    #[inline(always)]
    fn ask(&self, row: usize) {
        let first = self.first.wrapping_add(row * self.bytes);
        (0..self.bytes).step_by(CACHE_LINE).for_each(|byte| ask_far(first.wrapping_add(byte)));
    }
}

/// A filter over a plane of sources: targets are dense.
pub(super) struct Slide<'a> {
    pub isa: Isa,
    pub weights: &'a [f32],
    pub source: &'a [f32],
    pub pitch: usize,
    pub rows: usize,
    pub columns: usize,
    /// What is asked for meanwhile.
    pub next: NextRows,
}

/// A function that slides a filter over a plane.
pub(super) type SlideFilter = unsafe fn(&Slide<'_>, &mut [f32]);

/// The one of a level.
pub(super) fn slides(isa: Isa) -> SlideFilter {
    slide::select(isa)
}

multiversion! {
    /// Every target is one chain in the order of the filter, as in tiles. Behind the last, [`LANES`] more may be written.
    fn slide(of: &Slide<'_>, targets: &mut [f32]) {
        let Slide { rows, columns, pitch, .. } = *of;
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(of.weights.len() >= SIDE * SIDE && rows * columns + LANES <= targets.len(), "targets of a plane");
        let farthest = (rows + SIDE - 2) * pitch + columns.next_multiple_of(LANES) + SIDE - 1;
        assert!(farthest <= of.source.len(), "sources of a plane");
        // SAFETY: all that is read and written was found to be there.
        unsafe {
            match of.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => of.all::<__m512, 4>(targets.as_mut_ptr()),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => of.all::<__m256, 1>(targets.as_mut_ptr()),
                Isa::Baseline => of.all::<Plain<false>, 1>(targets.as_mut_ptr()),
                _ => of.all::<Plain<true>, 1>(targets.as_mut_ptr()),
            }
        }
    }
}

impl Slide<'_> {
    /// Strips of so many vectors, and what is left a vector at a time. The last come first: what they write behind their rows is
    /// where others write later.
    #[inline(always)]
    unsafe fn all<V: Vector, const VECTORS: usize>(&self, targets: *mut f32) {
        let wide = self.columns.next_multiple_of(V::LANES) / (VECTORS * V::LANES) * (VECTORS * V::LANES);
        // SAFETY: the caller's promise.
        unsafe {
            for column in (wide..self.columns).step_by(V::LANES).rev() {
                self.strip::<V, 1>(column, targets.add(column));
            }
            for column in (0..wide).step_by(VECTORS * V::LANES).rev() {
                self.strip::<V, VECTORS>(column, targets.add(column));
            }
        }
    }

    #[inline(always)]
    unsafe fn strip<V: Vector, const VECTORS: usize>(&self, column: usize, targets: *mut f32) {
        let last = self.rows + SIDE - 2;
        // SAFETY: the caller's promise.
        unsafe {
            let (mut above, mut middle) = ([V::all(0.0); VECTORS], [V::all(0.0); VECTORS]);
            let mut rows = [[V::all(0.0); SIDE]; SIDE];
            for (row, weights) in rows.iter_mut().zip(self.weights.as_chunks::<SIDE>().0) {
                for (to, weight) in row.iter_mut().zip(weights) {
                    *to = V::all(*weight);
                }
            }
            for row in 0..=last {
                if column == 0 && row < self.rows {
                    self.next.ask(row);
                }
                let source = self.source.as_ptr().add(row * self.pitch + column);
                for vector in (0..VECTORS).rev() {
                    let source = source.add(vector * V::LANES);
                    let sources = [V::load(source), V::load(source.add(1)), V::load(source.add(2))];
                    let add = |weights: &[V; SIDE], sum: V| {
                        let sum = weights[0].multiply_add(sources[0], sum);
                        weights[2].multiply_add(sources[2], weights[1].multiply_add(sources[1], sum))
                    };
                    let done = add(&rows[2], above[vector]);
                    above[vector] = add(&rows[1], middle[vector]);
                    middle[vector] = add(&rows[0], V::all(0.0));
                    if row >= SIDE - 1 {
                        done.store(targets.add((row + 1 - SIDE) * self.columns + vector * V::LANES));
                    }
                }
            }
        }
    }
}

/// The dot products of a dense plane of gradients with the inputs under a filter: in [`LANES`], strip by strip. What lies behind the end of a
/// row is not read: it may be infinite, and the gradient there is zero.
///
/// # Safety
/// Inputs and gradients must be there, and the machine must have the vector.
#[inline(always)]
pub(super) unsafe fn slid_dots<V: Vector>(
    product: &RowsProduct<'_>,
    gradients: &[f32],
    inputs: *const f32,
) -> [[f32; LANES]; DOTS] {
    let RowsProduct { rows, columns, pitch, .. } = *product;
    let mut sums = [[0.0f32; LANES]; DOTS];
    for column in (0..columns).step_by(V::LANES) {
        let (count, lane) = ((columns - column).min(V::LANES), column % LANES);
        // SAFETY: the caller's promise.
        unsafe {
            let mut dots = [V::all(0.0); DOTS];
            for (dot, sums) in dots.iter_mut().zip(&sums) {
                *dot = V::load(sums.as_ptr().add(lane));
            }
            let mut passed = [V::all(0.0); SIDE];
            for row in 0..rows + SIDE - 1 {
                let input = inputs.add(row * pitch + column);
                let load =
                    |from: *const f32| if count == V::LANES { V::load(from) } else { V::load_first(from, count) };
                let lanes = [load(input), load(input.add(1)), load(input.add(2))];
                passed = [passed[0], passed[0], passed[1]];
                if column == 0 && row < rows {
                    product.next.iter().for_each(|next| next.ask(row));
                }
                if row < rows {
                    passed[0] = load(gradients.as_ptr().add(row * columns + column));
                }
                for tap in 0..SIDE {
                    // The inputs of a row meet the gradients of as many rows as there are.
                    if (tap..rows + tap).contains(&row) {
                        for (lanes, dot) in lanes.iter().zip(&mut dots[SIDE * tap..]) {
                            *dot = passed[tap].multiply_add(*lanes, *dot);
                        }
                    }
                }
            }
            for (dot, sums) in dots.iter().zip(&mut sums) {
                dot.store(sums.as_mut_ptr().add(lane));
            }
        }
    }
    sums
}

//! Filters of 3 x 3 that slide over one plane: each source is loaded once under its three columns, and rows of targets are under way
//! in registers while rows of sources pass by.

use super::plane::Plane;
use super::tile::{DOTS, LANES, sum_of_lanes};
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
    // In narrower rows the places of different taps meet.
    if pitch < SIDE {
        return None;
    }
    let mut taps = [0; SIDE * SIDE];
    for (index, tap) in taps.iter_mut().enumerate() {
        let place = index / SIDE * pitch + index % SIDE;
        *tap = places.iter().position(|&other| other == place)?;
    }
    (places.len() == taps.len()).then_some(taps)
}

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
    pub sources: Plane<'a>,
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
        let Slide { rows, columns, .. } = *of;
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(of.weights.len() >= SIDE * SIDE && rows * columns + LANES <= targets.len(), "targets of a plane");
        assert!(of.sources.is_whole(), "sources of a plane");
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
    ///
    /// # Safety
    /// The sources are whole, there are weights for every tap and room for the targets and [`LANES`] more, and the machine has the
    /// vectors' level.
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

    /// # Safety
    /// As for [`Slide::all`], from this column on.
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
            let mut lanes = [[[0; 2]; SIDE]; VECTORS];
            for (vector, taps) in lanes.iter_mut().enumerate() {
                for (tap, lanes) in taps.iter_mut().enumerate() {
                    *lanes = self.sources.lanes::<V>(column + vector * V::LANES + tap);
                }
            }
            for row in 0..=last {
                if column == 0 && row < self.rows {
                    self.next.ask(row);
                }
                let line = self.sources.row(row);
                for vector in (0..VECTORS).rev() {
                    let mut sources = [V::all(0.0); SIDE];
                    if let Some(line) = line {
                        for (tap, source) in sources.iter_mut().enumerate() {
                            let [start, end] = lanes[vector][tap];
                            *source = V::load_some(line.wrapping_add(column + vector * V::LANES + tap), start, end);
                        }
                    }
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

/// The gradients of a plane of targets, and the inputs under the filter that they came by.
pub(super) struct Dots<'a> {
    pub isa: Isa,
    pub inputs: Plane<'a>,
    pub gradients: Plane<'a>,
    pub rows: usize,
    pub columns: usize,
    /// What is asked for meanwhile.
    pub next: [NextRows; 2],
}

/// A function that gives the dot products of the gradients with the inputs of every weight.
pub(super) type SlideDots = unsafe fn(&Dots<'_>, &mut [f32; DOTS]);

/// The one of a level.
pub(super) fn slides_dots(isa: Isa) -> SlideDots {
    slide_dots::select(isa)
}

multiversion! {
    /// In [`LANES`], strip by strip, which are joined in a tree.
    fn slide_dots(of: &Dots<'_>, dots: &mut [f32; DOTS]) {
        let has_all = of.inputs.is_whole() && of.gradients.is_whole() && of.gradients.has([of.rows, of.columns]);
        assert!(has_all, "inputs and gradients of a plane");
        // SAFETY: all that is read was found to be there.
        let lanes = unsafe {
            match of.isa {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => of.lanes::<__m512>(),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => of.lanes::<__m256>(),
                Isa::Baseline => of.lanes::<Plain<false>>(),
                _ => of.lanes::<Plain<true>>(),
            }
        };
        for (dot, lanes) in dots.iter_mut().zip(&lanes) {
            *dot = sum_of_lanes(lanes);
        }
    }
}

impl Dots<'_> {
    /// What lies behind the end of a row of gradients is not multiplied: inputs may be infinite there, and the gradient is zero.
    ///
    /// # Safety
    /// Inputs and gradients are whole, the gradients have all rows and columns, and the machine has the vectors' level.
    #[inline(always)]
    unsafe fn lanes<V: Vector>(&self) -> [[f32; LANES]; DOTS] {
        let mut sums = [[0.0f32; LANES]; DOTS];
        for column in (0..self.columns).step_by(V::LANES) {
            let (count, lane) = ((self.columns - column).min(V::LANES), column % LANES);
            let mut lanes = [[0; 2]; SIDE];
            for (tap, lanes) in lanes.iter_mut().enumerate() {
                let [start, end] = self.inputs.lanes::<V>(column + tap);
                *lanes = [start.min(count), end.min(count)];
            }
            // SAFETY: the caller's promise.
            unsafe {
                let mut dots = [V::all(0.0); DOTS];
                for (dot, sums) in dots.iter_mut().zip(&sums) {
                    *dot = V::load(sums.as_ptr().add(lane));
                }
                let mut passed = [V::all(0.0); SIDE];
                for row in 0..self.rows + SIDE - 1 {
                    let mut inputs = [V::all(0.0); SIDE];
                    if let Some(line) = self.inputs.row(row) {
                        for (tap, inputs) in inputs.iter_mut().enumerate() {
                            let [start, end] = lanes[tap];
                            *inputs = V::load_some(line.wrapping_add(column + tap), start, end);
                        }
                    }
                    passed = [passed[0], passed[0], passed[1]];
                    if row < self.rows {
                        if column == 0 {
                            self.next.iter().for_each(|next| next.ask(row));
                        }
                        if let Some(line) = self.gradients.row(row) {
                            passed[0] = V::load_some(line.add(column), 0, count);
                        }
                    }
                    for tap in 0..SIDE {
                        // The inputs of a row meet the gradients of as many rows as there are.
                        if (tap..self.rows + tap).contains(&row) {
                            for (inputs, dot) in inputs.iter().zip(&mut dots[SIDE * tap..]) {
                                *dot = passed[tap].multiply_add(*inputs, *dot);
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
}

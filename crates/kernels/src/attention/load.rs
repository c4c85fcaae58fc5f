//! Operands and results where they lie, and their way into a worker's tiles.

use super::level::Level;
use crate::{Element, In, Out};
use std::ops::Range;

/// Rows and columns that are transposed at once.
pub(super) const TRANSPOSE_SIDE: usize = 8;

/// Bytes that the cache loads at once.
const CACHE_LINE: usize = 64;

/// An operand of axes (batch, head, place, depth), the last of which is dense.
#[derive(Debug)]
pub struct Heads<T> {
    /// The elements.
    pub elements: In<T>,
    /// How far apart neighbours along each of the first three axes lie.
    pub strides: [usize; 3],
}

/// A result of axes (batch, head, place, depth), the last of which is dense.
#[derive(Debug)]
pub struct HeadsMut<T> {
    /// The elements.
    pub elements: Out<T>,
    /// How far apart neighbours along each of the first three axes lie.
    pub strides: [usize; 3],
}

impl<T> Clone for Heads<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Heads<T> {}
impl<T> Clone for HeadsMut<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for HeadsMut<T> {}

impl<T: Element> HeadsMut<T> {
    /// The numbers of one place.
    ///
    /// # Safety
    /// As for [`Out::slice`].
    #[inline(always)]
    pub(super) unsafe fn row<'a>(&self, (batch, head): (usize, usize), place: usize, depth: usize) -> &'a mut [T] {
        let start = batch * self.strides[0] + head * self.strides[1] + place * self.strides[2];
        // SAFETY: the caller's promise.
        unsafe { self.elements.slice(start..start + depth) }
    }
}

/// Asks the cache for numbers, which need not be there.
#[inline(always)]
fn prefetch<L: Level, T>(first: *const T, count: usize) {
    for byte in (0..count * size_of::<T>()).step_by(CACHE_LINE) {
        L::prefetch(first.cast::<u8>().wrapping_add(byte));
    }
}

impl<T: Element> Heads<T> {
    /// The numbers of one place.
    ///
    /// # Safety
    /// As for [`In::slice`].
    #[inline(always)]
    pub(super) unsafe fn row<'a>(&self, (batch, head): (usize, usize), place: usize, depth: usize) -> &'a [T] {
        let start = batch * self.strides[0] + head * self.strides[1] + place * self.strides[2];
        // SAFETY: the caller's promise.
        unsafe { self.elements.slice(start..start + depth) }
    }

    /// Asks the cache for the same place of the next head, which comes next: the rows of a head lie so far apart that
    /// the machine does not foresee them.
    #[inline(always)]
    pub(super) fn prefetch_next<L: Level>(&self, row: &[T]) {
        prefetch::<L, T>(row.as_ptr().wrapping_add(self.strides[1]), row.len());
    }

    /// Loads places as rows of words along the depth, zeros behind each row up to `stride` words.
    ///
    /// # Safety
    /// As for [`In::slice`].
    #[inline(always)]
    pub(super) unsafe fn load_rows<L: Level>(
        &self,
        head: (usize, usize),
        places: Range<usize>,
        depth: usize,
        to: &mut [f32],
        stride: usize,
    ) {
        for (place, to) in places.zip(to.chunks_exact_mut(stride)) {
            // SAFETY: the caller's promise.
            let from = unsafe { self.row(head, place, depth) };
            self.prefetch_next::<L>(from);
            if L::PAIRED {
                let to: &mut [u16] = bytemuck::cast_slice_mut(to);
                to[..depth].copy_from_slice(bytemuck::cast_slice(from));
                to[depth..].fill(0);
            } else {
                widen(from, to);
                to[depth..].fill(0.0);
            }
        }
    }

    /// Loads places as steps of a sum: rows of words along the places, zeros behind each row up to `stride` words
    /// and for a place that a last word lacks.
    ///
    /// # Safety
    /// As for [`In::slice`], and the machine must have the level.
    #[inline(always)]
    pub(super) unsafe fn load_steps<L: Level>(
        &self,
        head: (usize, usize),
        places: Range<usize>,
        depth: usize,
        to: &mut [f32],
        stride: usize,
    ) {
        if !L::PAIRED {
            // SAFETY: the caller's promise.
            return unsafe { self.load_rows::<L>(head, places, depth, to, stride) };
        }
        for (first, to) in places.clone().step_by(2).zip(to.chunks_exact_mut(stride)) {
            // SAFETY: the caller's promise.
            let row = |place: usize| -> &[u16] { bytemuck::cast_slice(unsafe { self.row(head, place, depth) }) };
            let word = |first: u16, second: u16| f32::from_bits(first as u32 | (second as u32) << 16);
            if first + 1 < places.end {
                for ((to, &first), &second) in to.iter_mut().zip(row(first)).zip(row(first + 1)) {
                    *to = word(first, second);
                }
            } else {
                for (to, &first) in to.iter_mut().zip(row(first)) {
                    *to = word(first, 0);
                }
            }
            to[depth..].fill(0.0);
        }
    }
}

impl<T: Element> HeadsMut<T> {
    /// Asks the cache for places that will be stored to soon.
    #[inline(always)]
    pub(super) fn prefetch<L: Level>(&self, (batch, head): (usize, usize), places: Range<usize>, depth: usize) {
        let first = batch * self.strides[0] + head * self.strides[1];
        for place in places {
            prefetch::<L, T>(self.elements.as_ptr().wrapping_add(first + place * self.strides[2]), depth);
        }
    }

    /// Stores rows of a tile, scaled, at these places.
    ///
    /// # Safety
    /// As for [`Out::slice`].
    #[inline(always)]
    pub(super) unsafe fn store_rows(
        &self,
        head: (usize, usize),
        places: Range<usize>,
        depth: usize,
        (from, stride): (&[f32], usize),
        scale: f32,
    ) {
        for (place, from) in places.zip(from.chunks_exact(stride)) {
            // SAFETY: the caller's promise.
            narrow(from, unsafe { self.row(head, place, depth) }, scale);
        }
    }

    /// Stores zeros at these places.
    ///
    /// # Safety
    /// As for [`Out::slice`].
    #[inline(always)]
    pub(super) unsafe fn clear(&self, head: (usize, usize), places: Range<usize>, depth: usize) {
        for place in places {
            // SAFETY: the caller's promise.
            unsafe { self.row(head, place, depth) }.fill(T::from_f32(0.0));
        }
    }
}

/// Numbers that are loaded or stored at once: rows are short, and loops over them are not made for that.
const RUN: usize = 16;

/// Loads numbers as f32.
#[inline(always)]
pub(super) fn widen<T: Element>(from: &[T], to: &mut [f32]) {
    let (runs, rest) = from.as_chunks::<RUN>();
    let (to_runs, to_rest) = to[..from.len()].as_chunks_mut::<RUN>();
    for (to, from) in to_runs.iter_mut().zip(runs) {
        // Whole runs are loaded before they are stored: for all that the compiler knows, source and target might
        // be the same, and it would move one number at a time.
        let (numbers, mut wide) = (*from, [0.0; RUN]);
        for index in 0..RUN {
            wide[index] = numbers[index].to_f32();
        }
        *to = wide;
    }
    for (to, from) in to_rest.iter_mut().zip(rest) {
        *to = from.to_f32();
    }
}

/// Stores as many numbers as there is room for, scaled.
#[inline(always)]
fn narrow<T: Element>(from: &[f32], to: &mut [T], scale: f32) {
    let (to_runs, to_rest) = to.as_chunks_mut::<RUN>();
    let (runs, rest) = from.as_chunks::<RUN>();
    for (to, from) in to_runs.iter_mut().zip(runs) {
        let (wide, mut numbers) = (*from, [T::from_f32(0.0); RUN]);
        for index in 0..RUN {
            numbers[index] = T::from_f32(wide[index] * scale);
        }
        *to = numbers;
    }
    for (to, from) in to_rest.iter_mut().zip(rest.iter().chain(runs.get(to_runs.len()).into_iter().flatten())) {
        *to = T::from_f32(from * scale);
    }
}

/// A tile by (row, column), of which whole blocks are transposed to one by (column, row).
#[inline(always)]
pub(super) fn transpose<L: Level>(
    (from, from_stride): (&[f32], usize),
    [rows, columns]: [usize; 2],
    (to, to_stride): (&mut [f32], usize),
) {
    let (rows, columns) = (rows.next_multiple_of(TRANSPOSE_SIDE), columns.next_multiple_of(TRANSPOSE_SIDE));
    assert!(columns <= from_stride && rows <= to_stride);
    assert!(rows * from_stride <= from.len() && columns * to_stride <= to.len());
    for row in (0..rows).step_by(TRANSPOSE_SIDE) {
        for column in (0..columns).step_by(TRANSPOSE_SIDE) {
            // SAFETY: the block lies inside both tiles, as checked; only of a level that the machine has is there
            // a kernel.
            unsafe {
                let from = from.as_ptr().add(row * from_stride + column);
                L::transpose(from, from_stride, to.as_mut_ptr().add(column * to_stride + row), to_stride);
            }
        }
    }
}

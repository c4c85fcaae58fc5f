//! Operands and results where they lie, and their way into a worker's tiles.

use super::level::Level;
use crate::{Element, In, Out};
use std::ops::Range;

/// Lines and words that are turned at once.
const TURN: usize = 8;

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
            if L::PAIRED {
                let to: &mut [u16] = bytemuck::cast_slice_mut(to);
                to[..depth].copy_from_slice(bytemuck::cast_slice(from));
                to[depth..].fill(0);
            } else {
                for (to, from) in to.iter_mut().zip(from) {
                    *to = from.to_f32();
                }
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

    /// Loads places as columns of words along the depth; columns that are missing to whole blocks are zeros.
    ///
    /// # Safety
    /// As for [`In::slice`], and the machine must have the level.
    #[inline(always)]
    pub(super) unsafe fn load_columns<L: Level>(
        &self,
        head: (usize, usize),
        places: Range<usize>,
        depth: usize,
        to: &mut [f32],
        stride: usize,
    ) {
        let count = depth.div_ceil(super::level::numbers_per_word::<L>());
        for (block, first) in places.clone().step_by(TURN).enumerate() {
            for start in (0..count).step_by(TURN) {
                let line = |line: usize| match first + line < places.end {
                    // SAFETY: the caller's promise.
                    true => words::<L, T>(unsafe { self.row(head, first + line, depth) }, start),
                    false => [0.0; TURN],
                };
                // SAFETY: the machine has the level, by the caller's promise.
                let turned = unsafe { L::turn(std::array::from_fn(line)) };
                for (to, turned) in to.chunks_exact_mut(stride).skip(start).take(count - start).zip(&turned) {
                    to[block * TURN..][..TURN].copy_from_slice(turned);
                }
            }
        }
    }
}

impl<T: Element> HeadsMut<T> {
    /// Stores columns of a tile as places.
    ///
    /// # Safety
    /// As for [`Out::slice`], and the machine must have the level.
    #[inline(always)]
    pub(super) unsafe fn store_columns<L: Level>(
        &self,
        head: (usize, usize),
        places: Range<usize>,
        depth: usize,
        from: &[f32],
        stride: usize,
    ) {
        for (block, first) in places.clone().step_by(TURN).enumerate() {
            for start in (0..depth).step_by(TURN) {
                let line = |line: usize| match start + line < depth {
                    true => *from[(start + line) * stride + block * TURN..].first_chunk().expect("whole blocks"),
                    false => [0.0; TURN],
                };
                // SAFETY: the machine has the level, by the caller's promise.
                let turned = unsafe { L::turn(std::array::from_fn(line)) };
                for (place, turned) in (first..places.end).zip(&turned) {
                    // SAFETY: the caller's promise.
                    let to = unsafe { self.row(head, place, depth) };
                    match to[start..].first_chunk_mut() {
                        Some(to) => *to = turned.map(T::from_f32),
                        None => to[start..].iter_mut().zip(turned).for_each(|(to, x)| *to = T::from_f32(*x)),
                    }
                }
            }
        }
    }
}

/// Some words of a row, zeros behind its end.
#[inline(always)]
fn words<L: Level, T: Element>(row: &[T], first: usize) -> [f32; TURN] {
    if L::PAIRED {
        let numbers: &[u16] = &bytemuck::cast_slice(row)[2 * first..];
        let word = |numbers: &[u16; 2 * TURN], index: usize| {
            f32::from_bits(numbers[2 * index] as u32 | (numbers[2 * index + 1] as u32) << 16)
        };
        match numbers.first_chunk() {
            Some(numbers) => std::array::from_fn(|index| word(numbers, index)),
            None => {
                let mut padded = [0; 2 * TURN];
                padded[..numbers.len()].copy_from_slice(numbers);
                std::array::from_fn(|index| word(&padded, index))
            }
        }
    } else {
        match row[first..].first_chunk::<TURN>() {
            Some(numbers) => numbers.map(T::to_f32),
            None => {
                let mut padded = [0.0; TURN];
                padded.iter_mut().zip(&row[first..]).for_each(|(to, from)| *to = from.to_f32());
                padded
            }
        }
    }
}

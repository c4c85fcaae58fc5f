//! Scaled dot-product attention in tiles: of the matrix of scores only a tile exists at a time, in a worker's
//! scratch, and the gradient computes it again from the logarithms of the sums.

mod backward;
mod forward;
mod level;
#[cfg(test)]
mod tests;
mod tile;

pub use backward::{Gradient, OutputProducts, QueryGradient, Segments};
pub use forward::Attention;

use crate::{Element, In};
use std::ops::Range;
use tile::COLUMN_MULTIPLE;

/// Queries, and keys, of a tile of scores.
const BLOCK: usize = 64;

/// The sizes of an attention, and what it computes.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    /// Independent sequences.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values; `heads` is a multiple of it.
    pub key_heads: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys of a sequence; no fewer than queries if causal.
    pub keys: usize,
    /// Numbers in a query, a key and a value.
    pub depth: usize,
    /// Whether a query sees only the keys up to its own place, the last query being at the last key.
    pub causal: bool,
    /// What scores are multiplied by.
    pub scale: f32,
}

impl Problem {
    /// How many keys, from the first on, a query sees.
    #[inline(always)]
    fn visible(&self, query: usize) -> usize {
        if self.causal { self.keys - self.queries + query + 1 } else { self.keys }
    }

    /// The first query that sees a key.
    fn first_query(&self, key: usize) -> usize {
        if self.causal { key.saturating_sub(self.keys - self.queries) } else { 0 }
    }

    /// Query heads that share a head of keys and values.
    fn group(&self) -> usize {
        self.heads.checked_div(self.key_heads).unwrap_or(0)
    }

    /// Rows of the queries and of the result.
    fn query_rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }

    /// The depth in whole vectors.
    fn padded_depth(&self) -> usize {
        self.depth.next_multiple_of(COLUMN_MULTIPLE)
    }
}

/// An operand of axes (batch, head, place, depth), the last of which is dense.
#[derive(Debug)]
pub struct Heads<T> {
    /// The elements.
    pub elements: In<T>,
    /// How far apart neighbours along each of the first three axes lie.
    pub strides: [usize; 3],
}

impl<T> Clone for Heads<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Heads<T> {}

impl<T: Element> Heads<T> {
    /// The numbers of one place.
    ///
    /// # Safety
    /// As for [`In::slice`].
    #[inline(always)]
    unsafe fn row<'a>(&self, batch: usize, head: usize, place: usize, depth: usize) -> &'a [T] {
        let start = batch * self.strides[0] + head * self.strides[1] + place * self.strides[2];
        // SAFETY: the caller's promise.
        unsafe { self.elements.slice(start..start + depth) }
    }

    /// Loads places as rows of f32, zeros behind each row up to `stride`.
    ///
    /// # Safety
    /// As for [`In::slice`].
    #[inline(always)]
    unsafe fn load(
        &self,
        (batch, head): (usize, usize),
        places: Range<usize>,
        depth: usize,
        to: &mut [f32],
        stride: usize,
    ) {
        for (place, to) in places.zip(to.chunks_exact_mut(stride)) {
            // SAFETY: the caller's promise.
            let from = unsafe { self.row(batch, head, place, depth) };
            for (to, from) in to.iter_mut().zip(from) {
                *to = from.to_f32();
            }
            to[depth..].fill(0.0);
        }
    }

    /// Loads places as columns of f32, scaled, zeros behind each row up to `stride`.
    ///
    /// # Safety
    /// As for [`In::slice`].
    #[inline(always)]
    unsafe fn load_transposed(
        &self,
        (batch, head): (usize, usize),
        places: Range<usize>,
        depth: usize,
        scale: f32,
        to: &mut [f32],
        stride: usize,
    ) {
        let count = places.len();
        for (column, place) in places.enumerate() {
            // SAFETY: the caller's promise.
            let from = unsafe { self.row(batch, head, place, depth) };
            for (to, from) in to.chunks_exact_mut(stride).zip(from) {
                to[column] = from.to_f32() * scale;
            }
        }
        for row in to.chunks_exact_mut(stride).take(depth) {
            row[count..].fill(0.0);
        }
    }
}

/// Takes the next `length` numbers off the front of scratch.
#[inline(always)]
fn take<'a>(scratch: &mut &'a mut [f32], length: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(scratch).split_at_mut(length);
    *scratch = rest;
    taken
}

//! Scaled dot-product attention in tiles: of the matrix of scores only a tile exists at a time, in a worker's
//! scratch, and the gradient computes it again from the binary logarithms of the sums.

mod append;
mod backward;
mod cached;
#[cfg(test)]
mod cached_tests;
mod forward;
mod level;
mod load;
#[cfg(test)]
mod tests;
mod tile;
mod triangle;

pub use append::Append;
pub use backward::{Gradient, QueryGradient, Segments};
pub use cached::{Combination, Shares, share_numbers};
pub use forward::Attention;
pub use load::{Heads, HeadsMut};

use crate::math::POWER_OF_TWO;
use level::Level;
use std::f32::consts::LOG2_E;
use tile::COLUMN_MULTIPLE;

/// Keys of a tile of scores.
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
    /// How many keys a query sees at most, its own place's the last of them; no limit unless causal.
    pub window: usize,
    /// What scores are multiplied by.
    pub scale: f32,
}

impl Problem {
    /// The keys before this one are those that a query sees, and those before its window.
    #[inline(always)]
    fn visible(&self, query: usize) -> usize {
        if self.causal { self.keys - self.queries + query + 1 } else { self.keys }
    }

    /// The first key that a query sees.
    #[inline(always)]
    fn first_visible(&self, query: usize) -> usize {
        self.visible(query).saturating_sub(self.window)
    }

    /// The first query that sees a key.
    fn first_query(&self, key: usize) -> usize {
        if self.causal { key.saturating_sub(self.keys - self.queries) } else { 0 }
    }

    /// The queries before this one are those that see a key, and those before the first of them.
    fn end_query(&self, key: usize) -> usize {
        if !self.causal {
            return self.queries;
        }
        key.saturating_add(self.window).saturating_sub(self.keys - self.queries)
    }

    /// Query heads that share a head of keys and values.
    fn group(&self) -> usize {
        self.heads.checked_div(self.key_heads).unwrap_or(0)
    }

    /// Places of the joint gradient: those of the queries or of the keys, whichever are more.
    fn places(&self) -> usize {
        self.queries.max(self.keys)
    }

    /// What scores are multiplied by to be powers of two.
    fn binary_scale(&self) -> f32 {
        self.scale * LOG2_E
    }

    /// The depth in whole vectors.
    fn padded_depth(&self) -> usize {
        self.depth.next_multiple_of(COLUMN_MULTIPLE)
    }
}

/// How many heads a part does one after another, where each alone would give so many parts: so many that enough
/// parts are left. While one is computed, the cache is asked for the next.
fn heads_of_a_part(parts: usize) -> usize {
    const PARTS_ENOUGH: usize = 64;
    const HEADS_MOST: usize = 4;
    (parts / PARTS_ENOUGH).clamp(1, HEADS_MOST)
}

/// Takes the next `length` numbers off the front of scratch.
#[inline(always)]
fn take<'a>(scratch: &mut &'a mut [f32], length: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(scratch).split_at_mut(length);
    *scratch = rest;
    taken
}

/// 2 to the power of x, for x up to 127; within 2.1 units in the last place, 0 below -126.5. A NaN stays one.
///
/// The softmax needs no more, and each element of it is computed once a pass: this takes half the instructions of
/// the exponential that every other kernel uses.
#[inline(always)]
fn power_of_two<L: Level>(x: f32) -> f32 {
    /// 1.5 * 2^23 + 127: adding it rounds to an integer and leaves that integer's power of two, as an exponent's
    /// bits, in the lowest bits of the sum.
    const ROUNDER: f32 = 12_582_912.0 + 127.0;
    let limited = if x < -127.0 { -127.0 } else { x };
    let rounded = limited + ROUNDER;
    let rest = limited - (rounded - ROUNDER);
    let mut y = POWER_OF_TWO[0];
    for coefficient in &POWER_OF_TWO[1..] {
        y = L::multiply_add(y, rest, *coefficient);
    }
    y * f32::from_bits(rounded.to_bits() << 23)
}

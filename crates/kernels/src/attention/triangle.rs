//! A tile of scores and what the gradient makes of it.

use super::level::{Level, numbers_per_word};
use super::tile::{BAND, COLUMN_MULTIPLE, Extent, Product};
use super::{BLOCK, Problem, power_of_two, take};
use crate::lanes::LANES;
use std::ops::Range;

/// Queries of a tile of scores.
pub(super) const QUERIES: usize = 64;

/// The tiles of a worker. Words of operands are along the depth for the products that give scores, and along the
/// queries or keys for those that sum over them; they are the same unless words are pairs.
pub(super) struct Tiles<'a> {
    /// By (depth, key), words along the depth.
    pub key_columns: &'a mut [f32],
    /// By (depth, key), words along the depth.
    pub value_columns: &'a mut [f32],
    /// By (key, depth), words along the keys.
    pub key: &'a mut [f32],
    /// By (query, depth), words along the depth.
    pub query_rows: &'a mut [f32],
    /// By (query, depth), words along the queries, if these are others.
    pub query: &'a mut [f32],
    /// The gradient of the result by (query, depth), words along the depth.
    pub o_gradient_rows: &'a mut [f32],
    /// The gradient of the result by (query, depth), words along the queries, if these are others.
    pub o_gradient: &'a mut [f32],
    /// Scores by (query, key), then words of probabilities along the queries.
    pub probability: &'a mut [f32],
    /// The gradient of the probabilities by (query, key), then words of the scores' along the queries.
    pub score_gradient: &'a mut [f32],
    /// Words of the gradient of the scores by (query, key), along the keys, if these are others.
    pub score_gradient_rows: &'a mut [f32],
    /// By (key, depth).
    pub k_gradient: &'a mut [f32],
    /// By (key, depth).
    pub v_gradient: &'a mut [f32],
}

impl<'a> Tiles<'a> {
    /// Numbers that all tiles have together.
    pub fn numbers(depth: usize) -> usize {
        5 * BLOCK * depth + 4 * QUERIES * depth + 3 * QUERIES * BLOCK
    }

    #[inline(always)]
    pub fn new(scratch: &mut &'a mut [f32], depth: usize) -> Tiles<'a> {
        Tiles {
            key_columns: take(scratch, BLOCK * depth),
            value_columns: take(scratch, BLOCK * depth),
            key: take(scratch, BLOCK * depth),
            query_rows: take(scratch, QUERIES * depth),
            query: take(scratch, QUERIES * depth),
            o_gradient_rows: take(scratch, QUERIES * depth),
            o_gradient: take(scratch, QUERIES * depth),
            probability: take(scratch, QUERIES * BLOCK),
            score_gradient: take(scratch, QUERIES * BLOCK),
            score_gradient_rows: take(scratch, QUERIES * BLOCK),
            k_gradient: take(scratch, BLOCK * depth),
            v_gradient: take(scratch, BLOCK * depth),
        }
    }
}

/// Of each query of some heads: the binary logarithm of the sum, and the product of the result with its
/// gradient.
pub(super) struct Statistics<'a> {
    pub log_sum: &'a mut [f32],
    pub product: &'a mut [f32],
}

/// Some queries with some keys, of which each query sees those up to its own place that lie in its window.
pub(super) struct Triangle<'a> {
    pub problem: &'a Problem,
    pub queries: Range<usize>,
    pub keys: Range<usize>,
}

impl Triangle<'_> {
    /// The keys before this one are those that a query of the block sees, and those before its window.
    #[inline(always)]
    fn seen(&self, query: usize) -> usize {
        self.problem.visible(self.queries.start + query).saturating_sub(self.keys.start).min(self.keys.len())
    }

    /// How many of the keys lie before a query's window.
    #[inline(always)]
    fn unseen(&self, query: usize) -> usize {
        self.problem.first_visible(self.queries.start + query).saturating_sub(self.keys.start).min(self.keys.len())
    }

    /// The queries of the block before this one are those that see one of the keys, and those before the first of them.
    #[inline(always)]
    fn end_query(&self, key: usize) -> usize {
        let query = self.problem.end_query(self.keys.start + key).saturating_sub(self.queries.start);
        query.min(self.queries.len())
    }

    /// The first query of the block that sees one of the keys.
    #[inline(always)]
    fn first_query(&self, key: usize) -> usize {
        let query = self.problem.first_query(self.keys.start + key).saturating_sub(self.queries.start);
        query.min(self.queries.len())
    }

    /// Scores, and the gradient of the probabilities.
    #[inline(always)]
    pub fn score<L: Level>(&self, tiles: &mut Tiles<'_>) {
        let left_row = tiles.query_rows.len() / QUERIES / numbers_per_word::<L>();
        let by_key = |left, right| Product { left, left_row, left_step: 1, right, right_step: BLOCK };
        let steps = 0..self.problem.depth.div_ceil(numbers_per_word::<L>());
        for rows in bands(self.queries.len()) {
            let from = self.unseen(rows.start) / COLUMN_MULTIPLE * COLUMN_MULTIPLE;
            let columns = from..self.seen(rows.end - 1).next_multiple_of(COLUMN_MULTIPLE);
            let extent = Extent { rows, steps: steps.clone(), columns };
            by_key(tiles.query_rows, tiles.key_columns).put::<L>(extent.clone(), tiles.probability, BLOCK);
            by_key(tiles.o_gradient_rows, tiles.value_columns).put::<L>(extent, tiles.score_gradient, BLOCK);
        }
    }

    /// Turns scores to probabilities, and the probabilities' gradient to that of the scores, as words along the
    /// queries and along the keys; hidden keys get zeros.
    #[inline(always)]
    pub fn differentiate<L: Level>(&self, tiles: &mut Tiles<'_>, statistics: &Statistics<'_>, first: usize) {
        let scale = self.problem.binary_scale();
        let probabilities = tiles.probability.as_chunks_mut::<BLOCK>().0;
        let gradients = tiles.score_gradient.as_chunks_mut::<BLOCK>().0;
        for query in 0..self.queries.len() {
            let row = first + self.queries.start + query;
            let (log_sum, product) = (statistics.log_sum[row], statistics.product[row]);
            let (probabilities, gradients) = (&mut probabilities[query], &mut gradients[query]);
            let (unseen, seen) = (self.unseen(query), self.seen(query));
            // In whole vectors, a vector at a time: how many keys are seen differs from query to query.
            let vectors = probabilities.as_chunks_mut::<LANES>().0.iter_mut().zip(gradients.as_chunks_mut::<LANES>().0);
            for (probabilities, gradients) in vectors.take(seen.div_ceil(LANES)).skip(unseen / LANES) {
                for (probability, gradient) in probabilities.iter_mut().zip(gradients) {
                    *probability = power_of_two::<L>(L::multiply_add(*probability, scale, -log_sum));
                    *gradient = *probability * (*gradient - product);
                }
            }
            for row in [probabilities, gradients] {
                row[..unseen].fill(0.0);
                row[seen..].fill(0.0);
            }
        }
        if L::PAIRED {
            let rows = tiles.score_gradient_rows.as_chunks_mut::<{ BLOCK / 2 }>().0;
            self.pair::<L>(probabilities, gradients, rows);
        }
    }

    /// Rounds to words.
    #[inline(always)]
    fn pair<L: Level>(
        &self,
        probabilities: &mut [[f32; BLOCK]],
        gradients: &mut [[f32; BLOCK]],
        gradient_rows: &mut [[f32; BLOCK / 2]],
    ) {
        let count = self.queries.len();
        for (row, gradients) in gradient_rows.iter_mut().zip(gradients.iter()).take(count) {
            *row = neighbours::<L>(gradients);
        }
        if count % 2 == 1 {
            (probabilities[count], gradients[count]) = ([0.0; BLOCK], [0.0; BLOCK]);
        }
        for index in 0..count.div_ceil(2) {
            probabilities[index] = pairs::<L>(&probabilities[2 * index], &probabilities[2 * index + 1]);
            gradients[index] = pairs::<L>(&gradients[2 * index], &gradients[2 * index + 1]);
        }
    }

    /// Adds to the gradients of keys and values, and to the queries' share.
    #[inline(always)]
    pub fn accumulate<L: Level>(&self, tiles: &mut Tiles<'_>, share: &mut [f32]) {
        let in_word = numbers_per_word::<L>();
        let padded = tiles.key.len() / BLOCK;
        let for_keys = |left, right| Product { left, left_row: 1, left_step: BLOCK, right, right_step: padded };
        let (query, o_gradient) = match L::PAIRED {
            true => (&*tiles.query, &*tiles.o_gradient),
            false => (&*tiles.query_rows, &*tiles.o_gradient_rows),
        };
        for rows in bands(self.keys.len()) {
            let steps = self.first_query(rows.start) / in_word..self.end_query(rows.end - 1).div_ceil(in_word);
            let extent = Extent { rows, steps, columns: 0..padded };
            for_keys(tiles.probability, o_gradient).add::<L>(extent.clone(), tiles.v_gradient, padded);
            for_keys(tiles.score_gradient, query).add::<L>(extent, tiles.k_gradient, padded);
        }
        let for_queries = Product {
            left: if L::PAIRED { tiles.score_gradient_rows } else { tiles.score_gradient },
            left_row: BLOCK / in_word,
            left_step: 1,
            right: tiles.key,
            right_step: padded,
        };
        for rows in bands(self.queries.len()) {
            let steps = self.unseen(rows.start) / in_word..self.seen(rows.end - 1).div_ceil(in_word);
            for_queries.add::<L>(Extent { rows, steps, columns: 0..padded }, share, padded);
        }
    }
}

/// Rows in bands of which each has its own extent.
#[inline(always)]
fn bands(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(BAND).map(move |start| start..(start + BAND).min(rows))
}

/// Words of two rows.
#[inline(always)]
fn pairs<L: Level>(first: &[f32; BLOCK], second: &[f32; BLOCK]) -> [f32; BLOCK] {
    let mut words = [0.0; BLOCK];
    let rows = first.as_chunks::<16>().0.iter().zip(second.as_chunks::<16>().0);
    for (words, (first, second)) in words.as_chunks_mut::<16>().0.iter_mut().zip(rows) {
        // SAFETY: only of a level that the machine has is there a kernel.
        *words = unsafe { L::pairs(*first, *second) };
    }
    words
}

/// Words of neighbours of a row.
#[inline(always)]
fn neighbours<L: Level>(row: &[f32; BLOCK]) -> [f32; BLOCK / 2] {
    let mut words = [0.0; BLOCK / 2];
    for (words, row) in words.as_chunks_mut::<16>().0.iter_mut().zip(row.as_chunks::<32>().0) {
        let side = |side: usize| std::array::from_fn(|index| row[2 * index + side]);
        // SAFETY: as above.
        *words = unsafe { L::pairs(side(0), side(1)) };
    }
    words
}

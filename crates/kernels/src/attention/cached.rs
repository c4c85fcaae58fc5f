//! Attention of a few queries over a cache of keys and values, of which only the first places are filled: how many is
//! known when the jobs run, and what is behind them is not touched.
//!
//! The keys are cut into shares of a fixed size, so that a single sequence keeps all threads busy; what the shares
//! find is combined in their order. A share of keys is read by all queries that share its head while it is in the cache.

use super::{Heads, Problem, take};
use crate::isa::multiversion;
use crate::lanes::{self, LANES};
use crate::vectors::ask_for;
use crate::{Element, In, Isa, Job, Out, chunk, math, parts_of};
use std::ops::Range;

/// Keys of a share.
const SHARE: usize = 128;
/// Numbers that a share gives besides the sums of its values: its largest score, and the sum of its exponentials.
const STATISTICS: usize = 2;
/// Elements of a part of the combination.
const PART_ELEMENTS: usize = 16 * 1024;

/// How many shares the keys have.
fn shares(problem: &Problem) -> usize {
    parts_of(problem.keys, SHARE)
}

/// Numbers that a share gives for a query.
fn numbers(problem: &Problem) -> usize {
    problem.depth + STATISTICS
}

/// Numbers that all shares give for all queries.
pub fn share_numbers(problem: &Problem) -> usize {
    problem.batch * problem.heads * problem.queries * shares(problem) * numbers(problem)
}

/// The problem with as many keys as are filled, where the first query is at a position.
///
/// # Safety
/// As for [`In::slice`].
#[inline(always)]
unsafe fn filled(problem: &Problem, position: &In<i32>) -> Problem {
    // SAFETY: the caller's promise.
    let before = usize::try_from(unsafe { position.slice(0..1) }[0]).unwrap_or(0);
    Problem { keys: (before + problem.queries).min(problem.keys), ..*problem }
}

/// What every share of the keys gives each query that sees any of it: the largest score, the sum of the exponentials
/// relative to that, and so the weighted sum of the values.
pub struct Shares<Q, K> {
    problem: Problem,
    q: Heads<Q>,
    keys: Keys<K>,
    position: In<i32>,
    body: unsafe fn(&Keys<K>, &Problem, Share, &[f32], &mut [f32]),
}

/// What is attended to, and where to put what is found.
struct Keys<K> {
    /// Dense, by (batch, head, place, depth).
    k: In<K>,
    v: In<K>,
    /// By (batch, head of queries, query, share).
    found: Out<f32>,
    /// Places of the cache.
    places: usize,
}

/// A share of the keys of a head.
#[derive(Clone, Copy)]
struct Share {
    batch: usize,
    key_head: usize,
    index: usize,
}

impl<Q: Element, K: Element> Shares<Q, K> {
    /// For a problem that is causal and has as many keys as the cache has places; the position of the first query is one
    /// number, and counts as the nearest at which all queries have places. Keys and values are dense.
    pub fn new(
        isa: Isa,
        problem: Problem,
        q: Heads<Q>,
        [k, v]: [In<K>; 2],
        position: In<i32>,
        found: Out<f32>,
    ) -> Shares<Q, K> {
        let keys = Keys { k, v, found, places: problem.keys };
        Shares { problem, q, keys, position, body: share_of::select(isa) }
    }

    /// Numbers of the queries that share a head of keys.
    fn query_numbers(&self) -> usize {
        self.problem.group() * self.problem.queries * self.problem.depth
    }
}

impl<Q: Element, K: Element> Job for Shares<Q, K> {
    fn parts(&self) -> usize {
        let rows = self.problem.group() * self.problem.queries;
        if rows == 0 { 0 } else { self.problem.batch * self.problem.key_heads * shares(&self.problem) }
    }

    fn worker_scratch(&self) -> usize {
        (self.query_numbers() + SHARE) * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let (head, index) = (part / shares(&self.problem), part % shares(&self.problem));
        let (batch, key_head) = (head / self.problem.key_heads, head % self.problem.key_heads);
        // SAFETY: the caller's promise.
        let problem = unsafe { filled(&self.problem, &self.position) };
        if index * SHARE >= problem.keys || (index + 1) * SHARE <= problem.first_visible(0) {
            return;
        }
        let mut rest: &mut [f32] = bytemuck::cast_slice_mut(scratch);
        let queries = take(&mut rest, self.query_numbers());
        for (row, to) in queries.chunks_exact_mut(problem.depth).enumerate() {
            let head = key_head * problem.group() + row / problem.queries;
            // SAFETY: the row is inside the operand, which nothing writes to, by the caller's promise.
            let from = unsafe { self.q.row((batch, head), row % problem.queries, problem.depth) };
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_f32() * problem.scale);
        }
        // SAFETY: the caller's promise; each part has its own share of what is found, and the machine has the level,
        // since whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(&self.keys, &problem, Share { batch, key_head, index }, queries, &mut rest[..SHARE]) }
    }
}

multiversion! {
    /// What a share gives to all queries of its head, which are scaled.
    fn share_of<K: Element>(keys: &Keys<K>, problem: &Problem, share: Share, queries: &[f32], scores: &mut [f32]) {
        let depth = problem.depth;
        let first_row = (share.batch * problem.heads + share.key_head * problem.group()) * problem.queries;
        let head_start = (share.batch * problem.key_heads + share.key_head) * keys.places;
        for (row, query) in queries.chunks_exact(depth).enumerate() {
            let seen = seen(problem, row % problem.queries, share.index);
            if seen.is_empty() {
                continue;
            }
            let places = (head_start + seen.start) * depth..(head_start + seen.end) * depth;
            // SAFETY: the places are inside of the operands, which nothing writes to, by the caller's promise.
            let (k, v) = unsafe { (keys.k.slice(places.clone()), keys.v.slice(places)) };
            let start = ((first_row + row) * keys.places.div_ceil(SHARE) + share.index) * (depth + STATISTICS);
            // SAFETY: these numbers are this part's own.
            let found = unsafe { keys.found.slice(start..start + depth + STATISTICS) };
            let scores = &mut scores[..seen.len()];
            for ((score, key), value) in scores.iter_mut().zip(k.chunks_exact(depth)).zip(v.chunks_exact(depth)) {
                // 64 sequences took a fifth less time for attention so.
                ask_for(value);
                *score = lanes::dot(query, key);
            }
            let largest = lanes::max(scores);
            scores.iter_mut().for_each(|score| *score = math::exp(*score - largest));
            let (statistics, sums) = found.split_at_mut(STATISTICS);
            statistics.copy_from_slice(&[largest, lanes::sum(scores)]);
            weighted_sum(scores, v, sums);
        }
    }
}

/// The keys of a share that a query sees.
#[inline(always)]
fn seen(problem: &Problem, query: usize, share: usize) -> Range<usize> {
    let start = (share * SHARE).max(problem.first_visible(query));
    start..((share + 1) * SHARE).min(problem.visible(query)).max(start)
}

/// The sum of rows of values, each times its weight: some columns of all rows before the next, whose sums stay in registers.
#[inline(always)]
fn weighted_sum<K: Element>(weights: &[f32], values: &[K], sums: &mut [f32]) {
    let depth = sums.len();
    let (wide, rest) = sums.as_chunks_mut::<{ 4 * LANES }>();
    let mut start = 0;
    for sums in wide {
        *sums = weighted_columns(weights, values, depth, start);
        start += sums.len();
    }
    let (narrow, rest) = rest.as_chunks_mut::<LANES>();
    for sums in narrow {
        *sums = weighted_columns(weights, values, depth, start);
        start += sums.len();
    }
    for sum in rest {
        [*sum] = weighted_columns(weights, values, depth, start);
        start += 1;
    }
}

/// The sums of so many columns from `start` on.
#[inline(always)]
fn weighted_columns<K: Element, const N: usize>(weights: &[f32], values: &[K], depth: usize, start: usize) -> [f32; N] {
    let mut sums = [0.0; N];
    for (weight, row) in weights.iter().zip(values.chunks_exact(depth)) {
        let row = row[start..].first_chunk::<N>().expect("columns of a row");
        for lane in 0..N {
            sums[lane] += weight * row[lane].to_f32();
        }
    }
    sums
}

/// The result of each query, from what the shares gave: dense, by (batch, query, head, depth).
pub struct Combination<Q> {
    problem: Problem,
    position: In<i32>,
    found: In<f32>,
    o: Out<Q>,
    body: unsafe fn(&Combination<Q>, usize, &mut [f32]),
}

impl<Q: Element> Combination<Q> {
    /// After [`Shares`] of the same problem.
    pub fn new(isa: Isa, problem: Problem, position: In<i32>, found: In<f32>, o: Out<Q>) -> Combination<Q> {
        Combination { problem, position, found, o, body: rows_of::select(isa) }
    }

    fn rows(&self) -> usize {
        self.problem.batch * self.problem.queries * self.problem.heads
    }

    fn rows_per_part(&self) -> usize {
        (PART_ELEMENTS / self.problem.depth).max(1)
    }
}

impl<Q: Element> Job for Combination<Q> {
    fn parts(&self) -> usize {
        parts_of(self.rows(), self.rows_per_part())
    }

    fn worker_scratch(&self) -> usize {
        self.problem.depth * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let sums = &mut bytemuck::cast_slice_mut(scratch)[..self.problem.depth];
        // SAFETY: the caller's promise; parts are disjoint ranges of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, sums) }
    }
}

multiversion! {
    /// The rows of a part.
    fn rows_of<Q: Element>(job: &Combination<Q>, part: usize, sums: &mut [f32]) {
        // SAFETY: the caller's promise.
        let problem = &unsafe { filled(&job.problem, &job.position) };
        let (all, numbers) = (shares(&job.problem), numbers(problem));
        for row in chunk(part, job.rows_per_part(), job.rows()) {
            let (head, place) = (row % problem.heads, row / problem.heads);
            let (query, batch) = (place % problem.queries, place / problem.queries);
            let filled = problem.first_visible(query) / SHARE..parts_of(problem.visible(query), SHARE);
            let first = ((batch * problem.heads + head) * problem.queries + query) * all;
            // SAFETY: the shares are inside of what was found, which nothing writes to any more; the row is this part's own.
            let (found, o) = unsafe {
                let found = job.found.slice((first + filled.start) * numbers..(first + filled.end) * numbers);
                (found, job.o.slice(row * problem.depth..(row + 1) * problem.depth))
            };
            combine(found, sums, o);
        }
    }
}

/// The weighted mean of the values of all shares, each of which begins with its statistics.
#[inline(always)]
fn combine<Q: Element>(found: &[f32], sums: &mut [f32], o: &mut [Q]) {
    let shares = found.chunks_exact(sums.len() + STATISTICS);
    let largest = shares.clone().fold(f32::NEG_INFINITY, |largest, share| lanes::larger(largest, share[0]));
    let mut total = 0.0;
    sums.fill(0.0);
    for share in shares {
        let factor = math::exp(share[0] - largest);
        total += factor * share[1];
        sums.iter_mut().zip(&share[STATISTICS..]).for_each(|(sum, found)| *sum += factor * found);
    }
    o.iter_mut().zip(&*sums).for_each(|(o, sum)| *o = Q::from_f32(sum / total));
}

//! Attention: each part takes a block of queries over all keys that they see, block by block, keeping for each
//! query the largest score so far, the sum of exponentials and the weighted sum of values.
//!
//! Everything is held with queries along the lanes: scores by (key, query), sums by (depth, query). Then nothing
//! is reduced across lanes, and keys and values are used as they lie.

use super::level::for_each_level;
use super::tile::{COLUMN_MULTIPLE, Product, ROW_MULTIPLE};
use super::{BLOCK, Heads, Problem, take};
use crate::{Element, Isa, Job, Out, chunk, lanes, math, parts_of};
use std::ops::Range;

/// `softmax(scale * q * k^T) * v`, and the logarithms of the sums of exponentials.
pub struct Attention<T> {
    problem: Problem,
    q: Heads<T>,
    k: Heads<T>,
    v: Heads<T>,
    o: Out<T>,
    log_sum: Out<f32>,
    body: unsafe fn(&Attention<T>, usize, &mut [f32]),
}

impl<T: Element> Attention<T> {
    /// Results are dense.
    pub fn new(isa: Isa, problem: Problem, [q, k, v]: [Heads<T>; 3], o: Out<T>, log_sum: Out<f32>) -> Attention<T> {
        Attention { problem, q, k, v, o, log_sum, body: block_of::select(isa) }
    }

    fn blocks(&self) -> usize {
        parts_of(self.problem.queries, BLOCK)
    }

    /// Lanes of a block of queries.
    fn width(&self) -> usize {
        self.problem.queries.min(BLOCK).next_multiple_of(COLUMN_MULTIPLE)
    }

    /// Rows of the weighted sum of values.
    fn sum_rows(&self) -> usize {
        self.problem.depth.next_multiple_of(ROW_MULTIPLE)
    }
}

impl<T: Element> Job for Attention<T> {
    fn parts(&self) -> usize {
        self.problem.batch * self.problem.heads * self.blocks()
    }

    fn worker_scratch(&self) -> usize {
        let by_query = self.problem.depth + self.sum_rows() + BLOCK + 3;
        (by_query * self.width() + 2 * BLOCK * self.sum_rows()) * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint blocks of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

/// For each query of a block: what the softmax knows after the keys so far.
struct Running<'a> {
    /// The largest score.
    largest: &'a mut [f32],
    /// The sum of exponentials, relative to the largest.
    total: &'a mut [f32],
    /// The weighted sum of values, by (depth, query).
    sums: &'a mut [f32],
    /// What the sums so far are multiplied by when a larger score comes.
    correction: &'a mut [f32],
}

for_each_level! {
    /// A part: a block of queries.
    fn block_of<L, T>(job: &Attention<T>, part: usize, scratch: &mut [f32]) {
        let Problem { heads, queries, depth, scale, .. } = job.problem;
        let (width, rows) = (job.width(), job.sum_rows());
        let sequence = part / job.blocks();
        let (batch, head) = (sequence / heads, sequence % heads);
        let key_head = head / job.problem.group();
        let block = chunk(part % job.blocks(), BLOCK, queries);

        let mut rest = scratch;
        let query = take(&mut rest, depth * width);
        let scores = take(&mut rest, BLOCK * width);
        let mut running = Running {
            largest: take(&mut rest, width),
            total: take(&mut rest, width),
            sums: take(&mut rest, rows * width),
            correction: take(&mut rest, width),
        };
        let key = take(&mut rest, BLOCK * rows);
        let value = take(&mut rest, BLOCK * rows);
        running.largest.fill(f32::NEG_INFINITY);
        running.total.fill(0.0);
        running.sums.fill(0.0);

        // SAFETY: the operands are alive and nothing writes to them, by the caller's promise.
        unsafe { job.q.load_transposed((batch, head), block.clone(), depth, scale, query, width) };
        let seen = job.problem.visible(block.end - 1);
        for start in (0..seen).step_by(BLOCK) {
            let places = start..(start + BLOCK).min(seen);
            // SAFETY: as above.
            unsafe {
                job.k.load((batch, key_head), places.clone(), depth, key, rows);
                job.v.load((batch, key_head), places.clone(), depth, value, rows);
            }
            let product = Product {
                left: key,
                left_row: rows,
                left_column: 1,
                right: query,
                right_row: width,
                rows: places.len().next_multiple_of(ROW_MULTIPLE),
                depth,
                columns: width,
            };
            product.put::<L>(scores, width);
            let scores = &mut scores[..places.len() * width];
            if job.problem.visible(block.start) < places.end {
                hide(job.problem, block.start, places.clone(), scores, width);
            }
            absorb(&mut running, scores, width);
            let product = Product {
                left: value,
                left_row: 1,
                left_column: rows,
                right: scores,
                right_row: width,
                rows,
                depth: places.len(),
                columns: width,
            };
            product.add::<L>(running.sums, width);
        }

        for (lane, query) in block.enumerate() {
            let row = sequence * queries + query;
            let total = running.total[lane];
            // SAFETY: the rows are this part's own.
            let (o, log_sum) = unsafe { (job.o.slice(row * depth..(row + 1) * depth), job.log_sum.slice(row..row + 1)) };
            for (o, sums) in o.iter_mut().zip(running.sums.chunks_exact(width)) {
                *o = T::from_f32(sums[lane] / total);
            }
            log_sum[0] = running.largest[lane] + math::log(total);
        }
    }
}

/// Hides from each query the keys behind its own place.
#[inline(always)]
fn hide(problem: Problem, first_query: usize, keys: Range<usize>, scores: &mut [f32], width: usize) {
    for (key, scores) in keys.zip(scores.chunks_exact_mut(width)) {
        let blind = problem.first_query(key).saturating_sub(first_query).min(width);
        scores[..blind].fill(f32::NEG_INFINITY);
    }
}

/// Turns scores to exponentials relative to the largest score, and corrects the sums where that has grown.
#[inline(always)]
fn absorb(running: &mut Running<'_>, scores: &mut [f32], width: usize) {
    let Running { largest, total, sums, correction } = running;
    correction.copy_from_slice(largest);
    for scores in scores.chunks_exact(width) {
        for (largest, &score) in largest.iter_mut().zip(scores) {
            *largest = lanes::larger(*largest, score);
        }
    }
    for (correction, &largest) in correction.iter_mut().zip(&**largest) {
        *correction = math::exp(*correction - largest);
    }
    for (total, correction) in total.iter_mut().zip(&**correction) {
        *total *= correction;
    }
    for sums in sums.chunks_exact_mut(width) {
        for (sum, correction) in sums.iter_mut().zip(&**correction) {
            *sum *= correction;
        }
    }
    for scores in scores.chunks_exact_mut(width) {
        for ((score, &largest), total) in scores.iter_mut().zip(&**largest).zip(total.iter_mut()) {
            *score = math::exp(*score - largest);
            *total += *score;
        }
    }
}

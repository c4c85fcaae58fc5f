//! The gradient of attention, in three jobs: for each query the product of the result with its gradient; then,
//! for each segment of the keys, the gradients of its keys and values and its share of those of the queries; then
//! the sum of the shares.
//!
//! With p the softmax and g the gradient of the result: dv = p^T g, ds = p * (g v^T - sum(g o)), dk = scale ds^T q,
//! dq = scale ds k. Scores are held by (query, key), so that all three are products with operands as they lie.

use super::level::for_each_level;
use super::tile::{COLUMN_MULTIPLE, Product, ROW_MULTIPLE};
use super::{BLOCK, Heads, Problem, take};
use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, lanes, math, parts_of};
use std::ops::Range;

/// Parts that are enough to keep the threads of a machine busy.
const PARTS_ENOUGH: usize = 32;
/// The most shares of a query's gradient: each is a buffer of the queries' size.
const SEGMENTS_MOST: usize = 4;
/// Queries of a part of the first job.
const ROWS_PER_PART: usize = 256;
/// Elements of a part of the last job.
const ELEMENTS_PER_PART: usize = 16 * 1024;

/// How the keys are cut: into one segment where there are heads and sequences enough, else into a few.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    count: usize,
    length: usize,
    query_elements: usize,
    query_rows: usize,
}

impl Segments {
    /// The cut for a problem.
    pub fn new(problem: &Problem) -> Segments {
        let heads = (problem.batch * problem.key_heads).max(1);
        let wished = PARTS_ENOUGH.div_ceil(heads).min(SEGMENTS_MOST);
        let length = problem.keys.div_ceil(wished).next_multiple_of(BLOCK);
        let query_rows = problem.query_rows();
        let query_elements = query_rows * problem.depth;
        Segments { count: problem.keys.div_ceil(length), length, query_elements, query_rows }
    }

    /// Numbers that the first job gives to the second.
    pub fn output_products(&self) -> usize {
        self.query_rows
    }

    /// Numbers that the second job gives to the third.
    pub fn shares(&self) -> usize {
        self.count * self.query_elements
    }
}

/// For each query, the product of the result with its gradient.
pub struct OutputProducts<T> {
    problem: Problem,
    o: Heads<T>,
    o_gradient: Heads<T>,
    products: Out<f32>,
    body: unsafe fn(&OutputProducts<T>, usize, &mut [f32]),
}

impl<T: Element> OutputProducts<T> {
    /// One product for each query, dense.
    pub fn new(isa: Isa, problem: Problem, o: Heads<T>, o_gradient: Heads<T>, products: Out<f32>) -> OutputProducts<T> {
        OutputProducts { problem, o, o_gradient, products, body: products_of::select(isa) }
    }
}

impl<T: Element> Job for OutputProducts<T> {
    fn parts(&self) -> usize {
        parts_of(self.problem.query_rows(), ROWS_PER_PART)
    }

    fn worker_scratch(&self) -> usize {
        2 * self.problem.depth * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint ranges of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// A part: some rows.
    fn products_of<T: Element>(job: &OutputProducts<T>, part: usize, scratch: &mut [f32]) {
        let Problem { heads, queries, depth, .. } = job.problem;
        let (o, o_gradient) = scratch.split_at_mut(depth);
        for row in chunk(part, ROWS_PER_PART, job.problem.query_rows()) {
            let (sequence, query) = (row / queries, row % queries);
            let head = (sequence / heads, sequence % heads);
            // SAFETY: the operands are alive and nothing writes to them; the product is this part's own.
            unsafe {
                job.o.load(head, query..query + 1, depth, o, depth);
                job.o_gradient.load(head, query..query + 1, depth, o_gradient, depth);
                job.products.slice(row..row + 1)[0] = lanes::dot(o, &o_gradient[..depth]);
            }
        }
    }
}

/// The gradients of keys and values, and shares of the gradient of the queries, unscaled.
pub struct Gradient<T> {
    problem: Problem,
    segments: Segments,
    operands: [Heads<T>; 4],
    log_sum: In<f32>,
    products: In<f32>,
    shares: Out<f32>,
    k_gradient: Out<T>,
    v_gradient: Out<T>,
    body: unsafe fn(&Gradient<T>, usize, &mut [f32]),
}

impl<T: Element> Gradient<T> {
    /// From queries, keys, values and the gradient of the result. Of each query come the logarithm of the sum and
    /// the product with the result; the results are the gradients of keys and values. All but the operands are
    /// dense.
    pub fn new(
        isa: Isa,
        problem: Problem,
        operands: [Heads<T>; 4],
        [log_sum, products]: [In<f32>; 2],
        shares: Out<f32>,
        [k_gradient, v_gradient]: [Out<T>; 2],
    ) -> Gradient<T> {
        let segments = Segments::new(&problem);
        let body = segment_of::select(isa);
        Gradient { problem, segments, operands, log_sum, products, shares, k_gradient, v_gradient, body }
    }
}

impl<T: Element> Job for Gradient<T> {
    fn parts(&self) -> usize {
        self.problem.batch * self.problem.key_heads * self.segments.count
    }

    fn worker_scratch(&self) -> usize {
        let depth = self.problem.padded_depth();
        (8 * BLOCK * depth + 2 * BLOCK * BLOCK) * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; a part has the keys and values of its segment and its share of its
        // queries' gradients to itself, and the machine has the level, since whoever built the job took it from
        // `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

/// The tiles of a worker.
struct Tiles<'a> {
    /// Keys by (key, depth).
    key: &'a mut [f32],
    /// Scaled keys by (depth, key).
    key_transposed: &'a mut [f32],
    /// Values by (depth, key).
    value_transposed: &'a mut [f32],
    /// Queries by (query, depth).
    query: &'a mut [f32],
    /// The gradient of the result by (query, depth).
    o_gradient: &'a mut [f32],
    /// Scores, then probabilities, by (query, key).
    probability: &'a mut [f32],
    /// The gradient of the probabilities, then of the scores, by (query, key).
    score_gradient: &'a mut [f32],
    /// By (key, depth).
    k_gradient: &'a mut [f32],
    /// By (key, depth).
    v_gradient: &'a mut [f32],
    /// By (query, depth).
    q_gradient: &'a mut [f32],
}

impl<'a> Tiles<'a> {
    #[inline(always)]
    fn new(mut scratch: &'a mut [f32], depth: usize) -> Tiles<'a> {
        let rest = &mut scratch;
        Tiles {
            key: take(rest, BLOCK * depth),
            key_transposed: take(rest, BLOCK * depth),
            value_transposed: take(rest, BLOCK * depth),
            query: take(rest, BLOCK * depth),
            o_gradient: take(rest, BLOCK * depth),
            probability: take(rest, BLOCK * BLOCK),
            score_gradient: take(rest, BLOCK * BLOCK),
            k_gradient: take(rest, BLOCK * depth),
            v_gradient: take(rest, BLOCK * depth),
            q_gradient: take(rest, BLOCK * depth),
        }
    }
}

for_each_level! {
    /// A part: a segment of the keys of one head, with all queries that see them.
    fn segment_of<L, T>(job: &Gradient<T>, part: usize, scratch: &mut [f32]) {
        let Problem { key_heads, queries, keys, depth, scale, .. } = job.problem;
        let [q, k, v, o_gradient] = &job.operands;
        let padded = job.problem.padded_depth();
        let tiles = &mut Tiles::new(scratch, padded);
        let (sequence, segment) = (part / job.segments.count, part % job.segments.count);
        let (batch, key_head) = (sequence / key_heads, sequence % key_heads);
        let group = job.problem.group();
        let heads = key_head * group..(key_head + 1) * group;

        // The rows of the queries' gradients that this part has a share in lie together.
        let first_row = (batch * job.problem.heads + heads.start) * queries;
        let share = segment * job.segments.query_elements + first_row * depth;
        // SAFETY: this share of these rows is this part's own.
        let share = unsafe { job.shares.slice(share..share + group * queries * depth) };
        share.fill(0.0);

        let segment = chunk(segment, job.segments.length, keys);
        for start in segment.clone().step_by(BLOCK) {
            let places = start..(start + BLOCK).min(segment.end);
            // SAFETY: the operands are alive and nothing writes to them, by the caller's promise.
            unsafe {
                let head = (batch, key_head);
                k.load(head, places.clone(), depth, tiles.key, padded);
                k.load_transposed(head, places.clone(), depth, scale, tiles.key_transposed, BLOCK);
                v.load_transposed(head, places.clone(), depth, 1.0, tiles.value_transposed, BLOCK);
            }
            tiles.k_gradient.fill(0.0);
            tiles.v_gradient.fill(0.0);
            for head in heads.clone() {
                let first_query = job.problem.first_query(places.start);
                for start in (first_query..queries).step_by(BLOCK) {
                    let block = start..(start + BLOCK).min(queries);
                    let row = (batch * job.problem.heads + head) * queries;
                    let rows = row + block.start..row + block.end;
                    // SAFETY: as above.
                    let (log_sum, products) = unsafe {
                        q.load((batch, head), block.clone(), depth, tiles.query, padded);
                        o_gradient.load((batch, head), block.clone(), depth, tiles.o_gradient, padded);
                        (job.log_sum.slice(rows.clone()), job.products.slice(rows.clone()))
                    };
                    scores::<L>(tiles, block.len(), places.len(), depth);
                    differentiate_scores(&job.problem, tiles, block.clone(), places.clone(), log_sum, products);
                    accumulate::<L>(tiles, block.len(), places.len(), padded);
                    let share = &mut share[(rows.start - first_row) * depth..(rows.end - first_row) * depth];
                    for (to, from) in share.chunks_exact_mut(depth).zip(tiles.q_gradient.chunks_exact(padded)) {
                        for (to, from) in to.iter_mut().zip(from) {
                            *to += from;
                        }
                    }
                }
            }
            let row = sequence * keys;
            let range = (row + places.start) * depth..(row + places.end) * depth;
            // SAFETY: the keys and values of the segment are this part's own.
            let (k_gradient, v_gradient) =
                unsafe { (job.k_gradient.slice(range.clone()), job.v_gradient.slice(range)) };
            store(k_gradient, tiles.k_gradient, depth, padded, scale);
            store(v_gradient, tiles.v_gradient, depth, padded, 1.0);
        }
    }
}

/// Scores, and the gradient of the probabilities.
#[inline(always)]
fn scores<L: super::level::Level>(tiles: &mut Tiles<'_>, queries: usize, keys: usize, depth: usize) {
    let stride = tiles.query.len() / BLOCK;
    let by_key = |left, right| Product {
        left,
        left_row: stride,
        left_column: 1,
        right,
        right_row: BLOCK,
        rows: queries.next_multiple_of(ROW_MULTIPLE),
        depth,
        columns: keys.next_multiple_of(COLUMN_MULTIPLE),
    };
    by_key(tiles.query, tiles.key_transposed).put::<L>(tiles.probability, BLOCK);
    by_key(tiles.o_gradient, tiles.value_transposed).put::<L>(tiles.score_gradient, BLOCK);
}

/// Turns scores to probabilities, and the probabilities' gradient to that of the scores; hidden keys get zeros.
#[inline(always)]
fn differentiate_scores(
    problem: &Problem,
    tiles: &mut Tiles<'_>,
    queries: Range<usize>,
    keys: Range<usize>,
    log_sum: &[f32],
    products: &[f32],
) {
    let probabilities = tiles.probability.chunks_exact_mut(BLOCK);
    let gradients = tiles.score_gradient.chunks_exact_mut(BLOCK);
    let rows = probabilities.zip(gradients).zip(log_sum.iter().zip(products));
    for (query, ((probabilities, gradients), (&log_sum, &product))) in queries.zip(rows) {
        let seen = problem.visible(query).saturating_sub(keys.start).min(keys.len());
        for (probability, gradient) in probabilities[..seen].iter_mut().zip(&mut gradients[..seen]) {
            *probability = math::exp(*probability - log_sum);
            *gradient = *probability * (*gradient - product);
        }
        probabilities[seen..].fill(0.0);
        gradients[seen..].fill(0.0);
    }
}

/// Adds to the gradients of keys and values, and puts those of the queries.
#[inline(always)]
fn accumulate<L: super::level::Level>(tiles: &mut Tiles<'_>, queries: usize, keys: usize, padded: usize) {
    let for_keys = |left, right| Product {
        left,
        left_row: 1,
        left_column: BLOCK,
        right,
        right_row: padded,
        rows: keys.next_multiple_of(ROW_MULTIPLE),
        depth: queries,
        columns: padded,
    };
    for_keys(tiles.probability, tiles.o_gradient).add::<L>(tiles.v_gradient, padded);
    for_keys(tiles.score_gradient, tiles.query).add::<L>(tiles.k_gradient, padded);
    let for_queries = Product {
        left: tiles.score_gradient,
        left_row: BLOCK,
        left_column: 1,
        right: tiles.key,
        right_row: padded,
        rows: queries.next_multiple_of(ROW_MULTIPLE),
        depth: keys,
        columns: padded,
    };
    for_queries.put::<L>(tiles.q_gradient, padded);
}

/// Stores rows of a tile, scaled.
#[inline(always)]
fn store<T: Element>(to: &mut [T], tile: &[f32], depth: usize, padded: usize, scale: f32) {
    for (to, from) in to.chunks_exact_mut(depth).zip(tile.chunks_exact(padded)) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = T::from_f32(*from * scale);
        }
    }
}

/// The gradient of the queries: the sum of the segments' shares, scaled.
pub struct QueryGradient<T> {
    segments: Segments,
    scale: f32,
    shares: In<f32>,
    q_gradient: Out<T>,
    body: unsafe fn(&QueryGradient<T>, usize, &mut [f32]),
}

impl<T: Element> QueryGradient<T> {
    /// The result is dense.
    pub fn new(isa: Isa, problem: Problem, shares: In<f32>, q_gradient: Out<T>) -> QueryGradient<T> {
        let segments = Segments::new(&problem);
        QueryGradient { segments, scale: problem.scale, shares, q_gradient, body: sums_of::select(isa) }
    }
}

impl<T: Element> Job for QueryGradient<T> {
    fn parts(&self) -> usize {
        parts_of(self.segments.query_elements, ELEMENTS_PER_PART)
    }

    fn worker_scratch(&self) -> usize {
        ELEMENTS_PER_PART * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint ranges, and the machine has the level, since whoever
        // built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// A part: some elements.
    fn sums_of<T: Element>(job: &QueryGradient<T>, part: usize, sums: &mut [f32]) {
        let range = chunk(part, ELEMENTS_PER_PART, job.segments.query_elements);
        let sums = &mut sums[..range.len()];
        sums.fill(0.0);
        for segment in 0..job.segments.count {
            let start = segment * job.segments.query_elements;
            // SAFETY: the shares are written and nothing writes to them any more.
            let share = unsafe { job.shares.slice(start + range.start..start + range.end) };
            for (sum, share) in sums.iter_mut().zip(share) {
                *sum += share;
            }
        }
        // SAFETY: the range is this part's own.
        for (to, sum) in unsafe { job.q_gradient.slice(range) }.iter_mut().zip(&*sums) {
            *to = T::from_f32(*sum * job.scale);
        }
    }
}

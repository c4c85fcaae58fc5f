//! The gradient of attention, in two jobs: for each segment of the keys, the gradients of its keys and values and
//! its share of those of the queries; then the sum of the shares, where there are several segments.
//!
//! With p the softmax and g the gradient of the result: dv = p^T g, ds = p * (g v^T - sum(g o)), dk = scale ds^T q,
//! dq = scale ds k. Scores are held by (query, key), so that all three are products with operands as they lie.

use super::level::{Level, for_each_level, numbers_per_word};
use super::load::{transpose, widen};
use super::tile::ROW_MULTIPLE;
use super::triangle::{QUERIES, Statistics, Tiles, Triangle};
use super::{BLOCK, Heads, HeadsMut, Problem, heads_of_a_part, take};
use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, lanes, parts_of};
use std::ops::Range;

/// Parts that are enough to keep the threads of a machine busy.
const PARTS_ENOUGH: usize = 32;
/// The most shares of a query's gradient: each is a buffer of the queries' size.
const SEGMENTS_MOST: usize = 4;
/// Queries of a part of the last job.
const ROWS_PER_PART: usize = 256;

/// How the keys are cut: into one segment where there are heads and sequences enough, else into their blocks if these
/// are few. (Of longer sequences a head is one part, which may be fewer parts than threads.) A query's gradient is the sum
/// over blocks, from the first to the last, either way: so it has the same bits however many sequences are computed at
/// once.
#[derive(Clone, Copy, Debug)]
pub struct Segments {
    count: usize,
    length: usize,
    /// Rows of a head's share: its queries, and some that the last tile of a product may reach.
    share_rows: usize,
    /// Numbers of the shares of all queries.
    share: usize,
}

impl Segments {
    /// The cut for a problem.
    pub fn new(problem: &Problem) -> Segments {
        let heads = (problem.batch * problem.key_heads).max(1);
        let blocks = problem.keys.div_ceil(BLOCK);
        let in_blocks = heads < PARTS_ENOUGH && blocks <= SEGMENTS_MOST;
        let length = if in_blocks { BLOCK } else { blocks.max(1) * BLOCK };
        let share_rows = problem.queries + ROW_MULTIPLE;
        let share = problem.batch * problem.heads * share_rows * problem.padded_depth();
        Segments { count: problem.keys.div_ceil(length), length, share_rows, share }
    }

    /// Numbers that the first job gives to the second; none if one segment is all.
    pub fn shares(&self) -> usize {
        if self.are_one() { 0 } else { self.count * self.share }
    }

    fn are_one(&self) -> bool {
        self.count == 1
    }
}

/// Where the joint gradient lies: dense, by (batch, place, head, depth), the heads being those of the queries, then
/// of the keys, then of the values. It has places for the queries or for the keys, whichever are more; where there
/// is no query, or no key, it is zero.
struct Joint<T> {
    q: HeadsMut<T>,
    k: HeadsMut<T>,
    v: HeadsMut<T>,
}

impl<T: Element> Joint<T> {
    fn new(problem: &Problem, elements: Out<T>) -> Joint<T> {
        let Problem { heads, key_heads, depth, .. } = *problem;
        let place = (heads + 2 * key_heads) * depth;
        let strides = [problem.places() * place, depth, place];
        let from = |head: usize| HeadsMut { elements: elements.offset((head * depth).min(elements.len())), strides };
        Joint { q: from(0), k: from(heads), v: from(heads + key_heads) }
    }
}

/// The gradients of keys and values, and shares of the gradient of the queries; if there is one segment, that too.
pub struct Gradient<T> {
    problem: Problem,
    segments: Segments,
    operands: [Heads<T>; 5],
    log_sum: In<f32>,
    shares: Out<f32>,
    joint: Joint<T>,
    body: unsafe fn(&Gradient<T>, usize, &mut [f32]),
}

impl<T: Element> Gradient<T> {
    /// From queries, keys, values, the result and its gradient, and for each query the binary logarithm of the sum, dense
    /// by (batch, head, query). `joint` has one place for the queries or the keys, whichever are more, by (batch,
    /// place, head, depth): the heads of the queries, of the keys and of the values.
    pub fn new(
        isa: Isa,
        problem: Problem,
        operands: [Heads<T>; 5],
        log_sum: In<f32>,
        shares: Out<f32>,
        joint: Out<T>,
    ) -> Gradient<T> {
        let (segments, joint) = (Segments::new(&problem), Joint::new(&problem, joint));
        Gradient { problem, segments, operands, log_sum, shares, joint, body: segment_of::select(isa) }
    }

    /// Heads of keys of a part.
    fn heads(&self) -> usize {
        heads_of_a_part(self.problem.batch * self.problem.key_heads * self.segments.count)
    }

    /// Numbers of the share of one head of keys.
    fn share(&self) -> usize {
        self.problem.group() * self.segments.share_rows * self.problem.padded_depth()
    }
}

impl<T: Element> Job for Gradient<T> {
    fn parts(&self) -> usize {
        self.problem.batch * parts_of(self.problem.key_heads, self.heads()) * self.segments.count
    }

    fn worker_scratch(&self) -> usize {
        let Problem { queries, depth, .. } = self.problem;
        let share = if self.segments.are_one() { self.share() } else { 0 };
        let statistics = 2 * self.problem.group() * queries + 2 * depth;
        (share + statistics + Tiles::numbers(self.problem.padded_depth())) * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; a part has the keys and values of its segment and its share of its
        // queries' gradients to itself, and the machine has the level, since whoever built the job took it from
        // `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

for_each_level! {
    /// A part: a segment of the keys of some heads, with all queries that see them.
    fn segment_of<L, T>(job: &Gradient<T>, part: usize, scratch: &mut [f32]) {
        let (rest, segment) = (part / job.segments.count, part % job.segments.count);
        let groups = parts_of(job.problem.key_heads, job.heads());
        for key_head in chunk(rest % groups, job.heads(), job.problem.key_heads) {
            // SAFETY: the caller's promise.
            unsafe { one_head::<L, T>(job, (rest / groups, key_head), segment, scratch) }
        }
    }
}

/// A segment of the keys of one head.
///
/// # Safety
/// As for [`Job::run`], and the machine must have the level.
#[inline(always)]
unsafe fn one_head<L: Level, T: Element>(
    job: &Gradient<T>,
    (batch, key_head): (usize, usize),
    segment: usize,
    scratch: &mut [f32],
) {
    let Problem { key_heads, queries, keys, depth, scale, .. } = job.problem;
    let [_, k, v, _, _] = &job.operands;
    let padded = job.problem.padded_depth();
    let words = padded / numbers_per_word::<L>();
    let group = job.problem.group();
    let heads = key_head * group..(key_head + 1) * group;

    let mut rest = scratch;
    let tiles = &mut Tiles::new(&mut rest, padded);
    let statistics =
        &mut Statistics { log_sum: take(&mut rest, group * queries), product: take(&mut rest, group * queries) };
    let rows = take(&mut rest, 2 * depth);
    for (index, head) in heads.clone().enumerate() {
        // SAFETY: the operands are alive and nothing writes to them, by the caller's promise.
        unsafe { load_statistics::<L, T>(job, (batch, head), index * queries, statistics, rows) };
    }
    let share = if job.segments.are_one() {
        take(&mut rest, job.share())
    } else {
        let first = segment * job.segments.share + (batch * key_heads + key_head) * job.share();
        // SAFETY: this share of these rows is this part's own.
        unsafe { job.shares.slice(first..first + job.share()) }
    };
    share.fill(0.0);

    let segment = chunk(segment, job.segments.length, keys);
    for start in segment.clone().step_by(BLOCK) {
        let places = start..(start + BLOCK).min(segment.end);
        let from = (batch, key_head);
        job.joint.k.prefetch::<L>(from, places.clone(), depth);
        job.joint.v.prefetch::<L>(from, places.clone(), depth);
        // SAFETY: as above.
        unsafe {
            // The tile of keys is what values pass through on their way to be transposed, and then keys.
            v.load_rows::<L>(from, places.clone(), depth, tiles.key, words);
            transpose::<L>((tiles.key, words), [places.len(), words], (tiles.value_columns, BLOCK));
            k.load_rows::<L>(from, places.clone(), depth, tiles.key, words);
            transpose::<L>((tiles.key, words), [places.len(), words], (tiles.key_columns, BLOCK));
            if L::PAIRED {
                k.load_steps::<L>(from, places.clone(), depth, tiles.key, padded);
            }
        }
        tiles.k_gradient.fill(0.0);
        tiles.v_gradient.fill(0.0);
        for (index, head) in heads.clone().enumerate() {
            let share = &mut share[index * job.segments.share_rows * padded..][..job.segments.share_rows * padded];
            let end = job.problem.end_query(places.end - 1).min(queries);
            for start in (job.problem.first_query(places.start)..end).step_by(QUERIES) {
                // Not cut at the last query that sees a key: a product's last tile reaches beyond its rows.
                let block = start..(start + QUERIES).min(queries);
                // SAFETY: as above.
                unsafe { load_queries::<L, T>(job, (batch, head), block.clone(), tiles) };
                let triangle = Triangle { problem: &job.problem, queries: block.clone(), keys: places.clone() };
                triangle.score::<L>(tiles);
                triangle.differentiate::<L>(tiles, statistics, index * queries);
                triangle.accumulate::<L>(tiles, &mut share[start * padded..]);
            }
        }
        // SAFETY: the keys and values of the segment are this part's own.
        unsafe {
            job.joint.k.store_rows((batch, key_head), places.clone(), depth, (tiles.k_gradient, padded), scale);
            job.joint.v.store_rows((batch, key_head), places, depth, (tiles.v_gradient, padded), 1.0);
        }
    }
    if segment.end == keys {
        // SAFETY: the places behind the keys are the last segment's own.
        unsafe {
            job.joint.k.clear((batch, key_head), keys..job.problem.places(), depth);
            job.joint.v.clear((batch, key_head), keys..job.problem.places(), depth);
        }
    }
    if job.segments.are_one() {
        for (head, share) in heads.zip(share.chunks_exact(job.segments.share_rows * padded)) {
            // SAFETY: no other part has these heads.
            unsafe {
                job.joint.q.store_rows((batch, head), 0..queries, depth, (share, padded), scale);
                job.joint.q.clear((batch, head), queries..job.problem.places(), depth);
            }
        }
    }
}

/// Computes what is known of each query of a head before any key; `rows` has room for a result and its gradient.
///
/// # Safety
/// As for [`In::slice`].
#[inline(always)]
unsafe fn load_statistics<L: Level, T: Element>(
    job: &Gradient<T>,
    head: (usize, usize),
    to: usize,
    statistics: &mut Statistics<'_>,
    rows: &mut [f32],
) {
    let Problem { heads, queries, depth, .. } = job.problem;
    let [.., o, o_gradient] = &job.operands;
    let first = (head.0 * heads + head.1) * queries;
    // SAFETY: the caller's promise.
    let log_sums = unsafe { job.log_sum.slice(first..first + queries) };
    let (left, right) = rows.split_at_mut(depth);
    job.joint.q.prefetch::<L>(head, 0..queries, depth);
    for (query, log_sum) in log_sums.iter().enumerate() {
        // SAFETY: the caller's promise.
        let (o, o_gradient) = unsafe { (o.row(head, query, depth), o_gradient.row(head, query, depth)) };
        job.operands[3].prefetch_next::<L>(o);
        job.operands[4].prefetch_next::<L>(o_gradient);
        widen(o, left);
        widen(o_gradient, right);
        statistics.product[to + query] = lanes::dot(left, right);
        statistics.log_sum[to + query] = *log_sum;
    }
}

/// Loads queries and the gradients of their results.
///
/// # Safety
/// As for [`In::slice`], and the machine must have the level.
#[inline(always)]
unsafe fn load_queries<L: Level, T: Element>(
    job: &Gradient<T>,
    head: (usize, usize),
    block: Range<usize>,
    tiles: &mut Tiles<'_>,
) {
    let depth = job.problem.depth;
    let [q, .., o_gradient] = &job.operands;
    let padded = job.problem.padded_depth();
    let words = padded / numbers_per_word::<L>();
    // SAFETY: the caller's promise.
    unsafe {
        q.load_rows::<L>(head, block.clone(), depth, tiles.query_rows, words);
        o_gradient.load_rows::<L>(head, block.clone(), depth, tiles.o_gradient_rows, words);
        if L::PAIRED {
            q.load_steps::<L>(head, block.clone(), depth, tiles.query, padded);
            o_gradient.load_steps::<L>(head, block, depth, tiles.o_gradient, padded);
        }
    }
}

/// The gradient of the queries, if there are several segments: the sum of their shares, scaled.
pub struct QueryGradient<T> {
    problem: Problem,
    segments: Segments,
    shares: In<f32>,
    joint: Joint<T>,
    body: unsafe fn(&QueryGradient<T>, usize, &mut [f32]),
}

impl<T: Element> QueryGradient<T> {
    /// The result is a part of the joint gradient.
    pub fn new(isa: Isa, problem: Problem, shares: In<f32>, joint: Out<T>) -> QueryGradient<T> {
        let (segments, joint) = (Segments::new(&problem), Joint::new(&problem, joint));
        QueryGradient { problem, segments, shares, joint, body: sums_of::select(isa) }
    }

    fn rows(&self) -> usize {
        self.problem.batch * self.problem.heads * self.problem.places()
    }
}

impl<T: Element> Job for QueryGradient<T> {
    fn parts(&self) -> usize {
        if self.segments.are_one() { 0 } else { parts_of(self.rows(), ROWS_PER_PART) }
    }

    fn worker_scratch(&self) -> usize {
        self.problem.padded_depth() * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint ranges, and the machine has the level, since whoever
        // built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

multiversion! {
    /// A part: some places of some heads.
    fn sums_of<T: Element>(job: &QueryGradient<T>, part: usize, sums: &mut [f32]) {
        let Problem { heads, queries, depth, scale, .. } = job.problem;
        let padded = job.problem.padded_depth();
        let sums = &mut sums[..padded];
        for row in chunk(part, ROWS_PER_PART, job.rows()) {
            let (sequence, query) = (row / job.problem.places(), row % job.problem.places());
            sums.fill(0.0);
            for segment in 0..if query < queries { job.segments.count } else { 0 } {
                let row = sequence * job.segments.share_rows + query;
                let start = segment * job.segments.share + row * padded;
                // SAFETY: the shares are written and nothing writes to them any more.
                let share = unsafe { job.shares.slice(start..start + padded) };
                for (sum, share) in sums.iter_mut().zip(share) {
                    *sum += share;
                }
            }
            let head = (sequence / heads, sequence % heads);
            // SAFETY: the row is this part's own.
            unsafe { job.joint.q.store_rows(head, query..query + 1, depth, (sums, padded), scale) };
        }
    }
}

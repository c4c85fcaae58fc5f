//! Attention: each part takes a block of queries over all keys that they see, block by block, keeping for each
//! query about the largest score so far, the sum of exponentials and the weighted sum of values.
//!
//! Everything is held with queries along the lanes: scores by (key, query), sums by (depth, query). Then nothing
//! is reduced across lanes, and keys and values are used as they lie. Scores are powers of two: an exponential is
//! one of those after a multiplication, which scores need anyway.

use super::level::{Level, for_each_level, numbers_per_word};
use super::load::transpose;
use super::tile::{BAND, COLUMN_MULTIPLE, Extent, Product, ROW_MULTIPLE};
use super::{BLOCK, Heads, HeadsMut, Problem, heads_of_a_part, power_of_two, take};
use crate::{Element, Isa, Job, Out, chunk, math, parts_of};
use std::f32::consts::LOG2_E;
use std::ops::Range;

/// Queries of a part: a tile of keys is loaded once for so many.
const QUERIES: usize = 128;
/// Queries that are computed together: two vectors of the widest level.
const PANEL: usize = 32;
/// How far, as powers of two, scores may rise above what the sums are relative to before the sums are corrected:
/// a pass over all sums, which with random scores almost every block of keys would need. Weights stay below 2^8, and
/// sums of them far from what an f32 holds.
const SLACK: f32 = 8.0;

/// `softmax(scale * q * k^T) * v`, and the binary logarithms of the sums of exponentials: natural ones, transposed to binary
/// again, would be off by what a probability shows where scores are large.
pub struct Attention<T> {
    problem: Problem,
    q: Heads<T>,
    k: Heads<T>,
    v: Heads<T>,
    o: HeadsMut<T>,
    log_sum: Out<f32>,
    body: unsafe fn(&Attention<T>, usize, &mut [f32]),
}

impl<T: Element> Attention<T> {
    /// The logarithms are dense, by (batch, head, query).
    pub fn new(
        isa: Isa,
        problem: Problem,
        [q, k, v]: [Heads<T>; 3],
        o: HeadsMut<T>,
        log_sum: Out<f32>,
    ) -> Attention<T> {
        Attention { problem, q, k, v, o, log_sum, body: block_of::select(isa) }
    }

    fn blocks(&self) -> usize {
        parts_of(self.problem.queries, QUERIES)
    }

    /// Heads of a part.
    fn heads(&self) -> usize {
        heads_of_a_part(self.problem.batch * self.problem.heads * self.blocks())
    }

    /// Numbers that a panel of queries keeps.
    fn panel_numbers(&self) -> usize {
        (2 * self.problem.padded_depth() + 2) * PANEL
    }
}

impl<T: Element> Job for Attention<T> {
    fn parts(&self) -> usize {
        self.problem.batch * parts_of(self.problem.heads, self.heads()) * self.blocks()
    }

    fn worker_scratch(&self) -> usize {
        let panels = self.problem.queries.min(QUERIES).div_ceil(PANEL);
        let tiles = BLOCK * (2 * self.problem.padded_depth() + PANEL);
        (panels * self.panel_numbers() + tiles) * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise; parts are disjoint blocks of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, bytemuck::cast_slice_mut(scratch)) }
    }
}

/// Some queries, one a lane, and what the softmax knows of each after the keys so far.
struct Panel<'a> {
    /// Words of the queries, by (depth, query).
    query: &'a mut [f32],
    /// The weighted sum of values, by (depth, query).
    sums: &'a mut [f32],
    /// The score that sums are relative to: not much below the largest so far.
    level: &'a mut [f32; PANEL],
    /// The sum of exponentials.
    total: &'a mut [f32; PANEL],
}

impl<'a> Panel<'a> {
    #[inline(always)]
    fn new(mut scratch: &'a mut [f32]) -> Panel<'a> {
        let row = |rest: &mut &'a mut [f32]| -> &'a mut [f32; PANEL] {
            take(rest, PANEL).try_into().expect("a number for each lane")
        };
        let (level, total) = (row(&mut scratch), row(&mut scratch));
        let (query, sums) = scratch.split_at_mut(scratch.len() / 2);
        Panel { query, sums, level, total }
    }
}

/// A block of keys and values, and the scores of a panel with them.
struct Tiles<'a> {
    /// Words of the keys, by (key, depth).
    key: &'a mut [f32],
    /// Words of the values, by (key, depth).
    value: &'a mut [f32],
    /// Scores, then words of weights, by (key, query).
    scores: &'a mut [f32],
}

for_each_level! {
    /// A part: a block of queries of some heads.
    fn block_of<L, T>(job: &Attention<T>, part: usize, scratch: &mut [f32]) {
        let (rest, block) = (part / job.blocks(), part % job.blocks());
        let groups = parts_of(job.problem.heads, job.heads());
        for head in chunk(rest % groups, job.heads(), job.problem.heads) {
            let block = chunk(block, QUERIES, job.problem.queries);
            // SAFETY: the caller's promise.
            unsafe { one_head::<L, T>(job, (rest / groups, head), block, scratch) }
        }
    }
}

/// A block of queries of one head.
///
/// # Safety
/// As for [`Job::run`], and the machine must have the level.
#[inline(always)]
unsafe fn one_head<L: Level, T: Element>(
    job: &Attention<T>,
    (batch, head): (usize, usize),
    block: Range<usize>,
    scratch: &mut [f32],
) {
    let Problem { heads, queries, depth, .. } = job.problem;
    let padded = job.problem.padded_depth();
    let words = padded / numbers_per_word::<L>();
    let key_head = (batch, head / job.problem.group());

    let mut rest = scratch;
    let tiles = &mut Tiles {
        key: take(&mut rest, BLOCK * padded),
        value: take(&mut rest, BLOCK * padded),
        scores: take(&mut rest, BLOCK * PANEL),
    };
    let panels = take(&mut rest, block.len().div_ceil(PANEL) * job.panel_numbers());
    for (start, panel) in block.clone().step_by(PANEL).zip(panels.chunks_exact_mut(job.panel_numbers())) {
        let places = start..(start + PANEL).min(block.end);
        let panel = Panel::new(panel);
        job.o.prefetch::<L>((batch, head), places.clone(), depth);
        panel.level.fill(f32::NEG_INFINITY);
        panel.total.fill(0.0);
        // SAFETY: the operands are alive and nothing writes to them, by the caller's promise.
        unsafe { job.q.load_rows::<L>((batch, head), places.clone(), depth, tiles.key, words) };
        // Whether sums are corrected is decided for all lanes together: those without a query must be the same always.
        tiles.key[places.len() * words..PANEL * words].fill(0.0);
        transpose::<L>((tiles.key, words), [PANEL, words], (panel.query, PANEL));
    }
    let seen = job.problem.visible(block.end - 1);
    for start in (first_block(&job.problem, block.start)..seen).step_by(BLOCK) {
        let places = start..(start + BLOCK).min(seen);
        // SAFETY: as above.
        unsafe {
            job.k.load_rows::<L>(key_head, places.clone(), depth, tiles.key, words);
            job.v.load_steps::<L>(key_head, places.clone(), depth, tiles.value, padded);
        }
        for (start, panel) in block.clone().step_by(PANEL).zip(panels.chunks_exact_mut(job.panel_numbers())) {
            let last = (start + PANEL).min(block.end) - 1;
            let places = places.start..places.end.min(job.problem.visible(last));
            if !places.is_empty() && places.start >= first_block(&job.problem, start) {
                let panel = &mut Panel::new(panel);
                attend::<L>(&job.problem, panel, tiles, start, places);
            }
        }
    }
    for (start, panel) in block.clone().step_by(PANEL).zip(panels.chunks_exact_mut(job.panel_numbers())) {
        let places = start..(start + PANEL).min(block.end);
        let panel = Panel::new(panel);
        let row = (batch * heads + head) * queries;
        transpose::<L>((panel.sums, PANEL), [padded, PANEL], (tiles.value, padded));
        // SAFETY: the rows are this part's own.
        let log_sums = unsafe { job.log_sum.slice(row + places.start..row + places.end) };
        let rows = tiles.value.chunks_exact(padded).zip(panel.level.iter().zip(panel.total));
        for ((place, log_sum), (sums, (level, total))) in places.zip(log_sums).zip(rows) {
            // SAFETY: as above.
            unsafe { job.o.store_rows((batch, head), place..place + 1, depth, (sums, padded), 1.0 / *total) };
            *log_sum = level + math::log(*total) * LOG2_E;
        }
    }
}

/// Where the first block of keys of which a query sees any begins.
#[inline(always)]
fn first_block(problem: &Problem, query: usize) -> usize {
    problem.first_visible(query) / BLOCK * BLOCK
}

/// Takes keys and values into the sums of a panel, whose first query is given.
#[inline(always)]
fn attend<L: Level>(problem: &Problem, panel: &mut Panel<'_>, tiles: &mut Tiles<'_>, first: usize, keys: Range<usize>) {
    let padded = problem.padded_depth();
    let words = problem.depth.div_ceil(numbers_per_word::<L>());
    let left_row = padded / numbers_per_word::<L>();
    let product = Product { left: tiles.key, left_row, left_step: 1, right: panel.query, right_step: PANEL };
    for start in (0..keys.len()).step_by(BAND) {
        let rows = start..(start + BAND).min(keys.len());
        let (blind, beyond) = sight(problem, first, keys.start + rows.start..keys.start + rows.end);
        let columns = blind / COLUMN_MULTIPLE * COLUMN_MULTIPLE..beyond.next_multiple_of(COLUMN_MULTIPLE);
        product.put::<L>(Extent { rows, steps: 0..words, columns }, tiles.scores, PANEL);
    }
    let scores = &mut tiles.scores.as_chunks_mut::<PANEL>().0[..keys.len()];
    let is_cut =
        |first: usize, last: usize| problem.visible(first) < keys.end || problem.first_visible(last) > keys.start;
    if is_cut(first, first + PANEL - 1) {
        hide(problem, first, keys.clone(), scores);
    }
    let is_first = keys.start == first_block(problem, first);
    weigh::<L>(panel, scores, problem.binary_scale(), is_first);

    let sum_rows = problem.depth.next_multiple_of(ROW_MULTIPLE);
    let product = Product { left: tiles.value, left_row: 1, left_step: padded, right: tiles.scores, right_step: PANEL };
    let mut add = |columns: Range<usize>| {
        let within = |key: usize| key.clamp(keys.start, keys.end) - keys.start;
        let from = within(problem.first_visible(first + columns.start));
        let seen = within(problem.visible(first + columns.end - 1));
        let steps = from / numbers_per_word::<L>()..seen.div_ceil(numbers_per_word::<L>());
        let extent = Extent { rows: 0..sum_rows, steps, columns };
        match is_first {
            true => product.put::<L>(extent, panel.sums, PANEL),
            false => product.add::<L>(extent, panel.sums, PANEL),
        }
    };
    if is_cut(first + COLUMN_MULTIPLE - 1, first + COLUMN_MULTIPLE) {
        add(0..COLUMN_MULTIPLE);
        add(COLUMN_MULTIPLE..PANEL);
    } else {
        add(0..PANEL);
    }
}

/// The lanes of a panel, whose first query is given, before the first that sees any of the keys, and from where on none
/// does.
#[inline(always)]
fn sight(problem: &Problem, first: usize, keys: Range<usize>) -> (usize, usize) {
    let lane = |query: usize| query.saturating_sub(first).min(PANEL);
    let beyond = if problem.causal { lane(problem.end_query(keys.end - 1)) } else { PANEL };
    (lane(problem.first_query(keys.start)), beyond)
}

/// Hides from each query the keys behind its own place and those before its window.
#[inline(always)]
fn hide(problem: &Problem, first: usize, keys: Range<usize>, scores: &mut [[f32; PANEL]]) {
    for (key, scores) in keys.zip(scores) {
        let (blind, beyond) = sight(problem, first, key..key + 1);
        scores[..blind].fill(f32::NEG_INFINITY);
        scores[beyond..].fill(f32::NEG_INFINITY);
    }
}

/// What sums are relative to; anything if there are none yet, as in a block that lies before a query's window.
#[inline(always)]
fn finite(level: f32) -> f32 {
    if level == f32::NEG_INFINITY { 0.0 } else { level }
}

/// Turns scores to weights, and corrects the sums where scores have grown too far above what they are relative to.
#[inline(always)]
fn weigh<L: Level>(panel: &mut Panel<'_>, scores: &mut [[f32; PANEL]], scale: f32, is_first: bool) {
    let mut largest = *panel.level;
    for scores in scores.iter() {
        for (largest, score) in largest.iter_mut().zip(scores) {
            // A NaN is not kept here, but its weight will be one.
            *largest = if score * scale > *largest { score * scale } else { *largest };
        }
    }
    let mut total = *panel.total;
    let mut has_grown = false;
    for (largest, level) in largest.iter().zip(&*panel.level) {
        has_grown |= *largest > *level + SLACK;
    }
    if has_grown {
        if !is_first {
            correct::<L>(panel, &largest, &mut total);
        }
        *panel.level = largest;
    }
    let level = panel.level.map(finite);
    let mut weights = |scores: &[f32; PANEL]| {
        let mut weights = [0.0; PANEL];
        for lane in 0..PANEL {
            weights[lane] = power_of_two::<L>(L::multiply_add(scores[lane], scale, -level[lane]));
            total[lane] += weights[lane];
        }
        weights
    };
    if L::PAIRED {
        for index in 0..scores.len().div_ceil(2) {
            let first = weights(&scores[2 * index]);
            let second = scores.get(2 * index + 1).map_or([0.0; PANEL], &mut weights);
            scores[index] = pairs::<L>(&first, &second);
        }
    } else {
        for scores in scores {
            *scores = weights(scores);
        }
    }
    *panel.total = total;
}

/// Makes the sums relative to other scores.
#[inline(always)]
fn correct<L: Level>(panel: &mut Panel<'_>, level: &[f32; PANEL], total: &mut [f32; PANEL]) {
    let mut correction = [0.0; PANEL];
    for lane in 0..PANEL {
        correction[lane] = power_of_two::<L>(panel.level[lane] - finite(level[lane]));
        total[lane] *= correction[lane];
    }
    for sums in panel.sums.as_chunks_mut::<PANEL>().0 {
        for (sum, correction) in sums.iter_mut().zip(&correction) {
            *sum *= correction;
        }
    }
}

/// Words of two rows of weights.
#[inline(always)]
fn pairs<L: Level>(first: &[f32; PANEL], second: &[f32; PANEL]) -> [f32; PANEL] {
    let mut words = [0.0; PANEL];
    let halves =
        words.as_chunks_mut::<16>().0.iter_mut().zip(first.as_chunks::<16>().0.iter().zip(second.as_chunks::<16>().0));
    for (words, (first, second)) in halves {
        // SAFETY: only of a level that the machine has is there a kernel.
        *words = unsafe { L::pairs(*first, *second) };
    }
    words
}

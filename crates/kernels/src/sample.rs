//! Choosing a token by its logits, without sorting them.
//!
//! Logits are compared as integers in the same order, and probabilities are counted in integers, so that sums are exact. Of
//! the order, no more is found than where it ends: a rank, and how many of the tokens at it are still considered.

use crate::isa::multiversion;
use crate::top_k::Sortable;
use crate::{Element, In, Isa, Job, Out, math};

/// What the likeliest token weighs; others weigh their share of it, rounded.
const WHOLE: f32 = (1 << 30) as f32;
/// Ranks are narrowed down by so many bits in a pass.
const DIGIT_BITS: u32 = 10;
const BINS: usize = 1 << DIGIT_BITS;
/// Tokens that are passed over together.
const BLOCK: usize = 1024;
/// Tokens that a word of the allowed ones tells of.
pub const WORD_TOKENS: usize = 32;

/// What a token is chosen by, and where it goes: all of it dense.
#[derive(Clone, Copy)]
pub struct SampleOperands<T> {
    /// [rows, columns].
    pub logits: In<T>,
    /// A bit for each column, the lowest of a word first: whether it may be chosen.
    pub allowed: In<u32>,
    /// Where in the distribution the choice of each row falls, from 0 to 1, 1 excluded.
    pub uniform: In<f32>,
    /// What logits are divided by; the likeliest is chosen if it is not above 0.
    pub temperature: In<f32>,
    /// How many of the likeliest are considered, one at least.
    pub top_k: In<i32>,
    /// The probability that those have which are considered, if it is less than 1.
    pub top_p: In<f32>,
    /// The choice of each row, -1 where there is none to be made.
    pub tokens: Out<i32>,
}

/// A token for each row.
pub struct Sample<T> {
    operands: SampleOperands<T>,
    columns: usize,
    body: unsafe fn(&Sample<T>, usize, &mut [u32]),
}

impl<T: Element> Sample<T> {
    /// Of rows of so many logits.
    pub fn new(isa: Isa, operands: SampleOperands<T>, columns: usize) -> Sample<T> {
        Sample { operands, columns, body: row_of::select(isa) }
    }
}

impl<T: Element> Job for Sample<T> {
    fn parts(&self) -> usize {
        self.operands.tokens.len()
    }

    fn worker_scratch(&self) -> usize {
        2 * self.columns * size_of::<u32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let scratch = &mut bytemuck::cast_slice_mut(scratch)[..2 * self.columns];
        // SAFETY: the caller's promise; a part has a row of its own, and the machine has the level, since whoever built
        // the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, scratch) }
    }
}

multiversion! {
    /// The choice of a row.
    fn row_of<T: Element>(job: &Sample<T>, row: usize, scratch: &mut [u32]) {
        let at = &job.operands;
        // SAFETY: the row is inside the logits, every other operand is of the size that it says, and nothing writes to them
        // while the job runs.
        let (logits, allowed, settings) = unsafe {
            let settings = Settings {
                uniform: at.uniform.slice(row..row + 1)[0],
                temperature: at.temperature.slice(0..1)[0],
                top_k: at.top_k.slice(0..1)[0],
                top_p: at.top_p.slice(0..1)[0],
            };
            let logits = at.logits.slice(row * job.columns..(row + 1) * job.columns);
            (logits, at.allowed.slice(0..job.columns.div_ceil(WORD_TOKENS)), settings)
        };
        let (ranks, weights) = scratch.split_at_mut(job.columns);
        let choice = match rank(logits, allowed, ranks) {
            Some(range) => settings.choose(range, ranks, weights) as i32,
            None => -1,
        };
        // SAFETY: the element is this part's own, and lies over no operand.
        unsafe { at.tokens.slice(row..row + 1)[0] = choice }
    }
}

/// What the ranks of allowed tokens are.
struct Ranked {
    largest: u32,
    smallest: u32,
    count: u64,
}

impl Ranked {
    #[inline(always)]
    fn with(self, other: Ranked) -> Ranked {
        Ranked {
            largest: self.largest.max(other.largest),
            smallest: self.smallest.min(other.smallest),
            count: self.count + other.count,
        }
    }
}

/// The ranks of a row, 0 where a token is not allowed: no finite number has that. Nothing if no token is allowed, or one whose
/// logit is not finite.
#[inline(always)]
fn rank<T: Element>(logits: &[T], allowed: &[u32], ranks: &mut [u32]) -> Option<Ranked> {
    let (whole, rest) = logits.as_chunks::<WORD_TOKENS>();
    let (ranks, ranks_of_rest) = ranks.as_chunks_mut::<WORD_TOKENS>();
    let mut all = Ranked { largest: 0, smallest: u32::MAX, count: 0 };
    for ((logits, ranks), &word) in whole.iter().zip(ranks).zip(allowed) {
        all = all.with(rank_word(logits, word, ranks));
    }
    if let Some(&word) = allowed.get(whole.len()) {
        all = all.with(rank_word(rest, word, ranks_of_rest));
    }
    let Ranked { largest, smallest, .. } = all;
    let is_finite = f32::MIN.rank() <= smallest && largest <= f32::MAX.rank();
    (largest > 0 && is_finite).then_some(all)
}

/// The ranks of the tokens of a word. All of the word's are known to be so many where it is whole, and vectors are made of them.
#[inline(always)]
fn rank_word<T: Element>(logits: &[T], word: u32, ranks: &mut [u32]) -> Ranked {
    let (mut largest, mut smallest) = (0, u32::MAX);
    for (bit, (logit, to)) in logits.iter().zip(ranks).enumerate() {
        let (mask, rank) = ((word >> bit & 1).wrapping_neg(), logit.to_f32().rank());
        *to = rank & mask;
        largest = largest.max(rank & mask);
        smallest = smallest.min(rank | !mask);
    }
    let there = ((1u64 << logits.len()) - 1) as u32;
    Ranked { largest, smallest, count: (word & there).count_ones() as u64 }
}

/// The number of a rank; NaN for 0.
#[inline(always)]
fn number(rank: u32) -> f32 {
    f32::from_bits(if rank >> 31 == 1 { rank ^ 1 << 31 } else { !rank })
}

/// The tokens that are considered: all above a rank, and of those at it so many, the first ones.
#[derive(Clone, Copy)]
struct Considered {
    above: u32,
    ties: u64,
}

struct Settings {
    uniform: f32,
    temperature: f32,
    top_k: i32,
    top_p: f32,
}

impl Settings {
    #[inline(always)]
    fn choose(&self, range: Ranked, ranks: &[u32], weights: &mut [u32]) -> usize {
        let most = if self.temperature > 0.0 { self.top_k.max(1) as u64 } else { 1 };
        if most == 1 {
            return place_of(range.largest, ranks);
        }
        weigh(ranks, range.largest, self.temperature, weights);
        let mut considered = Considered { above: 0, ties: 0 };
        if most < range.count {
            considered = descend(ranks, [range.smallest, range.largest], most, |_| 1);
        }
        let mut total = total(ranks, weights, considered);
        if self.top_p < 1.0 {
            let wanted = ((self.top_p as f64 * total as f64).ceil() as u64).clamp(1, total);
            let lowest = considered.above.max(range.smallest);
            considered = descend(ranks, [lowest, range.largest], wanted, |place| weights[place] as u64);
            total = self::total(ranks, weights, considered);
        }
        // The first token whose sum of weights, with all before it, is more than this share of them.
        let wanted = ((self.uniform as f64 * total as f64) as u64).min(total - 1) + 1;
        reach(ranks, weights, considered, wanted)
    }
}

/// Where a rank is first.
fn place_of(rank: u32, ranks: &[u32]) -> usize {
    ranks.iter().position(|&other| other == rank).expect("a rank that was found in the row")
}

/// What each token weighs; 0 if it is not allowed.
#[inline(always)]
fn weigh(ranks: &[u32], largest: u32, temperature: f32, weights: &mut [u32]) {
    let largest = number(largest);
    for (&rank, weight) in ranks.iter().zip(weights) {
        let share = math::exp((number(rank) - largest) / temperature) * WHOLE + 0.5;
        // Of rank 0, NaN becomes 0.
        let share = if share > 0.0 { share.min(2.0 * WHOLE - 128.0) } else { 0.0 };
        // SAFETY: it is from 0 to less than 2^31. A cast that looks by itself is not made for vectors: with one, rows of 50,257
        // took 2.5 times as long.
        *weight = unsafe { share.to_int_unchecked::<i32>() } as u32;
    }
}

/// The first tokens in order, the largest rank first, that together weigh what is wanted: so much must be there among those
/// whose ranks are in the range.
#[inline(always)]
fn descend(ranks: &[u32], [lowest, largest]: [u32; 2], wanted: u64, weight: impl Fn(usize) -> u64) -> Considered {
    // How far below the largest the rank is at least, and what lies between.
    let (mut distance, mut before) = (0, 0);
    let mut shift = u32::BITS - (largest - lowest).leading_zeros();
    loop {
        shift = shift.saturating_sub(DIGIT_BITS);
        let mut bins = [0; BINS];
        for (place, &rank) in ranks.iter().enumerate().filter(|&(_, &rank)| rank >= lowest) {
            let digit = (largest - rank).wrapping_sub(distance) >> shift;
            if let Some(bin) = bins.get_mut(digit as usize) {
                *bin += weight(place);
            }
        }
        let mut digit = 0;
        while before + bins[digit] < wanted {
            before += bins[digit];
            digit += 1;
        }
        distance += (digit as u32) << shift;
        if shift == 0 {
            let rank = largest - distance;
            return Considered { above: rank, ties: (wanted - before).div_ceil(weight(place_of(rank, ranks))) };
        }
    }
}

/// What the tokens weigh that are considered.
#[inline(always)]
fn total(ranks: &[u32], weights: &[u32], considered: Considered) -> u64 {
    let above = |(&rank, &weight): (&u32, &u32)| if rank > considered.above { weight as u64 } else { 0 };
    let total: u64 = ranks.iter().zip(weights).map(above).sum();
    match considered.ties {
        0 => total,
        ties => total + ties * weights[place_of(considered.above, ranks)] as u64,
    }
}

/// The first token that, with those before it, weighs what is wanted.
#[inline(always)]
fn reach(ranks: &[u32], weights: &[u32], considered: Considered, wanted: u64) -> usize {
    let (mut considered, mut sum) = (considered, 0);
    for (block, (ranks, weights)) in ranks.chunks(BLOCK).zip(weights.chunks(BLOCK)).enumerate() {
        // Whole blocks are passed over where it is not in them, in vectors.
        let ties = ranks.iter().filter(|&&rank| rank == considered.above).count() as u64;
        let of_block = total(ranks, weights, Considered { ties: ties.min(considered.ties), ..considered });
        if sum + of_block < wanted {
            sum += of_block;
            considered.ties -= ties.min(considered.ties);
            continue;
        }
        for (place, (&rank, &weight)) in ranks.iter().zip(weights).enumerate() {
            let is_tie = rank == considered.above && considered.ties > 0;
            considered.ties -= is_tie as u64;
            if is_tie || rank > considered.above {
                sum += weight as u64;
                if sum >= wanted {
                    return block * BLOCK + place;
                }
            }
        }
    }
    unreachable!("no more is wanted than there is")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks of numbers that lie as these bits say, with many that are equal.
    fn ranks(range: [u32; 2], step: u64) -> Vec<u32> {
        let width = (range[1] - range[0]) as u64;
        let between = (0..3000u64).map(|i| range[0] + (i * i % 1009 * step % (width + 1)) as u32);
        between.chain(range).collect()
    }

    #[test]
    fn the_order_ends_where_that_of_sorted_tokens_does() {
        let finite = [f32::MIN.rank(), f32::MAX.rank()];
        let ranges = [finite, [7, 7], [7, 8], [1 << 31, (1 << 31) + 1023], [1 << 20, (1 << 24) + 5]];
        for (range, step) in ranges.into_iter().flat_map(|range| [1, 7919, 40_503_001].map(|step| (range, step))) {
            let mut ranks = ranks(range, step);
            ranks.extend([0, 1, 5]);
            let weight =
                |place: usize| if ranks[place].is_multiple_of(3) { 0 } else { 1 + ranks[place] as u64 % (1 << 30) };
            let mut order: Vec<usize> = (0..ranks.len()).filter(|&place| ranks[place] >= range[0]).collect();
            order.sort_by_key(|&place| std::cmp::Reverse(ranks[place]));
            for weight in [&weight as &dyn Fn(usize) -> u64, &|_| 1] {
                let total: u64 = order.iter().map(|&place| weight(place)).sum();
                for wanted in [1, 2, total / 3, total - 1, total].map(|wanted| wanted.clamp(1, total.max(1))) {
                    if wanted > total {
                        continue;
                    }
                    let mut sum = 0;
                    let last = order.iter().position(|&place| {
                        sum += weight(place);
                        sum >= wanted
                    });
                    let last = last.unwrap();
                    let above = ranks[order[last]];
                    let ties = order[..=last].iter().filter(|&&place| ranks[place] == above).count() as u64;
                    let found = descend(&ranks, range, wanted, weight);
                    assert_eq!((found.above, found.ties), (above, ties), "{wanted} of {total} in {range:?}");
                }
            }
        }
    }

    #[test]
    fn ranks_stand_for_numbers() {
        for x in [0.0, -1.5, 1e-45, -1e-45, f32::MIN, f32::MAX] {
            assert_eq!(number(x.rank()), x);
        }
        assert_eq!(number((-0.0f32).rank()).to_bits(), 0);
        assert!(number(0).is_nan());
        let mut ranks = [9; 3];
        let row = [f32::MAX, f32::NAN, f32::MIN];
        assert!(rank(&row, &[0b101], &mut ranks).is_some_and(|found| found.count == 2));
        assert_eq!(ranks, [f32::MAX.rank(), 0, f32::MIN.rank()]);
        assert!(rank(&row, &[0b010], &mut ranks).is_none() && rank(&row, &[!0b111], &mut ranks).is_none());
        for infinite in [f32::INFINITY, f32::NEG_INFINITY] {
            assert!(rank(&[0.0, infinite], &[u32::MAX], &mut ranks[..2]).is_none());
        }
    }
}

//! Both kernels against a straightforward computation in f64.

use super::*;
use crate::{Element, In, Isa, Out, bf16, run_alone};
use std::ops::Range;

const CASES: [Problem; 20] = [
    problem([1, 1, 1], [1, 1], 1, false),
    problem([2, 2, 1], [3, 5], 7, true),
    problem([1, 2, 2], [65, 65], 16, true),
    problem([1, 3, 3], [64, 64], 8, false),
    problem([2, 4, 2], [70, 131], 33, true),
    problem([1, 6, 2], [130, 67], 24, false),
    problem([1, 1, 1], [1, 200], 64, true),
    problem([1, 2, 2], [200, 200], 32, true),
    problem([40, 1, 1], [37, 41], 20, true),
    problem([3, 1, 1], [0, 4], 3, false),
    problem([0, 4, 2], [5, 5], 4, true),
    windowed([1, 2, 1], [5, 5], 2),
    windowed([1, 2, 2], [70, 70], 3),
    windowed([2, 2, 1], [200, 200], 64),
    windowed([1, 4, 2], [200, 200], 65),
    windowed([1, 1, 1], [300, 300], 17),
    windowed([40, 1, 1], [130, 400], 100),
    windowed([1, 2, 2], [1, 200], 7),
    windowed([1, 1, 1], [140, 140], 139),
    windowed([1, 1, 1], [140, 140], 1000),
];

/// Causal, with a window of so many keys.
const fn windowed(heads: [usize; 3], places: [usize; 2], window: usize) -> Problem {
    Problem { window, ..problem(heads, places, 12, true) }
}

const fn problem(
    [batch, heads, key_heads]: [usize; 3],
    [queries, keys]: [usize; 2],
    depth: usize,
    causal: bool,
) -> Problem {
    Problem { batch, heads, key_heads, queries, keys, depth, causal, window: usize::MAX, scale: 0.3 }
}

/// Random numbers between -1 and 1, the same in every run.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((state >> 40) as f64 / (1u64 << 23) as f64 - 1.0) as f32 as f64
    };
    (0..count).map(|_| next()).collect()
}

/// An operand of axes (batch, head, place, depth) that lies in memory as (batch, place, head, depth), with room
/// behind each row: what a slice of a joint projection looks like.
struct Operand<T> {
    elements: Vec<T>,
    strides: [usize; 3],
    sizes: [usize; 4],
}

impl<T: Element> Operand<T> {
    fn new(seed: u64, sizes: [usize; 4]) -> Operand<T> {
        let [batch, heads, places, depth] = sizes;
        let row = depth + 3;
        let strides = [places * heads * row, row, heads * row];
        let elements = numbers(seed, batch * places * heads * row).into_iter().map(|x| T::from_f32(x as f32)).collect();
        Operand { elements, strides, sizes }
    }

    fn heads(&self) -> Heads<T> {
        Heads { elements: In::new(self.elements.as_ptr(), self.elements.len()), strides: self.strides }
    }

    fn at(&self, [batch, head, place]: [usize; 3], column: usize) -> f64 {
        let start = batch * self.strides[0] + head * self.strides[1] + place * self.strides[2];
        self.elements[start + column].to_f32() as f64
    }

    /// The product of a row with a row of another operand.
    fn dot(&self, row: [usize; 3], other: &Operand<T>, other_row: [usize; 3]) -> f64 {
        (0..self.sizes[3]).map(|c| self.at(row, c) * other.at(other_row, c)).sum()
    }
}

/// Results in f64, dense.
struct Expected {
    o: Vec<f64>,
    log_sum: Vec<f64>,
    q_gradient: Vec<f64>,
    k_gradient: Vec<f64>,
    v_gradient: Vec<f64>,
}

struct Operands<T> {
    q: Operand<T>,
    k: Operand<T>,
    v: Operand<T>,
    o_gradient: Operand<T>,
}

impl<T: Element> Operands<T> {
    fn new(p: &Problem) -> Operands<T> {
        Operands {
            q: Operand::new(1, [p.batch, p.heads, p.queries, p.depth]),
            k: Operand::new(2, [p.batch, p.key_heads, p.keys, p.depth]),
            v: Operand::new(3, [p.batch, p.key_heads, p.keys, p.depth]),
            o_gradient: Operand::new(4, [p.batch, p.heads, p.queries, p.depth]),
        }
    }
}

fn expected<T: Element>(p: &Problem, x: &Operands<T>) -> Expected {
    let rows = p.batch * p.heads * p.queries;
    let key_rows = p.batch * p.key_heads * p.keys;
    let mut y = Expected {
        o: vec![0.0; rows * p.depth],
        log_sum: vec![0.0; rows],
        q_gradient: vec![0.0; rows * p.depth],
        k_gradient: vec![0.0; key_rows * p.depth],
        v_gradient: vec![0.0; key_rows * p.depth],
    };
    for row in 0..rows {
        let (sequence, query) = (row / p.queries, row % p.queries);
        let (batch, head) = (sequence / p.heads, sequence % p.heads);
        let key_head = head / (p.heads / p.key_heads);
        let at = [batch, head, query];
        let end = if p.causal { query + 1 + p.keys - p.queries } else { p.keys };
        let seen = end.saturating_sub(p.window)..end;
        let scores: Vec<f64> =
            seen.clone().map(|key| p.scale as f64 * x.q.dot(at, &x.k, [batch, key_head, key])).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp() / total).collect();
        let slopes: Vec<f64> = seen.clone().map(|key| x.o_gradient.dot(at, &x.v, [batch, key_head, key])).collect();
        let mean: f64 = slopes.iter().zip(&weights).map(|(slope, weight)| slope * weight).sum();
        y.log_sum[row] = largest * std::f64::consts::LOG2_E + total.log2();
        for ((key, weight), slope) in seen.zip(&weights).zip(&slopes) {
            let key_row = (batch * p.key_heads + key_head) * p.keys + key;
            let score_gradient = weight * (slope - mean) * p.scale as f64;
            for c in 0..p.depth {
                let (to, key_to) = (row * p.depth + c, key_row * p.depth + c);
                y.o[to] += weight * x.v.at([batch, key_head, key], c);
                y.q_gradient[to] += score_gradient * x.k.at([batch, key_head, key], c);
                y.k_gradient[key_to] += score_gradient * x.q.at(at, c);
                y.v_gradient[key_to] += weight * x.o_gradient.at(at, c);
            }
        }
    }
    y
}

/// Compares relative to the largest number.
fn compare<T: Element>(what: &str, actual: &[T], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    let scale = expected.iter().fold(1e-3f64, |largest, x| largest.max(x.abs()));
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let error = (actual.to_f32() as f64 - expected).abs() / scale;
        assert!(error <= tolerance, "{what}[{index}]: {} for {expected}, error {error:e}", actual.to_f32());
    }
}

fn output<T>(numbers: &mut [T]) -> Out<T> {
    Out::new(numbers.as_mut_ptr(), numbers.len())
}

/// A joint result by (batch, place, head, depth): the rows of some of its heads, by (batch, head, place, depth).
fn heads_of<T: Element>(joint: &[T], [batch, places, all_heads, depth]: [usize; 4], heads: Range<usize>) -> Vec<T> {
    let mut rows = vec![];
    for sequence in 0..batch {
        for head in heads.clone() {
            for place in 0..places {
                let start = ((sequence * places + place) * all_heads + head) * depth;
                rows.extend_from_slice(&joint[start..start + depth]);
            }
        }
    }
    rows
}

/// Rows of zeros behind those of each head, up to `places`.
fn padded(rows: &[f64], places: usize, all_places: usize, depth: usize) -> Vec<f64> {
    let mut padded = vec![];
    for head in rows.chunks((places * depth).max(1)) {
        padded.extend_from_slice(head);
        padded.resize(padded.len() + (all_places - places) * depth, 0.0);
    }
    padded
}

fn check<T: Element>(tolerance: f64) {
    for p in &CASES {
        check_case(p, &Operands::<T>::new(p), tolerance);
    }
}

fn check_case<T: Element>(p: &Problem, x: &Operands<T>, tolerance: f64) {
    let y = expected(p, x);
    let (q, k, v, o_gradient) = (x.q.heads(), x.k.heads(), x.v.heads(), x.o_gradient.heads());
    for isa in Isa::available() {
        let garbage = T::from_f32(f32::NAN);
        let mut o = vec![garbage; y.o.len()];
        let mut log_sum = vec![f32::NAN; y.log_sum.len()];
        let strides = [p.queries * p.heads * p.depth, p.depth, p.heads * p.depth];
        let result = HeadsMut { elements: output(&mut o), strides };
        run_alone(&Attention::new(isa, *p, [q, k, v], result, output(&mut log_sum)));
        let what = |name: &str| format!("{name} of {p:?} on {isa}");
        let rows = heads_of(&o, [p.batch, p.queries, p.heads, p.depth], 0..p.heads);
        compare(&what("o"), &rows, &y.o, tolerance);
        compare(&what("log_sum"), &log_sum, &y.log_sum, 2e-6);

        let mut shares = vec![f32::NAN; Segments::new(p).shares()];
        let (places, heads) = (p.queries.max(p.keys), p.heads + 2 * p.key_heads);
        let mut joint = vec![garbage; p.batch * places * heads * p.depth];
        let o = Heads { elements: output(&mut o).as_in(), strides };
        let log_sum = output(&mut log_sum).as_in();
        let shares = output(&mut shares);
        run_alone(&Gradient::new(isa, *p, [q, k, v, o, o_gradient], log_sum, shares, output(&mut joint)));
        run_alone(&QueryGradient::new(isa, *p, shares.as_in(), output(&mut joint)));
        let key_heads = p.heads..p.heads + p.key_heads;
        for (name, heads_there, expected, own_places) in [
            ("q_gradient", 0..p.heads, &y.q_gradient, p.queries),
            ("k_gradient", key_heads.clone(), &y.k_gradient, p.keys),
            ("v_gradient", key_heads.end..heads, &y.v_gradient, p.keys),
        ] {
            let rows = heads_of(&joint, [p.batch, places, heads, p.depth], heads_there);
            let mut expected = padded(expected, own_places, places, p.depth);
            expected.resize(rows.len(), 0.0);
            compare(&what(name), &rows, &expected, tolerance);
        }
    }
}

/// Scores of about 10^4 that f32 holds exactly: what is off in the gradients comes from what the forward pass keeps. The
/// binary logarithm of a sum, of about 14,000, is off by half of 2^-10, which is 3.4e-4 of a probability; without a fused
/// multiply-add, so is each score.
#[test]
fn probabilities_of_large_scores() {
    let p = Problem { scale: 1.0, ..problem([60, 1, 1], [1, 70], 16, false) };
    let mut x = Operands::<f32>::new(&p);
    for (row, query) in x.q.elements.chunks_mut(16 + 3).enumerate() {
        query.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
        query[0] = 70.0 + row as f32;
    }
    for key in x.k.elements.chunks_mut(16 + 3) {
        key.iter_mut().for_each(|x| *x = (*x * 8.0).round() / 8.0);
        key[0] = 104.0;
    }
    check_case(&p, &x, 6e-4);
}

/// Every eighth of the numbers that matter, and those at the edges.
#[test]
fn powers_of_two_are_within_their_tolerance() {
    let power = power_of_two::<level::Baseline>;
    for eighth in -126 * 8 * 64..=127 * 8 * 64 {
        let x = eighth as f32 / (8.0 * 64.0);
        let exact = (x as f64).exp2();
        assert!((power(x) as f64 - exact).abs() <= exact * 2.6e-7, "2^{x}: {} for {exact}", power(x));
    }
    assert_eq!(power(0.0), 1.0);
    assert_eq!([power(-126.6), power(-1e30), power(f32::NEG_INFINITY)], [0.0; 3]);
    assert!(power(f32::NAN).is_nan() && power(f32::from_bits(0xffff_ffff)).is_nan());
}

#[test]
fn f32_equals_the_f64_computation() {
    check::<f32>(3e-6);
}

#[test]
fn bf16_equals_the_f64_computation_to_its_precision() {
    check::<bf16>(1.0 / 128.0);
}

/// Runs a forward pass with scratch that holds `stale` numbers at first; the bits of the result.
fn bits_with_scratch(isa: Isa, p: &Problem, stale: f32) -> Vec<u32> {
    let x = Operands::<f32>::new(p);
    let mut o = vec![0.0f32; p.batch * p.heads * p.queries * p.depth];
    let mut log_sum = vec![0.0f32; p.batch * p.heads * p.queries];
    let strides = [p.queries * p.heads * p.depth, p.depth, p.heads * p.depth];
    let result = HeadsMut { elements: output(&mut o), strides };
    let job = Attention::new(isa, *p, [x.q.heads(), x.k.heads(), x.v.heads()], result, output(&mut log_sum));
    let numbers = crate::Job::worker_scratch(&job) / 4;
    let mut scratch = vec![stale; numbers + 16];
    let start = scratch.as_ptr().align_offset(64);
    for part in 0..crate::Job::parts(&job) {
        scratch.fill(stale);
        let scratch = &mut scratch[start..start + numbers];
        // SAFETY: operands and results live in this function.
        unsafe { crate::Job::run(&job, part, bytemuck::cast_slice_mut(scratch)) };
    }
    o.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn what_lies_in_scratch_does_not_matter() {
    let p = Problem { scale: 3.0, ..problem([1, 2, 2], [20, 400], 16, false) };
    for isa in Isa::available() {
        let clean = bits_with_scratch(isa, &p, 0.0);
        assert!(clean == bits_with_scratch(isa, &p, 1.0), "{isa}: one");
        assert!(clean == bits_with_scratch(isa, &p, -3.0), "{isa}: minus three");
        assert!(clean == bits_with_scratch(isa, &p, f32::NAN), "{isa}: NaN");
    }
}

//! Layer norm and RMS norm along rows. RMS norm is layer norm with the mean taken for zero and no bias, so one
//! kernel serves both; the gradients are in [`gradient`].

pub mod gradient;

use crate::isa::multiversion;
use crate::{Element, In, Isa, Job, Out, chunk, lanes, parts_of};

/// Elements of a part.
const PART_ELEMENTS: usize = 32 * 1024;

/// Elements of a row that are written at a time.
const BLOCK: usize = 32;

/// What a norm reads and writes.
pub struct Operands<T> {
    /// Dense rows.
    pub x: In<T>,
    /// A factor for each column.
    pub gain: In<T>,
    /// For layer norm: what is added to each column, and the mean of each row.
    pub bias_and_mean: Option<(In<T>, Out<f32>)>,
    /// The normalized rows; may be `x`.
    pub y: Out<T>,
    /// For each row: one over its standard deviation, or over its root mean square.
    pub inverse_deviation: Out<f32>,
}

/// `y = (x - mean) / sqrt(variance + epsilon) * gain + bias` for each row.
pub struct Norm<T> {
    operands: Operands<T>,
    columns: usize,
    rows: usize,
    rows_per_part: usize,
    epsilon: f32,
    body: unsafe fn(&Norm<T>, usize, &mut [f32]),
}

impl<T: Element> Norm<T> {
    /// The norm of rows of `columns` elements.
    pub fn new(isa: Isa, operands: Operands<T>, columns: usize, epsilon: f32) -> Norm<T> {
        let rows = operands.inverse_deviation.len();
        let rows_per_part = (PART_ELEMENTS / columns.max(1)).max(1);
        Norm { operands, columns, rows, rows_per_part, epsilon, body: rows_of::select(isa) }
    }
}

impl<T: Element> Job for Norm<T> {
    fn parts(&self) -> usize {
        parts_of(self.rows, self.rows_per_part)
    }

    fn worker_scratch(&self) -> usize {
        2 * self.columns * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let scratch = bytemuck::cast_slice_mut(&mut scratch[..self.worker_scratch()]);
        // SAFETY: the caller's promise; parts are disjoint ranges of rows, and the machine has the level, since
        // whoever built the job took it from `Isa::available`.
        unsafe { (self.body)(self, part, scratch) }
    }
}

multiversion! {
    /// A part. A row is read three times, of which only the first goes to memory: for its mean, for its deviation, and
    /// to be written, block by block, so that `y` may lie over `x`.
    fn rows_of<T: Element>(job: &Norm<T>, part: usize, scratch: &mut [f32]) {
        let (columns, operands) = (job.columns, &job.operands);
        let (gain, bias) = scratch.split_at_mut(columns);
        // SAFETY: nothing writes to gain and bias while the job runs.
        unsafe {
            load(gain, operands.gain.slice(0..columns));
            match &operands.bias_and_mean {
                Some((from, _)) => load(bias, from.slice(0..columns)),
                None => bias.fill(0.0),
            }
        }
        for index in chunk(part, job.rows_per_part, job.rows) {
            let start = index * columns;
            // SAFETY: the row is inside the operand, and the borrow ends before `y` is borrowed.
            let x = unsafe { operands.x.slice(start..start + columns) };
            let mut mean = 0.0;
            if let Some((_, means)) = &operands.bias_and_mean {
                mean = lanes::fold(x, 0.0, T::to_f32, |a, b| a + b) / columns as f32;
                // SAFETY: the row's mean is this part's own.
                unsafe { means.slice(index..index + 1)[0] = mean };
            }
            let square = |x: T| (x.to_f32() - mean) * (x.to_f32() - mean);
            let variance = lanes::fold(x, 0.0, square, |a, b| a + b) / columns as f32;
            let inverse_deviation = 1.0 / (variance + job.epsilon).sqrt();
            // SAFETY: the row, and its number, are this part's own.
            unsafe {
                operands.inverse_deviation.slice(index..index + 1)[0] = inverse_deviation;
                scale(job, start, mean, inverse_deviation, gain, bias);
            }
        }
    }
}

/// Writes the row that starts at `start`, once its mean and deviation are known.
///
/// # Safety
/// As for [`Job::run`]; the row must belong to the part at hand.
#[inline(always)]
unsafe fn scale<T: Element>(job: &Norm<T>, start: usize, mean: f32, factor: f32, gain: &[f32], bias: &[f32]) {
    let (gain_blocks, gain_rest) = gain.as_chunks::<BLOCK>();
    let (bias_blocks, bias_rest) = bias.as_chunks::<BLOCK>();
    let mut first = start;
    // SAFETY: the caller's promise; the blocks are inside the row.
    unsafe {
        for (gain, bias) in gain_blocks.iter().zip(bias_blocks) {
            scale_block(job, first, mean, factor, gain, bias);
            first += BLOCK;
        }
        scale_block(job, first, mean, factor, gain_rest, bias_rest);
    }
}

/// Writes a block of a row; all of it is read first.
///
/// # Safety
/// As for [`scale`].
#[inline(always)]
unsafe fn scale_block<T: Element>(job: &Norm<T>, first: usize, mean: f32, factor: f32, gain: &[f32], bias: &[f32]) {
    let range = first..first + gain.len();
    let mut numbers = [0.0; BLOCK];
    // SAFETY: the caller's promise; the borrow ends before `y` is borrowed.
    load(&mut numbers, unsafe { job.operands.x.slice(range.clone()) });
    for ((x, gain), bias) in numbers.iter_mut().zip(gain).zip(bias) {
        *x = (*x - mean) * factor * gain + bias;
    }
    // SAFETY: the caller's promise.
    for (y, x) in unsafe { job.operands.y.slice(range) }.iter_mut().zip(&numbers) {
        *y = T::from_f32(*x);
    }
}

/// Elements as f32.
#[inline(always)]
fn load<T: Element>(to: &mut [f32], from: &[T]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f32();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bf16, run_alone};

    /// Repeatable numbers between -2 and 2, as the element type holds them.
    pub(super) fn numbers<T: Element>(count: usize, seed: u32) -> Vec<T> {
        let number = |index: u64| crate::random::word(index, seed, [0; 2]) as f32 / (1u64 << 30) as f32 - 2.0;
        (0..count as u64).map(|index| T::from_f32(number(index))).collect()
    }

    pub(super) fn input<T>(numbers: &[T]) -> In<T> {
        In::new(numbers.as_ptr(), numbers.len())
    }

    pub(super) fn output<T>(numbers: &mut [T]) -> Out<T> {
        Out::new(numbers.as_mut_ptr(), numbers.len())
    }

    /// Checks that numbers are within a share of the largest expected one.
    pub(super) fn assert_close<T: Element>(what: &str, numbers: &[T], expected: &[f64]) {
        let tolerance = if size_of::<T>() == 2 { 1.0 / 256.0 } else { 1e-5 };
        let largest = expected.iter().fold(1e-3f64, |largest, x| largest.max(x.abs()));
        assert_eq!(numbers.len(), expected.len(), "{what}");
        for (index, (number, expected)) in numbers.iter().zip(expected).enumerate() {
            let error = (number.to_f32() as f64 - expected).abs() / largest;
            assert!(error <= tolerance, "{what}, element {index}: {} instead of {expected}", number.to_f32());
        }
    }

    /// Rows and columns: one element, one column, odd sizes, more than one part, no rows.
    pub(super) const SIZES: [(usize, usize); 7] = [(1, 1), (5, 1), (3, 5), (70, 33), (600, 257), (3, 40_000), (0, 4)];
    pub(super) const EPSILON: f32 = 1e-3;

    /// By row: the mean (zero if it is not taken) and the inverse deviation.
    pub(super) fn statistics<T: Element>(x: &[T], columns: usize, centred: bool) -> Vec<(f64, f64)> {
        let row = |row: &[T]| {
            let mean = row.iter().map(|x| x.to_f32() as f64).sum::<f64>() / columns as f64;
            let mean = if centred { mean } else { 0.0 };
            let variance = row.iter().map(|x| (x.to_f32() as f64 - mean).powi(2)).sum::<f64>() / columns as f64;
            (mean, 1.0 / (variance + EPSILON as f64).sqrt())
        };
        x.chunks(columns).map(row).collect()
    }

    fn check<T: Element>(rows: usize, columns: usize, centred: bool, in_place: bool) {
        let what = format!("{rows} rows of {columns}, centred: {centred}, in place: {in_place}");
        let (x, gain, bias) = (numbers::<T>(rows * columns, 1), numbers::<T>(columns, 2), numbers::<T>(columns, 3));
        let expected = statistics(&x, columns, centred);
        let element = |index: usize| {
            let ((mean, inverse), column) = (expected[index / columns], index % columns);
            let bias = if centred { bias[column].to_f32() as f64 } else { 0.0 };
            (x[index].to_f32() as f64 - mean) * inverse * gain[column].to_f32() as f64 + bias
        };
        let expected_y: Vec<f64> = (0..rows * columns).map(element).collect();
        let mut bits: Vec<Vec<u8>> = vec![];
        for isa in Isa::available() {
            let mut y = x.clone();
            let (mut mean, mut inverse) = (vec![0.0; rows], vec![0.0; rows]);
            let operands = Operands {
                x: if in_place { input(&y) } else { input(&x) },
                gain: input(&gain),
                bias_and_mean: centred.then(|| (input(&bias), output(&mut mean))),
                y: output(&mut y),
                inverse_deviation: output(&mut inverse),
            };
            run_alone(&Norm::new(isa, operands, columns, EPSILON));
            assert_close(&what, &y, &expected_y);
            assert_close(&what, &mean, &expected.iter().map(|(mean, _)| *mean).collect::<Vec<_>>());
            assert_close(&what, &inverse, &expected.iter().map(|(_, inverse)| *inverse).collect::<Vec<_>>());
            bits.push(bytemuck::cast_slice(&y).to_vec());
        }
        assert!(bits.iter().all(|level| level == &bits[0]), "{what}: instruction sets differ");
    }

    #[test]
    fn norms_equal_their_definition_on_every_instruction_set() {
        for (rows, columns) in SIZES {
            for (centred, in_place) in [(false, false), (false, true), (true, false), (true, true)] {
                check::<f32>(rows, columns, centred, in_place);
                check::<bf16>(rows, columns, centred, in_place);
            }
        }
    }
}

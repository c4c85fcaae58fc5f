//! Traces and diagonals: exactly, by as many products as there are rows; or from random vectors of signs, with the error that
//! the spread of the samples tells.

use super::{Matrix, dot, finite_product, out_of_range, random_signs};
use crate::Result;
use crate::error::Location;
use std::ops::Range;

/// A number estimated from samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean of the samples.
    pub value: f64,
    /// Its standard error: two times out of three the mean is no farther from the truth, 19 times out of 20 no farther than
    /// twice this.
    pub error: f64,
}

impl Estimate {
    /// From how many samples there were, their sum and the sum of their squares.
    fn of(count: usize, sum: f64, squares: f64) -> Estimate {
        let count = count as f64;
        let value = sum / count;
        // Of equal samples, rounding may leave a little less than nothing.
        let variance = ((squares - sum * value) / (count - 1.0)).max(0.0);
        Estimate { value, error: (variance / count).sqrt() }
    }
}

/// A diagonal estimated from samples.
#[derive(Clone, Debug, PartialEq)]
pub struct DiagonalEstimate {
    /// The diagonal.
    pub diagonal: Vec<f32>,
    /// The standard error of each of its elements.
    pub error: Vec<f32>,
}

/// The trace, by Hutchinson's estimate: the mean of `z . (matrix z)` over vectors z of random signs. The same seed gives the
/// same vectors.
#[track_caller]
pub fn trace_estimate(matrix: &mut (impl Matrix + ?Sized), samples: usize, seed: u64) -> Result<Estimate> {
    let whole = 0..matrix.size();
    Ok(trace_estimates(matrix, std::slice::from_ref(&whole), samples, seed)?[0])
}

/// The traces of several blocks on the diagonal, from the same products as [`trace_estimate`] takes.
#[track_caller]
pub fn trace_estimates(
    matrix: &mut (impl Matrix + ?Sized),
    blocks: &[Range<usize>],
    samples: usize,
    seed: u64,
) -> Result<Vec<Estimate>> {
    let at = Location::caller();
    check_samples("trace_estimate", samples, at)?;
    if let Some(block) = blocks.iter().find(|block| block.start > block.end || block.end > matrix.size()) {
        let problem = format!("a block of {block:?} is not inside of the matrix's 0..{}", matrix.size());
        return Err(out_of_range("trace_estimates", problem, at));
    }
    let mut sums = vec![[0.0; 2]; blocks.len()];
    let mut vector = vec![0.0; matrix.size()];
    let mut product = vector.clone();
    for number in 0..samples {
        random_signs(&mut vector, seed, number as u32);
        finite_product(matrix, &vector, &mut product, at)?;
        for (sums, block) in sums.iter_mut().zip(blocks) {
            let sample = dot(&vector[block.clone()], &product[block.clone()]);
            sums[0] += sample;
            sums[1] += sample * sample;
        }
    }
    Ok(sums.into_iter().map(|[sum, squares]| Estimate::of(samples, sum, squares)).collect())
}

/// The diagonal, by the estimate of Bekas, Kokiopoulou and Saad: the mean of `z * (matrix z)`, element by element, over vectors
/// z of random signs. What is off the diagonal makes the error.
#[track_caller]
pub fn diagonal_estimate(matrix: &mut (impl Matrix + ?Sized), samples: usize, seed: u64) -> Result<DiagonalEstimate> {
    let at = Location::caller();
    check_samples("diagonal_estimate", samples, at)?;
    let mut vector = vec![0.0; matrix.size()];
    let mut product = vector.clone();
    let mut sums = vec![[0.0f64; 2]; matrix.size()];
    for number in 0..samples {
        random_signs(&mut vector, seed, number as u32);
        finite_product(matrix, &vector, &mut product, at)?;
        for (sums, (z, product)) in sums.iter_mut().zip(vector.iter().zip(&product)) {
            let sample = (z * product) as f64;
            sums[0] += sample;
            sums[1] += sample * sample;
        }
    }
    let estimates = sums.into_iter().map(|[sum, squares]| Estimate::of(samples, sum, squares));
    let (diagonal, error) = estimates.map(|estimate| (estimate.value as f32, estimate.error as f32)).unzip();
    Ok(DiagonalEstimate { diagonal, error })
}

/// The diagonal, exactly: a product for each row. For small problems.
#[track_caller]
pub fn diagonal(matrix: &mut (impl Matrix + ?Sized)) -> Result<Vec<f32>> {
    let at = Location::caller();
    let mut unit = vec![0.0; matrix.size()];
    let (mut product, mut diagonal) = (unit.clone(), unit.clone());
    for row in 0..matrix.size() {
        unit[row] = 1.0;
        finite_product(matrix, &unit, &mut product, at)?;
        unit[row] = 0.0;
        diagonal[row] = product[row];
    }
    Ok(diagonal)
}

/// One sample has no spread, and vectors are numbered in 32 bits.
fn check_samples(op: &str, samples: usize, at: Location) -> Result<()> {
    if (2..=u32::MAX as usize).contains(&samples) {
        return Ok(());
    }
    Err(out_of_range(op, format!("takes at least 2 samples, from whose spread the error is told, not {samples}"), at))
}

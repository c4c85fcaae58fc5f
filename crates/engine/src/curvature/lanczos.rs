//! Eigenvalues and the density of the spectrum, by the method of Lanczos: from the products with one vector after another, each
//! made orthogonal to those before it.

use super::tridiagonal::{self, Eigen};
use super::{Matrix, add_scaled, dot, finite_product, out_of_range, random_signs};
use crate::error::Location;
use crate::{Error, Result};

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LanczosOptions {
    /// Products at most. The largest eigenvalues come first; of a matrix with so many rows, so many steps give all.
    pub steps: usize,
    /// What the first vector follows from.
    pub seed: u64,
    /// Whether every vector is kept and made orthogonal to all earlier ones. It takes the memory of a vector a step. Without, an
    /// eigenvalue that was found is found again and again; the largest ones stay right.
    pub reorthogonalize: bool,
}

impl Default for LanczosOptions {
    fn default() -> LanczosOptions {
        LanczosOptions { steps: 32, seed: 0, reorthogonalize: true }
    }
}

/// An eigenvalue as it was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ritz {
    /// The eigenvalue.
    pub value: f64,
    /// How far from it an eigenvalue of the matrix lies at most.
    pub error: f64,
    /// The share of the first vector that lies along its eigenvector. All shares add up to 1.
    pub weight: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Lanczos {
    /// Eigenvalues, smallest first.
    pub eigenvalues: Vec<Ritz>,
}

impl Lanczos {
    /// What the steps tell, whoever took them: for each, what the product of its vector is along that vector, and how long what
    /// was left of the product was, the last for the error alone. `None` of numbers that are not finite, or of no steps.
    pub fn of_steps(along: &[f64], left: &[f64]) -> Option<Lanczos> {
        let (last, beside) = left.split_last()?;
        let ritz = |eigen: &Eigen| Ritz {
            value: eigen.value,
            error: (last * eigen.last).abs(),
            weight: eigen.first * eigen.first,
        };
        let found = tridiagonal::eigen(along, beside)?;
        let is_finite = found.iter().all(|eigen| eigen.value.is_finite());
        is_finite.then(|| Lanczos { eigenvalues: found.iter().map(ritz).collect() })
    }

    /// The largest eigenvalue.
    pub fn largest(&self) -> Ritz {
        *self.eigenvalues.last().expect("there is an eigenvalue")
    }

    /// The smallest eigenvalue.
    pub fn smallest(&self) -> Ritz {
        self.eigenvalues[0]
    }
}

/// Finds eigenvalues of a matrix, those at the ends of its spectrum first.
#[track_caller]
pub fn lanczos(matrix: &mut (impl Matrix + ?Sized), options: LanczosOptions) -> Result<Lanczos> {
    let at = Location::caller();
    let size = matrix.size();
    if size == 0 || options.steps == 0 {
        let problem = format!("takes at least one row and one step, not {size} and {}", options.steps);
        return Err(out_of_range("lanczos", problem, at));
    }
    let mut vector = vec![0.0; size];
    random_signs(&mut vector, options.seed, 0);
    vector.iter_mut().for_each(|x| *x /= (size as f32).sqrt());
    let (mut before, mut next) = (vec![0.0; size], vec![0.0; size]);
    let (mut along, mut left): (Vec<f64>, Vec<f64>) = (vec![], vec![]);
    let mut basis: Vec<Vec<f32>> = vec![];
    for _ in 0..options.steps.min(size) {
        finite_product(matrix, &vector, &mut next, at)?;
        along.push(dot(&vector, &next));
        add_scaled(&mut next, -along[along.len() - 1], &vector);
        add_scaled(&mut next, -left.last().copied().unwrap_or(0.0), &before);
        if options.reorthogonalize {
            basis.push(vector.clone());
            // Twice is enough: what rounding left the first time is gone the second.
            for earlier in basis.iter().chain(&basis) {
                let share = dot(earlier, &next);
                add_scaled(&mut next, -share, earlier);
            }
        }
        // If what is left is rounding, the vectors so far span all that the matrix makes of the first.
        let scale = along.iter().chain(&left).fold(0.0f64, |most, x| most.max(x.abs()));
        let length = dot(&next, &next).sqrt();
        left.push(length);
        if length <= f32::EPSILON as f64 * scale {
            break;
        }
        std::mem::swap(&mut before, &mut vector);
        vector.iter_mut().zip(&next).for_each(|(to, from)| *to = (*from as f64 / length) as f32);
    }
    Lanczos::of_steps(&along, &left).ok_or(Error::NonFinite {
        name: "a product of the matrix".to_string(),
        element: 0,
        at,
    })
}

/// How many of the eigenvalues lie near each of these points, as a density whose integral is 1: the mean of runs from several
/// first vectors, each eigenvalue spread as a normal distribution of this deviation.
pub fn spectral_density(runs: &[Lanczos], points: &[f64], deviation: f64) -> Vec<f64> {
    let scale = 1.0 / ((2.0 * std::f64::consts::PI).sqrt() * deviation * runs.len().max(1) as f64);
    let near = |point: f64, ritz: &Ritz| ritz.weight * (-0.5 * ((point - ritz.value) / deviation).powi(2)).exp();
    let density =
        |&point: &f64| scale * runs.iter().flat_map(|run| &run.eigenvalues).map(|ritz| near(point, ritz)).sum::<f64>();
    points.iter().map(density).collect()
}

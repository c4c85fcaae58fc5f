//! Solutions of `(matrix + damping) x = b`, by conjugate gradients.

use super::{Matrix, add_scaled, dot, finite_product, out_of_range};
use crate::Result;
use crate::error::Location;

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConjugateGradients {
    /// Products at most.
    pub steps: usize,
    /// The length of what is left, as a share of that of the right-hand side, with which the solution is good enough.
    pub tolerance: f64,
    /// What is added to the diagonal of the matrix.
    pub damping: f64,
}

impl Default for ConjugateGradients {
    fn default() -> ConjugateGradients {
        ConjugateGradients { steps: 100, tolerance: 1e-5, damping: 0.0 }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The solution.
    pub x: Vec<f32>,
    /// The length of what is left, as a share of that of the right-hand side.
    pub residual: f64,
    /// How many products it took.
    pub steps: usize,
    /// A direction along which the matrix does not curve upwards was met. The solution is what was found before it; of nothing
    /// before it, that direction itself.
    pub indefinite: bool,
}

/// Solves for `x` in `(matrix + damping) x = b`. The matrix should have no eigenvalue at or below minus the damping.
#[track_caller]
pub fn conjugate_gradients(
    matrix: &mut (impl Matrix + ?Sized),
    b: &[f32],
    options: ConjugateGradients,
) -> Result<Solution> {
    let at = Location::caller();
    if b.len() != matrix.size() {
        let problem = format!("a right-hand side of {} numbers for a matrix of {} rows", b.len(), matrix.size());
        return Err(out_of_range("conjugate_gradients", problem, at));
    }
    let wanted = dot(b, b).sqrt();
    let mut solution = Solution { x: vec![0.0; b.len()], residual: 0.0, steps: 0, indefinite: false };
    if wanted == 0.0 {
        return Ok(solution);
    }
    let (mut left, mut direction, mut product) = (b.to_vec(), b.to_vec(), vec![0.0; b.len()]);
    let mut square = wanted * wanted;
    solution.residual = 1.0;
    while solution.steps < options.steps && solution.residual > options.tolerance {
        finite_product(matrix, &direction, &mut product, at)?;
        add_scaled(&mut product, options.damping, &direction);
        solution.steps += 1;
        let bend = dot(&direction, &product);
        if bend <= 0.0 {
            solution.indefinite = true;
            if solution.steps == 1 {
                solution.x = direction;
            }
            break;
        }
        let far = square / bend;
        add_scaled(&mut solution.x, far, &direction);
        add_scaled(&mut left, -far, &product);
        let now = dot(&left, &left);
        let keep = now / square;
        direction.iter_mut().zip(&left).for_each(|(d, r)| *d = (*r as f64 + keep * *d as f64) as f32);
        square = now;
        solution.residual = square.sqrt() / wanted;
    }
    Ok(solution)
}

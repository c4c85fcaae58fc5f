//! Second derivatives: as products with vectors, traced like anything else (`products`); and what can be found from a
//! symmetric matrix of which nothing but its products is known ([`Matrix`]): eigenvalues, traces, diagonals, solutions.
//!
//! A matrix is a program that was compiled ([`CompiledProducts`], [`CompiledLoss`]) or any function ([`FromFn`]), such as one
//! that asks a tape.

mod compiled;
mod conjugate_gradients;
mod estimates;
mod lanczos;
mod linearized;
mod min_cut;
mod newton;
mod products;
mod tridiagonal;

pub use compiled::{CompiledLoss, CompiledProducts};
pub use conjugate_gradients::{ConjugateGradients, Solution, conjugate_gradients};
pub use estimates::{DiagonalEstimate, Estimate, diagonal, diagonal_estimate, trace_estimate, trace_estimates};
pub use lanczos::{Lanczos, LanczosOptions, Ritz, lanczos, spectral_density};
pub use linearized::Linearized;
pub use newton::{Minimum, NewtonCg, Smooth, newton_cg};
pub use products::{
    fisher_diagonal, gauss_newton_vector_product, hessian, hessian_vector_product, jacobian,
    loss_and_hessian_vector_product, vector_jacobian_product,
};

use crate::error::Location;
use crate::{Error, Result};
use gradus_kernels::random;

/// A symmetric matrix that is known by its products with vectors.
pub trait Matrix {
    /// How many rows and columns it has.
    fn size(&self) -> usize;

    /// Writes the product of the matrix with a vector; both are of the matrix's size.
    fn product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<()>;
}

/// A matrix whose products a function gives.
pub struct FromFn<F> {
    size: usize,
    function: F,
}

impl<F: FnMut(&[f32], &mut [f32]) -> Result<()>> FromFn<F> {
    /// A matrix of this size; the function is given a vector and writes the product.
    pub fn new(size: usize, function: F) -> FromFn<F> {
        FromFn { size, function }
    }
}

impl<F: FnMut(&[f32], &mut [f32]) -> Result<()>> Matrix for FromFn<F> {
    fn size(&self) -> usize {
        self.size
    }

    fn product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<()> {
        (self.function)(vector, product)
    }
}

/// The product, if it is finite.
fn finite_product(
    matrix: &mut (impl Matrix + ?Sized),
    vector: &[f32],
    product: &mut [f32],
    at: Location,
) -> Result<()> {
    matrix.product(vector, product)?;
    match product.iter().position(|number| !number.is_finite()) {
        None => Ok(()),
        Some(element) => Err(Error::NonFinite { name: "a product of the matrix".to_string(), element, at }),
    }
}

/// What is said of a setting that is out of its range.
fn out_of_range(op: &str, problem: String, at: Location) -> Error {
    Error::Parameter { op: op.to_string(), inputs: vec![], problem, at }
}

/// The inner product, in f64 from the first number to the last.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| *a as f64 * *b as f64).sum()
}

/// `y + factor * x`, in f64 and rounded once.
fn add_scaled(y: &mut [f32], factor: f64, x: &[f32]) {
    y.iter_mut().zip(x).for_each(|(y, x)| *y = (*y as f64 + factor * *x as f64) as f32);
}

/// Numbers that are 1 or -1 with equal likelihood, by a seed and the vector's number.
fn random_signs(vector: &mut [f32], seed: u64, number: u32) {
    let key = [seed as u32, (seed >> 32) as u32];
    for (group, numbers) in vector.chunks_mut(u32::BITS as usize).enumerate() {
        let bits = random::word(group as u64, number, key);
        numbers.iter_mut().enumerate().for_each(|(at, x)| *x = if bits >> at & 1 == 1 { 1.0 } else { -1.0 });
    }
}

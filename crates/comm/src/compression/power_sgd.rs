//! A matrix as the product of two thin ones, found by a step of power iteration that goes on from the last one (PowerSGD, Vogels
//! et al., 2019).

use super::{Compressor, WORD, add, read, write};

/// A matrix and the two thin ones that stand for it: so many vectors each, one after another, on the left of as many numbers as
/// there are rows, on the right as there are columns.
///
/// Where several have a matrix of the sum of which only a thin one is to be known, as lanes of a batch have gradients, each
/// projects its own: left vectors are summed before they are made orthonormal, and right ones after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thin {
    rows: usize,
    columns: usize,
    rank: usize,
}

impl Thin {
    /// Of a matrix of so many rows and columns. More of a rank than the shorter side says nothing more.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(rows: usize, columns: usize, rank: usize) -> Thin {
        assert!(rows > 0 && columns > 0, "a matrix has rows and columns");
        Thin { rows, columns, rank: rank.max(1).min(rows).min(columns) }
    }

    /// Of the matrix.
    pub fn numbers(&self) -> usize {
        self.rows * self.columns
    }

    /// Of all left vectors.
    pub fn left_numbers(&self) -> usize {
        self.rows * self.rank
    }

    /// Of all right vectors.
    pub fn right_numbers(&self) -> usize {
        self.columns * self.rank
    }

    /// Directions to begin with, where right vectors are zero because there are none of an earlier time: any that are not
    /// alike.
    pub fn begin(right: &mut [f32]) {
        if right.iter().any(|number| *number != 0.0) {
            return;
        }
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for number in right {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *number = (random >> 40) as f32 / (1 << 23) as f32 - 1.0;
        }
    }

    /// `left = matrix * right`.
    pub fn project(&self, matrix: &[f32], right: &[f32], left: &mut [f32]) {
        for (row, numbers) in matrix.chunks_exact(self.columns).enumerate() {
            for (vector, right) in right.chunks_exact(self.columns).enumerate() {
                left[vector * self.rows + row] = dot(numbers, right);
            }
        }
    }

    /// `right = matrixᵀ * left`.
    pub fn project_back(&self, matrix: &[f32], left: &[f32], right: &mut [f32]) {
        right.fill(0.0);
        for (row, numbers) in matrix.chunks_exact(self.columns).enumerate() {
            for (vector, right) in right.chunks_exact_mut(self.columns).enumerate() {
                add_times(right, numbers, left[vector * self.rows + row]);
            }
        }
    }

    /// Makes the left vectors stand on one another, each of length 1. One that says nothing new becomes zero.
    pub fn orthonormalize(&self, left: &mut [f32]) {
        for vector in 0..self.rank {
            let (before, rest) = left.split_at_mut(vector * self.rows);
            let own = &mut rest[..self.rows];
            let length = dot(own, own).sqrt();
            // Twice, since rounding leaves a little the first time.
            for other in before.chunks_exact(self.rows).chain(before.chunks_exact(self.rows)) {
                add_times(own, other, -dot(own, other));
            }
            let left = dot(own, own).sqrt();
            let scale = if left > 1e-6 * length && left > f32::MIN_POSITIVE { 1.0 / left } else { 0.0 };
            own.iter_mut().for_each(|number| *number *= scale);
        }
    }

    /// `matrix += scale * left * rightᵀ`.
    pub fn add_product(&self, left: &[f32], right: &[f32], scale: f32, matrix: &mut [f32]) {
        for (row, numbers) in matrix.chunks_exact_mut(self.columns).enumerate() {
            for (vector, right) in right.chunks_exact(self.columns).enumerate() {
                add_times(numbers, right, scale * left[vector * self.rows + row]);
            }
        }
    }
}

/// A matrix of a stated rank in place of a gradient.
///
/// The state holds the right factor of the last message behind the error.
#[derive(Clone, Debug)]
pub struct PowerSgd {
    thin: Thin,
    left: Vec<f32>,
    right: Vec<f32>,
}

impl PowerSgd {
    /// For a matrix of so many rows and columns. More of a rank than the shorter side says nothing more.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(rows: usize, columns: usize, rank: usize) -> PowerSgd {
        let thin = Thin::new(rows, columns, rank);
        PowerSgd { thin, left: vec![0.0; thin.left_numbers()], right: vec![0.0; thin.right_numbers()] }
    }
}

impl Compressor for PowerSgd {
    fn numbers(&self) -> usize {
        self.thin.numbers()
    }

    fn state_numbers(&self) -> usize {
        self.thin.numbers() + self.thin.right_numbers()
    }

    fn most_bytes(&self) -> usize {
        (self.thin.left_numbers() + self.thin.right_numbers()) * WORD
    }

    fn compress(&mut self, gradient: &[f32], state: &mut [f32], message: &mut [u8]) -> usize {
        let message = &mut message[..self.most_bytes()];
        let (error, right) = state.split_at_mut(self.thin.numbers());
        if !add(gradient, error) {
            message.chunks_exact_mut(WORD).for_each(|at| write(at, f32::NAN));
            return message.len();
        }
        Thin::begin(right);
        self.thin.project(error, right, &mut self.left);
        self.thin.orthonormalize(&mut self.left);
        self.thin.project_back(error, &self.left, right);
        self.thin.add_product(&self.left, right, -1.0, error);
        let numbers = self.left.iter().chain(&*right);
        numbers.zip(message.chunks_exact_mut(WORD)).for_each(|(number, at)| write(at, *number));
        message.len()
    }

    fn decompress(&mut self, message: &[u8], gradient: &mut [f32]) {
        let numbers = self.left.iter_mut().chain(&mut self.right);
        numbers.zip(message.chunks_exact(WORD)).for_each(|(number, at)| *number = read(at));
        gradient.fill(0.0);
        self.thin.add_product(&self.left, &self.right, 1.0, gradient);
    }
}

/// Sums that are added up side by side: a fixed number, so that every machine has the same bits.
const SUMS: usize = 8;

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; SUMS];
    let (a, b) = (a.chunks(SUMS), b.chunks(SUMS));
    for (a, b) in a.zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum()
}

fn add_times(to: &mut [f32], numbers: &[f32], factor: f32) {
    to.iter_mut().zip(numbers).for_each(|(to, number)| *to += number * factor);
}

//! A matrix as the product of two thin ones, found by a step of power iteration that goes on from the last one (PowerSGD, Vogels
//! et al., 2019).

use super::{Compressor, WORD, add, read, write};

/// A matrix of a stated rank in place of a gradient.
///
/// The state holds the right factor of the last message behind the error.
#[derive(Clone, Debug)]
pub struct PowerSgd {
    rows: usize,
    columns: usize,
    rank: usize,
    /// `rank` vectors each, one after another.
    left: Vec<f32>,
    right: Vec<f32>,
}

impl PowerSgd {
    /// For a matrix of so many rows and columns. More of a rank than the shorter side says nothing more.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(rows: usize, columns: usize, rank: usize) -> PowerSgd {
        assert!(rows > 0 && columns > 0, "a matrix has rows and columns");
        let rank = rank.max(1).min(rows).min(columns);
        PowerSgd { rows, columns, rank, left: vec![0.0; rows * rank], right: vec![0.0; columns * rank] }
    }

    /// Directions to begin with, where there are none of an earlier message: any that are not alike.
    fn begin(right: &mut [f32]) {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for number in right {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *number = (random >> 40) as f32 / (1 << 23) as f32 - 1.0;
        }
    }

    /// `left = matrix * right`.
    fn project(&mut self, matrix: &[f32], right: &[f32]) {
        for (row, numbers) in matrix.chunks_exact(self.columns).enumerate() {
            for (vector, right) in right.chunks_exact(self.columns).enumerate() {
                self.left[vector * self.rows + row] = dot(numbers, right);
            }
        }
    }

    /// `right = matrixᵀ * left`.
    fn project_back(&self, matrix: &[f32], right: &mut [f32]) {
        right.fill(0.0);
        for (row, numbers) in matrix.chunks_exact(self.columns).enumerate() {
            for (vector, right) in right.chunks_exact_mut(self.columns).enumerate() {
                add_times(right, numbers, self.left[vector * self.rows + row]);
            }
        }
    }

    /// Makes the left vectors stand on one another, each of length 1. One that says nothing new becomes zero.
    fn orthonormalize(&mut self) {
        for vector in 0..self.rank {
            let (before, rest) = self.left.split_at_mut(vector * self.rows);
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
    fn add_product(&self, right: &[f32], scale: f32, matrix: &mut [f32]) {
        for (row, numbers) in matrix.chunks_exact_mut(self.columns).enumerate() {
            for (vector, right) in right.chunks_exact(self.columns).enumerate() {
                add_times(numbers, right, scale * self.left[vector * self.rows + row]);
            }
        }
    }
}

impl Compressor for PowerSgd {
    fn numbers(&self) -> usize {
        self.rows * self.columns
    }

    fn state_numbers(&self) -> usize {
        self.numbers() + self.columns * self.rank
    }

    fn most_bytes(&self) -> usize {
        (self.rows + self.columns) * self.rank * WORD
    }

    fn compress(&mut self, gradient: &[f32], state: &mut [f32], message: &mut [u8]) -> usize {
        let message = &mut message[..self.most_bytes()];
        let (error, right) = state.split_at_mut(self.numbers());
        if !add(gradient, error) {
            message.chunks_exact_mut(WORD).for_each(|at| write(at, f32::NAN));
            return message.len();
        }
        if right.iter().all(|number| *number == 0.0) {
            PowerSgd::begin(right);
        }
        self.project(error, right);
        self.orthonormalize();
        self.project_back(error, right);
        self.add_product(right, -1.0, error);
        let numbers = self.left.iter().chain(&*right);
        numbers.zip(message.chunks_exact_mut(WORD)).for_each(|(number, at)| write(at, *number));
        message.len()
    }

    fn decompress(&mut self, message: &[u8], gradient: &mut [f32]) {
        let numbers = self.left.iter_mut().chain(&mut self.right);
        numbers.zip(message.chunks_exact(WORD)).for_each(|(number, at)| *number = read(at));
        gradient.fill(0.0);
        self.add_product(&self.right, 1.0, gradient);
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

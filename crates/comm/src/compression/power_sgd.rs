//! A matrix as the product of two thin ones, found by a step of power iteration that goes on from the last one (PowerSGD, Vogels
//! et al., 2019).

use super::{Blocks, Compressor, WORD, add, write};

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

/// A matrix of a stated rank in place of a gradient, whose vectors have 4 bits a number.
///
/// Left vectors only say which part of the matrix is sent: they are made orthonormal by whoever has read them, so their rounding
/// is no error. What rounding takes from the right ones stays in the error. The state holds the right vectors of the last message
/// behind the error.
#[derive(Clone, Debug)]
pub struct PowerSgd {
    thin: Thin,
    left: Vectors,
    right: Vectors,
}

/// Vectors as they are sent.
#[derive(Clone, Debug)]
struct Vectors {
    numbers: Vec<f32>,
    rounding: Vec<f32>,
    blocks: Blocks,
}

impl Vectors {
    fn new(numbers: usize) -> Vectors {
        Vectors { numbers: vec![0.0; numbers], rounding: vec![0.0; numbers], blocks: Blocks::of_4_bits(numbers) }
    }

    /// Writes the message of the vectors, which become what is read from it.
    fn write(&mut self, message: &mut [u8]) {
        self.rounding.fill(0.0);
        self.blocks.compress(&self.numbers, &mut self.rounding, message);
        self.read(message);
    }

    fn read(&mut self, message: &[u8]) {
        self.blocks.decompress(message, &mut self.numbers);
    }
}

impl PowerSgd {
    /// For a matrix of so many rows and columns. More of a rank than the shorter side says nothing more.
    ///
    /// # Panics
    /// If there are none.
    pub fn new(rows: usize, columns: usize, rank: usize) -> PowerSgd {
        let thin = Thin::new(rows, columns, rank);
        PowerSgd { thin, left: Vectors::new(thin.left_numbers()), right: Vectors::new(thin.right_numbers()) }
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
        self.left.blocks.most_bytes() + self.right.blocks.most_bytes()
    }

    fn compress(&mut self, gradient: &[f32], state: &mut [f32], message: &mut [u8]) -> usize {
        let message = &mut message[..self.most_bytes()];
        let (error, last) = state.split_at_mut(self.thin.numbers());
        let PowerSgd { thin, left, right } = self;
        if !add(gradient, error) {
            message.fill(0);
            write(&mut message[..WORD], f32::NAN);
            return message.len();
        }
        let (left_message, right_message) = message.split_at_mut(left.blocks.most_bytes());
        Thin::begin(last);
        thin.project(error, last, &mut left.numbers);
        left.write(left_message);
        thin.orthonormalize(&mut left.numbers);
        thin.project_back(error, &left.numbers, &mut right.numbers);
        right.write(right_message);
        thin.add_product(&left.numbers, &right.numbers, -1.0, error);
        last.copy_from_slice(&right.numbers);
        message.len()
    }

    fn decompress(&mut self, message: &[u8], gradient: &mut [f32]) {
        let PowerSgd { thin, left, right } = self;
        let (left_message, right_message) = message.split_at(left.blocks.most_bytes());
        left.read(left_message);
        thin.orthonormalize(&mut left.numbers);
        right.read(right_message);
        gradient.fill(0.0);
        thin.add_product(&left.numbers, &right.numbers, 1.0, gradient);
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

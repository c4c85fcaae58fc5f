//! Sums over lanes of matrices that are sent as two thin ones (PowerSGD).
//!
//! Each lane has its gradient and its error projected on the right vectors of the last step; left vectors are the sums of that
//! over lanes, made orthonormal. What lanes project back on those, they leave out of their errors; the sum of it over lanes are
//! the new right vectors.

use super::Ranks;
use super::states::{copy_from, numbers_of, with_numbers};
use super::tree::{LaneNumbers, TreeSum};
use crate::Result;
use crate::step::ThinTensor;
use gradus_comm::compression::Thin;
use gradus_engine::Program;
use std::ops::Range;

/// Numbers of an error that are added to a lane at once.
const CHUNK: usize = 1 << 14;

/// Thin factors of all matrices, one after another, of each lane and of the sum.
struct Factors {
    count: usize,
    lanes: Vec<f32>,
    sum: Vec<f32>,
}

impl Factors {
    fn new(hosted: usize, count: usize) -> Factors {
        Factors { count, lanes: vec![0.0; hosted * count], sum: vec![0.0; count] }
    }

    fn of_lane(&mut self, place: usize, numbers: Range<usize>) -> &mut [f32] {
        &mut self.lanes[place * self.count..][numbers]
    }
}

impl LaneNumbers for Factors {
    fn read(&self, place: usize, numbers: Range<usize>, to: &mut [f32]) -> Result<()> {
        to.copy_from_slice(&self.lanes[place * self.count..][numbers]);
        Ok(())
    }

    fn write(&mut self, numbers: Range<usize>, sums: &[f32]) -> Result<()> {
        self.sum[numbers].copy_from_slice(sums);
        Ok(())
    }
}

/// Sums of matrices as thin ones.
pub(crate) struct LowRank {
    tensors: Vec<ThinTensor>,
    /// Of each matrix, where its vectors stand.
    at: Vec<(Range<usize>, Range<usize>)>,
    left: Factors,
    right: Factors,
    chunk: Vec<f32>,
}

/// The left and right numbers of all matrices.
fn numbers(thin: impl Iterator<Item = Thin>) -> (usize, usize) {
    thin.fold((0, 0), |(left, right), thin| (left + thin.left_numbers(), right + thin.right_numbers()))
}

/// Bytes that sums of these matrices take, on a process with so many lanes.
pub(super) fn low_rank_bytes(hosted: usize, matrices: &[Thin]) -> u64 {
    if matrices.is_empty() {
        return 0;
    }
    let (left, right) = numbers(matrices.iter().copied());
    (size_of::<f32>() * ((hosted + 1) * (left + right) + CHUNK)) as u64
}

/// The most numbers that are summed at once.
pub(super) fn most_numbers(matrices: impl Iterator<Item = Thin>) -> usize {
    let (left, right) = numbers(matrices);
    left.max(right)
}

impl LowRank {
    pub fn new(hosted: usize, tensors: Vec<ThinTensor>) -> LowRank {
        let (left, right) = numbers(tensors.iter().map(|tensor| tensor.thin));
        let (mut at, mut before) = (vec![], (0, 0));
        for tensor in &tensors {
            let end = (before.0 + tensor.thin.left_numbers(), before.1 + tensor.thin.right_numbers());
            at.push((before.0..end.0, before.1..end.1));
            before = end;
        }
        LowRank {
            tensors,
            at,
            left: Factors::new(hosted, left),
            right: Factors::new(hosted, right),
            chunk: vec![0.0; CHUNK],
        }
    }

    /// Sums the lanes of all ranks, whose gradients are those of a loss that was scaled so. Allocates nothing.
    pub fn sum(
        &mut self,
        mut ranks: Option<&mut Ranks>,
        tree: &mut TreeSum,
        program: &mut Program,
        scale: f32,
    ) -> Result<()> {
        self.add_errors(program, 1.0 / scale)?;
        self.project(program)?;
        tree.sum(ranks.as_deref_mut(), self.left.count, &mut self.left)?;
        let LowRank { tensors, at, left, .. } = self;
        for (tensor, (at, _)) in tensors.iter().zip(at) {
            tensor.thin.orthonormalize(&mut left.sum[at.clone()]);
        }
        self.project_back(program)?;
        tree.sum(ranks, self.right.count, &mut self.right)?;
        self.write(program, scale)
    }

    /// Adds to what is kept of each lane its error.
    fn add_errors(&mut self, program: &mut Program, inverse: f32) -> Result<()> {
        for tensor in &self.tensors {
            let numbers = tensor.kept.numbers;
            for (lane, error) in tensor.kept.lanes.iter().zip(&tensor.errors) {
                for start in (0..numbers).step_by(CHUNK) {
                    let within = start..numbers.min(start + CHUNK);
                    let chunk = &mut self.chunk[..within.len()];
                    chunk.copy_from_slice(&numbers_of(program, error)?[within.clone()]);
                    let add = |(number, error): (&mut f32, &f32)| *number = *number * inverse + error;
                    with_numbers(program, lane, |numbers| numbers[within].iter_mut().zip(&*chunk).for_each(add))?;
                }
            }
        }
        Ok(())
    }

    /// Projects each lane on the right vectors of the last step.
    fn project(&mut self, program: &Program) -> Result<()> {
        let LowRank { tensors, at, left, right, .. } = self;
        for (tensor, (left_at, right_at)) in tensors.iter().zip(at) {
            // The room of the sum is free until there is one.
            let last = &mut right.sum[right_at.clone()];
            last.copy_from_slice(numbers_of(program, &tensor.right)?);
            Thin::begin(last);
            for (place, lane) in tensor.kept.lanes.iter().enumerate() {
                let to = left.of_lane(place, left_at.clone());
                tensor.thin.project(numbers_of(program, lane)?, last, to);
            }
        }
        Ok(())
    }

    /// Projects each lane on the left vectors, and leaves in it what is not sent.
    fn project_back(&mut self, program: &mut Program) -> Result<()> {
        let LowRank { tensors, at, left, right, .. } = self;
        for (tensor, (left_at, right_at)) in tensors.iter().zip(at) {
            let left = &left.sum[left_at.clone()];
            for (place, lane) in tensor.kept.lanes.iter().enumerate() {
                let to = right.of_lane(place, right_at.clone());
                tensor.thin.project_back(numbers_of(program, lane)?, left, to);
                with_numbers(program, lane, |matrix| tensor.thin.add_product(left, to, -1.0, matrix))?;
            }
        }
        Ok(())
    }

    /// Writes the products of the sums to where sums belong.
    fn write(&mut self, program: &mut Program, scale: f32) -> Result<()> {
        let LowRank { tensors, at, left, right, .. } = self;
        for (tensor, (left_at, right_at)) in tensors.iter().zip(at) {
            let (left, right) = (&left.sum[left_at.clone()], &right.sum[right_at.clone()]);
            copy_from(program, &tensor.next_right, 0, right)?;
            with_numbers(program, &tensor.kept.sums[0], |matrix| {
                matrix.fill(0.0);
                tensor.thin.add_product(left, right, scale, matrix);
            })?;
        }
        Ok(())
    }

    /// Nothing of this step was left out.
    pub fn forget(&self, program: &mut Program) -> Result<()> {
        for tensor in &self.tensors {
            for state in tensor.kept.lanes.iter().chain([&tensor.next_right]) {
                with_numbers(program, state, |numbers| numbers.fill(0.0))?;
            }
        }
        Ok(())
    }
}

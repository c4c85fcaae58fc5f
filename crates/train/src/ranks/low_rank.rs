//! Sums over lanes of matrices that are sent as two thin ones (PowerSGD).
//!
//! Each lane has its gradient and its error projected on the right vectors of the last step; left vectors are the sums of that
//! over lanes, made orthonormal. What lanes project back on those, they leave out of their errors; the sum of it over lanes are
//! the new right vectors.
//!
//! Vectors are sent in 4 bits a number. Left ones only say which part of a matrix is sent, so their rounding is no error; that of
//! right ones stays in the errors of lanes: each lane's in its own, that of a sum in the error of the lane that has the unit.

use super::Ranks;
use super::coded::{CodedNumbers, CodedSum, Format, coded_bytes, message_bytes};
use super::states::{copy_from, numbers_of, with_numbers};
use super::units::Unit;
use crate::Result;
use crate::config::Compression;
use crate::lanes::Lanes;
use crate::step::ThinTensor;
use gradus_comm::compression::Thin;
use gradus_engine::Program;
use std::ops::Range;

/// Numbers of an error that are added to a lane at once.
const CHUNK: usize = 1 << 14;

/// How vectors are sent.
const VECTORS: Compression = Compression::Bits4;

/// Left or right vectors of all matrices, one after another, of each lane and of the sum.
struct Vectors {
    /// Of each matrix, where its own stand; and of all.
    at: Vec<Range<usize>>,
    count: usize,
    lanes: Vec<f32>,
    sum: Vec<f32>,
    coded: CodedSum,
}

impl Vectors {
    /// Of so many numbers for each matrix.
    fn new(lanes: &Lanes, numbers: &[usize]) -> Vectors {
        let mut count = 0;
        let at = numbers.iter().map(|numbers| {
            count += numbers;
            count - numbers..count
        });
        Vectors {
            at: at.collect(),
            count,
            lanes: vec![0.0; lanes.hosted().len() * count],
            sum: vec![0.0; count],
            coded: CodedSum::new(lanes, &formats(numbers)),
        }
    }

    /// Bytes that those of so many numbers take.
    fn bytes(lanes: &Lanes, numbers: &[usize]) -> u64 {
        let count: usize = numbers.iter().sum();
        coded_bytes(lanes, &formats(numbers)) + (size_of::<f32>() * (lanes.hosted().len() + 1) * count) as u64
    }

    fn of_lane(&mut self, place: usize, matrix: usize) -> &mut [f32] {
        &mut self.lanes[place * self.count..][self.at[matrix].clone()]
    }

    fn of_sum(&mut self, matrix: usize) -> &mut [f32] {
        &mut self.sum[self.at[matrix].clone()]
    }

    /// Sums the lanes of all ranks. What then stands in the lanes is what the sum is of.
    fn sum(&mut self, ranks: Option<&mut Ranks>) -> Result<()> {
        let Vectors { at, count, lanes, sum, coded } = self;
        coded.sum(ranks, &mut Numbers { at, count: *count, lanes, sum })
    }
}

fn formats(numbers: &[usize]) -> Vec<Format> {
    numbers.iter().map(|numbers| (*numbers, VECTORS)).collect()
}

/// The numbers of vectors, while they are summed.
struct Numbers<'a> {
    at: &'a [Range<usize>],
    count: usize,
    lanes: &'a mut [f32],
    sum: &'a mut [f32],
}

impl Numbers<'_> {
    fn place(&self, unit: &Unit) -> Range<usize> {
        let start = self.at[unit.tensor].start;
        start + unit.numbers.start..start + unit.numbers.end
    }
}

impl CodedNumbers for Numbers<'_> {
    fn read(&self, place: usize, unit: &Unit, numbers: &mut [f32], error: &mut [f32]) -> Result<()> {
        numbers.copy_from_slice(&self.lanes[place * self.count..][self.place(unit)]);
        error.fill(0.0);
        Ok(())
    }

    fn leave(&mut self, place: usize, unit: &Unit, error: &[f32]) -> Result<()> {
        let within = self.place(unit);
        let lane = &mut self.lanes[place * self.count..][within];
        lane.iter_mut().zip(error).for_each(|(number, error)| *number -= error);
        Ok(())
    }

    fn read_error_of_sum(&self, _: &Unit, error: &mut [f32]) -> Result<()> {
        error.fill(0.0);
        Ok(())
    }

    fn leave_of_sum(&mut self, place: usize, unit: &Unit, error: &[f32]) -> Result<()> {
        self.leave(place, unit, error)
    }

    fn write(&mut self, unit: &Unit, sums: &[f32]) -> Result<()> {
        let within = self.place(unit);
        self.sum[within].copy_from_slice(sums);
        Ok(())
    }
}

/// Sums of matrices as thin ones.
pub(crate) struct LowRank {
    tensors: Vec<ThinTensor>,
    left: Vectors,
    right: Vectors,
    chunk: Vec<f32>,
}

/// The left and the right numbers of each matrix.
fn numbers(matrices: impl Iterator<Item = Thin>) -> (Vec<usize>, Vec<usize>) {
    matrices.map(|thin| (thin.left_numbers(), thin.right_numbers())).unzip()
}

/// Bytes that sums of these matrices take.
pub(super) fn low_rank_bytes(lanes: &Lanes, matrices: &[Thin]) -> u64 {
    if matrices.is_empty() {
        return 0;
    }
    let (left, right) = numbers(matrices.iter().copied());
    Vectors::bytes(lanes, &left) + Vectors::bytes(lanes, &right) + (size_of::<f32>() * CHUNK) as u64
}

/// Bytes of the messages of a matrix.
pub(super) fn thin_bytes(thin: Thin) -> usize {
    message_bytes((thin.left_numbers(), VECTORS)) + message_bytes((thin.right_numbers(), VECTORS))
}

impl LowRank {
    pub fn new(lanes: &Lanes, tensors: Vec<ThinTensor>) -> LowRank {
        let (left, right) = numbers(tensors.iter().map(|tensor| tensor.thin));
        LowRank {
            tensors,
            left: Vectors::new(lanes, &left),
            right: Vectors::new(lanes, &right),
            chunk: vec![0.0; CHUNK],
        }
    }

    /// Sums the lanes of all ranks, whose gradients are those of a loss that was scaled so. Allocates nothing.
    pub fn sum(&mut self, mut ranks: Option<&mut Ranks>, program: &mut Program, scale: f32) -> Result<()> {
        self.add_errors(program, 1.0 / scale)?;
        self.project(program)?;
        self.left.sum(ranks.as_deref_mut())?;
        for (matrix, tensor) in self.tensors.iter().enumerate() {
            tensor.thin.orthonormalize(self.left.of_sum(matrix));
        }
        self.project_back(program)?;
        self.right.sum(ranks)?;
        self.leave(program)?;
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
        let LowRank { tensors, left, right, .. } = self;
        for (matrix, tensor) in tensors.iter().enumerate() {
            // The room of the sum is free until there is one.
            let last = right.of_sum(matrix);
            last.copy_from_slice(numbers_of(program, &tensor.right)?);
            Thin::begin(last);
            for (place, lane) in tensor.kept.lanes.iter().enumerate() {
                tensor.thin.project(numbers_of(program, lane)?, last, left.of_lane(place, matrix));
            }
        }
        Ok(())
    }

    /// Projects each lane on the left vectors.
    fn project_back(&mut self, program: &Program) -> Result<()> {
        let LowRank { tensors, left, right, .. } = self;
        for (matrix, tensor) in tensors.iter().enumerate() {
            for (place, lane) in tensor.kept.lanes.iter().enumerate() {
                let to = right.of_lane(place, matrix);
                tensor.thin.project_back(numbers_of(program, lane)?, left.of_sum(matrix), to);
            }
        }
        Ok(())
    }

    /// Leaves in each lane what is not sent.
    fn leave(&mut self, program: &mut Program) -> Result<()> {
        let LowRank { tensors, left, right, .. } = self;
        for (matrix, tensor) in tensors.iter().enumerate() {
            for (place, lane) in tensor.kept.lanes.iter().enumerate() {
                let (left, right) = (left.of_sum(matrix), right.of_lane(place, matrix));
                with_numbers(program, lane, |numbers| tensor.thin.add_product(left, right, -1.0, numbers))?;
            }
        }
        Ok(())
    }

    /// Writes the products of the sums to where sums belong.
    fn write(&mut self, program: &mut Program, scale: f32) -> Result<()> {
        let LowRank { tensors, left, right, .. } = self;
        for (matrix, tensor) in tensors.iter().enumerate() {
            let (left, right) = (left.of_sum(matrix), right.of_sum(matrix));
            copy_from(program, &tensor.next_right, 0, right)?;
            with_numbers(program, &tensor.kept.sums[0], |numbers| {
                numbers.fill(0.0);
                tensor.thin.add_product(left, right, scale, numbers);
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

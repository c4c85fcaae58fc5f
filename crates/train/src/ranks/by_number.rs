//! Sums over lanes of tensors that are compressed number by number, each lane with an error of its own, and the sums too.

use super::Ranks;
use super::coded::{CodedNumbers, CodedSum};
use super::states::{copy_from, numbers_of, with_numbers};
use super::units::Unit;
use crate::Result;
use crate::lanes::Lanes;
use crate::step::CodedTensor;
use gradus_engine::Program;

/// Sums of tensors whose numbers are compressed.
pub(crate) struct ByNumber {
    tensors: Vec<CodedTensor>,
    sum: CodedSum,
}

/// What a program has of tensors, whose gradients are those of a loss that was scaled so.
struct InProgram<'a> {
    program: &'a mut Program,
    tensors: &'a [CodedTensor],
    scale: f32,
    inverse: f32,
}

impl CodedNumbers for InProgram<'_> {
    fn read(&self, place: usize, unit: &Unit, numbers: &mut [f32], error: &mut [f32]) -> Result<()> {
        let tensor = &self.tensors[unit.tensor];
        error.copy_from_slice(&numbers_of(self.program, &tensor.errors[place])?[unit.numbers.clone()]);
        numbers.copy_from_slice(&numbers_of(self.program, &tensor.kept.lanes[place])?[unit.numbers.clone()]);
        numbers.iter_mut().for_each(|number| *number *= self.inverse);
        Ok(())
    }

    fn leave(&mut self, place: usize, unit: &Unit, error: &[f32]) -> Result<()> {
        copy_from(self.program, &self.tensors[unit.tensor].kept.lanes[place], unit.numbers.start, error)
    }

    fn read_error_of_sum(&self, unit: &Unit, error: &mut [f32]) -> Result<()> {
        let tensor = &self.tensors[unit.tensor];
        let within = unit.numbers.start - tensor.part.start;
        error.copy_from_slice(&numbers_of(self.program, &tensor.sum_error)?[within..within + error.len()]);
        Ok(())
    }

    fn leave_of_sum(&mut self, _: usize, unit: &Unit, error: &[f32]) -> Result<()> {
        let tensor = &self.tensors[unit.tensor];
        copy_from(self.program, &tensor.sum_residual, unit.numbers.start - tensor.part.start, error)
    }

    fn write(&mut self, unit: &Unit, sums: &[f32]) -> Result<()> {
        let (numbers, scale) = (unit.numbers.clone(), self.scale);
        with_numbers(self.program, &self.tensors[unit.tensor].kept.sums[0], |all| {
            all[numbers].iter_mut().zip(sums).for_each(|(number, sum)| *number = sum * scale);
        })
    }
}

impl ByNumber {
    pub fn new(lanes: &Lanes, tensors: Vec<CodedTensor>) -> ByNumber {
        let sizes: Vec<_> = tensors.iter().map(|tensor| (tensor.kept.numbers, tensor.compression)).collect();
        ByNumber { tensors, sum: CodedSum::new(lanes, &sizes) }
    }

    /// Sums the lanes of all ranks, whose gradients are those of a loss that was scaled so. Allocates nothing.
    pub fn sum(&mut self, ranks: Option<&mut Ranks>, program: &mut Program, scale: f32) -> Result<()> {
        let ByNumber { tensors, sum } = self;
        sum.sum(ranks, &mut InProgram { program, tensors, scale, inverse: 1.0 / scale })
    }

    /// Nothing of this step was left out.
    pub fn forget(&self, program: &mut Program) -> Result<()> {
        for tensor in &self.tensors {
            for lane in &tensor.kept.lanes {
                with_numbers(program, lane, |numbers| numbers.fill(0.0))?;
            }
            if !tensor.part.is_empty() {
                with_numbers(program, &tensor.sum_residual, |numbers| numbers.fill(0.0))?;
            }
        }
        Ok(())
    }
}

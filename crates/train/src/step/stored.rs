//! What lasts of a step, as checkpoints store it: whole, also where ranks have parts of it.

use super::{Divided, TrainingStep};
use crate::Result;
use crate::checkpoint::Contents;
use crate::files::tensors::{Entry, Fill, Tensors, TensorsMut};
use crate::ranks::Asking;
use gradus_engine::{DType, TensorType};
use std::borrow::Cow;
use std::ops::Range;

impl TrainingStep {
    /// All that lasts of the step, as it is stored: whole, also where only parts of it are here.
    pub fn contents(&self) -> Contents {
        let mut contents = Contents::of_program(self.program());
        contents.states.retain(|entry| self.part_of(&entry.name, 0).is_none() && !self.passing.contains(&entry.name));
        let whole = |state: &Divided| Entry { name: state.name.clone(), ty: TensorType::new(DType::F32, &state.shape) };
        contents.states.extend(self.divided.iter().map(whole));
        contents
    }

    /// The numbers that a rank has of a state that is only in parts, and the state's place among those.
    fn part_of(&self, name: &str, rank: usize) -> Option<(usize, Range<usize>)> {
        let place = self.divided.iter().position(|state| state.name == name)?;
        Some((place, self.divided[place].parts[rank].clone()))
    }

    /// The bytes that are here of a state that is only in parts, by its place among those.
    pub(crate) fn part_here(&self, place: usize) -> Result<Cow<'_, [u8]>> {
        let own = self.config().lanes.place().rank;
        match self.divided.get(place).filter(|state| !state.parts[own].is_empty()) {
            Some(state) => Ok(self.program().bytes(&state.name[..])?),
            None => Ok(Cow::Borrowed(&[])),
        }
    }
}

/// What is read to where it lies, or the part of it that is here.
impl TensorsMut for TrainingStep {
    fn fill(&mut self, entry: &Entry, fill: Fill<'_>) -> Result<()> {
        let own = self.config().lanes.place().rank;
        match self.part_of(&entry.name, own) {
            Some((_, part)) if part.is_empty() => Ok(()),
            _ => TensorsMut::fill(self.program_mut(), entry, fill),
        }
    }

    fn first(&self, entry: &Entry) -> usize {
        let own = self.config().lanes.place().rank;
        self.part_of(&entry.name, own).map_or(0, |(_, part)| part.start)
    }
}

/// What a step has, and what it can ask other ranks for.
pub(crate) struct Collected<'a, 't> {
    pub training: &'a TrainingStep,
    pub asking: Option<&'a Asking<'t>>,
}

impl Tensors for Collected<'_, '_> {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let (Some(asking), Some((place, _))) = (self.asking, self.training.part_of(name, 0)) else {
            return Ok(self.training.program().bytes(name)?);
        };
        let ranks = self.training.config().lanes.place().ranks;
        let mut at = vec![0];
        for rank in 0..ranks {
            let part = self.training.part_of(name, rank).map_or(0, |(_, part)| part.len());
            at.push(at[rank] + part * DType::F32.size());
        }
        let mut bytes = vec![0; at[ranks]];
        let own = self.training.part_here(place)?;
        bytes[..own.len()].copy_from_slice(&own);
        asking.ask(place as u64, &mut bytes, &at)?;
        Ok(Cow::Owned(bytes))
    }
}

//! What lasts of a step, as checkpoints store it: whole, also where ranks have parts of it.

use super::TrainingStep;
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
        let Some(parts) = &self.parts else { return contents };
        contents.states.retain(|entry| parts.of_state(&entry.name, 0).is_none());
        let whole = |(name, weight): &(String, usize)| Entry {
            name: name.clone(),
            ty: TensorType::new(DType::F32, &self.parameters()[*weight].shape),
        };
        contents.states.extend(parts.states.iter().map(whole));
        contents
    }

    /// The numbers that a rank has of a state that is only in parts, and the state's place among those.
    fn part_of(&self, name: &str, rank: usize) -> Option<(usize, Range<usize>)> {
        let parts = self.parts.as_ref()?;
        let place = parts.states.iter().position(|(known, _)| known == name)?;
        Some((place, parts.of_state(name, rank)?.1))
    }

    /// The bytes that are here of a state that is only in parts, by its place among those.
    pub(crate) fn part_here(&self, place: usize) -> Result<Cow<'_, [u8]>> {
        let own = self.config().lanes.place().rank;
        let state = self.parts.as_ref().and_then(|parts| parts.states.get(place)).map(|(name, _)| &name[..]);
        match state.filter(|name| self.part_of(name, own).is_some_and(|(_, part)| !part.is_empty())) {
            Some(name) => Ok(self.program().bytes(name)?),
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

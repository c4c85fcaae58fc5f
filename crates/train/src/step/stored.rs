//! What lasts of a step, as checkpoints store it: whole, also where ranks have parts of it.

use super::staged::Staging;
use super::{Divided, TrainingStep};
use crate::checkpoint::Contents;
use crate::files::tensors::{Entry, Fill, Tensors, TensorsMut};
use crate::parameters::Parameter;
use crate::ranks::Asking;
use crate::{Error, Result};
use gradus_engine::{DType, Shape, TensorType};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;

impl TrainingStep {
    /// All that lasts of the step, as it is stored: whole, also where only parts of it are here.
    pub fn contents(&self) -> Contents {
        let mut contents = Contents::of_program(self.program());
        if let Some(staging) = &self.staging {
            return self.whole_contents(contents, staging);
        }
        contents.states.retain(|entry| self.part_of(&entry.name, 0).is_none() && !self.passing.contains(&entry.name));
        let whole = |state: &Divided| Entry { name: state.name.clone(), ty: TensorType::new(DType::F32, &state.shape) };
        contents.states.extend(self.divided.iter().map(whole));
        contents
    }

    /// With the weights of all stages and what is remembered of them, in the order of a single stage.
    fn whole_contents(&self, own: Contents, staging: &Staging) -> Contents {
        let remembered = |weight: &Parameter| self.config().optimizer.remembered(&weight.name, &weight.shape);
        let of_own: HashSet<String> = self.parameters().iter().flat_map(&remembered).map(|(name, _)| name).collect();
        let mut states: Vec<Entry> = own.states.into_iter().filter(|entry| !of_own.contains(&entry.name)).collect();
        let all = staging.weights.iter().flat_map(|(weight, _)| remembered(weight));
        states.extend(all.map(|(name, shape)| Entry { name, ty: TensorType::new(DType::F32, shape) }));
        let weights: Vec<Parameter> = staging.weights.iter().map(|(weight, _)| weight.clone()).collect();
        Contents { weights: Entry::of_parameters(&weights), states }
    }

    /// What lasts of all stages, in order, each with the stage that answers for it.
    fn of_stages<'s>(&'s self, staging: &'s Staging) -> impl Iterator<Item = (String, Shape, usize)> + 's {
        staging.weights.iter().flat_map(|(weight, stage)| {
            let remembered = self.config().optimizer.remembered(&weight.name, &weight.shape);
            let all = [(weight.name.clone(), weight.shape.clone())].into_iter().chain(remembered);
            all.map(|(name, shape)| (name, shape, *stage))
        })
    }

    /// Whether a state is here, if others are in other stages.
    fn is_here(&self, name: &str) -> bool {
        self.staging.is_none() || self.program().size(name).is_ok()
    }

    /// The numbers that a rank has of a state that is only in parts, and the state's place among those.
    fn part_of(&self, name: &str, rank: usize) -> Option<(usize, Range<usize>)> {
        let place = self.divided.iter().position(|state| state.name == name)?;
        Some((place, self.divided[place].parts[rank].clone()))
    }

    /// The bytes that are here of a state that is only in parts, or in another stage, by its place among those.
    pub(crate) fn part_here(&self, place: usize) -> Result<Cow<'_, [u8]>> {
        let own = self.config().lanes.place().rank;
        if let Some(staging) = &self.staging {
            // The first pipeline answers.
            let asked = self.of_stages(staging).nth(place).filter(|_| own == 0);
            return match asked.filter(|(_, _, stage)| *stage == self.config().stage.index) {
                Some((name, _, _)) => Ok(self.program().bytes(&name[..])?),
                None => Ok(Cow::Borrowed(&[])),
            };
        }
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
            None if !self.is_here(&entry.name) => Ok(()),
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

impl Collected<'_, '_> {
    fn of_another_stage(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let unknown = || Error::Config(format!("{name:?} is of another rank, which is not asked"));
        let (Some(staging), Some(asking)) = (&self.training.staging, self.asking) else { return Err(unknown()) };
        let mut all = self.training.of_stages(staging).enumerate();
        let (number, (_, shape, stage)) = all.find(|(_, (known, _, _))| known == name).ok_or_else(unknown)?;
        let mut bytes = vec![0; TensorType::new(DType::F32, shape).bytes()];
        let ranks = self.training.config().place().ranks;
        let at: Vec<usize> = (0..=ranks).map(|rank| if rank > stage { bytes.len() } else { 0 }).collect();
        asking.ask(number as u64, &mut bytes, &at)?;
        Ok(Cow::Owned(bytes))
    }
}

impl Tensors for Collected<'_, '_> {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        if !self.training.is_here(name) {
            return self.of_another_stage(name);
        }
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

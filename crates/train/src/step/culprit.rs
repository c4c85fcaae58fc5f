//! What is not finite in a step that was refused.

use super::{DIAGNOSE, TrainingStep};
use crate::Result;
use crate::parameters::Parameter;
use std::fmt;

/// What is not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit<'a> {
    /// The weight of this name.
    Weight(&'a str),
    /// The gradient of this weight.
    Gradient(&'a str),
    /// The norm of all gradients, each of which is.
    Norm,
}

impl fmt::Display for Culprit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Culprit::Weight(name) => write!(f, "the weight {name}"),
            Culprit::Gradient(name) => write!(f, "the gradient of {name}"),
            Culprit::Norm => write!(f, "the norm of the gradients"),
        }
    }
}

impl TrainingStep {
    /// After a step that was refused: the weight that is not finite itself, the first layer's first; else the one whose
    /// gradient is not, the last layer's first, since that is where a gradient starts.
    pub fn culprit(&mut self) -> Result<Culprit<'_>> {
        let places = self.places();
        let mut weight = self.weight_not_finite()?.map_or(u64::MAX, |index| places[index] as u64);
        // Where a rank has some of the weights, the others may have found another.
        if let Some(pipeline) = &mut self.pipeline {
            weight = pipeline.ranks().numbers(weight)?.iter().copied().min().unwrap_or(weight);
        }
        if weight != u64::MAX {
            return Ok(Culprit::Weight(self.weight_name(weight as usize)));
        }
        let place = self.last_not_finite()?.map_or(0, |index| places[index] as u64 + 1);
        // And so where it has a part of each gradient.
        let place = match self.ranks() {
            Some(ranks) => ranks.numbers(place)?.iter().copied().max().unwrap_or(place),
            None => place,
        };
        Ok(match place {
            0 => Culprit::Norm,
            place => Culprit::Gradient(self.weight_name(place as usize - 1)),
        })
    }

    /// The places of this step's weights among all of the model.
    fn places(&self) -> Vec<usize> {
        let place = |(index, parameter): (usize, &Parameter)| match &self.staging {
            None => index,
            Some(staging) => {
                let all = &staging.weights;
                all.iter().position(|(known, _)| known.name == parameter.name).expect("a stage's weight is the model's")
            }
        };
        self.parameters.iter().enumerate().map(place).collect()
    }

    /// The name of one of all weights of the model.
    fn weight_name(&self, place: usize) -> &str {
        match &self.staging {
            None => &self.parameters[place].name,
            Some(staging) => &staging.weights[place].0.name,
        }
    }

    /// The first weight that is not finite.
    fn weight_not_finite(&self) -> Result<Option<usize>> {
        for (index, parameter) in self.parameters.iter().enumerate() {
            let numbers = self.program.bytes(&parameter.name)?;
            let mut numbers =
                numbers.chunks_exact(4).map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            if !numbers.all(f32::is_finite) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }

    /// The last weight whose gradient is not finite, as far as that is here.
    fn last_not_finite(&mut self) -> Result<Option<usize>> {
        let is_here = |index: usize| self.parts.as_ref().is_none_or(|parts| parts.is_here(index));
        let here: Vec<usize> = (0..self.parameters.len()).filter(|index| is_here(*index)).collect();
        if here.is_empty() {
            return Ok(None);
        }
        self.program.run(DIAGNOSE)?;
        for index in here.into_iter().rev() {
            if !self.program.scalar(&self.parameters[index].name)?.is_finite() {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

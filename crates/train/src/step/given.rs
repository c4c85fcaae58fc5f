//! Gradients that are given away as soon as they are there, so that they take no memory afterwards: of their sums over lanes only the
//! parts that are updated here are kept.

use super::{Differentiated, Parts};
use crate::accumulation::{Summed, added_up};
use gradus_engine::{DType, Role, Routine, Tensor};
use std::ops::Range;

/// The gradients of a lane, and the parts of sums that are here.
pub(super) struct Given<'a> {
    /// By weight, the terms of its gradient: each has a sum.
    terms: &'a [Vec<Tensor>],
    /// By weight and term, the part of the sum; of some weights there is none.
    parts: Vec<Vec<Tensor>>,
}

/// What the part of the sum of a weight's term is called.
fn given_name(term: usize, weight: &str) -> String {
    format!("given.{term}.{weight}")
}

/// What is summed of a model's weights.
pub(super) fn summed(model: &Differentiated) -> Vec<Summed> {
    let of_weight = |((name, weight), terms): ((&String, &Tensor), &Vec<Tensor>)| Summed {
        numbers: weight.shape().elements(),
        sums: (0..terms.len()).map(|term| given_name(term, name)).collect(),
    };
    model.names.iter().zip(&model.weights).zip(&model.terms).map(of_weight).collect()
}

impl<'a> Given<'a> {
    /// With the numbers of each weight that are kept.
    #[track_caller]
    pub fn of(model: &'a Differentiated, numbers: &[Range<usize>]) -> Given<'a> {
        let trace = model.weights[0].trace();
        let of_weight = |((name, terms), numbers): ((&String, &Vec<Tensor>), &Range<usize>)| {
            let part =
                |term| trace.zero_state_with_role(&given_name(term, name), Role::Gradient, DType::F32, [numbers.len()]);
            (0..terms.len()).filter(|_| !numbers.is_empty()).map(part).collect()
        };
        let parts = model.names.iter().zip(&model.terms).zip(numbers).map(of_weight).collect();
        Given { terms: &model.terms, parts }
    }

    /// The states of the parts, by weight.
    pub fn states(&self) -> &[Vec<Tensor>] {
        &self.parts
    }

    /// Adds to a routine that it gives the gradients away, those of the last weights first.
    pub fn giving(&self, routine: Routine, parts: &Parts) -> Routine {
        let shards = parts.shards();
        (0..shards.of_weights()).rev().fold(routine, |routine, bucket| {
            let weights = shards.bucket(bucket);
            routine.gives(bucket, &self.parts[weights.clone()].concat(), &self.terms[weights].concat())
        })
    }

    /// The parts of gradients that are here.
    #[track_caller]
    pub fn parts(&self) -> Vec<Option<Tensor>> {
        self.parts.iter().map(|terms| (!terms.is_empty()).then(|| added_up(terms))).collect()
    }
}

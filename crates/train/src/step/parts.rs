//! The part of every weight that a rank has: it sums the gradients of that. Where the optimizer is sharded, it updates no other, and
//! remembers only what belongs to it.

use super::update::Target;
use super::{Differentiated, Divided, SQUARES, StepConfig};
use crate::accumulation::Summed;
use crate::lanes::{self, Place, SQUARES_TOGETHER};
use crate::optimizers::Part;
use crate::parameters::Parameter;
use crate::ranks::Shards;
use gradus_engine::{DType, Routine, Tensor};
use std::ops::Range;

/// The input that the squares of all gradients are written to.
pub(crate) const ALL_SQUARES: &str = "gradient_squares";

/// What the new numbers of a part are called.
pub(super) fn part_name(weight: &str) -> String {
    format!("part.{weight}")
}

/// The parts of weights that a rank has.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    shards: Shards,
    /// Whether only they are updated here.
    sharded: bool,
    /// Whether gradients are given away, so that only parts of their sums are here.
    pub gives: bool,
    /// By weight, the numbers of it; none of some.
    pub numbers: Vec<Range<usize>>,
    /// By weight, what its new numbers are called.
    pub outputs: Vec<String>,
    /// Outputs of the routine [`SQUARES`], one after another, and how many numbers they have.
    pub squares: Vec<(String, usize)>,
    /// The names of states of which only such a part is here, and the number of their weight.
    pub states: Vec<(String, usize)>,
}

impl Parts {
    pub(super) fn of(step: &StepConfig, model: &Differentiated, summed: &[Summed]) -> Parts {
        let Place { rank, ranks } = step.lanes.place();
        let numbers = summed.iter().map(|summed| summed.numbers).collect();
        let shards = Shards::new(numbers, model.weights.len(), ranks);
        let numbers = (0..model.weights.len()).map(|weight| shards.part(weight, rank)).collect();
        let named = model.names.iter().zip(&model.weights).enumerate().filter(|_| step.shard.is_of_updates());
        let states = named.flat_map(|(index, (name, weight))| {
            let states = step.optimizer.states_of(name, &weight.shape());
            states.into_iter().map(move |state| (state, index))
        });
        let outputs = model.names.iter().map(|name| part_name(name)).collect();
        let (sharded, gives, states) = (step.shard.is_of_updates(), step.gives_gradients(), states.collect());
        Parts { numbers, outputs, squares: vec![], states, sharded, gives, shards }
    }

    pub fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Whether only parts of weights are updated here.
    pub fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// Whether the sums of a weight's gradient, or a part of them, are here.
    pub fn is_here(&self, weight: usize) -> bool {
        !self.sharded || !self.has_none(weight)
    }

    /// Whether this rank has no number of what is summed for a weight.
    pub fn has_none(&self, tensor: usize) -> bool {
        self.numbers.get(tensor).is_some_and(Range::is_empty)
    }

    /// The squares of all gradients, to come from outside.
    #[track_caller]
    fn all_squares(&self, model: &Differentiated) -> Vec<Vec<Tensor>> {
        let weights = model.weights.len();
        let units = self.shards.units_of(weights - 1).end;
        let squares = model.weights[0].trace().input(ALL_SQUARES, DType::F32, [units]);
        let of_weight = |weight: usize| {
            let (units, count) = (self.shards.units_of(weight), model.weights[weight].shape().elements());
            let whole = units.start + count / SQUARES_TOGETHER;
            let ranges = [units.start..whole, whole..units.end];
            ranges.into_iter().filter(|range| !range.is_empty()).map(|range| squares.slice(0, range)).collect()
        };
        (0..weights).map(of_weight).collect()
    }

    /// What is updated here, with the squares of all gradients to come from outside: from all gradients, or from the parts that are here.
    #[track_caller]
    pub(super) fn target<'a>(&self, model: &'a Differentiated, all: &[Tensor], own: &[Option<Tensor>]) -> Target<'a> {
        let squares = Some(self.all_squares(model));
        if !self.sharded {
            return Target { squares, ..Target::whole(model, all.to_vec()) };
        }
        let mut target = Target { parts: vec![], gradients: vec![], squares, in_parts: true };
        let named = model.names.iter().zip(&model.weights).zip(&self.numbers);
        for (((name, weight), numbers), gradient) in named.zip(own) {
            let Some(gradient) = gradient else { continue };
            let shape = weight.shape();
            let flat = weight.reshape([shape.elements()]);
            target.parts.push(Part { name, numbers: flat.slice(0, numbers.clone()), shape });
            target.gradients.push(gradient.clone());
        }
        target
    }

    /// The routine that gives the squares of the parts of gradients that are here, if there are any.
    #[track_caller]
    pub(super) fn squares(&mut self, own: &[Option<Tensor>]) -> Option<Routine> {
        let mut routine = Routine::new(SQUARES).times_per_step(1);
        for (index, sums) in own.iter().flatten().flat_map(lanes::squares).enumerate() {
            let name = format!("squares.{index}");
            routine = routine.output(&name, &sums);
            self.squares.push((name, sums.shape().elements()));
        }
        (!self.squares.is_empty()).then_some(routine)
    }

    /// The place of each rank's squares among all, where those of one rank come after another's, and the end of the last.
    pub fn squares_at(&self, ranks: usize) -> Vec<usize> {
        let of_rank =
            |rank: usize| (0..self.shards.of_weights()).map(move |bucket| self.shards.units(bucket, rank).len());
        let mut at = vec![0];
        (0..ranks).for_each(|rank| at.push(at[rank] + of_rank(rank).sum::<usize>()));
        at
    }

    /// Says of a routine that it leaves sums in their states: when those of each bucket can be exchanged.
    pub(super) fn starting(&self, routine: Routine, sums: &[Vec<Tensor>]) -> Routine {
        let weights = self.shards.of_weights();
        let first = if self.gives { weights } else { 0 };
        (first..=weights)
            .fold(routine, |routine, bucket| routine.starts(bucket, &sums[self.shards.bucket(bucket)].concat()))
    }

    /// Says of a routine when it needs the sums of each bucket, and where it reads them, the weights.
    pub(super) fn awaiting(&self, routine: Routine, weights: &[Tensor], sums: &[Vec<Tensor>]) -> Routine {
        (0..self.shards.of_weights()).fold(routine, |routine, bucket| {
            let tensors = self.shards.bucket(bucket);
            let mut states = sums[tensors.clone()].concat();
            states.extend(weights.get(tensors).unwrap_or(&[]).iter().cloned());
            routine.awaits(bucket, &states)
        })
    }

    /// The states of which only a part is here, whole, for weights of these shapes.
    pub fn divided(&self, weights: &[Parameter]) -> Vec<Divided> {
        let divided = |(name, weight): &(String, usize)| Divided {
            name: name.clone(),
            shape: weights[*weight].shape.clone(),
            parts: (0..self.shards.ranks()).map(|rank| self.shards.part(*weight, rank)).collect(),
        };
        self.states.iter().map(divided).collect()
    }
}

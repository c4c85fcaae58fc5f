//! Parts of weights that are updated here, where each rank has its own: of what an optimizer remembers, a rank has only that.

use super::update::Target;
use super::{Differentiated, SQUARES, StepConfig};
use crate::accumulation::GradientAccumulator;
use crate::lanes::{self, Place, SQUARES_TOGETHER};
use crate::optimizers::Part;
use crate::ranks::Shards;
use gradus_engine::{DType, Routine};
use std::ops::Range;

/// The input that the squares of all gradients are written to.
pub(crate) const ALL_SQUARES: &str = "gradient_squares";

/// What the new numbers of a part are called.
pub(super) fn part_name(weight: &str) -> String {
    format!("part.{weight}")
}

/// The parts of weights that are updated here.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    shards: Shards,
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
    pub(super) fn of(step: &StepConfig, model: &Differentiated, accumulator: &GradientAccumulator) -> Parts {
        let Place { rank, ranks } = step.lanes.place();
        let shards = Shards::new(accumulator.summed().iter().map(|summed| summed.numbers).collect(), ranks);
        let numbers = (0..model.weights.len()).map(|weight| shards.part(weight, rank)).collect();
        let named = model.names.iter().zip(&model.weights).enumerate();
        let states = named.flat_map(|(index, (name, weight))| {
            let states = step.optimizer.states_of(name, &weight.shape());
            states.into_iter().map(move |state| (state, index))
        });
        let outputs = model.names.iter().map(|name| part_name(name)).collect();
        Parts { numbers, outputs, squares: vec![], states: states.collect(), shards }
    }

    /// The parts as what is updated, with the squares of all gradients to come from outside.
    #[track_caller]
    pub(super) fn target<'a>(&self, model: &'a Differentiated, accumulator: &GradientAccumulator) -> Target<'a> {
        let weights = model.weights.len();
        let units = self.shards.units_of(weights - 1).end;
        let squares = model.weights[0].trace().input(ALL_SQUARES, DType::F32, [units]);
        let of_weight = |weight: usize| {
            let (units, count) = (self.shards.units_of(weight), model.weights[weight].shape().elements());
            let whole = units.start + count / SQUARES_TOGETHER;
            let ranges = [units.start..whole, whole..units.end];
            ranges.into_iter().filter(|range| !range.is_empty()).map(|range| squares.slice(0, range)).collect()
        };
        let squares = Some((0..weights).map(of_weight).collect());
        let mut target = Target { parts: vec![], gradients: vec![], squares };
        let named = model.names.iter().zip(&model.weights).zip(&self.numbers);
        for (((name, weight), numbers), gradient) in named.zip(accumulator.parts(&self.numbers)) {
            let Some(gradient) = gradient else { continue };
            let shape = weight.shape();
            let flat = weight.reshape([shape.elements()]);
            target.parts.push(Part { name, numbers: flat.slice(0, numbers.clone()), shape });
            target.gradients.push(gradient);
        }
        target
    }

    /// The routine that gives the squares of the gradients that are here.
    #[track_caller]
    pub(super) fn squares(&mut self, target: &Target<'_>) -> Routine {
        let mut routine = Routine::new(SQUARES).times_per_step(1);
        for (index, sums) in target.gradients.iter().flat_map(lanes::squares).enumerate() {
            let name = format!("squares.{index}");
            routine = routine.output(&name, &sums);
            self.squares.push((name, sums.shape().elements()));
        }
        routine
    }

    /// The place of each rank's squares among all, and the end of the last.
    pub fn squares_at(&self, ranks: usize) -> Vec<usize> {
        let weights = 0..self.numbers.len();
        let starts = (0..ranks).map(|rank| self.shards.units(&weights, rank).start);
        starts.chain([self.shards.units_of(self.numbers.len() - 1).end]).collect()
    }

    /// The part of a state that a rank has, if it is one of those in parts: its weight and the numbers.
    pub fn of_state(&self, state: &str, rank: usize) -> Option<(usize, Range<usize>)> {
        let (_, weight) = self.states.iter().find(|(name, _)| name == state)?;
        Some((*weight, self.shards.part(*weight, rank)))
    }
}

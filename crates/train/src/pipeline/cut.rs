//! Where a model is cut, and what each stage has of it.

use crate::parameters::{Parameter, Parameters};
use crate::step::{Inputs, Staged};
use crate::{Error, Result};
use gradus_engine::{DType, Tensor, Trace};
use std::ops::Range;

/// What a stage does for each number of a matrix, counted in forward passes: one, two for the gradient, and the forward pass once more
/// where it is computed again.
const WORK: f64 = 4.0;
const WORK_OF_LAST: f64 = 3.0;

/// A model cut into stages.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    /// The blocks of each stage.
    pub blocks: Vec<Range<usize>>,
    /// Its weights, in the order of first use.
    pub weights: Vec<Vec<Parameter>>,
    /// How many streams of random numbers the stages before it take.
    pub streams: Vec<u32>,
}

/// The parts of a model by their weights alone: after an error operations leave nothing in a trace.
struct Sketch<'a> {
    staged: &'a dyn Staged,
    nothing: Tensor,
    inputs: Inputs,
}

impl<'a> Sketch<'a> {
    fn new(staged: &'a dyn Staged) -> Sketch<'a> {
        let trace = Trace::new();
        let nothing = trace.input("nothing", DType::F32, [1, 1]).reshape([0]);
        Sketch { staged, nothing, inputs: Inputs::new(&trace, 1) }
    }

    /// The weights of what is traced, and how many streams were taken after so many.
    fn weights(&self, taken: u32, trace: impl FnOnce(&Parameters)) -> (Vec<Parameter>, u32) {
        let parameters = Parameters::new(self.nothing.trace()).training(&self.nothing).after_streams(taken);
        trace(&parameters);
        (parameters.list(), parameters.streams_taken())
    }

    fn stage(&self, taken: u32, blocks: Range<usize>) -> (Vec<Parameter>, u32) {
        self.weights(taken, |parameters| {
            let Sketch { staged, nothing, inputs } = self;
            if blocks.start == 0 {
                staged.begun(parameters, inputs);
            }
            let is_last = blocks.end == staged.blocks();
            staged.through(parameters, inputs, nothing, blocks);
            if is_last {
                staged.losses_of(parameters, inputs, nothing);
            }
        })
    }

    /// What a pass takes, about: a multiplication for each number of the matrices.
    fn work(&self, trace: impl FnOnce(&Parameters)) -> f64 {
        let (weights, _) = self.weights(0, trace);
        weights.iter().filter(|weight| weight.shape.rank() > 1).map(|weight| weight.shape.elements() as f64).sum()
    }
}

impl Cut {
    /// Cuts a model so that the stage with most to do has as little as can be.
    pub fn of(staged: &dyn Staged, stages: usize) -> Result<Cut> {
        let count = staged.blocks();
        if stages > count {
            return Err(Error::Config(format!(
                "`settings.stages` {stages} is more than the {count} block{} of the model; choose {count} at most",
                if count == 1 { "" } else { "s" }
            )));
        }
        let sketch = Sketch::new(staged);
        let Sketch { nothing, inputs, .. } = &sketch;
        let block = |block: usize| {
            sketch.work(|parameters| drop(staged.through(parameters, inputs, nothing, block..block + 1)))
        };
        let work: Vec<f64> = (0..count).map(block).collect();
        let losses = sketch.work(|parameters| drop(staged.losses_of(parameters, inputs, nothing)));
        let mut cut = Cut { blocks: balanced(&work, losses, stages), weights: vec![], streams: vec![] };
        let mut taken = 0;
        for blocks in cut.blocks.clone() {
            cut.streams.push(taken);
            let weights;
            (weights, taken) = sketch.stage(taken, blocks);
            cut.weights.push(weights);
        }
        Ok(cut)
    }

    /// Every weight of the model, in the order of first use, and the first stage that has it.
    pub fn all(&self) -> Vec<(Parameter, usize)> {
        let mut all: Vec<(Parameter, usize)> = vec![];
        for (stage, weights) in self.weights.iter().enumerate() {
            for weight in weights {
                if self.others(stage, &weight.name).all(|other| other > stage) {
                    all.push((weight.clone(), stage));
                }
            }
        }
        all
    }

    /// The other stages that have a weight of this one.
    pub fn others<'c>(&'c self, stage: usize, name: &'c str) -> impl Iterator<Item = usize> + 'c {
        let has = move |other: &usize| *other != stage && self.weights[*other].iter().any(|known| known.name == name);
        (0..self.weights.len()).filter(has)
    }
}

/// Blocks of so much work in so many stages, the last of which has the losses too: the first of the cuts whose largest stage is
/// smallest.
fn balanced(work: &[f64], losses: f64, stages: usize) -> Vec<Range<usize>> {
    let before: Vec<f64> = [0.0]
        .into_iter()
        .chain(work.iter().scan(0.0, |sum, work| {
            *sum += work;
            Some(*sum)
        }))
        .collect();
    let count = work.len();
    // By stages and blocks that they have together: the largest stage, and where the last of them begins.
    let mut best = vec![vec![(f64::INFINITY, 0); count + 1]; stages + 1];
    best[0][0].0 = 0.0;
    for stage in 1..=stages {
        for end in stage..=count {
            for start in stage - 1..end {
                let blocks = before[end] - before[start];
                let own = if stage == stages { WORK_OF_LAST * (blocks + losses) } else { WORK * blocks };
                let largest = best[stage - 1][start].0.max(own);
                if largest < best[stage][end].0 {
                    best[stage][end] = (largest, start);
                }
            }
        }
    }
    let mut ranges = vec![];
    let mut end = count;
    for stage in (1..=stages).rev() {
        let start = best[stage][end].1;
        ranges.push(start..end);
        end = start;
    }
    ranges.reverse();
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::LanguageModel;
    use crate::models::{CausalModel, ModelConfig};
    use std::rc::Rc;

    #[test]
    fn the_largest_stage_is_as_small_as_can_be() {
        let lengths = |work: &[f64], losses: f64, stages: usize| -> Vec<usize> {
            balanced(work, losses, stages).into_iter().map(|range| range.len()).collect()
        };
        assert_eq!(lengths(&[1.0; 7], 0.0, 2), [3, 4]);
        assert_eq!(lengths(&[1.0; 12], 5.0, 3), [5, 5, 2]);
        assert_eq!(lengths(&[1.0; 12], 50.0, 3), [5, 6, 1]);
        assert_eq!(lengths(&[9.0, 1.0, 1.0, 1.0], 0.0, 3), [1, 1, 2]);
        assert_eq!(lengths(&[1.0], 1.0, 1), [1]);
    }

    #[test]
    fn every_weight_has_a_stage_and_streams_go_on() {
        for model in [ModelConfig::gpt2(61, 32, 5, 2, 16), ModelConfig::llama(61, 32, 5, 2, 16)] {
            let tied = model.tie_embeddings;
            let whole = model.parameters();
            let staged = LanguageModel::new(Rc::new(model));
            for stages in [1, 2, 3, 5] {
                let cut = Cut::of(&staged, stages).unwrap();
                let all: Vec<Parameter> = cut.all().into_iter().map(|(weight, _)| weight).collect();
                assert_eq!(all, whole, "in the order of a single stage");
                assert_eq!((cut.blocks[0].start, cut.blocks[stages - 1].end), (0, 5));
                // One before the blocks, and two of each.
                assert!(
                    cut.streams.iter().zip(&cut.blocks).skip(1).all(|(taken, at)| *taken == 1 + 2 * at.start as u32)
                );
                let shared: Vec<usize> = cut.others(0, &whole[0].name).collect();
                assert_eq!(shared, if tied && stages > 1 { vec![stages - 1] } else { vec![] });
            }
            let refused = Cut::of(&staged, 6).unwrap_err().to_string();
            assert!(refused.contains("6 is more than the 5 blocks"), "{refused}");
        }
    }
}

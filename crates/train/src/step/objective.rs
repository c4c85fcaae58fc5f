//! What is trained: a model and its losses.

use super::{Batch, Inputs};
use crate::Result;
use crate::parameters::Parameters;
use gradus_engine::{Routine, Shape, Tensor};
use std::ops::Range;
use std::rc::Rc;

/// A model and what it is to lose less of. A function from parameters and inputs to losses is one.
///
/// It is traced anew for every micro-batch size that is considered, so it must be the same function each time.
pub trait Objective {
    /// The losses of a micro-batch [micro-batch, ...]: one or several for each example. What is minimized is their mean
    /// over the whole batch.
    fn losses(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor;

    /// The mean loss of a micro-batch, for evaluation: one number. To be stated where not all losses count.
    #[track_caller]
    fn loss(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        self.losses(parameters, inputs).mean_all()
    }

    /// What an evaluation gives of a micro-batch besides its loss, by name: whoever evaluates reads it from the program.
    fn judged(&self, _: &Parameters, _: &Inputs) -> Vec<(&'static str, Tensor)> {
        vec![]
    }

    /// How many losses of a batch count, if not all do: the others must be zero. A batch of which none counts is refused.
    fn counted(&self, _: &Batch) -> Option<usize> {
        None
    }

    /// What else the program does with the weights, in f32.
    fn routines(&self, _: &Parameters) -> Result<Vec<Routine>> {
        Ok(vec![])
    }

    /// The model as blocks one after another, by which ranks share it out; `None`: it cannot be cut.
    fn staged(&self) -> Option<&dyn Staged> {
        None
    }

    /// Smaller ones that could be trained instead, and the settings that make them so: told when a budget is too small.
    fn smaller(&self) -> Vec<(String, Rc<dyn Objective>)> {
        vec![]
    }
}

/// A model as blocks one after another. What it gives by parts must be what [`Objective::losses`] and [`Objective::loss`] give,
/// and every part must have taken all inputs.
pub trait Staged {
    /// How many blocks there are.
    fn blocks(&self) -> usize;

    /// What is between them of an example: the shape of numbers in f32.
    fn between(&self) -> Shape;

    /// How many losses an example has.
    fn losses_of_example(&self) -> usize;

    /// What the first block sees, [micro-batch, ...].
    fn begun(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor;

    /// What some of the blocks make of `x`.
    fn through(&self, parameters: &Parameters, inputs: &Inputs, x: &Tensor, blocks: Range<usize>) -> Tensor;

    /// [`Objective::losses`], of what the last block gave.
    fn losses_of(&self, parameters: &Parameters, inputs: &Inputs, x: &Tensor) -> Tensor;

    /// [`Objective::loss`], of what the last block gave.
    fn loss_of(&self, parameters: &Parameters, inputs: &Inputs, x: &Tensor) -> Tensor;
}

impl<F: Fn(&Parameters, &Inputs) -> Tensor> Objective for F {
    #[track_caller]
    fn losses(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        self(parameters, inputs)
    }
}

//! What is trained: a model and its losses.

use super::{Batch, Inputs};
use crate::Result;
use crate::parameters::Parameters;
use gradus_engine::{Routine, Tensor};
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

    /// Smaller ones that could be trained instead, and the settings that make them so: told when a budget is too small.
    fn smaller(&self) -> Vec<(String, Rc<dyn Objective>)> {
        vec![]
    }
}

impl<F: Fn(&Parameters, &Inputs) -> Tensor> Objective for F {
    #[track_caller]
    fn losses(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        self(parameters, inputs)
    }
}

//! Gradients summed over the micro-batches of a step.

use gradus_engine::ops::accumulated;
use gradus_engine::{DType, Role, Routine, Tensor};
use std::collections::HashSet;

/// Sums of gradients in states, over any named tensors: [`GradientAccumulator::first`] begins them,
/// [`GradientAccumulator::accumulate`] goes on, and what is updated from [`GradientAccumulator::gradients`] follows the
/// whole batch.
///
/// A tensor that is used twice has a sum for each use ([`gradus_engine::gradient_terms`]): then the sums do not depend on
/// how the batch is cut.
#[derive(Default)]
pub struct GradientAccumulator {
    /// A value of each micro-batch, and the state that sums it.
    sums: Vec<(Tensor, Tensor)>,
    gradients: Vec<Tensor>,
    /// States in whose bytes a gradient of several sums is put together.
    joined: Vec<(Tensor, Tensor)>,
    /// The names of the states.
    names: HashSet<String>,
}

impl GradientAccumulator {
    /// Sums for these tensors, each with the terms of its gradient in a micro-batch.
    #[track_caller]
    pub fn new<'t>(named: impl IntoIterator<Item = (&'t str, &'t [Tensor])>) -> GradientAccumulator {
        let mut accumulator = GradientAccumulator::default();
        for (name, terms) in named {
            let use_name = |index: usize| if index == 0 { name.to_string() } else { format!("{name}.{index}") };
            let mut sums = vec![];
            for (index, term) in terms.iter().enumerate() {
                sums.push(accumulator.sum(&use_name(index), term));
            }
            let gradient = added_up(&sums);
            if sums.len() > 1 {
                // In place of the first sum, which the next step starts anew.
                accumulator.joined.push((sums[0].clone(), gradient.clone()));
            }
            accumulator.gradients.push(gradient);
        }
        accumulator
    }

    /// A sum of something else over the micro-batches, such as the loss.
    #[track_caller]
    pub fn sum(&mut self, name: &str, value: &Tensor) -> Tensor {
        let mut name = format!("accumulated.{name}");
        // The second use of `w` is called as the first of `w.1` would be.
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        let state = value.trace().zero_state_with_role(&name, Role::Gradient, DType::F32, value.shape());
        self.sums.push((value.clone(), state.clone()));
        state
    }

    /// The gradients over all micro-batches, in the order of the tensors.
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients
    }

    /// Adds to a routine that it takes the values of the first micro-batch.
    pub fn first(&self, routine: Routine) -> Routine {
        self.sums.iter().fold(routine, |routine, (value, state)| routine.assign(state, value))
    }

    /// Adds to a routine that it goes on with the values of a further micro-batch.
    #[track_caller]
    pub fn accumulate(&self, routine: Routine) -> Routine {
        let (values, states): (Vec<&Tensor>, Vec<&Tensor>) =
            self.sums.iter().map(|(value, state)| (value, state)).unzip();
        let sums = accumulated(&states, &values);
        states.iter().zip(&sums).fold(routine, |routine, (state, sum)| routine.assign(state, sum))
    }

    /// Adds to the routine that updates from the gradients where they are put together.
    pub fn update(&self, routine: Routine) -> Routine {
        self.joined.iter().fold(routine, |routine, (state, gradient)| routine.assign(state, gradient))
    }
}

/// The sum, from the first to the last.
pub(crate) fn added_up(terms: &[Tensor]) -> Tensor {
    terms[1..].iter().fold(terms[0].clone(), |sum, term| sum + term)
}

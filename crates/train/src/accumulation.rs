//! Gradients summed over the micro-batches of a step, and over its lanes.

use crate::lanes::{Fold, Lanes};
use gradus_engine::ops::accumulated;
use gradus_engine::{DType, Role, Routine, Tensor};
use std::collections::HashSet;
use std::ops::Range;

/// Sums of gradients in states, over any named tensors: [`GradientAccumulator::first`] begins them,
/// [`GradientAccumulator::accumulate`] goes on, and what is updated from [`GradientAccumulator::gradients`] follows the
/// whole batch.
///
/// A tensor that is used twice has a sum for each use ([`gradus_engine::gradient_terms`]): then the sums do not depend on
/// how the batch is cut.
#[derive(Default)]
pub struct GradientAccumulator {
    sums: Vec<Sum>,
    /// What they are the sums of.
    summed: Vec<Summed>,
    gradients: Vec<Tensor>,
    /// States in whose bytes a gradient of several sums is put together.
    joined: Vec<(Tensor, Tensor)>,
    /// The names of the states.
    names: HashSet<String>,
}

/// A sum over micro-batches.
struct Sum {
    /// What the state is called.
    name: String,
    /// The value of each micro-batch.
    value: Tensor,
    state: Tensor,
}

/// A tensor, or something else that is summed, and the states of its sums.
#[derive(Clone, Debug)]
pub(crate) struct Summed {
    /// Numbers of each sum.
    pub numbers: usize,
    /// The names of the states: one, or one for each use of the tensor.
    pub sums: Vec<String>,
}

/// What the sums of lanes that wait at a place are called.
pub(crate) fn waiting_name(place: usize, sum: &str) -> String {
    format!("lanes.{place}.{sum}")
}

impl Fold {
    /// What the routine that does this is called, if there is anything to do.
    pub fn routine(&self) -> Option<String> {
        let Fold { waiting, added, waits } = *self;
        let name = if waits { "keep" } else { "join" };
        (waits || added > 0).then(|| format!("{name}.{waiting}.{added}"))
    }
}

impl GradientAccumulator {
    /// Sums for these tensors, each with the terms of its gradient in a micro-batch.
    #[track_caller]
    pub fn new<'t>(named: impl IntoIterator<Item = (&'t str, &'t [Tensor])>) -> GradientAccumulator {
        let mut accumulator = GradientAccumulator::default();
        for (name, terms) in named {
            let use_name = |index: usize| if index == 0 { name.to_string() } else { format!("{name}.{index}") };
            let before = accumulator.sums.len();
            let mut sums = vec![];
            for (index, term) in terms.iter().enumerate() {
                sums.push(accumulator.add(&use_name(index), term));
            }
            accumulator.add_summed(before);
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
        let before = self.sums.len();
        let state = self.add(name, value);
        self.add_summed(before);
        state
    }

    /// A sum of a tensor with one that is elsewhere is to be brought to a state: its gradient is both. Gives the names of the
    /// state of its sum and of that one.
    #[track_caller]
    pub(crate) fn add_from_elsewhere(&mut self, tensor: usize) -> [String; 2] {
        let name = self.summed[tensor].sums[0].clone();
        let sum = self.sums.iter().find(|sum| sum.name == name).expect("a tensor has a sum").state.clone();
        let other = format!("elsewhere.{name}");
        let brought = sum.trace().zero_state_with_role(&other, Role::Gradient, DType::F32, sum.shape());
        let gradient = &sum + brought;
        self.joined.push((sum, gradient.clone()));
        self.gradients[tensor] = gradient;
        [name, other]
    }

    #[track_caller]
    fn add(&mut self, name: &str, value: &Tensor) -> Tensor {
        let mut name = format!("accumulated.{name}");
        // The second use of `w` is called as the first of `w.1` would be.
        while !self.names.insert(name.clone()) {
            name.push('_');
        }
        let state = value.trace().zero_state_with_role(&name, Role::Gradient, DType::F32, value.shape());
        self.sums.push(Sum { name, value: value.clone(), state: state.clone() });
        state
    }

    /// All sums from this one on are of one tensor.
    fn add_summed(&mut self, first: usize) {
        let sums = &self.sums[first..];
        let numbers = sums[0].state.shape().elements();
        self.summed.push(Summed { numbers, sums: sums.iter().map(|sum| sum.name.clone()).collect() });
    }

    /// What is summed: the tensors in their order, and then all else.
    pub(crate) fn summed(&self) -> &[Summed] {
        &self.summed
    }

    /// The states of the sums of each tensor.
    pub(crate) fn states(&self) -> Vec<Vec<Tensor>> {
        let mut sums = self.sums.iter();
        let of_tensor = |summed: &Summed| sums.by_ref().take(summed.sums.len()).map(|sum| sum.state.clone()).collect();
        self.summed.iter().map(of_tensor).collect()
    }

    /// All that is summed over the micro-batches: each as one tensor, whatever the number of its sums.
    #[track_caller]
    pub(crate) fn totals(&self) -> Vec<Tensor> {
        let mut sums = self.sums.iter();
        let total = |summed: &Summed| {
            let states: Vec<Tensor> = sums.by_ref().take(summed.sums.len()).map(|sum| sum.state.clone()).collect();
            added_up(&states)
        };
        self.summed.iter().map(total).collect()
    }

    /// The gradients over all micro-batches, in the order of the tensors.
    pub fn gradients(&self) -> &[Tensor] {
        &self.gradients
    }

    /// Parts of the gradients over all micro-batches: some numbers of each, those of one tensor after another's. Of a tensor
    /// without any there is nothing.
    #[track_caller]
    pub(crate) fn parts(&self, parts: &[Range<usize>]) -> Vec<Option<Tensor>> {
        let mut sums = self.sums.iter();
        let of_tensor = |(summed, part): (&Summed, &Range<usize>)| {
            let states = sums.by_ref().take(summed.sums.len());
            let of_sum = |sum: &Sum| sum.state.reshape([summed.numbers]).slice(0, part.clone());
            let states: Vec<&Sum> = states.collect();
            (!part.is_empty()).then(|| added_up(&states.into_iter().map(of_sum).collect::<Vec<_>>()))
        };
        self.summed.iter().zip(parts).map(of_tensor).collect()
    }

    /// Adds to a routine that it takes the values of the first micro-batch.
    pub fn first(&self, routine: Routine) -> Routine {
        self.sums.iter().fold(routine, |routine, sum| routine.assign(&sum.state, &sum.value))
    }

    /// Adds to a routine that it goes on with the values of a further micro-batch.
    #[track_caller]
    pub fn accumulate(&self, routine: Routine) -> Routine {
        let (values, states): (Vec<&Tensor>, Vec<&Tensor>) =
            self.sums.iter().map(|sum| (&sum.value, &sum.state)).unzip();
        let sums = accumulated(&states, &values);
        states.iter().zip(&sums).fold(routine, |routine, (state, sum)| routine.assign(state, sum))
    }

    /// The routines that follow lanes, each as often as in a step: the sums of one lane are added to those of lanes before
    /// it, or wait in states of their own.
    #[track_caller]
    pub(crate) fn folds(&self, lanes: &Lanes) -> Vec<Routine> {
        let waiting = |sum: &Sum| -> Vec<Tensor> {
            let (trace, shape) = (sum.state.trace(), sum.state.shape());
            let name = |place: usize| waiting_name(place, &sum.name);
            let state = |place| trace.zero_state_with_role(&name(place), Role::Gradient, DType::F32, &shape);
            (0..lanes.places()).map(state).collect()
        };
        let sums: Vec<(&Tensor, Vec<Tensor>)> = self.sums.iter().map(|sum| (&sum.state, waiting(sum))).collect();
        let folds = lanes.folds();
        let mut different: Vec<Fold> = vec![];
        folds.iter().filter(|fold| fold.routine().is_some()).for_each(|fold| {
            if !different.contains(fold) {
                different.push(*fold);
            }
        });
        let routine = |fold: Fold| {
            let times = folds.iter().filter(|known| **known == fold).count();
            let routine = Routine::new(&fold.routine().expect("it does something")).times_per_step(times);
            // What joins follows the last lane, bucket by bucket, from those whose gradients are there first.
            let routine = if fold.waits { routine } else { routine.apart() };
            let of_tensors = self.summed[..self.gradients.len()].iter().map(|summed| summed.sums.len()).sum();
            let (of_tensors, others) = sums.split_at(of_tensors);
            of_tensors.iter().rev().chain(others).fold(routine, |routine, (state, places)| {
                let left = fold.waiting - fold.added;
                let added = places[left..fold.waiting].iter().rev();
                let sum = added.fold((*state).clone(), |sum, earlier| earlier + sum);
                routine.assign(if fold.waits { &places[left] } else { state }, &sum)
            })
        };
        different.into_iter().map(routine).collect()
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

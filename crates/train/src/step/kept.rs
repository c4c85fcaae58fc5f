//! Lanes that are kept apart until they are summed, so that each can be compressed: what is kept of them, and what is
//! remembered for the next step.
//!
//! What a message leaves out takes the place of the lane's numbers, and becomes the lane's error with the update, as do all
//! states of weights: so a step that is refused spoils no error.

use super::{Differentiated, StepConfig};
use crate::accumulation::{GradientAccumulator, Summed, waiting_name};
use crate::config::Compression;
use crate::lanes::{Fold, Lanes, Place};
use crate::ranks::Units;
use gradus_comm::compression::Thin;
use gradus_engine::{DType, Role, Routine, Shape, Tensor, Trace};
use std::ops::Range;

/// A state of which ranks have parts, each its own.
#[derive(Clone, Debug)]
pub(crate) struct Divided {
    pub name: String,
    /// Of the whole.
    pub shape: Shape,
    /// The numbers of it that each rank has, in order.
    pub parts: Vec<Range<usize>>,
}

/// A tensor whose lanes are kept apart.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub numbers: usize,
    /// States of the sum over all lanes: it is written to the first, and the others, of further uses, become zero.
    pub sums: Vec<String>,
    /// The state of each lane that is computed here.
    pub lanes: Vec<String>,
}

/// A tensor whose lanes are compressed number by number.
#[derive(Clone, Debug)]
pub(crate) struct CodedTensor {
    pub kept: Kept,
    pub compression: Compression,
    /// By lane that is computed here: what was not sent yet.
    pub errors: Vec<String>,
    /// What was not sent yet of the part of the sum that is added up here, and what will not be: none of some tensors.
    pub sum_error: String,
    pub sum_residual: String,
    /// That part.
    pub part: Range<usize>,
}

/// A matrix that is sent as two thin ones.
#[derive(Clone, Debug)]
pub(crate) struct ThinTensor {
    pub kept: Kept,
    pub thin: Thin,
    pub errors: Vec<String>,
    /// The right vectors of the last step, and of this one.
    pub right: String,
    pub next_right: String,
}

/// What is kept of lanes, by how it is summed.
#[derive(Clone, Default)]
pub(crate) struct KeptLanes {
    pub plain: Vec<Kept>,
    pub coded: Vec<CodedTensor>,
    pub thin: Vec<ThinTensor>,
    /// What is remembered, whole.
    pub divided: Vec<Divided>,
    /// What an update makes of the states of this step: the errors of the next.
    remembered: Vec<(Tensor, Tensor)>,
    routines: Vec<Routine>,
}

/// How a weight's gradient is summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Summing {
    Plain,
    Coded(Compression),
    Thin(Thin),
}

/// Matrices of fewer numbers are not worth factors of their own.
const SMALLEST: usize = 1024;

impl Summing {
    /// Vectors and small weights are few and all matter, so each of their numbers is sent whatever is sent of others: in 8 bits
    /// where all have 8, and else in 4. So is a matrix that has fewer numbers than its thin ones.
    pub fn of(compression: Compression, shape: &Shape) -> Summing {
        let (numbers, rows) = (shape.elements(), shape.first().copied().unwrap_or(1));
        let of_few = match compression {
            Compression::None => return Summing::Plain,
            Compression::Bits8 => Summing::Coded(Compression::Bits8),
            _ => Summing::Coded(Compression::Bits4),
        };
        if shape.rank() < 2 || numbers < SMALLEST {
            return of_few;
        }
        let Compression::PowerSgd(rank) = compression else { return Summing::Coded(compression) };
        let thin = Thin::new(rows, numbers / rows, rank);
        match thin.left_numbers() + thin.right_numbers() <= numbers {
            true => Summing::Thin(thin),
            false => of_few,
        }
    }
}

/// What follows each lane that is computed here: it is kept.
pub(super) fn folds(lanes: &Lanes) -> Vec<Fold> {
    (0..lanes.hosted().len()).map(|place| Fold { waiting: place, added: 0, waits: true }).collect()
}

/// The routine that keeps the lane of a place.
fn keeping(place: usize) -> Routine {
    let fold = Fold { waiting: place, added: 0, waits: true };
    Routine::new(&fold.routine().expect("it keeps the lane")).times_per_step(1)
}

/// Which ranks have a state of a lane: its host has all numbers of it.
pub(super) fn host_parts(lanes: &Lanes, lane: usize, numbers: usize) -> Vec<Range<usize>> {
    let part = |rank: usize| {
        let hosted = Lanes::at(lanes.count(), Place { rank, ..lanes.place() }).hosted();
        if hosted.contains(&lane) { 0..numbers } else { 0..0 }
    };
    (0..lanes.place().ranks).map(part).collect()
}

impl KeptLanes {
    /// What is kept of each lane: all that is summed of it; or, of lanes that have weights of their own, what those have moved
    /// by.
    #[track_caller]
    pub(super) fn of(
        step: &StepConfig,
        model: &Differentiated,
        accumulator: &GradientAccumulator,
        moved: Option<Vec<Vec<Tensor>>>,
    ) -> KeptLanes {
        let hosted = step.lanes.hosted();
        let mut lanes = KeptLanes { routines: (0..hosted.len()).map(keeping).collect(), ..KeptLanes::default() };
        let shapes: Vec<Shape> = model.weights.iter().map(Tensor::shape).collect();
        let is_coded = |shape: &&Shape| matches!(Summing::of(step.compression, shape), Summing::Coded(_));
        let coded: Vec<usize> = shapes.iter().filter(is_coded).map(Shape::elements).collect();
        let units = Units::new(coded, &step.lanes);
        let trace = model.weights[0].trace();
        let of_lanes =
            moved.unwrap_or_else(|| accumulator.totals().into_iter().map(|total| vec![total; hosted.len()]).collect());
        for (index, (summed, of_lanes)) in accumulator.summed().iter().zip(of_lanes).enumerate() {
            let (kept, states) = lanes.keep(trace, summed, &of_lanes);
            match model.names.get(index).zip(shapes.get(index)) {
                None => lanes.plain.push(kept),
                Some(weight) => lanes.add(trace, step, weight, (kept, &states), &units),
            }
        }
        lanes
    }

    /// Adds a weight, of which this is kept, in the way that it is summed.
    #[track_caller]
    fn add(
        &mut self,
        trace: &Trace,
        step: &StepConfig,
        (name, shape): (&String, &Shape),
        (kept, states): (Kept, &[Tensor]),
        units: &Units,
    ) {
        let mut errors = || self.errors(trace, (name, shape), &step.lanes, states);
        match Summing::of(step.compression, shape) {
            Summing::Plain => self.plain.push(kept),
            Summing::Thin(thin) => {
                let errors = errors();
                self.add_thin(trace, name, kept, errors, thin);
            }
            Summing::Coded(compression) => {
                let errors = errors();
                self.add_coded(trace, (name, shape), (kept, compression), errors, (units, step.lanes.place()));
            }
        }
    }

    /// Has the routines keep a tensor of each lane.
    #[track_caller]
    fn keep(&mut self, trace: &Trace, summed: &Summed, of_lanes: &[Tensor]) -> (Kept, Vec<Tensor>) {
        let name = |place: usize| waiting_name(place, &summed.sums[0]);
        let state = |(place, value): (usize, &Tensor)| {
            trace.zero_state_with_role(&name(place), Role::Gradient, DType::F32, value.shape())
        };
        let states: Vec<Tensor> = of_lanes.iter().enumerate().map(state).collect();
        for (routine, (state, value)) in self.routines.iter_mut().zip(states.iter().zip(of_lanes)) {
            *routine = routine.clone().assign(state, value);
        }
        let names = (0..of_lanes.len()).map(name).collect();
        let kept = Kept { numbers: summed.numbers, sums: summed.sums.clone(), lanes: names };
        (kept, states)
    }

    /// The errors of all lanes for a weight, those of which that are computed here become what is left of the lane.
    #[track_caller]
    fn errors(
        &mut self,
        trace: &Trace,
        (weight, shape): (&str, &Shape),
        lanes: &Lanes,
        left: &[Tensor],
    ) -> Vec<String> {
        let name = |lane: usize| format!("error.{lane}.{weight}");
        for lane in 0..lanes.count() {
            let parts = host_parts(lanes, lane, shape.elements());
            self.divided.push(Divided { name: name(lane), shape: shape.clone(), parts });
        }
        for (lane, left) in lanes.hosted().zip(left) {
            let error = trace.zero_state_with_role(&name(lane), Role::Optimizer, DType::F32, shape);
            self.remembered.push((error, left.clone()));
        }
        lanes.hosted().map(name).collect()
    }

    #[track_caller]
    fn add_coded(
        &mut self,
        trace: &Trace,
        (weight, shape): (&str, &Shape),
        (kept, compression): (Kept, Compression),
        errors: Vec<String>,
        (units, place): (&Units, Place),
    ) {
        let (sum_error, sum_residual) = (format!("error.sum.{weight}"), format!("residual.sum.{weight}"));
        let parts: Vec<Range<usize>> = (0..place.ranks).map(|rank| units.part(self.coded.len(), rank)).collect();
        let part = parts[place.rank].clone();
        if !part.is_empty() {
            let state = |name: &str, role| trace.zero_state_with_role(name, role, DType::F32, [part.len()]);
            let error = state(&sum_error, Role::Optimizer);
            self.remembered.push((error, state(&sum_residual, Role::Gradient)));
        }
        self.divided.push(Divided { name: sum_error.clone(), shape: shape.clone(), parts });
        self.coded.push(CodedTensor { kept, compression, errors, sum_error, sum_residual, part });
    }

    #[track_caller]
    fn add_thin(&mut self, trace: &Trace, weight: &str, kept: Kept, errors: Vec<String>, thin: Thin) {
        let (right, next_right) = (format!("power.{weight}"), format!("power.next.{weight}"));
        let state = |name: &str, role| trace.zero_state_with_role(name, role, DType::F32, [thin.right_numbers()]);
        self.remembered.push((state(&right, Role::Optimizer), state(&next_right, Role::Gradient)));
        self.thin.push(ThinTensor { kept, thin, errors, right, next_right });
    }

    /// The routines that keep lanes.
    pub(super) fn routines(&self) -> Vec<Routine> {
        self.routines.clone()
    }

    /// Adds to the routine that updates that what is left becomes the errors.
    pub(super) fn update(&self, routine: Routine) -> Routine {
        self.remembered.iter().fold(routine, |routine, (state, left)| routine.assign(state, left))
    }
}

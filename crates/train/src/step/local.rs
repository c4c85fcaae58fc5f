//! Local steps: each lane trains weights of its own, and only every so many steps do lanes meet (DiLoCo, Douillard et al.,
//! 2023). What they have moved by is averaged over lanes, and an outer step with Nesterov's momentum moves the weights that all
//! have in common; every lane goes on from there, with what its own optimizer remembers.
//!
//! A lane's weights and states are kept in replicas, which are loaded for its step and stored after it. Between steps, the
//! weights are the common ones, those of the last meeting.

use super::kept::{Divided, folds, host_parts};
use super::{Batch, Differentiated, StepConfig, StepScalars, TrainingStep, is_not_finite};
use crate::config::LocalSteps;
use crate::lanes::{Fold, Lanes, Place};
use crate::{Error, Result};
use gradus_engine::{DType, Location, Role, Routine, Tensor};
use std::sync::Arc;

/// Routines of local steps.
const BEGIN: &str = "begin";
const MEET: &str = "meet";
const REST: &str = "rest";
/// Whether lanes have their replicas: not before the first step.
const BEGUN: &str = "local.begun";

fn load(place: usize) -> String {
    format!("load.{place}")
}

fn store(place: usize) -> String {
    format!("store.{place}")
}

/// What lanes have of their own.
pub(crate) struct Replicas {
    /// By lane that is computed here, by weight.
    weights: Vec<Vec<Tensor>>,
    /// The weights of the last meeting, and the momentum of outer steps.
    outer: Vec<Tensor>,
    momentum: Vec<Tensor>,
    routines: Vec<Routine>,
    /// The replicas of all lanes, whole.
    pub divided: Vec<Divided>,
    /// States that only hold a lane's while it is computed.
    pub passing: Vec<String>,
}

impl Replicas {
    /// Of a model whose optimizer remembers these states.
    #[track_caller]
    pub(super) fn of(step: &StepConfig, model: &Differentiated, remembered: &[Tensor]) -> Replicas {
        let trace = model.weights[0].trace();
        let shapes = model.names.iter().zip(&model.weights);
        let passing: Vec<String> = std::iter::once("optimizer.step".to_string())
            .chain(shapes.flat_map(|(name, weight)| step.optimizer.states_of(name, &weight.shape())))
            .collect();
        let working: Vec<(&String, &Tensor)> =
            model.names.iter().zip(&model.weights).chain(passing.iter().zip(remembered)).collect();
        let name = |lane: usize, state: &str| format!("replica.{lane}.{state}");
        let state =
            |name: &str, like: &Tensor| trace.zero_state_with_role(name, Role::Optimizer, DType::F32, like.shape());
        let mut replicas = Replicas {
            weights: vec![],
            outer: shapes_of(model, |name, weight| state(&format!("outer.{name}"), weight)),
            momentum: shapes_of(model, |name, weight| state(&format!("outer.momentum.{name}"), weight)),
            routines: vec![],
            divided: all_replicas(&step.lanes, &working, &name),
            passing: passing.clone(),
        };
        for (place, lane) in step.lanes.hosted().enumerate() {
            let (mut loading, mut storing) =
                (Routine::new(&load(place)).times_per_step(1), Routine::new(&store(place)).times_per_step(1));
            let mut of_lane = vec![];
            for (known, working) in &working {
                let replica = state(&name(lane, known), working);
                loading = loading.assign(working, &replica);
                storing = storing.assign(&replica, working);
                of_lane.push(replica);
            }
            of_lane.truncate(model.weights.len());
            replicas.weights.push(of_lane);
            replicas.routines.extend([loading, storing]);
        }
        replicas.begin(model);
        replicas
    }

    /// The routine that gives every lane the weights there are, and the one that puts the common ones back after a step.
    #[track_caller]
    fn begin(&mut self, model: &Differentiated) {
        let begun = model.weights[0].trace().zero_state_with_role(BEGUN, Role::Optimizer, DType::F32, []);
        let mut begin = Routine::new(BEGIN).assign(&begun, &(&begun * 0.0 + 1.0));
        let mut rest = Routine::new(REST).times_per_step(1);
        for (index, weight) in model.weights.iter().enumerate() {
            begin = begin.assign(&self.outer[index], weight);
            begin = self.weights.iter().fold(begin, |begin, of_lane| begin.assign(&of_lane[index], weight));
            rest = rest.assign(weight, &self.outer[index]);
        }
        self.routines.extend([begin, rest]);
    }

    /// By weight, what each lane that is computed here has moved by since the last meeting.
    #[track_caller]
    pub(super) fn differences(&self) -> Vec<Vec<Tensor>> {
        let moved =
            |(index, outer): (usize, &Tensor)| self.weights.iter().map(|of_lane| outer - &of_lane[index]).collect();
        self.outer.iter().enumerate().map(moved).collect()
    }

    /// The routine that follows the sums of differences over all lanes.
    #[track_caller]
    pub(super) fn meet(&self, local: LocalSteps, lanes: &Lanes, model: &Differentiated, sums: &[Tensor]) -> Routine {
        let (rate, kept) = (local.learning_rate as f32, local.momentum as f32);
        let mut meet = Routine::new(MEET);
        for (index, sum) in sums.iter().enumerate() {
            let mean = sum * (1.0 / lanes.count() as f32);
            let momentum = &self.momentum[index] * kept + &mean;
            let new = &self.outer[index] - (mean + &momentum * kept) * rate;
            meet = meet.assign(&self.momentum[index], &momentum).assign(&self.outer[index], &new);
            meet = meet.assign(&model.weights[index], &new);
            meet = self.weights.iter().fold(meet, |meet, of_lane| meet.assign(&of_lane[index], &new));
        }
        meet
    }

    pub(super) fn routines(&self) -> Vec<Routine> {
        self.routines.clone()
    }
}

fn shapes_of(model: &Differentiated, state: impl Fn(&str, &Tensor) -> Tensor) -> Vec<Tensor> {
    model.names.iter().zip(&model.weights).map(|(name, weight)| state(name, weight)).collect()
}

/// The replicas of all lanes, whoever has them.
fn all_replicas(lanes: &Lanes, working: &[(&String, &Tensor)], name: &dyn Fn(usize, &str) -> String) -> Vec<Divided> {
    let of_lane = |lane: usize| {
        working.iter().map(move |(state, working)| Divided {
            name: name(lane, state),
            shape: working.shape(),
            parts: host_parts(lanes, lane, working.shape().elements()),
        })
    };
    (0..lanes.count()).flat_map(of_lane).collect()
}

/// The loss and the norm of every lane in a step.
pub(super) struct LaneFigures {
    /// By lane: its loss, and the norm of its gradient.
    numbers: Vec<[f32; 2]>,
    first: usize,
    /// Where those of each rank begin, in bytes.
    at: Vec<usize>,
}

impl LaneFigures {
    pub fn new(lanes: &Lanes) -> LaneFigures {
        let (count, place) = (lanes.count(), lanes.place());
        let start = |rank: usize| Lanes::at(count, Place { rank, ..place }).hosted().start;
        let at = (0..place.ranks).map(start).chain([count]).map(|lane| lane * size_of::<[f32; 2]>()).collect();
        LaneFigures { numbers: vec![[0.0; 2]; count], first: lanes.hosted().start, at }
    }

    /// Keeps those of a lane that is computed here.
    pub fn keep(&mut self, place: usize, figures: [f32; 2]) {
        self.numbers[self.first + place] = figures;
    }

    /// Those of all ranks, and where they stand.
    pub fn bytes(&mut self) -> (&mut [u8], &[usize]) {
        (bytemuck::cast_slice_mut(&mut self.numbers), &self.at)
    }

    /// The means over lanes, in their order.
    pub fn means(&self) -> [f32; 2] {
        let sums = self.numbers.iter().fold([0.0; 2], |sums, of_lane| [sums[0] + of_lane[0], sums[1] + of_lane[1]]);
        sums.map(|sum| sum / self.numbers.len() as f32)
    }
}

/// Lanes that take steps by themselves.
pub(super) struct LocalLanes {
    pub figures: LaneFigures,
    /// By lane that is computed here: the routines that load, store and keep it.
    routines: Arc<[[String; 3]]>,
}

impl LocalLanes {
    pub fn new(lanes: &Lanes) -> LocalLanes {
        let keep = |fold: &Fold| fold.routine().expect("it keeps the lane");
        let folds = folds(lanes);
        let routines = folds.iter().enumerate();
        let routines = routines.map(|(place, fold)| [load(place), store(place), keep(fold)]).collect();
        LocalLanes { figures: LaneFigures::new(lanes), routines }
    }
}

impl TrainingStep {
    /// Has each lane take a step by itself; after every so many, lanes meet. A lane whose numbers are not finite stays as it
    /// was, and the error says so once all have taken theirs.
    pub(super) fn replay_locally(&mut self, every: u64, last: &str, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        if self.program.scalar(BEGUN)? == 0.0 {
            self.program.run(BEGIN)?;
        }
        self.program.write("learning_rate", &[inputs.learning_rate])?;
        self.program.write("clip_norm", &[inputs.clip_norm])?;
        let Some(local) = &self.local else { return Ok(()) };
        let routines = local.routines.clone();
        let mut fault = None;
        for (place, [load, store, _]) in routines.iter().enumerate() {
            self.run_routine(load)?;
            let stepped = self.replay_lane(place, false, batch, inputs).and_then(|()| self.run_routine(last));
            let figures = match stepped {
                Ok(()) => {
                    let figures = [self.program.scalar("loss")?, self.program.scalar("gradient_norm")?];
                    self.run_routine(store)?;
                    figures
                }
                Err(error) if is_not_finite(&error) => {
                    fault = Some(error);
                    [f32::NAN; 2]
                }
                Err(error) => return Err(error),
            };
            self.local.iter_mut().for_each(|local| local.figures.keep(place, figures));
        }
        self.share_figures()?;
        match (inputs.step + 1).is_multiple_of(every) {
            true => self.meet(&routines, inputs.step)?,
            false => self.run_routine(REST)?,
        }
        let is_finite =
            self.local.as_ref().is_none_or(|local| local.figures.means().iter().all(|mean| mean.is_finite()));
        match (is_finite, fault) {
            (true, _) => Ok(()),
            (false, Some(fault)) => Err(fault),
            (false, None) => Err(not_finite_elsewhere()),
        }
    }

    /// Gives every rank the figures of all lanes.
    fn share_figures(&mut self) -> Result<()> {
        let (Some(local), Some(ranks)) = (&mut self.local, &mut self.apart) else { return Ok(()) };
        let (bytes, at) = local.figures.bytes();
        Ok(ranks.transport().all_gather(bytes, at)?)
    }

    /// Moves the weights that all have in common by what lanes have moved theirs.
    fn meet(&mut self, routines: &[[String; 3]], step: u64) -> Result<()> {
        for [_, _, keep] in routines {
            self.run_routine(keep)?;
        }
        self.sum(step)?;
        self.run_routine(MEET)
    }
}

/// The error of a step that was not finite in a lane of another rank.
fn not_finite_elsewhere() -> Error {
    let name = "the gradient norm of a lane of another rank".to_string();
    Error::Engine(gradus_engine::Error::NonFinite { name, element: 0, at: Location::caller() })
}

//! The training step of any model as a program: micro-batches, accumulation, clipping, update, evaluation, diagnosis; all
//! traced once and replayed.
//!
//! A step over several micro-batches replays `first` and then `accumulate` into gradient states, and ends with
//! `update`; a step of one micro-batch is the single routine `step`, which keeps no gradients between. Nothing is
//! assigned by a step whose gradient norm is not finite: every update waits for that check. Where the loss is scaled,
//! `back_off` follows such a step. Now and then `measured` stands in for `step` or `update`: it does the same, and gives the
//! figures of every gradient and update too.
//!
//! A batch of several [`Lanes`] takes `first` and `accumulate` for each of them; routines `keep` and `join` add the sums of
//! lanes up, by a tree.
//!
//! A [`Stage`] of a pipeline is a step of some of the model's blocks, whose micro-batches come and go by the ranks beside it.
//!
//! Gradients are summed from the first row of a lane to the last, whatever the micro-batches: each goes on with the
//! sums of the one before. So (without dropout, whose masks follow the micro-batches) their number changes no bit of
//! the weights, if sequences have a multiple of 32 tokens.

mod batch;
mod culprit;
mod given;
mod joining;
mod kept;
mod lagging;
mod local;
mod objective;
mod parts;
mod pipelined;
mod refresh;
mod replay;
mod sharpness;
mod staged;
mod stored;
mod times;
mod update;

pub use batch::{Batch, Field, Inputs};
pub use culprit::Culprit;
pub(crate) use kept::{CodedTensor, Divided, Kept, KeptLanes, Summing, ThinTensor};
pub use objective::{Objective, Staged};
pub(crate) use parts::{ALL_SQUARES, Parts};
pub use replay::{Outcome, Scaling, StepScalars, TrainingStep, is_not_finite};
pub(crate) use staged::{LOSS_SUM, SUMMED_LOSS, Staging, Tied};
pub(crate) use stored::Collected;
pub use times::{Replay, StepTimes};

use crate::accumulation::{GradientAccumulator, Summed, added_up};
use crate::config::{Compression, LocalSteps, Precision, Sharding};
use crate::lanes::{Fold, Lanes, Place};
use crate::loss_scale::{LossScale, LossScaler};
use crate::optimizers::GroupedOptimizer;
use crate::parameters::{Parameter, Parameters};
use crate::pipeline::Stage;
use crate::ranks::may_give;
use crate::watch::Reading;
use crate::{Error, Result};
use given::Given;
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Options, Planner};
use gradus_engine::{DType, Location, Routine, Tensor, TensorType, Trace, gradient_terms};
use local::Replicas;
use refresh::Refreshed;
use sharpness::Sharpness;
pub(crate) use sharpness::seconds as seconds_of_sharpness;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use update::{Ending, Target};

/// The routine that ends a step and measures the health of its gradients, and the one that finds what is not finite.
const MEASURED: &str = "measured";
const DIAGNOSE: &str = "diagnose";
/// The routine that gives the squares of the parts of gradients that are updated here.
const SQUARES: &str = "squares";

/// What the training program is built from.
#[derive(Clone)]
pub struct StepConfig {
    /// The model and its losses.
    pub objective: Rc<dyn Objective>,
    /// Examples computed at once. 0 is still to be chosen.
    pub micro_batch: usize,
    /// Micro-batches of a lane.
    pub micro_batches: usize,
    /// The lanes of a batch, and which of them are computed here.
    pub lanes: Lanes,
    /// Which stage of the model is computed here, where ranks share out its blocks.
    pub stage: Stage,
    /// The update.
    pub optimizer: GroupedOptimizer,
    /// What each of several ranks has only a part of: what the optimizer remembers of the weights, a part of which it updates, and the sums
    /// of gradients.
    pub shard: Sharding,
    /// Whether ranks exchange gradients and weights while they compute.
    pub overlap: bool,
    /// How the gradients of lanes are made smaller before they are summed.
    pub compression: Compression,
    /// Steps before they are.
    pub compression_warmup: u64,
    /// Whether each lane takes steps by itself, and how lanes meet.
    pub local: Option<LocalSteps>,
    /// Each gradient number's limit, if there is one.
    pub clip_value: Option<f32>,
    /// Element type of the computation.
    pub precision: Precision,
    /// How the loss is scaled. `None`: as usual for the precision, which is not at all but for f16.
    pub loss_scale: Option<LossScale>,
    /// Whether gradients are summed in states even over a single micro-batch, so that the step can go on with another
    /// one ([`TrainingStep::relink`]).
    pub relinkable: bool,
    /// Whether there is a routine too that measures the health of gradients ([`TrainingStep::run_measured`]).
    pub health: bool,
    /// Whether there are routines too that measure the curvature of the loss ([`TrainingStep::sharpness`]).
    pub sharpness: bool,
    /// Whether what their products have in common is kept between them: as many bytes at most as the weights have, and the same bits.
    pub linearized: bool,
}

/// The routines over one trace, and what is known of the model only then.
pub(crate) struct Traced {
    pub trace: Trace,
    pub routines: Vec<Routine>,
    pub fields: Arc<[Field]>,
    pub parameters: Vec<Parameter>,
    /// Losses of a micro-batch.
    pub losses: usize,
    /// What is summed over lanes, if there are several routines.
    pub summed: Vec<Summed>,
    /// The parts of weights that are updated here, if those are parts.
    pub parts: Option<Parts>,
    /// What is kept of lanes, if they are kept apart.
    pub kept: Option<KeptLanes>,
    /// What lanes have of their own, if they take steps by themselves.
    pub replicas: Option<Replicas>,
    /// The stage of a pipeline, if this is one.
    pub staging: Option<Staging>,
    /// How the health of gradients is read, if it is measured.
    pub reading: Option<Reading>,
    /// What the optimizer does besides, if it does.
    pub refreshed: Option<Refreshed>,
    /// What the loss's curvature is measured from, if it is.
    pub sharpness: Option<Sharpness>,
}

/// The routines of a step.
struct Stepping {
    routines: Vec<Routine>,
    /// What the optimizer remembers of each weight.
    remembered: Vec<Vec<Tensor>>,
    summed: Vec<Summed>,
    parts: Option<Parts>,
    kept: Option<KeptLanes>,
    replicas: Option<Replicas>,
    reading: Option<Reading>,
}

/// What is written at every step besides the batch.
struct Scalars {
    dropout_key: Tensor,
    /// What the sum of the losses is multiplied by for the mean over all micro-batches; each gives its share of that.
    loss_share: Tensor,
    learning_rate: Tensor,
    clip_norm: Tensor,
    /// What the loss is multiplied by for its gradient, if it is.
    loss_scaler: Option<LossScaler>,
}

impl Scalars {
    /// Made before the model, so that an input or state of the same name is an error of the model's line.
    fn new(trace: &Trace, loss_scale: Option<LossScale>) -> Scalars {
        let number = |name: &str| trace.input(name, DType::F32, []);
        Scalars {
            dropout_key: trace.input("dropout_key", DType::U32, [2]),
            loss_share: number("loss_share"),
            learning_rate: number("learning_rate"),
            clip_norm: number("clip_norm"),
            loss_scaler: loss_scale.map(|settings| LossScaler::new(trace, settings)),
        }
    }

    /// What the sum of the losses is multiplied by before it is differentiated.
    fn scaled_share(&self) -> Tensor {
        match &self.loss_scaler {
            Some(scaler) => &self.loss_share * scaler.scale(),
            None => self.loss_share.clone(),
        }
    }
}

/// A model in a trace, and its gradient over one micro-batch.
struct Differentiated {
    scalars: Scalars,
    parameters: Parameters,
    names: Vec<String>,
    weights: Vec<Tensor>,
    /// The sum of the losses.
    total: Tensor,
    /// The terms of each weight's gradient.
    terms: Vec<Vec<Tensor>>,
    losses: usize,
}

impl StepConfig {
    /// A step over so many examples at once: in f32, with nothing clipped by value.
    pub fn new(objective: Rc<dyn Objective>, batch: usize, optimizer: impl Into<GroupedOptimizer>) -> StepConfig {
        StepConfig {
            objective,
            micro_batch: batch,
            micro_batches: 1,
            lanes: Lanes::default(),
            stage: Stage::default(),
            optimizer: optimizer.into(),
            shard: Sharding::None,
            overlap: true,
            compression: Compression::None,
            compression_warmup: 0,
            local: None,
            clip_value: None,
            precision: Precision::F32,
            loss_scale: None,
            relinkable: false,
            health: false,
            sharpness: false,
            linearized: false,
        }
    }

    /// What plans the program within any limit of memory, taking none itself.
    pub fn planner<'a>(&self, backend: &'a dyn Backend, options: Options) -> Result<Planner<'a>> {
        let Traced { trace, routines, .. } = self.traced(backend)?;
        Ok(trace.planner(backend, &routines, options)?)
    }

    /// Whether a step is several routines with sums of gradients between them, rather than one.
    pub fn accumulates(&self) -> bool {
        self.micro_batches > 1
            || self.lanes.count() > 1
            || self.stage.count > 1
            || self.relinkable
            || self.keeps_lanes()
    }

    /// Whether lanes are kept apart until they are summed.
    pub fn keeps_lanes(&self) -> bool {
        self.compression.is_some() || self.local.is_some()
    }

    /// What follows each lane that is computed here.
    pub(crate) fn folds(&self) -> Vec<Fold> {
        match (self.local.is_some(), self.keeps_lanes()) {
            (true, _) => vec![],
            (false, true) => kept::folds(&self.lanes),
            (false, false) => self.lanes.folds(),
        }
    }

    /// Whether the update is that of a part of each weight.
    pub fn updates_parts(&self) -> bool {
        self.shard.is_of_updates() && self.lanes.place().ranks > 1
    }

    /// Whether gradients are given away as soon as they are there, and only parts of their sums kept: what is computed at once is all that a
    /// rank computes.
    pub fn gives_gradients(&self) -> bool {
        may_give(self.shard, &self.lanes) && self.micro_batches == 1 && !self.relinkable
    }

    /// The ranks of the run, and which of them this is.
    pub fn place(&self) -> Place {
        let (pipeline, Stage { index, count }) = (self.lanes.place(), self.stage);
        Place { rank: pipeline.rank * count + index, ranks: pipeline.ranks * count }
    }

    /// Micro-batches that are computed here in a step.
    pub fn passes(&self) -> usize {
        self.micro_batches.saturating_mul(self.lanes.hosted().len())
    }

    /// Examples of a step that are computed here.
    pub fn rows(&self) -> usize {
        self.micro_batch.saturating_mul(self.passes())
    }

    /// How the loss is scaled, if it is.
    pub fn loss_scale(&self) -> Option<LossScale> {
        self.precision.loss_scale(self.loss_scale)
    }

    /// Refuses numbers that no step can have, before anything is traced.
    fn check(&self) -> Result<()> {
        let (size, count) = (self.micro_batch, self.micro_batches);
        self.lanes.check()?;
        if size.checked_mul(count).and_then(|lane| lane.checked_mul(self.lanes.count())).is_none_or(|batch| batch == 0)
        {
            return Err(Error::Config(format!(
                "a batch of {count} micro-batches of {size} examples is none; give a number from 1 up of each"
            )));
        }
        self.check_sharding()?;
        self.check_refresh()?;
        self.check_sharpness()?;
        self.check_compression()?;
        if let Some(problem) = self.loss_scale().and_then(|settings| settings.problem()) {
            return Err(Error::Config(problem));
        }
        match self.clip_value {
            Some(limit) if limit.is_nan() || limit <= 0.0 => {
                Err(Error::Config(format!("gradients cannot be clipped at {limit}; give a number above 0, or none")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what cannot be done with a part of a weight.
    fn check_sharding(&self) -> Result<()> {
        let shard = self.shard;
        if shard.is_of_updates() && !self.optimizer.is_element_wise() {
            return Err(Error::Config(format!(
                "`settings.shard` {shard} needs an update of each number by itself, which {} has not; choose \
                 `settings.optimizer` adamw, sgd or lion, or `settings.shard` none",
                self.optimizer.rule().name()
            )));
        }
        match self.updates_parts() && self.health {
            false => Ok(()),
            true => Err(Error::Config(format!(
                "with `settings.shard` {shard} no rank has all gradients to measure; choose `settings.health` off, or \
                 `settings.shard` none"
            ))),
        }
    }

    /// Refuses what cannot be done with lanes that are compressed.
    fn check_compression(&self) -> Result<()> {
        match self.shard.is_of_updates() && self.compression.is_some() {
            false => Ok(()),
            true => Err(Error::Config(format!(
                "with `settings.compress` every rank has all sums to update from, which `settings.shard` {} leaves out; choose \
                 `settings.shard` none, or `settings.compress` none",
                self.shard
            ))),
        }
    }

    /// Refuses what cannot be done with lanes that have weights of their own.
    fn check_local(&self, model: &Differentiated) -> Result<()> {
        let refused = |what: &str| {
            Err(Error::Config(format!(
                "with `settings.local_steps` every lane has weights of its own, and {what}; or choose `settings.local_steps` 0"
            )))
        };
        match self.local {
            None => Ok(()),
            Some(_) if self.shard.is_of_updates() => refused("no rank a part of each; choose `settings.shard` none"),
            Some(_) if self.loss_scale().is_some() => {
                refused("its loss is not scaled; choose `settings.precision` bf16 or f32")
            }
            Some(_) if self.health => {
                refused("gradients of its own, which are not measured; choose `settings.health` off")
            }
            Some(_) if self.optimizer.has_average() => refused("averages of them are not kept; leave them out"),
            Some(_) if !model.parameters.updates().is_empty() => {
                refused("the statistics that this model keeps would be one lane's; take a model without")
            }
            Some(_) => Ok(()),
        }
    }

    /// Refuses what is done by the host on a machine whose memory that does not see.
    fn check_machine(&self, machine: &dyn Backend) -> Result<()> {
        let (what, instead) = match (self.keeps_lanes(), self.stage.count > 1) {
            (true, _) => ("lanes are compressed and meet", "`settings.compress` none and `settings.local_steps` 0"),
            (false, true) => ("stages give each other what they compute", "`settings.stages` 1"),
            (false, false) if may_give(self.shard, &self.lanes) => {
                ("gradients are given away while others are computed", "`settings.shard` optimizer")
            }
            (false, false) => return Ok(()),
        };
        match machine.memory()? {
            None => Ok(()),
            Some(_) => Err(Error::Config(format!(
                "{what} on the CPU, and this is the {}; choose `settings.device` cpu, or {instead}",
                machine.name()
            ))),
        }
    }

    /// Traces the step for a machine.
    pub(crate) fn traced(&self, machine: &dyn Backend) -> Result<Traced> {
        self.check()?;
        self.check_machine(machine)?;
        self.precision.check(machine)?;
        if let Some(staged) = self.cuttable()? {
            return self.traced_stage(staged, machine);
        }
        let trace = Trace::new();
        let scalars = Scalars::new(&trace, self.loss_scale());
        let inputs = Inputs::new(&trace, self.micro_batch);
        let plain = Parameters::new(&trace);
        let parameters = plain.with_precision(self.precision).holding_logits(machine.holds_logits());
        let loss = self.objective.loss(&parameters, &inputs);
        let judged = self.objective.judged(&parameters, &inputs);
        trace.check()?;
        let model = self.differentiated(scalars, &parameters, &inputs)?;
        if loss.ty() != TensorType::new(DType::F32, []) {
            let given = loss.ty();
            return Err(Error::Config(format!(
                "`Objective::loss` gives {given}; give the mean loss, one number in f32"
            )));
        }
        let evaluate = Routine::new("evaluate").output("loss", &loss);
        let mut routines = vec![judged.iter().fold(evaluate, |routine, (name, given)| routine.output(name, given))];
        self.check_local(&model)?;
        let stepping = if self.accumulates() { self.over_several(&model) } else { self.over_one(&model) };
        let Stepping { summed, parts, kept, replicas, reading, .. } = stepping;
        routines.extend(stepping.routines);
        let refresh = self.refresh(&plain, &stepping.remembered)?;
        let refreshed = refresh.map(|(routine, refreshed)| {
            routines.push(routine);
            refreshed
        });
        let sharpness = self.sharpness(&plain)?.map(|(measuring, sharpness)| {
            routines.extend(measuring);
            sharpness
        });
        routines.extend(model.scalars.loss_scaler.as_ref().map(LossScaler::back_off));
        check_names(&trace, |name, _| {
            format!("the step has a state named {name:?} itself; call the model's otherwise")
        })?;
        routines.extend(self.objective.routines(&plain)?);
        trace.check()?;
        let (fields, losses) = (inputs.fields(), model.losses);
        self.check_batch(&fields)?;
        Ok(Traced {
            trace,
            routines,
            fields,
            parameters: parameters.list(),
            losses,
            summed,
            parts,
            kept,
            replicas,
            staging: None,
            reading,
            refreshed,
            sharpness,
        })
    }

    /// Refuses a batch whose bytes cannot be counted.
    fn check_batch(&self, fields: &[Field]) -> Result<()> {
        const ADDRESSABLE: usize = 1 << 47;
        let rows = self.rows();
        if Batch::size(fields, rows) <= ADDRESSABLE {
            return Ok(());
        }
        Err(Error::Config(format!("a batch of {rows} examples is more than a process can address; take fewer")))
    }

    fn differentiated(&self, scalars: Scalars, parameters: &Parameters, inputs: &Inputs) -> Result<Differentiated> {
        let parameters = parameters.training(&scalars.dropout_key);
        let losses = self.objective.losses(&parameters, inputs);
        check_names(parameters.trace(), |name, at| {
            format!(
                "{at}: {name:?} is made by the model itself, which is traced several times; take inputs from `Inputs::get` \
                 and states from `Parameters`"
            )
        })?;
        let (ty, rows) = (losses.ty(), self.micro_batch);
        if ty.shape.first() != Some(&rows) || ty.dtype != DType::F32 || ty.shape.elements() == 0 {
            return Err(Error::Config(format!(
                "the losses of {rows} examples are {ty}; give each example its own in f32, [{rows}, ...], and leave the \
                 mean over them out: it is taken over the whole batch"
            )));
        }
        let total = summed(&losses);
        let weights = parameters.tensors();
        if weights.is_empty() {
            return Err(Error::Config("the model has no parameters to train; make them with `Parameters::get`".into()));
        }
        let names: Vec<String> = parameters.list().into_iter().map(|parameter| parameter.name).collect();
        let share = &total * scalars.scaled_share();
        let terms = gradient_terms(&share, &weights.iter().collect::<Vec<_>>());
        let terms = terms.map_err(|error| unused_weight(&share, &names, &weights).unwrap_or(error.into()))?;
        Ok(Differentiated { scalars, parameters, names, weights, total, terms, losses: ty.shape.elements() })
    }

    /// A step that is one routine.
    fn over_one(&self, model: &Differentiated) -> Stepping {
        let gradients: Vec<Tensor> = model.terms.iter().map(|terms| added_up(terms)).collect();
        let updates = model.parameters.updates();
        let target = Target::whole(model, gradients);
        let step = |name: &str| {
            let step = Routine::new(name).output("loss", &(&model.total * &model.scalars.loss_share));
            updates.iter().fold(step, |step, (state, value)| step.assign(state, value))
        };
        let Ending { mut routines, reading, remembered, .. } = self.update("step", step, model, &target);
        routines.push(self.diagnosis(&target));
        Stepping { routines, remembered, summed: vec![], parts: None, kept: None, replicas: None, reading }
    }

    /// Gradients summed over micro-batches and lanes in states, and an update from the sums. What a model keeps count of
    /// becomes the mean over all micro-batches, with the update: so a step that is refused changes none of it.
    fn over_several(&self, model: &Differentiated) -> Stepping {
        let gives = self.gives_gradients();
        let named = model.names.iter().zip(&model.terms).map(|(name, terms)| (&name[..], &terms[..]));
        let mut accumulator = GradientAccumulator::new(named.filter(|_| !gives));
        let mut counted = vec![];
        let summed = accumulator.sum("loss", &model.total);
        for (index, (state, value)) in model.parameters.updates().iter().enumerate() {
            let sum = accumulator.sum(&format!("statistics.{index}"), value);
            counted.push((state.clone(), sum / (self.micro_batches * self.lanes.count()) as f32));
        }
        let kept = (self.keeps_lanes() && self.local.is_none()).then(|| KeptLanes::of(self, model, &accumulator, None));
        // Lanes that are kept apart are exchanged otherwise.
        let shared = self.lanes.place().ranks > 1 && !self.keeps_lanes();
        let of_weights = if gives { given::summed(model) } else { vec![] };
        let all_summed: Vec<Summed> = of_weights.iter().chain(accumulator.summed()).cloned().collect();
        let mut parts = shared.then(|| Parts::of(self, model, &all_summed));
        let given = parts.as_ref().filter(|parts| parts.gives).map(|parts| Given::of(model, &parts.numbers));
        let sums: Vec<Vec<Tensor>> =
            given.iter().flat_map(Given::states).cloned().chain(accumulator.states()).collect();
        // The parts of gradients that are here, if those of several ranks are.
        let own = match (&parts, &given) {
            (Some(_), Some(given)) => given.parts(),
            (Some(parts), None) => accumulator.parts(&parts.numbers),
            (None, _) => vec![],
        };
        let update = |name: &str| {
            let update = Routine::new(name).output("loss", &(&summed * &model.scalars.loss_share));
            let update = counted.iter().fold(update, |update, (state, value)| update.assign(state, value));
            let update = kept.iter().fold(update, |update, kept| kept.update(update));
            if self.updates_parts() { update } else { accumulator.update(update) }
        };
        let hosted = self.lanes.hosted().len();
        let further = Routine::new("accumulate").times_per_step(self.passes().saturating_sub(hosted));
        let mut routines = vec![accumulator.first(Routine::new("first").times_per_step(hosted))];
        // What was given away is not gone on with.
        if !gives {
            routines.push(accumulator.accumulate(further));
        }
        routines.extend(match (&kept, self.local) {
            (None, None) => accumulator.folds(&self.lanes),
            (None, Some(_)) => vec![],
            (Some(kept), _) => kept.routines(),
        });
        if let Some(parts) = &parts {
            routines = routines.into_iter().map(|routine| parts.starting(routine, &sums)).collect();
            routines[0] = parts.awaiting(routines[0].clone(), &model.weights, &sums);
            routines[0] = given.iter().fold(routines[0].clone(), |first, given| given.giving(first, parts));
        }
        let target = match &parts {
            None => Target::whole(model, accumulator.gradients().to_vec()),
            Some(parts) => parts.target(model, accumulator.gradients(), &own),
        };
        let Ending { routines: mut updates, reading, states, remembered } =
            self.update("update", update, model, &target);
        // Clipping by value takes all gradients before the first weight is updated.
        if let Some(parts) = parts.as_ref().filter(|parts| !parts.is_sharded() && self.clip_value.is_none()) {
            updates[0] = parts.awaiting(updates[0].clone(), &[], &sums).apart();
        }
        routines.extend(updates);
        routines.extend(parts.as_mut().and_then(|parts| parts.squares(&own)));
        // Of a small model, a rank may have no part.
        if !target.parts.is_empty() {
            routines.push(self.diagnosis(&target));
        }
        let (kept, replicas) = match self.local {
            None => (kept, None),
            Some(local) => {
                let (kept, replicas, meeting) = self.meeting(local, model, &accumulator, &states);
                routines.extend(meeting);
                (Some(kept), Some(replicas))
            }
        };
        Stepping { routines, remembered, summed: all_summed, parts, kept, replicas, reading }
    }

    /// What lanes have of their own, and the routines by which they have it and meet.
    fn meeting(
        &self,
        local: LocalSteps,
        model: &Differentiated,
        accumulator: &GradientAccumulator,
        remembered: &[Tensor],
    ) -> (KeptLanes, Replicas, Vec<Routine>) {
        let replicas = Replicas::of(self, model, remembered);
        let kept = KeptLanes::of(self, model, accumulator, Some(replicas.differences()));
        let sums = &accumulator.totals()[..model.weights.len()];
        let meet = kept.update(replicas.meet(local, &self.lanes, model, sums));
        let routines = replicas.routines().into_iter().chain(kept.routines()).chain([meet]).collect();
        (kept, replicas, routines)
    }
}

/// The sum of losses over a micro-batch, from its first example to its last.
#[track_caller]
fn summed(losses: &Tensor) -> Tensor {
    let within: Vec<isize> = (1..losses.shape().rank() as isize).collect();
    let of_rows = if within.is_empty() { losses.clone() } else { losses.sum(&within) };
    of_rows.sum_in_order(&[0])
}

/// The error of the trace; a name that was taken is told in words of the place where that can happen.
fn check_names(trace: &Trace, taken: impl FnOnce(&str, Location) -> String) -> Result<()> {
    match trace.check() {
        Err(gradus_engine::Error::NameTaken { name, at }) => Err(Error::Config(taken(&name, at))),
        checked => Ok(checked?),
    }
}

/// The error of a weight that the losses have no gradient for, if there is one.
fn unused_weight(total: &Tensor, names: &[String], weights: &[Tensor]) -> Option<Error> {
    let unused = weights.iter().position(|weight| gradient_terms(total, &[weight]).is_err())?;
    Some(Error::Config(format!(
        "the losses do not depend, in a way that can be differentiated, on weight {:?}; use it, or leave it out",
        names[unused]
    )))
}

impl fmt::Debug for StepConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepConfig")
            .field("micro_batch", &self.micro_batch)
            .field("micro_batches", &self.micro_batches)
            .field("lanes", &self.lanes)
            .field("stage", &self.stage)
            .field("optimizer", &self.optimizer)
            .field("shard", &self.shard)
            .field("overlap", &self.overlap)
            .field("compression", &self.compression)
            .field("compression_warmup", &self.compression_warmup)
            .field("local", &self.local)
            .field("clip_value", &self.clip_value)
            .field("precision", &self.precision)
            .field("loss_scale", &self.loss_scale)
            .field("relinkable", &self.relinkable)
            .field("health", &self.health)
            .finish_non_exhaustive()
    }
}

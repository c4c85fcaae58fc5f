//! The linked training step.

use super::joining::Joining;
use super::lagging::Lagging;
use super::local::LocalLanes;
use super::refresh::Refreshed;
use super::sharpness::Sharpness;
use super::staged::Staging;
use super::{Batch, DIAGNOSE, Divided, Field, MEASURED, Parts, StepConfig, StepTimes};
use crate::accumulation::Summed;
use crate::lanes::Fold;
use crate::loss_scale::{BACK_OFF, SCALE, SKIPPED_STEPS};
use crate::parameters::Parameter;
use crate::pipeline::Pipeline;
use crate::planning::Chosen;
use crate::profiler::Phase;
use crate::ranks::{Compressed, Exchange, Ranks};
use crate::watch::{Health, HealthInterval, Reading};
use crate::{Error, Result};
use gradus_engine::Program;
use gradus_engine::backend::Backend;
use gradus_engine::plan::Options;
use std::sync::Arc;

/// What a step gave. Of one that was skipped, because gradients of the scaled loss were not finite, loss and norm are not
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The mean loss.
    pub loss: f32,
    /// The norm of the gradients before clipping.
    pub gradient_norm: f32,
    /// How the loss is scaled from now on, if it is.
    pub scaling: Option<Scaling>,
}

/// Where the scale of the loss stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// The scale of the next step.
    pub loss_scale: f32,
    /// Whether this step was skipped.
    pub skipped: bool,
    /// All steps that were skipped.
    pub skipped_steps: u64,
}

/// The numbers that change from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars {
    /// The step, from 0.
    pub step: u64,
    /// The learning rate.
    pub learning_rate: f32,
    /// The norm above which gradients are scaled down; infinite for none.
    pub clip_norm: f32,
    /// The seed of dropout.
    pub seed: u32,
}

/// A linked training step.
pub struct TrainingStep {
    /// The other ranks of the run, if there are any. Before the program, in which they may be writing until they are gone.
    pub(super) exchange: Option<Box<Exchange>>,
    /// The other stages, if this is one, and with them all ranks: those of `exchange` have the same stage.
    pub(super) pipeline: Option<Box<Pipeline>>,
    /// Where the update of the last step stands.
    pub(super) lagging: Lagging,
    /// How the last lane is joined to others while it is computed, if it can be.
    pub(super) joining: Option<Joining>,
    pub(super) program: Program,
    pub(super) config: StepConfig,
    pub(super) fields: Arc<[Field]>,
    pub(super) parameters: Vec<Parameter>,
    /// Losses of a micro-batch.
    losses: usize,
    /// The routine that follows each lane that is computed here, if one does.
    pub(super) folds: Arc<[Option<String>]>,
    /// What is summed over lanes.
    pub(super) summed: Vec<Summed>,
    /// The parts of weights that are updated here, if those are parts.
    pub(super) parts: Option<Parts>,
    /// The states of which only a part is here.
    pub(super) divided: Vec<Divided>,
    /// States that hold a lane's only while it is computed.
    pub(super) passing: Vec<String>,
    /// What lanes come to, and the routines of each, if they take steps by themselves.
    pub(super) local: Option<Box<LocalLanes>>,
    /// How lanes are summed, if they are compressed.
    compressed: Option<Box<Compressed>>,
    /// The other ranks of a run whose lanes are kept apart, if there are any.
    pub(super) apart: Option<Box<Ranks>>,
    /// The stage of a pipeline, if this is one.
    pub(super) staging: Option<Staging>,
    /// Where the times of each step of the plan go, while they are asked for.
    times: Option<Box<StepTimes>>,
    /// How the health of gradients is read, if it is measured.
    reading: Option<Reading>,
    /// What the optimizer does besides steps, if it does.
    pub(super) refreshed: Option<Refreshed>,
    pub(super) sharpness: Option<Sharpness>,
}

/// The other ranks of a run, with what is exchanged with them or without.
pub(crate) enum Others {
    Exchange(Box<Exchange>),
    Apart(Box<Ranks>),
}

impl Others {
    pub fn ranks(&mut self) -> &mut Ranks {
        match self {
            Others::Exchange(exchange) => exchange.ranks(),
            Others::Apart(ranks) => ranks,
        }
    }
}

impl TrainingStep {
    /// Plans and links the step with everything kept for the gradient; weights and optimizer are zero until written.
    pub fn new(config: StepConfig, backend: &dyn Backend) -> Result<TrainingStep> {
        let plan = config.planner(backend, Options::default())?.plan(usize::MAX);
        TrainingStep::link(Chosen { config, plan }, backend)
    }

    /// Links a step that is planned; weights and optimizer are zero until written.
    pub fn link(Chosen { config, plan }: Chosen, backend: &dyn Backend) -> Result<TrainingStep> {
        let traced = config.traced(backend)?;
        let (fields, parameters, losses, reading) = (traced.fields, traced.parameters, traced.losses, traced.reading);
        let folds = config.folds().iter().map(Fold::routine).collect();
        let program = Program::link(plan, backend)?;
        let (summed, parts, kept, staging) = (traced.summed, traced.parts, traced.kept, traced.staging);
        let compressed = kept.as_ref().map(|kept| Compressed::new(config.compression_warmup, &config.lanes, kept));
        let replicas = traced.replicas;
        let (of_lanes, passing) =
            replicas.map_or_else(Default::default, |replicas| (replicas.divided, replicas.passing));
        let local = config.local.map(|_| Box::new(LocalLanes::new(&config.lanes)));
        let divided = parts.as_ref().map_or(vec![], |parts| parts.divided(&parameters));
        Ok(TrainingStep {
            program,
            config,
            fields,
            parameters,
            losses,
            folds,
            summed,
            parts,
            divided: kept.map_or(divided, |kept| kept.divided.into_iter().chain(of_lanes).collect()),
            passing,
            local,
            compressed: compressed.map(Box::new),
            apart: None,
            staging,
            pipeline: None,
            exchange: None,
            lagging: Lagging::default(),
            joining: None,
            reading,
            refreshed: traced.refreshed,
            sharpness: traced.sharpness,
            times: None,
        })
    }

    /// With other ranks, which have the other lanes: those of this step are these ranks' ([`crate::lanes::Lanes::at`]).
    pub fn with_ranks(mut self, ranks: Ranks) -> Result<TrainingStep> {
        if ranks.place() != self.config.place() {
            let (step, ranks) = (self.config.place(), ranks.place());
            return Err(Error::Config(format!(
                "the step is of {step:?}, and the ranks are of {ranks:?}; make both so"
            )));
        }
        let ranks = match &self.staging {
            None => ranks,
            Some(staging) => {
                let (pipeline, same) = Pipeline::new(ranks, self.config.stage, self.config.passes(), staging)?;
                self.pipeline = Some(Box::new(pipeline));
                same
            }
        };
        if ranks.place().ranks > 1 && self.compressed.is_some() {
            self.apart = Some(Box::new(ranks));
        } else if ranks.place().ranks > 1 {
            let parts = self.parts.as_ref().expect("each of several ranks has its part");
            let mut exchange = Exchange::new(ranks, &self.config.lanes, &self.summed, parts, &self.parameters)?;
            if self.staging.is_none() {
                self.lagging = Lagging::of(self.program.plan(), parts.is_sharded()).agreed(exchange.ranks())?;
                self.joining = self.joining();
            }
            self.exchange = Some(Box::new(exchange));
        }
        Ok(self)
    }

    /// How the last lane is joined to those before it, if there are any.
    fn joining(&self) -> Option<Joining> {
        let joins = self.folds.last()?.as_ref()?;
        let last = if self.config.micro_batches == 1 { "first" } else { "accumulate" };
        Joining::of(self.program.plan(), joins, last)
    }

    /// The other ranks of the run, if there are any.
    pub(crate) fn ranks(&mut self) -> Option<&mut Ranks> {
        match self.pipeline.is_some() {
            true => self.pipeline.as_mut().map(|pipeline| pipeline.ranks()),
            false => self.alike(),
        }
    }

    /// The other ranks that compute the same of the model, if there are any.
    fn alike(&mut self) -> Option<&mut Ranks> {
        match &mut self.apart {
            Some(ranks) => Some(ranks),
            None => self.exchange.as_mut().map(|exchange| exchange.ranks()),
        }
    }

    /// The exchange with other ranks, to be given back by [`TrainingStep::give_exchange`].
    pub(crate) fn take_exchange(&mut self) -> Result<Option<Others>> {
        self.finish()?;
        let apart = self.apart.take().map(Others::Apart);
        Ok(apart.or_else(|| self.exchange.take().map(Others::Exchange)))
    }

    pub(crate) fn give_exchange(&mut self, others: Others) {
        match others {
            Others::Exchange(exchange) => self.exchange = Some(exchange),
            Others::Apart(ranks) => self.apart = Some(ranks),
        }
    }

    /// The numbers of so many parts that ranks had in turn, in order; none if a rank has not done all of its own.
    pub(crate) fn in_turn(&mut self, own: Vec<f32>, parts: usize) -> Result<Option<Vec<f32>>> {
        match self.alike() {
            None => Ok((own.len() == parts).then_some(own)),
            Some(ranks) => ranks.in_turn(own, parts),
        }
    }

    /// Whether this rank writes files and tells of the run.
    pub fn is_first_rank(&self) -> bool {
        self.config.place().rank == 0
    }

    /// Goes on in another way: what the step remembers stays, in the same bytes.
    pub fn relink(&mut self, chosen: Chosen) -> Result<()> {
        self.finish()?;
        self.program.relink(chosen.plan)?;
        if let (Some(parts), Some(exchange)) = (&self.parts, &mut self.exchange) {
            exchange.moved();
            let allowed = self.lagging.is_allowed();
            self.lagging = Lagging::of(self.program.plan(), parts.is_sharded()).agreed(exchange.ranks())?;
            self.may_lag(allowed);
            self.joining = self.joining();
        }
        // They were those of the other plan.
        self.times = None;
        self.losses = self.losses / self.config.micro_batch * chosen.config.micro_batch;
        self.config = chosen.config;
        Ok(())
    }

    /// The weights, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// How many numbers all weights of the model hold together, those of other stages too.
    pub fn parameter_count(&self) -> usize {
        let own = || self.parameters.iter().map(|parameter| parameter.shape.elements()).sum();
        let all = |staging: &Staging| staging.weights.iter().map(|(weight, _)| weight.shape.elements()).sum();
        self.staging.as_ref().map_or_else(own, all)
    }

    /// The program, to read and write its states.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program, to read and write its states.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// What it was built from, with its micro-batch.
    pub fn config(&self) -> &StepConfig {
        &self.config
    }

    /// From now on the times of each step of the plan go there, if anywhere; gives where they went until now.
    pub fn time(&mut self, times: Option<Box<StepTimes>>) -> Option<Box<StepTimes>> {
        std::mem::replace(&mut self.times, times)
    }

    /// Room for the examples of a step that are computed here.
    pub fn batch(&self) -> Batch {
        Batch::new(&self.fields, self.config.rows())
    }

    /// Room for the examples of an evaluation, as many as are computed at once.
    pub fn micro_batch(&self) -> Batch {
        Batch::new(&self.fields, self.config.micro_batch)
    }

    /// Gives every weight the numbers of a new model.
    pub fn initialize(&mut self, seed: u32) -> Result<()> {
        for parameter in &self.parameters {
            self.program.write_array(&parameter.name, &parameter.numbers(seed))?;
        }
        Ok(())
    }

    /// One step over a batch. Allocates nothing.
    ///
    /// If a number is not finite, nothing is changed and the error says so; where the loss is scaled, the scale backs off
    /// and the step counts as skipped instead.
    pub fn run(&mut self, batch: &Batch, inputs: &StepScalars) -> Result<Outcome> {
        let last = if self.config.accumulates() { "update" } else { "step" };
        self.run_ending_with(last, batch, inputs)
    }

    /// Room for the figures of gradients and updates, if the step measures them ([`StepConfig::health`]).
    pub fn health(&self) -> Option<Health> {
        self.reading.as_ref().map(Reading::health)
    }

    /// The steps between measurements that are chosen; 0: none. Ranks measure the same steps: a measured one exchanges in another
    /// order.
    pub(crate) fn agreed_health_steps(&mut self, interval: HealthInterval) -> Result<u64> {
        let own = if self.reading.is_some() { self.health_steps(interval) } else { 0 };
        let Some(ranks) = self.ranks() else { return Ok(own) };
        let all = ranks.numbers(own)?;
        Ok(if all.contains(&0) { 0 } else { all.iter().copied().max().unwrap_or(own) })
    }

    /// The steps between measurements that this rank would choose; 0: none.
    pub fn health_steps(&self, interval: HealthInterval) -> u64 {
        let plan = self.program.plan();
        let seconds = |name: &str| {
            let steps = plan.routines.iter().filter(|routine| routine.name == name).flat_map(|routine| &routine.steps);
            steps.map(|step| step.seconds).sum::<f64>()
        };
        let last = if self.config.accumulates() { "update" } else { "step" };
        interval.steps(plan.seconds(), seconds(MEASURED) - seconds(last))
    }

    /// As [`TrainingStep::run`], to the bit, and gives the figures of every gradient and update too; of a step that was
    /// skipped, how many numbers were not finite. `health` is that of [`TrainingStep::health`].
    pub fn run_measured(&mut self, batch: &Batch, inputs: &StepScalars, health: &mut Health) -> Result<Outcome> {
        let scale = if self.config.loss_scale().is_some() { self.program.scalar(SCALE)? } else { 1.0 };
        let outcome = self.run_ending_with(MEASURED, batch, inputs)?;
        match (outcome.scaling, &self.reading) {
            (Some(Scaling { skipped: true, .. }), _) => self.count_non_finite(health)?,
            (_, Some(reading)) => reading.read(&self.program, scale, health)?,
            (_, None) => {}
        }
        Ok(outcome)
    }

    /// After a step that was refused or skipped: how many numbers of each gradient are not finite.
    pub fn count_non_finite(&mut self, health: &mut Health) -> Result<()> {
        self.program.run(DIAGNOSE)?;
        match &self.reading {
            Some(reading) => reading.read_non_finite(&self.program, health),
            None => Ok(()),
        }
    }

    fn run_ending_with(&mut self, last: &str, batch: &Batch, inputs: &StepScalars) -> Result<Outcome> {
        self.check(batch, self.config.rows())?;
        let counted = self.counted(batch)?;
        check_scalars(inputs)?;
        // A lane that takes steps by itself has the mean over its own.
        let of_lane = if self.local.is_some() { self.config.lanes.count() } else { 1 };
        self.program.write("loss_share", &[of_lane as f32 / counted as f32])?;
        let scaled = self.config.loss_scale().is_some();
        Phase::Step.begin();
        let replayed = self.replay(last, batch, inputs);
        Phase::Loop.begin();
        let skipped = match replayed {
            Err(error) if scaled && is_not_finite(&error) => {
                self.program.run(BACK_OFF)?;
                true
            }
            replayed => replayed.map(|()| false)?,
        };
        let result = |name: &str| if skipped { Ok(f32::NAN) } else { self.program.scalar(name) };
        let scaling = scaled.then(|| self.scaling(skipped)).transpose()?;
        let [loss, gradient_norm] = match &self.local {
            Some(local) => local.figures.means(),
            None => [result("loss")?, result("gradient_norm")?],
        };
        Ok(Outcome { loss, gradient_norm, scaling })
    }

    fn scaling(&self, skipped: bool) -> Result<Scaling> {
        let number = |name: &str| self.program.scalar(name);
        Ok(Scaling { loss_scale: number(SCALE)?, skipped, skipped_steps: number(SKIPPED_STEPS)? as u64 })
    }

    /// Replays the routines of a step, whose numbers are written.
    fn replay(&mut self, last: &str, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        self.times.iter_mut().for_each(|times| times.begin());
        self.refresh(batch, inputs)?;
        if let Some(every) = self.config.local.map(|local| local.every) {
            return self.replay_locally(every, last, batch, inputs);
        }
        let replayed = match self.pipeline.take() {
            None => self.replay_lanes(batch, inputs),
            Some(pipeline) => self.replay_stage(pipeline, batch, inputs),
        };
        // The update of the step before reads its own numbers until now.
        self.finish()?;
        self.program.write("learning_rate", &[inputs.learning_rate])?;
        self.program.write("clip_norm", &[inputs.clip_norm])?;
        if self.compressed.is_some() {
            return self.update_compressed(last, inputs.step, replayed);
        }
        match replayed {
            // The others hear of it by the sums, of which none is on its way: no fault comes after a new sum.
            Err(error) if is_not_finite(&error) && self.exchange.is_some() => self.spoil()?,
            replayed => replayed?,
        }
        if let Some(pipeline) = self.pipeline.take() {
            return self.update_stage(pipeline, last);
        }
        if self.exchange.is_none() {
            return self.run_routine(last);
        }
        self.update_shared(last)
    }

    /// Ends a step whose lanes are compressed.
    fn update_compressed(&mut self, last: &str, step: u64, replayed: Result<()>) -> Result<()> {
        match (replayed, &self.compressed) {
            // The others hear of it by the sums.
            (Err(error), Some(compressed)) if is_not_finite(&error) && self.apart.is_some() => {
                compressed.spoil(&mut self.program)?;
            }
            (replayed, _) => replayed?,
        }
        self.sum(step)?;
        self.run_routine(last)
    }

    /// Adds up the lanes of all ranks, where they are kept apart.
    pub(super) fn sum(&mut self, step: u64) -> Result<()> {
        let scale = if self.config.loss_scale().is_some() { self.program.scalar(SCALE)? } else { 1.0 };
        match &mut self.compressed {
            Some(_) if self.apart.is_none() && self.config.lanes.place().ranks > 1 => Err(Error::Config(
                "lanes are compressed together with those of other ranks; give the step its `with_ranks`".into(),
            )),
            Some(compressed) => compressed.sum(self.apart.as_deref_mut(), &mut self.program, step, scale),
            None => Ok(()),
        }
    }

    /// Replays the lanes that are computed here, and adds their sums up.
    fn replay_lanes(&mut self, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        let (folds, hosted) = (self.folds.clone(), self.config.lanes.hosted().len());
        for (place, fold) in folds.iter().enumerate() {
            let is_last = place + 1 == hosted;
            let joined = is_last && self.joins_early();
            self.replay_lane(place, is_last && (joined || fold.is_none()), batch, inputs)?;
            if let Some(fold) = fold.as_ref().filter(|_| !joined) {
                self.run_summing(fold, false, is_last)?;
            }
        }
        Ok(())
    }

    /// Replays the micro-batches of a lane, the examples of which have this place in the batch; whether that gives the last sums.
    /// A step that is one routine only has its examples written.
    pub(super) fn replay_lane(
        &mut self,
        place: usize,
        is_last: bool,
        batch: &Batch,
        inputs: &StepScalars,
    ) -> Result<()> {
        let (micro_batches, accumulates) = (self.config.micro_batches, self.config.accumulates());
        for index in 0..micro_batches {
            self.write_pass(place * micro_batches + index, batch, inputs)?;
            match (accumulates, index) {
                (false, _) => {}
                (true, 0) => self.run_summing("first", place == 0, is_last && micro_batches == 1)?,
                (true, _) => self.run_summing("accumulate", false, is_last && index + 1 == micro_batches)?,
            }
        }
        Ok(())
    }

    /// Writes the examples of one of the micro-batches that are computed here, and the key of what is dropped in it.
    pub(super) fn write_pass(&mut self, pass: usize, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        let StepConfig { micro_batches, lanes, .. } = &self.config;
        let (lane, index) = (lanes.hosted().start + pass / micro_batches, pass % micro_batches);
        // The key need not count further than it can.
        let lanes = (inputs.step as u32).wrapping_mul(lanes.count() as u32).wrapping_add(lane as u32);
        let micro_step = lanes.wrapping_mul(*micro_batches as u32).wrapping_add(index as u32);
        self.write(batch, pass)?;
        Ok(self.program.write("dropout_key", &[inputs.seed, micro_step])?)
    }

    /// Whether what each step of the plan takes is asked for.
    pub(super) fn is_timed(&self) -> bool {
        self.times.is_some()
    }

    pub(super) fn run_routine(&mut self, name: &str) -> Result<()> {
        match &mut self.times {
            None => Ok(self.program.run(name)?),
            Some(times) => times.run(&mut self.program, name, matches!(name, "step" | "update")),
        }
    }

    /// How many of all losses of a batch count.
    fn counted(&mut self, batch: &Batch) -> Result<usize> {
        let all = self.losses * self.config.micro_batches * self.config.lanes.count();
        let mut counted = self.config.objective.counted(batch);
        if let Some(exchange) = &mut self.exchange {
            let own = counted.unwrap_or(self.losses * self.config.passes());
            counted = Some(exchange.agree(own as u64)? as usize);
        }
        if let Some(ranks) = &mut self.apart {
            let own = counted.unwrap_or(self.losses * self.config.passes());
            let of_ranks = ranks.numbers(own as u64)?;
            counted = Some(of_ranks.iter().fold(0u64, |sum, of_rank| sum.saturating_add(*of_rank)) as usize);
        }
        match counted {
            None => Ok(all),
            Some(counted) if (1..=all).contains(&counted) => Ok(counted),
            Some(counted) => Err(Error::Config(format!(
                "{counted} of the batch's {all} losses are said to count; leave out batches of which none does"
            ))),
        }
    }

    /// The mean loss over one micro-batch, without dropout.
    pub fn evaluate(&mut self, micro_batch: &Batch) -> Result<f32> {
        self.check(micro_batch, self.config.micro_batch)?;
        self.finish()?;
        self.write(micro_batch, 0)?;
        if let Some(mut pipeline) = self.pipeline.take() {
            let loss = self.evaluate_stage(&mut pipeline);
            self.pipeline = Some(pipeline);
            return loss;
        }
        self.program.run("evaluate")?;
        Ok(self.program.scalar("loss")?)
    }

    /// Writes one of the micro-batches of a batch.
    fn write(&mut self, batch: &Batch, index: usize) -> Result<()> {
        for (number, field) in self.fields.iter().enumerate() {
            let bytes = field.bytes(self.config.micro_batch);
            self.program.write_bytes(&field.name, &batch.bytes(number)[index * bytes..][..bytes])?;
        }
        Ok(())
    }

    fn check(&self, batch: &Batch, rows: usize) -> Result<()> {
        if self.staging.is_some() && self.pipeline.is_none() {
            let problem = "a stage takes no step without the others; connect it by `TrainingStep::with_ranks`";
            return Err(Error::Config(problem.to_string()));
        }
        if batch.rows() == rows && batch.is_of(&self.fields) {
            return Ok(());
        }
        Err(Error::Config(format!(
            "the batch has {} examples or other inputs than this model, which takes {rows} at a time; make it with \
             `batch()` or `micro_batch()`",
            batch.rows()
        )))
    }
}

/// Refuses numbers that would make weights of no use.
fn check_scalars(inputs: &StepScalars) -> Result<()> {
    let StepScalars { learning_rate, clip_norm, .. } = *inputs;
    if !(0.0..=f32::MAX).contains(&learning_rate) {
        return Err(Error::Config(format!("the learning rate is {learning_rate}; give a finite number from 0 up")));
    }
    if clip_norm.is_nan() || clip_norm < 0.0 {
        return Err(Error::Config(format!("the norm to clip at is {clip_norm}; give a number from 0 up, or infinity")));
    }
    Ok(())
}

/// Whether an error of [`TrainingStep::run`] says that a number was not finite, which a run can survive.
pub fn is_not_finite(error: &Error) -> bool {
    matches!(error, Error::Engine(gradus_engine::Error::NonFinite { .. }))
}

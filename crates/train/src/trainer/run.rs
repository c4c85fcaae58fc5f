//! The training loop: batches in, steps replayed, figures and checkpoints out.

use super::batches::Batches;
use super::hooks::Hooks;
use super::pace::{self, Pace, Work};
use super::session::Session;
use super::watching::Watching;
use crate::clipping::NormStatistics;
use crate::loss_scale;
use crate::memory::guard::{self, Armed};
use crate::memory::{ProcessMemory, heap};
use crate::metrics::MetricsLog;
use crate::run::{Accuracy, Event, Observer, StepReport, Stop, Summary};
use crate::schedule::Elapsed;
use crate::step::{Batch, Collected, Outcome, Scaling, StepScalars, is_not_finite};
use crate::tensorboard::EventLog;
use crate::{Error, Result};
use std::time::Instant;

/// Steps in a row that may be skipped before the run is given up.
const SKIPPED_IN_A_ROW_MAX: u32 = 5;
/// Batches of held-out data in a validation along the way, and at the end.
const VALIDATION_ALONG: usize = 24;
const VALIDATION_AT_END: usize = 256;

/// Where a run stands.
pub(crate) struct Run {
    /// The figures of each step, if the run has a folder.
    pub log: Option<MetricsLog>,
    /// The same for TensorBoard, if that is asked for.
    pub events: Option<EventLog>,
    pub statistics: NormStatistics,
    /// How the run is doing.
    pub watching: Watching,
    /// Steps taken.
    pub step: u64,
    /// Examples taken.
    pub position: u64,
    /// Whether the last step was taken.
    pub done: bool,
    started: Instant,
    /// Seconds of training before this session.
    seconds_before: f64,
    first_step: u64,
    pub skipped_in_a_row: u32,
    loss: f32,
    validation_loss: Option<f32>,
    /// As it was with that.
    accuracy: Option<Accuracy>,
    pub(super) pace: Pace,
    pub interrupted: bool,
    /// The step after which a checkpoint that could not be saved is tried again.
    pub save_again_at: Option<u64>,
    /// Whether the metrics, the events and the samples could not be written the last time.
    pub metrics_fail: bool,
    pub events_fail: bool,
    pub samples_fail: bool,
}

impl Run {
    pub fn new(session: &Session) -> Result<Run> {
        let resumed = session.resumed.as_ref();
        let step = resumed.map_or(0, |progress| progress.step);
        let folder = session.folder.as_ref();
        let log = folder.map(|folder| MetricsLog::open(&folder.path, resumed.map(|progress| progress.step)));
        let watching = Watching::of(session);
        let mut log = log.transpose()?;
        log.iter_mut().for_each(|log| log.make_room(watching.line_bytes()));
        let events =
            session.events.as_ref().map(|folder| EventLog::begin(folder, resumed.map(|progress| progress.step)));
        let mut events = events.transpose()?;
        events.iter_mut().for_each(|events| events.make_room(watching.line_bytes()));
        let mut run = Run {
            statistics: resumed.map_or_else(NormStatistics::default, |progress| progress.clipping),
            step,
            position: resumed.map_or(0, |progress| progress.data_position),
            watching,
            done: false,
            started: Instant::now(),
            seconds_before: resumed.map_or(0.0, |progress| progress.seconds),
            first_step: step,
            skipped_in_a_row: resumed.map_or(0, |progress| progress.skipped_in_a_row),
            loss: log.as_ref().map_or(f32::NAN, MetricsLog::last_loss),
            log,
            events,
            validation_loss: None,
            accuracy: None,
            pace: Pace::default(),
            interrupted: false,
            save_again_at: None,
            metrics_fail: false,
            events_fail: false,
            samples_fail: false,
        };
        run.done = run.is_at_end(session);
        Ok(run)
    }

    /// Tells that the first step is about to begin.
    pub fn tell_start(&self, session: &Session, hooks: &dyn Hooks, observer: &mut dyn Observer) {
        observer.event(&Event::Started {
            parameters: session.training.parameter_count(),
            tokens: hooks.data_tokens(),
            steps: session.limits.steps,
            memory_bytes: session.predicted.predicted(),
            budget_bytes: session.guard.as_ref().and_then(Armed::budget),
            resumed_at: session.resumed.as_ref().map(|progress| progress.step),
        });
        if let Some(remark) = session
            .limits
            .length()
            .and_then(|length| session.schedule.remark(length, self.so_far(), &|length| hooks.decay_setting(length)))
        {
            observer.event(&Event::Note(&remark));
        }
    }

    /// Takes steps until the run is done, asked to stop, or out of batches.
    pub fn until_the_end(
        &mut self,
        session: &mut Session,
        batches: &mut Batches,
        hooks: &mut dyn Hooks,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        // The first step touches the arena, so what else was touched until now makes room.
        heap::give_back_code();
        (self.done, self.interrupted) = (self.is_at_end(session), false);
        session.training.may_lag(true);
        while !self.done && !self.interrupted {
            // Waiting for a batch is part of the step.
            let start = Instant::now();
            match batches.next()? {
                Some(batch) => {
                    self.take_step(session, (batch, start), hooks, observer)?;
                }
                None => self.done = true,
            }
        }
        session.training.may_lag(false);
        session.training.finish()
    }

    fn is_at_end(&self, session: &Session) -> bool {
        session.limits.steps.is_some_and(|steps| self.step >= steps)
            || session.limits.seconds.is_some_and(|limit| self.seconds() >= limit)
    }

    /// Seconds of training, earlier sessions included.
    pub fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }

    fn so_far(&self) -> Elapsed {
        Elapsed { step: self.step, seconds: self.seconds() }
    }

    /// Takes one step, which began at `start`, and does what follows it.
    pub fn take_step(
        &mut self,
        session: &mut Session,
        (batch, start): (&Batch, Instant),
        hooks: &mut dyn Hooks,
        observer: &mut dyn Observer,
    ) -> Result<StepReport> {
        // Where it goes by time, the first rank's clock counts.
        let learning_rate = session.schedule.learning_rate(self.so_far()) as f32;
        let inputs = StepScalars {
            step: self.step,
            learning_rate: f32::from_bits(session.first(learning_rate.to_bits().into())? as u32),
            clip_norm: self.statistics.threshold(session.clip),
            seed: session.seed,
        };
        let sent_before = session.bytes_sent();
        let paused = Instant::now();
        let measures_curvature =
            session.every.curvature > 0 && (inputs.step + 1).is_multiple_of(session.every.curvature);
        let sharpness = if measures_curvature { session.training.sharpness(batch, &inputs)? } else { None };
        let start = start + paused.elapsed();
        let outcome = self.watching.run(session, batch, &inputs);
        let bytes_sent = session.bytes_sent().zip(sent_before).map(|(now, before)| now - before);
        guard::relieve();
        if outcome.as_ref().map_or_else(is_not_finite, |_| true) {
            self.step += 1;
            self.position += session.batch as u64;
        }
        let outcome = match outcome {
            Ok(outcome @ Outcome { scaling: Some(Scaling { loss_scale, skipped: true, .. }), .. }) => {
                self.back_off(session, loss_scale, observer)?;
                outcome
            }
            Ok(outcome) => {
                self.skipped_in_a_row = 0;
                self.statistics.observe(outcome.gradient_norm, session.clip);
                outcome
            }
            Err(error) if is_not_finite(&error) => {
                self.skip(session, observer)?;
                Outcome { loss: f32::NAN, gradient_norm: f32::NAN, scaling: None }
            }
            Err(error) => return Err(error),
        };
        let seconds = start.elapsed().as_secs_f64();
        self.pace.step.see(seconds);
        self.loss = outcome.loss;
        self.done = session.first(self.is_at_end(session).into())? != 0;
        self.interrupted = !self.done && session.first((observer.should_stop() == Stop::AfterStep).into())? != 0;
        if self.pauses(session) {
            session.training.finish()?;
        }
        let validation_loss = match (self.done, self.is_due(session.every.validation)) {
            (true, _) => self.validate(session, hooks, observer, VALIDATION_AT_END)?,
            (false, true) => self.validate(session, hooks, observer, VALIDATION_ALONG)?,
            (false, false) => None,
        };
        guard::relieve();
        let memory = ProcessMemory::read();
        let mut report = self.report(session, hooks, &outcome, inputs.learning_rate, seconds, memory);
        (report.validation_loss, report.bytes_sent, report.sharpness) = (validation_loss, bytes_sent, sharpness);
        report.accuracy = validation_loss.and(self.accuracy);
        report.account = (self.done || self.interrupted).then(|| session.account());
        self.watching.see(&mut report);
        self.log(&report, observer);
        observer.event(&Event::Step(&report));
        report.alerts.iter().for_each(|alert| observer.event(&Event::Alert { step: self.step, alert }));
        session.adapt(self.step, observer)?;
        let samples = self.is_due(session.every.sample);
        let saves = self.is_due(session.every.save) || self.saves_again();
        if samples {
            self.sample(session, hooks, observer)?;
        }
        // A run that ends here is saved as such.
        if saves && !self.done && !self.interrupted {
            self.save_along(session, hooks, observer)?;
        }
        if samples || saves || validation_loss.is_some() {
            heap::give_back();
            heap::give_back_code();
        }
        Ok(report)
    }

    /// Whether something else than a step may follow.
    fn pauses(&self, session: &Session) -> bool {
        let every = &session.every;
        let is_due = [every.validation, every.sample, every.save].into_iter().any(|every| self.is_due(every));
        self.done || self.interrupted || is_due || self.saves_again()
    }

    /// Whether a checkpoint that could not be saved is tried again.
    fn saves_again(&self) -> bool {
        self.save_again_at.is_some_and(|at| self.step >= at)
    }

    /// Whether something that happens every so many steps, but not at the end, happens now.
    fn is_due(&self, every: u64) -> bool {
        every > 0 && self.step.is_multiple_of(every) && !self.done && !self.interrupted
    }

    /// A step whose numbers are not finite changed nothing; several in a row end the run.
    fn skip(&mut self, session: &mut Session, observer: &mut dyn Observer) -> Result<()> {
        self.skipped_in_a_row += 1;
        let culprit = session.training.culprit()?.to_string();
        let reason = format!("{culprit} is not finite");
        observer.event(&Event::Skipped { step: self.step, reason: &reason });
        self.watching.refused(session, culprit)?;
        if self.skipped_in_a_row >= SKIPPED_IN_A_ROW_MAX {
            return Err(self.diverged(session, &reason));
        }
        Ok(())
    }

    /// A step whose gradients overflowed changed nothing but the scale of the loss; where no scale is small enough, the run
    /// ends.
    fn back_off(&mut self, session: &mut Session, scale: f32, observer: &mut dyn Observer) -> Result<()> {
        self.skipped_in_a_row += 1;
        let reason = format!("gradients of the scaled loss are not finite; its scale is {scale} from now on");
        observer.event(&Event::Skipped { step: self.step, reason: &reason });
        if scale < loss_scale::SMALLEST {
            let reason = format!("{} is not finite, however small the loss is scaled", session.training.culprit()?);
            return Err(self.diverged(session, &reason));
        }
        Ok(())
    }

    /// The end of a run whose steps are all skipped.
    fn diverged(&self, session: &Session, reason: &str) -> Error {
        let again = match session.saved {
            Some(step) => format!("resume from the checkpoint of step {step}"),
            None => "start again".to_string(),
        };
        Error::Diverged(format!(
            "step {}: {reason}, {} steps in a row; {again} with a lower `settings.learning_rate` (now {}), more \
             `settings.warmup_steps` or `settings.clip` 1.0",
            self.step, self.skipped_in_a_row, session.schedule.highest
        ))
    }

    fn report(
        &self,
        session: &Session,
        hooks: &dyn Hooks,
        outcome: &Outcome,
        learning_rate: f32,
        seconds: f64,
        memory: ProcessMemory,
    ) -> StepReport {
        let tokens = hooks.tokens(session.batch as u64);
        StepReport {
            step: self.step,
            steps: session.limits.steps,
            tokens: self.step.saturating_mul(tokens),
            loss: outcome.loss,
            validation_loss: None,
            accuracy: None,
            gradient_norm: outcome.gradient_norm,
            sharpness: None,
            learning_rate,
            loss_scale: outcome.scaling.map(|scaling| scaling.loss_scale),
            skipped_steps: outcome.scaling.map(|scaling| scaling.skipped_steps),
            bytes_sent: None,
            tokens_per_second: tokens as f64 / seconds,
            step_ms: seconds * 1e3,
            memory_bytes: memory.now,
            peak_memory_bytes: memory.peak,
            account: None,
            verdict: None,
            alerts: vec![],
            health: None,
            seconds_left: self.seconds_left(session, hooks),
        }
    }

    /// Seconds until the run has ended, with all that it does besides steps.
    fn seconds_left(&self, session: &Session, hooks: &dyn Hooks) -> Option<f64> {
        let validation_batches = |most| hooks.validation_batches(&session.training, most) as u64;
        let at_end = validation_batches(if self.done { 0 } else { VALIDATION_AT_END });
        // The last checkpoint, and the model.
        let ending = Work { steps: 0, validation_batches: at_end, samples: 1, saves: 2 };
        let by_steps = session.limits.steps.map(|steps| {
            let times = |every| pace::times(every, self.step, steps);
            self.pace.seconds(Work {
                steps: steps.saturating_sub(self.step),
                validation_batches: at_end + times(session.every.validation) * validation_batches(VALIDATION_ALONG),
                samples: ending.samples + times(session.every.sample),
                saves: ending.saves + times(session.every.save),
            })
        });
        let time_left = |limit: f64| (limit - self.seconds()).max(0.0) + self.pace.seconds(ending);
        match (by_steps, session.limits.seconds.map(time_left)) {
            (Some(steps), Some(time)) => Some(steps.min(time)),
            (left, other) => left.or(other),
        }
    }

    /// The loss on held-out data, unless the run is asked to stop meanwhile.
    fn validate(
        &mut self,
        session: &mut Session,
        hooks: &mut dyn Hooks,
        observer: &mut dyn Observer,
        batches: usize,
    ) -> Result<Option<f32>> {
        let (start, step) = (Instant::now(), self.step);
        // As before a sample.
        heap::give_back_code();
        let mut stopped = false;
        let loss = hooks.validation_loss(&mut session.training, batches, &mut |done, total| {
            observer.event(&Event::Validating { step, done, total });
            stopped = observer.should_stop() == Stop::AfterStep;
            !stopped
        })?;
        let stopped = session.first(stopped.into())? != 0;
        self.interrupted |= stopped;
        let Some(loss) = loss.filter(|_| !stopped) else { return Ok(None) };
        let measured = hooks.validation_batches(&session.training, batches).max(1) as f64;
        self.pace.validation_batch.see(start.elapsed().as_secs_f64() / measured);
        self.validation_loss = Some(loss);
        self.accuracy = hooks.accuracy();
        observer.event(&Event::Validated { step, loss, accuracy: self.accuracy });
        Ok(Some(loss))
    }

    /// The last checkpoint, sample and what others are to use; an interrupted run takes no sample.
    pub fn finish(
        &mut self,
        session: &mut Session,
        hooks: &mut dyn Hooks,
        observer: &mut dyn Observer,
    ) -> Result<Summary> {
        // First, so that nothing that follows can lose what was trained.
        self.save(session, hooks, observer)?;
        heap::give_back_code();
        session
            .first_alone(|session, asking| {
                hooks.export(&session.training, &Collected { training: &session.training, asking })
            })?
            .needed()?;
        // Measured with the last step, unless that was taken before this session.
        if self.done && self.step == self.first_step {
            self.validate(session, hooks, observer, VALIDATION_AT_END)?;
        }
        if self.done && !self.interrupted {
            self.sample(session, hooks, observer)?;
        }
        let seconds = self.started.elapsed().as_secs_f64();
        let tokens = hooks.tokens(session.batch as u64);
        let summary = Summary {
            steps: self.step,
            tokens: self.step.saturating_mul(tokens),
            loss: self.loss,
            validation_loss: self.validation_loss,
            accuracy: self.accuracy,
            seconds,
            tokens_per_second: (self.step - self.first_step) as f64 * tokens as f64 / seconds,
            peak_memory_bytes: ProcessMemory::read().peak,
            run_folder: session.folder.as_ref().map_or_else(Default::default, |folder| folder.path.clone()),
            interrupted: self.interrupted,
            account: session.account(),
        };
        observer.event(&Event::Finished(&summary));
        Ok(summary)
    }
}

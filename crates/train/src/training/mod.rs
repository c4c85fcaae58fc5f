//! The training loop: batches in, steps replayed, figures and checkpoints out.

mod account;
mod adaptive;
mod folder;
mod pace;
mod resume;
mod sampling;
mod saving;
mod setup;
mod validation;
mod vocabulary;
mod watched;

pub(crate) use folder::METRICS;
pub use folder::check_free;
pub use resume::check_resumable;

use crate::clipping::NormStatistics;
use crate::config::TrainConfig;
use crate::memory::{ProcessMemory, guard, heap};
use crate::metrics::MetricsLog;
use crate::run::{Event, Observer, StepReport, Stop, Summary};
use crate::schedule::{Length, Place, Schedule};
use crate::step::{Outcome, StepScalars, is_not_finite};
use crate::{Error, Result};
use pace::{Pace, Work};
use setup::Session;
use std::time::Instant;

/// Steps in a row that may be skipped before the run is given up.
const SKIPPED_IN_A_ROW_MAX: u32 = 5;
/// Batches of held-out text in a validation along the way, and at the end.
const VALIDATION_ALONG: usize = 24;
const VALIDATION_AT_END: usize = 256;

/// Trains a model as stated, or goes on with a run that was stopped; returns when the run is done or was asked to stop.
pub fn train(config: &TrainConfig, resume: bool, observer: &mut dyn Observer) -> Result<Summary> {
    config.validate()?;
    let mut session = setup::prepare(config, resume, observer)?;
    let mut run = Run::new(&session, observer)?;
    run.save_start(&mut session, observer)?;
    run.until_the_end(&mut session, observer)?;
    run.finish(&mut session, observer)
}

/// Where a run stands.
struct Run {
    schedule: Schedule,
    log: MetricsLog,
    statistics: NormStatistics,
    /// Steps taken.
    step: u64,
    /// Steps of the whole run, if that is known.
    steps: Option<u64>,
    /// Whether the last step was taken.
    done: bool,
    started: Instant,
    /// Seconds of training before this session.
    seconds_before: f64,
    first_step: u64,
    skipped_in_a_row: u32,
    loss: f32,
    validation_loss: Option<f32>,
    pace: Pace,
    interrupted: bool,
    /// The step after which a checkpoint that could not be saved is tried again.
    save_again_at: Option<u64>,
    /// Whether the metrics, and the samples, could not be written the last time.
    metrics_fail: bool,
    samples_fail: bool,
}

impl Run {
    fn new(session: &Session, observer: &mut dyn Observer) -> Result<Run> {
        let (config, resumed) = (&session.config, session.resumed.as_ref());
        let step = resumed.map_or(0, |progress| progress.step);
        let log = MetricsLog::open(&config.out, resumed.map(|progress| progress.step))?;
        let mut run = Run {
            schedule: session.schedule,
            statistics: resumed.map_or_else(NormStatistics::default, |progress| progress.clipping),
            step,
            steps: session.steps,
            done: false,
            started: Instant::now(),
            seconds_before: resumed.map_or(0.0, |progress| progress.seconds),
            first_step: step,
            skipped_in_a_row: resumed.map_or(0, |progress| progress.skipped_in_a_row),
            loss: log.last_loss(),
            log,
            validation_loss: None,
            pace: Pace::default(),
            interrupted: false,
            save_again_at: None,
            metrics_fail: false,
            samples_fail: false,
        };
        run.done = run.is_at_end(config);
        observer.event(&Event::Started {
            config,
            parameters: session.parameter_count(),
            tokens: session.train.len(),
            steps: run.steps,
            memory_bytes: session.predicted.predicted(),
            resumed_at: resumed.map(|progress| progress.step),
        });
        if let Some(remark) = run.length(config).and_then(|length| run.schedule.remark(length, run.place())) {
            observer.event(&Event::Note(&remark));
        }
        Ok(run)
    }

    fn until_the_end(&mut self, session: &mut Session, observer: &mut dyn Observer) -> Result<()> {
        // The first step touches the arena, so what else was touched until now makes room.
        heap::give_back_code();
        while !self.done && !self.interrupted {
            self.take_step(session, observer)?;
        }
        Ok(())
    }

    fn is_at_end(&self, config: &TrainConfig) -> bool {
        self.steps.is_some_and(|steps| self.step >= steps)
            || config.time_seconds.is_some_and(|limit| self.seconds() >= limit)
    }

    /// Seconds of training, earlier sessions included.
    fn seconds(&self) -> f64 {
        self.seconds_before + self.started.elapsed().as_secs_f64()
    }

    fn place(&self) -> Place {
        Place { step: self.step, seconds: self.seconds() }
    }

    /// The length of the whole run, as it is known.
    fn length(&self, config: &TrainConfig) -> Option<Length> {
        self.steps.map(Length::Steps).or(config.time_seconds.map(Length::Seconds))
    }

    fn take_step(&mut self, session: &mut Session, observer: &mut dyn Observer) -> Result<()> {
        let start = Instant::now();
        let inputs = StepScalars {
            step: self.step,
            learning_rate: self.schedule.learning_rate(self.place()) as f32,
            clip_norm: self.statistics.threshold(session.config.clip),
            seed: session.config.seed,
        };
        let batch = session.batches.next()?;
        let outcome = session.training.run(batch.tokens, batch.targets, &inputs);
        guard::relieve();
        self.step += 1;
        let outcome = match outcome {
            Ok(outcome) => {
                self.skipped_in_a_row = 0;
                self.statistics.observe(outcome.gradient_norm, session.config.clip);
                outcome
            }
            Err(error) if is_not_finite(&error) => self.skip(session, observer)?,
            Err(error) => return Err(error),
        };
        let seconds = start.elapsed().as_secs_f64();
        self.pace.step.see(seconds);
        self.loss = outcome.loss;
        self.done = self.is_at_end(&session.config);
        self.interrupted = !self.done && observer.should_stop() == Stop::AfterStep;
        let validation_loss = match (self.done, self.is_due(session.config.eval_every)) {
            (true, _) => self.validate(session, observer, VALIDATION_AT_END)?,
            (false, true) => self.validate(session, observer, VALIDATION_ALONG)?,
            (false, false) => None,
        };
        guard::relieve();
        let memory = ProcessMemory::read();
        let mut report = self.report(session, &outcome, inputs.learning_rate, seconds, validation_loss, memory);
        report.account = (self.done || self.interrupted).then(|| session.account());
        self.log(&report, observer);
        observer.event(&Event::Step(&report));
        session.adapt(self.step, observer)?;
        let samples = self.is_due(session.config.sample_every);
        let saves = self.is_due(session.config.save_every) || self.save_again_at.is_some_and(|at| self.step >= at);
        if samples {
            self.sample(session, observer)?;
        }
        // A run that ends here is saved as such.
        if saves && !self.done && !self.interrupted {
            self.save_along(session, observer)?;
        }
        if samples || saves || validation_loss.is_some() {
            heap::give_back();
            heap::give_back_code();
        }
        Ok(())
    }

    /// Whether something that happens every so many steps, but not at the end, happens now.
    fn is_due(&self, every: u64) -> bool {
        every > 0 && self.step.is_multiple_of(every) && !self.done && !self.interrupted
    }

    /// A step whose numbers are not finite changed nothing; several in a row end the run.
    fn skip(&mut self, session: &mut Session, observer: &mut dyn Observer) -> Result<Outcome> {
        self.skipped_in_a_row += 1;
        let from = match session.training.culprit()? {
            Some(name) => format!("the gradient of {name}"),
            None => "the norm of the gradients".to_string(),
        };
        let reason = format!("{from} is not finite");
        observer.event(&Event::Skipped { step: self.step, reason: &reason });
        if self.skipped_in_a_row >= SKIPPED_IN_A_ROW_MAX {
            let again = match session.saved {
                Some(step) => format!("resume from the checkpoint of step {step}"),
                None => "start again".to_string(),
            };
            return Err(Error::Diverged(format!(
                "step {}: {reason}, {SKIPPED_IN_A_ROW_MAX} steps in a row; {again} with a lower --learning-rate (now \
                 {}), more --warmup-steps or --clip 1.0",
                self.step, session.config.learning_rate
            )));
        }
        Ok(Outcome { loss: f32::NAN, gradient_norm: f32::NAN })
    }

    fn report(
        &self,
        session: &Session,
        outcome: &Outcome,
        learning_rate: f32,
        seconds: f64,
        validation_loss: Option<f32>,
        memory: ProcessMemory,
    ) -> StepReport {
        StepReport {
            step: self.step,
            steps: self.steps,
            tokens: self.step.saturating_mul(session.tokens_per_step()),
            loss: outcome.loss,
            validation_loss,
            gradient_norm: outcome.gradient_norm,
            learning_rate,
            tokens_per_second: session.tokens_per_step() as f64 / seconds,
            step_ms: seconds * 1e3,
            memory_bytes: memory.now,
            peak_memory_bytes: memory.peak,
            account: None,
            seconds_left: self.seconds_left(session),
        }
    }

    /// Seconds until the run has ended, with all that it does besides steps.
    fn seconds_left(&self, session: &Session) -> Option<f64> {
        let config = &session.config;
        let at_end = session.validation_batches(if self.done { 0 } else { VALIDATION_AT_END }) as u64;
        // The last checkpoint, and the model.
        let ending = Work { steps: 0, validation_batches: at_end, samples: 1, saves: 2 };
        let by_steps = self.steps.map(|steps| {
            let times = |every| pace::times(every, self.step, steps);
            let along = session.validation_batches(VALIDATION_ALONG) as u64;
            self.pace.seconds(Work {
                steps: steps.saturating_sub(self.step),
                validation_batches: ending.validation_batches + times(config.eval_every) * along,
                samples: ending.samples + times(config.sample_every),
                saves: ending.saves + times(config.save_every),
            })
        });
        let time_left = |limit: f64| (limit - self.seconds()).max(0.0) + self.pace.seconds(ending);
        match (by_steps, config.time_seconds.map(time_left)) {
            (Some(steps), Some(time)) => Some(steps.min(time)),
            (left, other) => left.or(other),
        }
    }

    /// The loss on held-out text, unless the run is asked to stop meanwhile.
    fn validate(&mut self, session: &mut Session, observer: &mut dyn Observer, batches: usize) -> Result<Option<f32>> {
        let (start, step) = (Instant::now(), self.step);
        let mut stopped = false;
        let loss = session.validation_loss(batches, &mut |done, total| {
            observer.event(&Event::Validating { step, done, total });
            stopped = observer.should_stop() == Stop::AfterStep;
            !stopped
        })?;
        self.interrupted |= stopped;
        let Some(loss) = loss else { return Ok(None) };
        let measured = session.validation_batches(batches).max(1) as f64;
        self.pace.validation_batch.see(start.elapsed().as_secs_f64() / measured);
        self.validation_loss = Some(loss);
        observer.event(&Event::Validated { step, loss });
        Ok(Some(loss))
    }

    /// The last checkpoint, sample and the model folder; an interrupted run takes no sample.
    fn finish(mut self, session: &mut Session, observer: &mut dyn Observer) -> Result<Summary> {
        // First, so that nothing that follows can lose what was trained.
        self.save(session, observer)?;
        heap::give_back_code();
        session.export()?;
        // Measured with the last step, unless that was taken before this session.
        if self.done && self.step == self.first_step {
            self.validate(session, observer, VALIDATION_AT_END)?;
        }
        if self.done && !self.interrupted {
            self.sample(session, observer)?;
        }
        let seconds = self.started.elapsed().as_secs_f64();
        let summary = Summary {
            steps: self.step,
            tokens: self.step.saturating_mul(session.tokens_per_step()),
            loss: self.loss,
            validation_loss: self.validation_loss,
            seconds,
            tokens_per_second: ((self.step - self.first_step) * session.tokens_per_step()) as f64 / seconds,
            peak_memory_bytes: ProcessMemory::read().peak,
            run_folder: session.config.out.clone(),
            interrupted: self.interrupted,
            account: session.account(),
        };
        observer.event(&Event::Finished(&summary));
        Ok(summary)
    }
}

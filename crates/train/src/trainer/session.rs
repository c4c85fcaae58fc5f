//! Everything that a run works with, whatever it trains.

use super::adaptive::Adaptive;
use super::batches::{BatchSource, Batches};
use crate::Result;
use crate::checkpoint::{Contents, Found, Progress, Store};
use crate::config::Clip;
use crate::memory::Account;
use crate::memory::guard::Armed;
use crate::models::ModelConfig;
use crate::ranks::{Alone, Asking};
use crate::schedule::{Length, Schedule};
use crate::step::TrainingStep;
use gradus_engine::backend::Backend;
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

/// How long a run is: as far as one of these, if one is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limits {
    /// Steps.
    pub steps: Option<u64>,
    /// Seconds of training.
    pub seconds: Option<f64>,
}

impl Limits {
    /// The length of the whole run, as it is known.
    pub fn length(&self) -> Option<Length> {
        self.steps.map(Length::Steps).or(self.seconds.map(Length::Seconds))
    }
}

/// Steps between what happens now and then; 0: only at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Every {
    pub validation: u64,
    pub sample: u64,
    pub save: u64,
    /// Measurements of the gradients' health, besides that of the first step; 0: none at all.
    pub health: u64,
    /// Measurements of the loss's curvature; 0: none at all.
    pub curvature: u64,
}

/// What identifies a run in its checkpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity {
    pub data_fingerprint: u64,
    /// The model, if it is one of ours.
    pub model: Option<ModelConfig>,
    /// The configuration, for people to read and for settings that must stay.
    pub configuration: serde_json::Value,
}

/// Everything that a run works with.
pub(crate) struct Session {
    pub backend: Arc<dyn Backend>,
    pub training: TrainingStep,
    /// Examples of a step.
    pub batch: usize,
    /// Batches that are filled ahead.
    pub ahead: usize,
    pub limits: Limits,
    pub schedule: Schedule,
    pub clip: Clip,
    pub seed: u32,
    pub every: Every,
    /// Where the run is written, if it is.
    pub folder: Option<RunFolder>,
    /// Where event files for TensorBoard go, if they do.
    pub events: Option<PathBuf>,
    pub identity: Identity,
    /// What is predicted of the memory.
    pub predicted: Account,
    /// How the micro-batch follows the memory, if it does.
    pub adaptive: Option<Adaptive>,
    /// Where a resumed run stands.
    pub resumed: Option<Progress>,
    /// The step of the newest checkpoint.
    pub saved: Option<u64>,
    /// Keeps the limit of the process's memory while the run lasts.
    pub guard: Option<Armed>,
}

/// The folder of a run and its checkpoints.
pub(crate) struct RunFolder {
    pub path: PathBuf,
    pub store: Store,
    /// What a checkpoint holds.
    pub contents: Contents,
    /// Checkpoints kept.
    pub keep: usize,
}

impl Session {
    /// Goes on from a checkpoint.
    pub fn restore(&mut self, found: Found) -> Result<()> {
        let contents = self.training.contents();
        found.restore(&contents, &mut self.training)?;
        self.saved = Some(found.progress.step);
        self.resumed = Some(found.progress);
        Ok(())
    }

    /// The first rank's number: this one's own, if it is the only one.
    pub fn first(&mut self, number: u64) -> Result<u64> {
        self.training.ranks().map_or(Ok(number), |ranks| ranks.first(number))
    }

    /// Bytes that this rank has sent to others so far, if there are any.
    pub fn bytes_sent(&mut self) -> Option<u64> {
        self.training.ranks().map(|ranks| ranks.bytes_sent())
    }

    /// Has the first rank do something by itself, for which the others wait.
    pub fn first_alone<T>(
        &mut self,
        work: impl FnOnce(&mut Session, Option<&Asking<'_>>) -> Result<T>,
    ) -> Result<Alone<T>> {
        fn give(session: &Session, number: u64) -> Result<Cow<'_, [u8]>> {
            session.training.part_here(number as usize)
        }
        if let Some(mut pipeline) = self.training.take_pipeline() {
            let done = pipeline.ranks().first_alone(self, |session, asking| work(session, Some(asking)), give);
            self.training.give_pipeline(pipeline);
            return done;
        }
        let Some(mut exchange) = self.training.take_exchange()? else { return work(self, None).map(Alone::Done) };
        let done = exchange.ranks().first_alone(self, |session, asking| work(session, Some(asking)), give);
        self.training.give_exchange(exchange);
        done
    }

    /// Begins to fill the batches of the steps, or the rows of them that are this rank's.
    pub fn batches(&self, source: Box<dyn BatchSource>, first_step: u64) -> Result<Batches> {
        let rows = self.training.config().lanes.rows(self.batch);
        Batches::of_rows(source, self.training.batch(), (rows, self.batch), first_step, self.ahead)
    }
}

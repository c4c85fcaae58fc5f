//! What a training run tells while it goes, and how it is asked to stop.

use crate::config::TrainConfig;
use crate::memory::Account;
use crate::watch::{Alert, Health, Verdict};
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Someone who watches a run: a terminal, a log, a test.
pub trait Observer {
    /// Something happened. Called on the training thread: be quick on [`Event::Step`].
    fn event(&mut self, event: &Event<'_>);

    /// Whether the run should end. Asked after each step, within a validation, and while a run is being prepared.
    fn should_stop(&self) -> Stop;
}

/// Nobody: a run that goes on by itself to its end.
pub struct Unwatched;

impl Observer for Unwatched {
    fn event(&mut self, _: &Event<'_>) {}

    fn should_stop(&self) -> Stop {
        Stop::No
    }
}

/// Whether a run should end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It goes on.
    No,
    /// It ends after the step at hand, saved so that it can be resumed.
    AfterStep,
}

/// Something that happened in a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Work before the first step, such as making tokens of the corpus.
    Preparing {
        /// What is being done, as in "tokenizing".
        what: &'a str,
        /// Bytes or parts done.
        done: u64,
        /// Bytes or parts in all, where known.
        total: Option<u64>,
    },
    /// What was resolved, and what was chosen to fit the memory.
    Resolved(&'a TrainConfig),
    /// The first step is about to begin.
    Started {
        /// Numbers in the model.
        parameters: usize,
        /// Tokens of the training text; 0 where that is not known.
        tokens: u64,
        /// Steps of the whole run, where known.
        steps: Option<u64>,
        /// Bytes planned.
        memory_bytes: u64,
        /// Bytes that the process is to stay within, if a budget was stated.
        budget_bytes: Option<u64>,
        /// The step that a resumed run goes on from.
        resumed_at: Option<u64>,
    },
    /// A step was taken.
    Step(&'a StepReport),
    /// Held-out text is being read.
    Validating {
        /// After this step.
        step: u64,
        /// Batches done.
        done: u64,
        /// Batches in all.
        total: u64,
    },
    /// The loss on held-out text was measured.
    Validated {
        /// After this step.
        step: u64,
        /// The mean loss.
        loss: f32,
        /// How often it is right, of a model that tells classes.
        accuracy: Option<Accuracy>,
    },
    /// Text was sampled from the model.
    Sample {
        /// After this step.
        step: u64,
        /// The text.
        text: &'a str,
    },
    /// A checkpoint is whole on disk.
    Saved {
        /// After this step.
        step: u64,
        /// Its folder.
        path: &'a Path,
    },
    /// The memory allows to compute more sequences at once, or asks for fewer.
    Adapted {
        /// After this step.
        step: u64,
        /// Sequences computed at once from now on.
        micro_batch: usize,
        /// What the process held before.
        memory_bytes: u64,
    },
    /// A step was left out because its numbers were not finite.
    Skipped {
        /// This step.
        step: u64,
        /// Why, with the layer it came from.
        reason: &'a str,
    },
    /// Something goes wrong in the training, which goes on. The step's report has it too.
    Alert {
        /// This step.
        step: u64,
        /// What, and what to try.
        alert: &'a Alert,
    },
    /// Something that the user should know of, in one line.
    Note(&'a str),
    /// Something did not work, and the run goes on: what, where and what comes of it, in one line.
    Warning(&'a str),
    /// The run ended.
    Finished(&'a Summary),
}

/// How often a model is right on held-out examples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    /// The share whose likeliest class is the right one.
    #[serde(rename = "validation_accuracy")]
    pub top1: f32,
    /// The share whose right class is among the five likeliest.
    #[serde(rename = "validation_accuracy_top5")]
    pub top5: f32,
}

/// The figures of a step. Serialised, they are a line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepReport {
    /// Which step, from 1.
    pub step: u64,
    /// Steps of the whole run, where known.
    #[serde(skip)]
    pub steps: Option<u64>,
    /// Tokens seen so far; examples, of a model that has no tokens.
    pub tokens: u64,
    /// Mean loss of the batch.
    pub loss: f32,
    /// Loss on held-out text, where it was measured after this step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation_loss: Option<f32>,
    /// How often it was right then, of a model that tells classes.
    #[serde(flatten)]
    pub accuracy: Option<Accuracy>,
    /// Norm of all gradients before clipping.
    pub gradient_norm: f32,
    /// The largest eigenvalue of the loss's Hessian before this step, where curvature was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharpness: Option<f32>,
    /// Learning rate of the step.
    pub learning_rate: f32,
    /// What the loss is multiplied by in the next step, where it is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f32>,
    /// Steps skipped so far because gradients of the scaled loss were not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// Bytes that the first of several ranks sent to others in the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_sent: Option<u64>,
    /// Tokens a second of this step alone.
    pub tokens_per_second: f64,
    /// Milliseconds of the step.
    pub step_ms: f64,
    /// Bytes of memory the process has now.
    pub memory_bytes: u64,
    /// Most bytes of memory the process has had.
    pub peak_memory_bytes: u64,
    /// What the memory was for, by kind, after the last step of a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// How the run is doing, if its health is watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
    /// What goes wrong from this step on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<Alert>,
    /// The figures of every weight's gradient and update, where they were measured in this step. Whoever holds on to them
    /// costs the next measurement a copy.
    #[serde(flatten, serialize_with = "figures")]
    pub health: Option<Arc<Health>>,
    /// Seconds until the run ends, where known.
    #[serde(skip)]
    pub seconds_left: Option<f64>,
}

/// Figures that are shared are written like others.
fn figures<S: Serializer>(health: &Option<Arc<Health>>, serializer: S) -> Result<S::Ok, S::Error> {
    health.as_deref().serialize(serializer)
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Steps taken, those before a resume included.
    pub steps: u64,
    /// Tokens seen.
    pub tokens: u64,
    /// Loss of the last step.
    pub loss: f32,
    /// Last loss on held-out text.
    pub validation_loss: Option<f32>,
    /// How often it was right then, of a model that tells classes.
    #[serde(flatten)]
    pub accuracy: Option<Accuracy>,
    /// Seconds of this session.
    pub seconds: f64,
    /// Tokens a second over this session.
    pub tokens_per_second: f64,
    /// Most bytes of memory the process has had.
    pub peak_memory_bytes: u64,
    /// The run's folder.
    pub run_folder: PathBuf,
    /// Whether it was asked to stop before its end.
    pub interrupted: bool,
    /// The memory of this session, by kind.
    pub account: Account,
}

//! What states the training of a model.

use super::batches::Batches;
use super::session::{Identity, Limits};
use crate::checkpoint::{Found, Progress};
use crate::config::{Clip, Compression, HealthInterval, LocalSteps, Precision, ScheduleKind, Sharding, within};
use crate::lanes::{self, Lanes, Place};
use crate::loss_scale::LossScale;
use crate::memory::Budget;
use crate::optimizers::{AdamW, GroupedOptimizer};
use crate::pipeline::Stage;
use crate::schedule::{Elapsed, Length, Schedule};
use crate::step::{Objective, StepConfig};
use crate::{Error, Result};
use gradus_engine::plan::Recompute;
use serde_json::json;
use std::path::PathBuf;
use std::rc::Rc;

/// What states the training of a model. Everything has a default but the length.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Examples of a step.
    pub batch: usize,
    /// Examples computed at once; must divide the batch. 0: chosen to fit the memory.
    pub micro_batch: usize,
    /// Parts of the batch, a power of two, whose sums are added by a tree ([`crate::lanes`]).
    pub lanes: usize,
    /// What each of several ranks has only a part of.
    pub shard: Sharding,
    /// Whether ranks exchange gradients and weights while they compute.
    pub overlap: bool,
    /// How the gradients of lanes are made smaller before ranks exchange them.
    pub compress: Compression,
    /// Steps before they are.
    pub compress_warmup: u64,
    /// Whether each lane takes steps by itself, with weights of its own, and how lanes meet.
    pub local: Option<LocalSteps>,
    /// Neighbouring ranks that share out the blocks of a model; 1: each rank has all of them ([`crate::pipeline`]).
    pub stages: usize,
    /// Steps of the whole run.
    pub steps: Option<u64>,
    /// Seconds of training.
    pub seconds: Option<f64>,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// The lowest learning rate, as a share of the highest.
    pub final_learning_rate_share: f64,
    /// Steps over which the learning rate rises.
    pub warmup_steps: u64,
    /// How the learning rate decays.
    pub schedule: ScheduleKind,
    /// Where it has decayed; `None`: at the end of the run.
    pub decay: Option<Length>,
    /// The update, with groups of weights and averages of them.
    pub optimizer: GroupedOptimizer,
    /// How gradients are clipped.
    pub clip: Clip,
    /// Element type of matrix products.
    pub precision: Precision,
    /// How the loss is scaled. `None`: as usual for the precision, which is not at all but for f16.
    pub loss_scale: Option<LossScale>,
    /// Memory that the process is to stay within.
    pub memory: Option<Budget>,
    /// What of the forward pass is computed again, rather than kept.
    pub recompute: Recompute,
    /// Seed of everything random: first weights and dropout.
    pub seed: u32,
    /// Where checkpoints and `metrics.jsonl` go; a folder with a checkpoint is gone on with. `None`: nothing is written.
    pub folder: Option<PathBuf>,
    /// Where event files for TensorBoard go. `None`: none are written.
    pub tensorboard: Option<PathBuf>,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Checkpoints kept.
    pub keep: usize,
    /// Steps between validations by [`super::Hooks`]; 0: only at the end.
    pub validate_every: u64,
    /// Steps between samples by [`super::Hooks`]; 0: only at the end.
    pub sample_every: u64,
    /// Steps between measurements of the gradients' health, by which a run is judged ([`crate::watch`]).
    pub health: HealthInterval,
    /// Steps between measurements of the loss's curvature, its sharpness; 0: none.
    pub watch_curvature: u64,
    /// Batches that are filled ahead.
    pub ahead: usize,
    /// Bytes that the source of batches, hooks and whoever watches come to hold besides the batches: part of the budget.
    pub data_bytes: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            batch: 32,
            micro_batch: 0,
            lanes: 1,
            shard: Sharding::None,
            overlap: true,
            compress: Compression::None,
            compress_warmup: 0,
            local: None,
            stages: 1,
            steps: None,
            seconds: None,
            learning_rate: 1e-3,
            final_learning_rate_share: 0.1,
            warmup_steps: 0,
            schedule: ScheduleKind::Constant,
            decay: None,
            optimizer: AdamW::default().into(),
            clip: Clip::Norm(1.0),
            precision: Precision::F32,
            loss_scale: None,
            memory: None,
            recompute: Recompute::Auto,
            seed: 0,
            folder: None,
            tensorboard: None,
            save_every: 0,
            keep: 2,
            validate_every: 0,
            sample_every: 0,
            health: HealthInterval::Auto,
            watch_curvature: 0,
            ahead: Batches::AHEAD,
            data_bytes: 0,
        }
    }
}

/// What cannot change while a run goes on: the steps after it would not be those that the run would have taken.
const FIXED: [&str; 9] =
    ["batch", "lanes", "compress", "compress_warmup", "local", "seed", "precision", "loss_scale", "optimizer"];

impl Settings {
    /// Says which setting is impossible, and what to do.
    pub(super) fn validate(&self) -> Result<()> {
        within("batch", self.batch, 1..=1 << 30)?;
        within("keep", self.keep, 1..=1_000_000)?;
        within("ahead", self.ahead, 1..=1_000)?;
        within("learning_rate", self.learning_rate, 1e-30..=1e4)?;
        within("warmup_steps", self.warmup_steps, 0..=1 << 53)?;
        within("seconds", self.seconds.unwrap_or(0.0), 0.0..=1e12)?;
        if let Some(Length::Seconds(seconds)) = self.decay {
            within("decay", seconds, 0.0..=1e12)?;
        }
        within("final_learning_rate_share", self.final_learning_rate_share, 0.0..=1.0)?;
        if let Clip::Norm(limit) | Clip::Value(limit) = self.clip {
            within("clip", limit, 1e-30..=1e30)?;
        }
        if let Some(local) = self.local {
            local.check(self.steps)?;
        }
        if let HealthInterval::Steps(steps) = self.health {
            within("health", steps, 1..=1 << 53)?;
        }
        for (name, folder) in [("folder", &self.folder), ("tensorboard", &self.tensorboard)] {
            if folder.as_ref().is_some_and(|folder| folder.as_os_str().is_empty()) {
                let problem = format!("`settings.{name}` is empty; name a folder, or None to write nothing");
                return Err(Error::Config(problem));
            }
        }
        if self.micro_batch > 0 && !self.batch.is_multiple_of(self.micro_batch) {
            return Err(Error::Config(format!(
                "`settings.micro_batch` {} does not divide `settings.batch` {}; choose one that does, or 0 to have it chosen",
                self.micro_batch, self.batch
            )));
        }
        lanes::check_batch(self.lanes, self.batch, self.micro_batch)?;
        if self.schedule != ScheduleKind::Constant && self.limits().length().or(self.decay).is_none() {
            return Err(Error::Config(format!(
                "`settings.schedule` {:?} has no end; set `settings.steps`, `settings.seconds` or `settings.decay`, or let it be Constant",
                self.schedule
            )));
        }
        Ok(())
    }

    pub(super) fn limits(&self) -> Limits {
        Limits { steps: self.steps, seconds: self.seconds }
    }

    /// The step, its micro-batch still to be chosen unless it is stated.
    pub(super) fn step(&self, objective: Rc<dyn Objective>, place: Place) -> StepConfig {
        let (stage, pipeline) = Stage::of(place, self.stages);
        let health = match self.health {
            HealthInterval::Off => false,
            // No rank has all gradients where each updates a part.
            HealthInterval::Auto => {
                let has_all = self.shard == Sharding::None || place.ranks == 1;
                has_all && self.stages == 1 && self.local.is_none()
            }
            HealthInterval::Steps(_) => true,
        };
        StepConfig {
            micro_batch: self.micro_batch,
            micro_batches: (self.batch / self.lanes.max(1)).checked_div(self.micro_batch).unwrap_or(0),
            lanes: Lanes::at(self.lanes, pipeline),
            stage,
            shard: self.shard,
            overlap: self.overlap,
            compression: self.compress,
            compression_warmup: self.compress_warmup,
            local: self.local,
            clip_value: if let Clip::Value(limit) = self.clip { Some(limit as f32) } else { None },
            precision: self.precision,
            loss_scale: self.loss_scale,
            health,
            sharpness: self.watch_curvature > 0,
            linearized: false,
            ..StepConfig::new(objective, 0, self.optimizer.clone())
        }
    }

    /// The learning rate over the run, or what is left of it.
    pub(super) fn schedule(&self, resumed: Option<&Progress>) -> Schedule {
        let before = resumed.and_then(|progress| {
            progress.decay.map(|decay| (decay, Elapsed { step: progress.step, seconds: progress.seconds }))
        });
        let until = self.decay.or(before.map(|(decay, _)| decay.until)).or(self.limits().length());
        Schedule {
            highest: self.learning_rate,
            lowest: self.learning_rate * self.final_learning_rate_share,
            warmup_steps: self.warmup_steps,
            decay: Schedule::decay(self.schedule, until, self.learning_rate, self.warmup_steps, before),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        let configuration = json!({
            "batch": self.batch,
            "micro-batch": self.micro_batch,
            "lanes": self.lanes,
            "compress": self.compress,
            "compress_warmup": self.compress_warmup,
            "local": self.local.map(|local| format!("{local:?}")),
            "seed": self.seed,
            "precision": self.precision,
            "loss_scale": self.precision.loss_scale(self.loss_scale).map(|_| "dynamic"),
            "optimizer": self.optimizer.rule().name(),
            "learning-rate": self.learning_rate,
        });
        Identity { configuration, ..Identity::default() }
    }

    /// Refuses to go on with a run that these settings do not state.
    pub(super) fn check_resumable(&self, found: &Found) -> Result<()> {
        if found.progress.model.is_some() {
            let problem = "is a run of `gradus train`; choose another folder";
            return Err(Error::checkpoint(&found.folder, problem));
        }
        let (mut before, now) = (found.progress.configuration.clone(), self.identity().configuration);
        if before["lanes"].is_null() {
            // There was one before it was said how many.
            before["lanes"] = 1.into();
        }
        if before["compress"].is_null() {
            (before["compress"], before["compress_warmup"]) = ("none".into(), 0.into());
        }
        match FIXED.iter().find(|key| before[**key] != now[**key]) {
            None => Ok(()),
            Some(key) => {
                let (was, is) = (&before[*key], &now[*key]);
                let problem = format!(
                    "was trained with `settings.{key}` {was}, and has {is} now; set it so, or choose another folder"
                );
                Err(Error::checkpoint(&found.folder, problem))
            }
        }
    }
}

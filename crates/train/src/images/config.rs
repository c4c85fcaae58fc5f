//! Everything that states a training run on images.

use super::view::Augmentation;
use crate::config::{
    CONFIG_FILE, Clip, DeviceChoice, ExportDtype, HealthInterval, OptimizerKind, Precision, Recomputation,
    ScheduleKind, limits, within, written_as_text,
};
use crate::export::Layout;
use crate::files::atomic;
use crate::memory::Budget;
use crate::models::vision::Architecture;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The first line of the file, by which a folder is known for that of a run.
const MARK: &str = "# A run of gradus: every choice, resolved.";

/// Height and width of what a model sees: `HEIGHTxWIDTH`, or one number for both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Size(pub [usize; 2]);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.0[0], self.0[1])
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let side = |text: &str| text.parse::<usize>().ok().filter(|side| *side > 0);
        let both = match text.split_once('x') {
            Some((height, width)) => side(height).zip(side(width)),
            None => side(text).map(|side| (side, side)),
        };
        let (height, width) = both.ok_or("give a side, as in 64, or height and width, as in 2160x3840")?;
        Ok(Size([height, width]))
    }
}

impl From<Size> for String {
    fn from(size: Size) -> String {
        size.to_string()
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Size, String> {
        text.parse()
    }
}

/// A training run on images, as saved in its `config.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ImagesConfig {
    /// A folder with a folder for each class, or a table of paths and labels; none: the drawn set.
    pub images: Option<PathBuf>,
    /// The run's folder.
    #[serde(skip)]
    pub out: PathBuf,
    /// The name of the model.
    pub model: String,
    /// A model folder to start from.
    pub init: Option<PathBuf>,
    /// What the model sees; none until the images are known.
    pub size: Option<Size>,
    /// Whether images that cannot be read are left out.
    pub skip_broken: bool,
    /// The share of images that is held out, where that is not stated otherwise.
    pub validation: f64,
    /// Images of a step.
    pub batch: usize,
    /// Images computed at once, which are part of the run; 0: all of the batch.
    pub micro_batch: usize,
    /// Steps of the run.
    pub steps: u64,
    /// Memory to stay within.
    pub memory: Option<Budget>,
    /// What is computed again, rather than kept.
    pub recompute: Recomputation,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// Steps over which it rises.
    pub warmup_steps: u64,
    /// How it falls.
    pub schedule: ScheduleKind,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Decay of matrices, times the learning rate.
    pub weight_decay: f64,
    /// How gradients are clipped.
    pub clip: Clip,
    /// The share of the target that is spread over all classes.
    pub label_smoothing: f64,
    /// Element type of the computation.
    pub precision: Precision,
    /// What it is computed on.
    pub device: DeviceChoice,
    /// Threads.
    pub threads: usize,
    /// Workers that decode images ahead.
    pub workers: usize,
    /// Seed of everything random.
    pub seed: u32,
    /// Steps between validations; 0: only at the end.
    pub eval_every: u64,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Checkpoints kept.
    pub keep: usize,
    /// Steps between measurements of the gradients' health.
    pub health: HealthInterval,
    /// Whose names and settings the model folder has.
    pub layout: Layout,
    /// Element type of the exported weights.
    pub export_dtype: ExportDtype,
    /// Whether event files for TensorBoard are written.
    pub tensorboard: bool,
    /// What tells the images that the run is trained on from others; empty until they are known.
    pub fingerprint: String,
    /// What channels have subtracted, as a share of the brightest, and what they are divided by then.
    pub mean: [f32; 3],
    /// See `mean`.
    pub deviation: [f32; 3],
    /// The classes, once the images are known.
    pub classes: Vec<String>,
    /// How images are changed.
    pub augmentation: Augmentation,
    /// The model's computation.
    pub architecture: Architecture,
    /// Bytes that whoever watches the run may come to hold in its process.
    #[serde(skip)]
    pub observer_bytes: u64,
}

impl ImagesConfig {
    /// The configuration in a run's folder.
    pub fn read(run_folder: &Path) -> Result<ImagesConfig> {
        let path = run_folder.join(CONFIG_FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let broken = |error: toml::de::Error| {
            let problem = error.message().replace('\n', " ");
            Error::checkpoint(
                &path,
                format!("not a configuration of a run on images ({problem}); give the folder of one"),
            )
        };
        let read: ImagesConfig = toml::from_str(&text).map_err(broken)?;
        Ok(ImagesConfig { out: run_folder.to_path_buf(), ..read })
    }

    /// Writes it into the run's folder.
    pub(super) fn save(&self) -> Result<()> {
        let text = toml::to_string(self).expect("a configuration has names and plain values");
        let (path, text) = (self.out.join(CONFIG_FILE), format!("{MARK}\n{text}"));
        match std::fs::read_to_string(&path) {
            Ok(saved) if saved == text => Ok(()),
            _ => atomic::write_file(&path, text.as_bytes()),
        }
    }

    /// Says which setting is impossible, and what to do.
    pub fn validate(&self) -> Result<()> {
        let events = [("eval-every", self.eval_every), ("save-every", self.save_every)];
        limits::check_steps(Some(self.steps), self.warmup_steps, &events)?;
        limits::check_batch(self.batch, self.micro_batch)?;
        limits::check_rates(self.learning_rate, self.weight_decay, self.clip)?;
        limits::check_watching(self.threads, self.keep, self.health, self.recompute)?;
        within("validation", self.validation, 0.0..=0.9)?;
        within("label_smoothing", self.label_smoothing, 0.0..=0.9)?;
        within("workers", self.workers, 1..=256)?;
        within("crop", self.augmentation.crop, 0.0..=0.95)?;
        within("colour", self.augmentation.colour, 0.0..=1.0)?;
        within("mixup", self.augmentation.mixup, 0.0..=1.0)?;
        let images = self.images.iter().map(|path| ("the images", path.as_path()));
        let init = self.init.iter().map(|path| ("`settings.init`", path.as_path()));
        written_as_text(&images.chain(init).collect::<Vec<_>>())
    }
}

//! The options of the commands on images.

use super::choices::{ExportDtypeName, LayoutName, OptimizerName, PrecisionName, ScheduleName, image_models};
use crate::dashboard::Address;
use crate::values::{fraction, not_negative, positive, positive_number};
use clap::Args;
use gradus_train::config::{Clip, DeviceChoice, HealthInterval, Recomputation};
use gradus_train::images::Size;
use gradus_train::memory::Budget;
use std::path::PathBuf;

/// The options of `gradus train-images`.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct TrainImagesArgs {
    /// A folder with a folder of images for each class (or with `train` and `val` of such), or a CSV file with a path and a label
    /// a line: PNG, JPEG, WebP [default: a set that is drawn]
    #[arg(value_name = "FOLDER|CSV")]
    pub images: Option<PathBuf>,
    /// Leave out images that are missing or broken, and say how many, rather than end with an error
    #[arg(long, help_heading = "Data")]
    pub skip_broken: bool,
    /// Share of each class to hold out, where the folder or file does not say [default: 0.1]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Data")]
    pub validation: Option<f64>,
    /// Largest share of an image's area that is cropped away at random [default: 0.3; 0 for drawn images]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Data")]
    pub crop: Option<f64>,
    /// Whether half of the images are mirrored; alone: true [default: true; false for drawn images]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", help_heading = "Data")]
    pub flip: Option<bool>,
    /// How much brightness, contrast and saturation change at random, as a share [default: 0.2; 0 for drawn images]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Data")]
    pub colour: Option<f64>,
    /// Share of images that are mixed with another one [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Data")]
    pub mixup: Option<f64>,
    /// Threads that decode images ahead [default: as many as compute, 4 at most]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Data")]
    pub workers: Option<usize>,

    /// The model [default: resnet-tiny for drawn images, else resnet18]
    #[arg(long, value_name = "NAME", value_parser = image_models(), help_heading = "Model")]
    pub model: Option<String>,
    /// What the model sees: a side in pixels, or HEIGHTxWIDTH; images of other sizes are scaled and their middle is taken
    /// [default: the images' own size, if all have the same]
    #[arg(long, value_name = "SIZE", help_heading = "Model")]
    pub size: Option<Size>,
    /// Start from the weights of this model folder, as timm or transformers have it; with other classes, all but the last layer
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub init: Option<PathBuf>,

    /// Images a step [default: 64 for drawn images, else 32]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Training")]
    pub batch: Option<usize>,
    /// Images computed at once; must divide the batch. Batch norm takes its statistics over them, so they are part of the run, and
    /// not chosen by the memory [default: the batch]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub micro_batch: Option<usize>,
    /// Length of the run in steps [default: 700 for drawn images, else 2000]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub steps: Option<u64>,
    /// Highest learning rate [default: 0.003, for lion and sophia 0.0005, for sgd 0.1; with --init a tenth]
    #[arg(long, value_name = "X", value_parser = positive_number, help_heading = "Training")]
    pub learning_rate: Option<f64>,
    /// Steps over which the learning rate rises [default: a twentieth of the steps, 100 at most]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub warmup_steps: Option<u64>,
    /// How the learning rate falls, to a hundredth [default: cosine]
    #[arg(long, value_enum, help_heading = "Training")]
    pub schedule: Option<ScheduleName>,
    /// Rule that updates weights [default: adamw]
    #[arg(long, value_enum, help_heading = "Training")]
    pub optimizer: Option<OptimizerName>,
    /// Decay of matrices, times the learning rate [default: 0.1, for lion 0.3, for sgd 0.0003]
    #[arg(long, value_name = "X", value_parser = not_negative, help_heading = "Training")]
    pub weight_decay: Option<f64>,
    /// Clip gradients: to a norm (1.0), each number (value:0.5), adaptive or none [default: 1.0]
    #[arg(long, value_name = "NORM|adaptive|none", help_heading = "Training")]
    pub clip: Option<Clip>,
    /// Share of the target that is spread over all classes [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Training")]
    pub label_smoothing: Option<f64>,
    /// Seed of everything random [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u32>,

    /// Element type of the computation [default: f32]
    #[arg(long, value_enum, help_heading = "Machine")]
    pub precision: Option<PrecisionName>,
    /// What to compute on: cpu, cuda, cuda:N for the device of that number, or auto: a CUDA device if there is one [default: auto]
    #[arg(long, value_name = "DEVICE", help_heading = "Machine")]
    pub device: Option<DeviceChoice>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Machine")]
    pub threads: Option<usize>,
    /// What to compute again rather than keep: none, all, every:N layers, selective:N operations a byte, or auto: as
    /// little as the memory allows [default: auto]
    #[arg(long, value_name = "POLICY", help_heading = "Machine")]
    pub recompute: Option<Recomputation>,
    /// Memory to stay within, all of the process: 150MB, 2GiB, or 80% of what is free [default: what the machine has]
    #[arg(long, value_name = "SIZE", help_heading = "Machine")]
    pub memory: Option<Budget>,

    /// Folder of the run [default: runs/NAME-N]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub out: Option<PathBuf>,
    /// Go on with the run in this folder
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub resume: Option<PathBuf>,
    /// Steps between validations; 0: only at the end [default: a tenth of the run, 50 at least]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub eval_every: Option<u64>,
    /// Steps between checkpoints; 0: only at the end [default: a fifth of the run]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub save_every: Option<u64>,
    /// Steps between measurements of every gradient's health; off: none [default: auto]
    #[arg(long, value_name = "N|auto|off", help_heading = "Run")]
    pub health: Option<HealthInterval>,
    /// Checkpoints to keep [default: 2]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Run")]
    pub keep: Option<usize>,
    /// Whose names and settings the model folder has [default: timm]
    #[arg(long, value_enum, help_heading = "Run")]
    pub layout: Option<LayoutName>,
    /// Element type of the weights in the model folder [default: f32]
    #[arg(long, value_enum, help_heading = "Run")]
    pub export_dtype: Option<ExportDtypeName>,
    /// Serve a page that shows the run as it goes, for this machine alone unless an address is given [default port: 6007, or
    /// a free one]
    #[arg(long, value_name = "PORT|ADDRESS:PORT", num_args = 0..=1, help_heading = "Run")]
    pub dashboard: Option<Option<Address>>,
    /// Write event files that TensorBoard reads into RUN/tensorboard
    #[arg(long, help_heading = "Run")]
    pub tensorboard: bool,
    /// Print errors, warnings and the final line only
    #[arg(long, help_heading = "Run")]
    pub quiet: bool,
    /// Print one JSON object a line on standard output, as in metrics.jsonl
    #[arg(long, help_heading = "Run")]
    pub json: bool,
}

/// The options of `gradus classify`.
#[derive(Debug, Args)]
pub struct ClassifyArgs {
    /// Run, or model folder of timm or transformers
    #[arg(value_name = "MODEL")]
    pub folder: PathBuf,
    /// Images
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<PathBuf>,
    /// Likeliest classes to tell of each
    #[arg(long, value_name = "N", value_parser = positive, default_value = "3")]
    pub top: usize,
    /// Leave out images that are broken, and say how many, rather than end with an error
    #[arg(long)]
    pub skip_broken: bool,
    /// What to compute on: cpu, cuda, cuda:N for the device of that number, or auto: a CUDA device if there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Print one JSON object an image
    #[arg(long)]
    pub json: bool,
}

//! Everything that states a training run, resolved: each choice made, nothing left to guess.

use crate::models::ModelConfig;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A training run, as saved in its `config.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrainConfig {
    /// Files, folders or globs of text; none: the built-in stories.
    pub corpus: Vec<PathBuf>,
    /// The field of a JSON or Parquet record that holds the text; guessed if not given.
    pub text_field: Option<String>,
    /// The run's folder.
    pub out: PathBuf,
    /// A model folder to start from.
    pub init: Option<PathBuf>,
    /// The model. Its vocabulary is 0 until the tokenizer is known.
    pub model: ModelConfig,
    /// The tokenizer: byte, char, bpe, or a file.
    pub tokenizer: TokenizerKind,
    /// The size of the vocabulary to train, for bpe.
    pub vocab_size: usize,
    /// What is held out: a fraction of the corpus, or another file.
    pub validation: Validation,
    /// Sequences a step.
    pub batch: usize,
    /// Sequences computed at once; must divide the batch.
    pub micro_batch: usize,
    /// Steps of the whole run, whatever it was stated in.
    pub steps: Option<u64>,
    /// Passes over the corpus, if the run is stated so.
    pub epochs: Option<f64>,
    /// Seconds of training, if the run is stated so.
    pub time_seconds: Option<f64>,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// The lowest learning rate, as a share of the highest.
    pub final_learning_rate_share: f64,
    /// Steps over which the learning rate rises.
    pub warmup_steps: u64,
    /// How the learning rate falls.
    pub schedule: ScheduleKind,
    /// The optimiser.
    pub optimizer: OptimizerKind,
    /// Decoupled decay of matrices.
    pub weight_decay: f64,
    /// First moment's share kept.
    pub beta1: f64,
    /// Second moment's share kept.
    pub beta2: f64,
    /// How gradients are clipped.
    pub clip: Clip,
    /// Share of activations dropped.
    pub dropout: f64,
    /// Element type of the computation.
    pub precision: Precision,
    /// Threads, the main one included.
    pub threads: usize,
    /// Seed of everything random.
    pub seed: u32,
    /// Steps between validations; 0: only at the end.
    pub eval_every: u64,
    /// Steps between samples; 0: only at the end.
    pub sample_every: u64,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Checkpoints kept.
    pub keep: usize,
}

/// How text becomes tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TokenizerKind {
    /// Each byte a token.
    Byte,
    /// Each character of the corpus a token.
    Char,
    /// Byte-pair encoding, trained on the corpus.
    Bpe,
    /// An existing `tokenizer.json`, or a folder with one.
    File(PathBuf),
}

/// What is held out of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validation {
    /// The last share of the corpus.
    Fraction(f64),
    /// Another file.
    File(PathBuf),
}

/// How the learning rate falls after its rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Along half a cosine.
    Cosine,
    /// Along a line.
    Linear,
    /// Not at all.
    Constant,
    /// Not until the last fifth of the run, then along a line.
    Wsd,
}

/// The rule that updates weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum OptimizerKind {
    Adamw,
    Sgd,
    Lion,
    Adafactor,
}

/// How gradients are clipped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clip {
    /// Not.
    None,
    /// To a global norm.
    Norm(f64),
    /// Each number to a range around zero.
    Value(f64),
    /// To the running mean of the norm plus two standard deviations.
    Adaptive,
}

/// Element type of the computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Precision {
    F32,
    Bf16,
}

//! The calls of the library, one for each command.

use crate::args::{EvalArgs, GenerateArgs, TokenizeArgs};
use gradus_train::config::TrainConfig;
use gradus_train::models::ModelConfig;
use gradus_train::run::{Observer, Summary};
use gradus_train::{Error, Result};
use serde::Serialize;
use std::path::Path;

/// Trains, telling the observer, and gives what the run came to.
pub fn train(_config: &TrainConfig, _resume: bool, _observer: &mut dyn Observer) -> Result<Summary> {
    wired_by_the_lead()
}

/// The sizes of the model in a model folder.
pub fn model_config(_model_folder: &Path) -> Result<ModelConfig> {
    wired_by_the_lead()
}

/// Texts from the model in a model folder, each without the prompt.
pub fn generate(_model_folder: &Path, _args: &GenerateArgs, _threads: usize) -> Result<Vec<String>> {
    wired_by_the_lead()
}

/// What a model makes of a text.
#[derive(Serialize)]
pub struct Evaluation {
    /// Mean loss of a token.
    pub loss: f64,
    /// Tokens predicted.
    pub tokens: u64,
    /// Bytes of text that they stand for.
    pub bytes: u64,
}

/// The loss of the model in a model folder on a corpus.
pub fn evaluate(_model_folder: &Path, _args: &EvalArgs, _threads: usize) -> Result<Evaluation> {
    wired_by_the_lead()
}

/// What a tokenizer makes of a text.
#[derive(Serialize)]
pub struct Tokenized {
    /// Tokens that the tokenizer has.
    pub vocabulary: usize,
    /// Bytes of text.
    pub bytes: u64,
    /// Tokens made of them.
    pub tokens: u64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// Makes or opens the tokenizer, tokenises the corpus, and saves the tokenizer if asked to.
pub fn tokenize(_args: &TokenizeArgs) -> Result<Tokenized> {
    wired_by_the_lead()
}

fn wired_by_the_lead<T>() -> Result<T> {
    Err(Error::Config("wired by the lead".into()))
}

//! The options of the commands on trained models of text.

use super::choices::PrecisionName;
use crate::values::{not_negative, positive};
use clap::Args;
use gradus_train::config::DeviceChoice;
use gradus_train::memory::Budget;
use std::path::PathBuf;

/// The options of `gradus generate`.
#[derive(Debug, Args)]
#[command(allow_negative_numbers = true)]
pub struct GenerateArgs {
    /// Run, checkpoint or model folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Text to go on from; -: standard input, which is also read if it is no terminal and no prompt is given
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// Most tokens to write
    #[arg(long, value_name = "N", value_parser = positive, default_value = "200")]
    pub max_tokens: usize,
    /// How freely to choose; 0: always the likeliest token
    #[arg(long, value_name = "X", value_parser = not_negative, default_value = "0.8")]
    pub temperature: f64,
    /// Choose among this many likeliest tokens [default: all]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub top_k: Option<usize>,
    /// Choose among the likeliest tokens that have this share of the probability together
    #[arg(long, value_name = "SHARE", value_parser = crate::values::share, default_value = "1")]
    pub top_p: f64,
    /// Seed of the choices
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u32,
    /// Texts to write, computed together
    #[arg(long, value_name = "N", value_parser = positive, default_value = "1")]
    pub count: usize,
    /// Element type of the computation, and of the model's matrices in memory, which are rounded to it; 16 bits take half the
    /// memory, and less time
    #[arg(long, value_enum, default_value = "f32")]
    pub precision: PrecisionName,
    /// What to compute on: cpu, cuda, cuda:N for the device of that number, or auto: a CUDA device if there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Memory to stay within, all of the process: 150MB, 2GiB, or 80% of what is free [default: what the machine has]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Budget>,
}

/// The options of `gradus eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// Run, checkpoint or model folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Texts to measure on, as for training
    #[arg(required = true)]
    pub corpus: Vec<PathBuf>,
    /// Field of a JSON or Parquet record that holds the text [default: guessed]
    #[arg(long, value_name = "NAME")]
    pub text_field: Option<String>,
    /// Tokens of a sequence [default: the model's context]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub sequence: Option<usize>,
    /// Sequences computed at once, if the memory allows
    #[arg(long, value_name = "N", value_parser = positive, default_value = "8")]
    pub batch: usize,
    /// What to compute on: cpu, cuda, cuda:N for the device of that number, or auto: a CUDA device if there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Memory to stay within, all of the process: 150MB, 2GiB, or 80% of what is free [default: what the machine has]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Budget>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The options of `gradus curvature`.
#[derive(Debug, Args)]
pub struct CurvatureArgs {
    /// Run, checkpoint or model folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Texts to measure on, as for training
    #[arg(required = true)]
    pub corpus: Vec<PathBuf>,
    /// Field of a JSON or Parquet record that holds the text [default: guessed]
    #[arg(long, value_name = "NAME")]
    pub text_field: Option<String>,
    /// Windows of the text, from its beginning on, whose mean loss is looked at
    #[arg(long, value_name = "N", value_parser = positive, default_value = "8")]
    pub sequences: usize,
    /// Tokens of a window [default: the model's context]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub sequence: Option<usize>,
    /// Hessian-vector products for the eigenvalues, of the whole and of each layer, at most
    #[arg(long, value_name = "N", value_parser = positive, default_value = "24")]
    pub steps: usize,
    /// Hessian-vector products for the trace, at least 2: four times as many halve its error
    #[arg(long, value_name = "N", value_parser = positive, default_value = "16")]
    pub samples: usize,
    /// What the random vectors follow from
    #[arg(long, value_name = "N", default_value = "0")]
    pub seed: u64,
    /// What to compute on: cpu, cuda, cuda:N for the device of that number, or auto: a CUDA device if there is one
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: DeviceChoice,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Memory to stay within, all of the process: 150MB, 2GiB, or 80% of what is free [default: what the machine has]. Where there
    /// is room, what the products of a window have in common is computed once and kept
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Budget>,
    /// Write a page of it too
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

//! The options of the commands besides: on tokenizers, runs, this machine, and the command itself.

use crate::dashboard::Address;
use crate::values::{Seconds, positive};
use clap::Args;
use gradus_train::config::TokenizerKind;
use std::path::PathBuf;

/// The options of `gradus tokenize`.
#[derive(Debug, Args)]
pub struct TokenizeArgs {
    /// Texts, as for training [default: built-in stories]
    pub corpus: Vec<PathBuf>,
    /// Field of a JSON or Parquet record that holds the text [default: guessed]
    #[arg(long, value_name = "NAME")]
    pub text_field: Option<String>,
    /// How text becomes tokens: byte, char, bpe or the path of a tokenizer.json
    #[arg(long, value_name = "byte|char|bpe|PATH", default_value = "bpe")]
    pub tokenizer: TokenizerKind,
    /// Most tokens of the vocabulary, for bpe alone [default: 4096]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub vocab_size: Option<usize>,
    /// Save the tokenizer as this file
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// The options of `gradus inspect`.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// Run, checkpoint or model folder; several runs are compared
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,
}

/// The options of `gradus dashboard`.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Folders of runs
    #[arg(value_name = "DIR", required = true)]
    pub folders: Vec<PathBuf>,
    /// Where to serve, for this machine alone unless an address is given [default: 6007, or a free one]
    #[arg(long, value_name = "PORT|ADDRESS:PORT")]
    pub port: Option<Address>,
}

/// The options of `gradus bench`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without names, all but the largest cases are measured, in about two minutes; `gradus bench all` \
    measures those too, in about four. The limits are measured in any case, since shares are told of them."
)]
pub struct BenchArgs {
    /// What to measure: limits, kernels, overhead, steps, all, or beginnings of names, such as matmul/f32
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Print the names of what would be measured, and measure nothing
    #[arg(long)]
    pub list: bool,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// Time for each measurement, as in 2s [default: 0.3s for limits, 1s for kernels, 12s for steps]
    #[arg(long, value_name = "TIME")]
    pub time: Option<Seconds>,
    /// Show the time of each kind of operation within a step
    #[arg(long)]
    pub profile: bool,
    /// Save the results in this file, to compare with later
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Compare with the results saved in this file
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Print one JSON object with everything
    #[arg(long)]
    pub json: bool,
    /// Measure one step in this process, which then holds nothing else: how the command measures a step's memory
    #[arg(long, hide = true)]
    pub child: bool,
}

/// The options of `gradus completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

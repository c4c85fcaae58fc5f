//! Every command and option, once: help, completions, the man page and the keys of a `--config` file come from here.

mod choices;
mod images;
mod models;
mod prospect;
mod tools;
mod train;

pub use images::{ClassifyArgs, TrainImagesArgs};
pub use models::{CurvatureArgs, EvalArgs, GenerateArgs};
pub use prospect::{PlanArgs, ProfileArgs};
pub use tools::{BenchArgs, CompletionsArgs, DashboardArgs, InspectArgs, TokenizeArgs};
pub use train::TrainArgs;

use clap::{Parser, Subcommand};
use prospect::{planning_option, profiling_option};

/// Train neural networks, with every byte planned.
#[derive(Debug, Parser)]
#[command(name = "gradus", version, args_override_self = true)]
#[command(after_help = "Without a command, gradus trains a small model on built-in stories: about two minutes.")]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a language model on text; without a corpus, on built-in stories
    Train(Box<TrainArgs>),
    /// Say what a training run will take, without training: memory by kind, time, and a page with the memory map
    #[command(mut_args = planning_option)]
    #[command(after_help = "Every option of `gradus train` is taken, and no text is read: give --vocab-size for \
        another vocabulary than the preset's.")]
    Plan(Box<PlanArgs>),
    /// Say what the steps of a training run take and what is wrong with them: time, allocations, memory
    #[command(mut_args = profiling_option)]
    #[command(
        after_help = "Every option of `gradus train` is taken. The run is prepared as usual, and gone afterwards: its folder, \
        checkpoints and validation are left out."
    )]
    Profile(Box<ProfileArgs>),
    /// Train a model that tells what is in images; without any, on a set that is drawn
    TrainImages(Box<TrainImagesArgs>),
    /// Say what is in images, by a trained model
    Classify(ClassifyArgs),
    /// Write text with a trained model
    Generate(GenerateArgs),
    /// Measure a model on text: loss, perplexity, bits per byte
    Eval(EvalArgs),
    /// Measure how sharply a model's loss curves on text: largest eigenvalue, trace, spectrum, whole and by layer
    Curvature(CurvatureArgs),
    /// Train or try a tokenizer on text and report what it makes of it
    Tokenize(TokenizeArgs),
    /// Show what a run, checkpoint or model folder holds, with a plot of the loss; compare several runs
    Inspect(InspectArgs),
    /// Serve a page that shows runs, ended or going on, over each other
    Dashboard(DashboardArgs),
    /// Measure this machine's limits, and kernels and training steps beside them
    Bench(BenchArgs),
    /// Print a script that completes commands and options in a shell
    Completions(CompletionsArgs),
    /// Print the man page
    Man,
}

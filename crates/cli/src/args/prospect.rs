//! The options of a training run as the commands take them that look at a few steps of one, or at none.

use super::TrainArgs;
use crate::values::{not_negative, positive_number};
use clap::Args;
use gradus_engine::backend::GpuKind;
use std::path::PathBuf;

/// The options of `gradus plan`: those of a training run, and for what machine besides this one.
#[derive(Debug, Args)]
pub struct PlanArgs {
    #[allow(missing_docs)]
    #[command(flatten)]
    pub run: TrainArgs,
    /// Plan for a GPU of this kind, which need not be here: h200
    #[arg(long, value_name = "KIND", help_heading = "Machine")]
    pub gpu: Option<GpuKind>,
    /// Predict the step of --ranks that each can send so many megabits a second to the others together
    #[arg(long, value_name = "MBIT", value_parser = positive_number, requires = "ranks", help_heading = "Machine")]
    pub link: Option<f64>,
    /// What a message without bytes takes on the link, in milliseconds [default: 0.1]
    #[arg(long, value_name = "MS", value_parser = not_negative, requires = "link", help_heading = "Machine")]
    pub latency: Option<f64>,
}

/// The options of `gradus profile`: those of a training run, and what else is to be written.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[allow(missing_docs)]
    #[command(flatten)]
    pub run: TrainArgs,
    /// Write the last step as a trace, for Perfetto (ui.perfetto.dev) or chrome://tracing
    #[arg(long, value_name = "FILE", help_heading = "Profile")]
    pub trace: Option<PathBuf>,
    /// Write how long operations take here beside what plans reckon with, for --speeds
    #[arg(long, value_name = "FILE", help_heading = "Profile")]
    pub save_speeds: Option<PathBuf>,
}

/// Options of a training run that change nothing in what a step takes. `gradus plan` takes them, so that the rest of a
/// command line can stay as it is, but does not tell of them.
const NOT_PLANNED: [&str; 25] = [
    "corpus",
    "text_field",
    "validation",
    "steps",
    "epochs",
    "time",
    "learning_rate",
    "min_learning_rate_share",
    "warmup_steps",
    "schedule",
    "weight_decay",
    "beta1",
    "beta2",
    "seed",
    "norm_epsilon",
    "rope_theta",
    "rope_scaling",
    "resume",
    "eval_every",
    "sample_every",
    "save_every",
    "keep",
    "tensorboard",
    "quiet",
    "restart",
];

/// An option of a training run as `gradus plan` tells of it.
pub(super) fn planning_option(option: clap::Arg) -> clap::Arg {
    match option.get_id().as_str() {
        "out" => option.value_name("FILE").help("Where to write the page [default: plan.html]"),
        "json" => option.help("Print one JSON object"),
        "dashboard" => option.help("Count what the page of a run takes of its memory"),
        "ranks" => option.help("Plan for the first of so many processes [default: 1]"),
        "stages" => option.help("Share out the blocks of the model over so many of them [default: 1]"),
        name if NOT_PLANNED.contains(&name) => option.hide(true),
        _ => option,
    }
}

/// Options of a training run that change nothing in a few steps.
const NOT_PROFILED: [&str; 24] = [
    "epochs",
    "time",
    "learning_rate",
    "min_learning_rate_share",
    "warmup_steps",
    "schedule",
    "decay_steps",
    "decay_time",
    "resume",
    "eval_every",
    "sample_every",
    "save_every",
    "keep",
    "export_dtype",
    "ranks",
    "restart",
    "shard",
    "overlap",
    "compress",
    "compress_warmup",
    "local_steps",
    "outer_learning_rate",
    "outer_momentum",
    "stages",
];

/// An option of a training run as `gradus profile` tells of it.
pub(super) fn profiling_option(option: clap::Arg) -> clap::Arg {
    match option.get_id().as_str() {
        "out" => option.value_name("FILE").help("Where to write the page [default: profile.html]"),
        "steps" => option
            .help("Steps to time, and as many beside them as they always are [default: 12]")
            .help_heading("Profile"),
        "json" => option.help("Print one JSON object"),
        "dashboard" => option.hide(true),
        name if NOT_PROFILED.contains(&name) => option.hide(true),
        _ => option,
    }
}

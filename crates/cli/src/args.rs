//! Every command and option, once: help, completions, the man page and the keys of a `--config` file come from here.

use crate::dashboard::Address;
use crate::values::{Seconds, fraction, not_negative, positive, positive_number};
use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use gradus_engine::backend::GpuKind;
use gradus_train::config::{
    BatchSize, Clip, Compression, DeviceChoice, EventFolder, ExportDtype, HealthInterval, MeasuredSpeeds,
    OptimizerKind, Precision, Recomputation, ScheduleKind, Sharding, TokenizerKind, Validation,
};
use gradus_train::export::Layout;
use gradus_train::images::Size;
use gradus_train::memory::Budget;
use gradus_train::models::{Family, PRESETS, RopeScaling, vision};
use std::path::PathBuf;

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

/// The options of a training run. Those not given are taken from `--config`, then chosen to suit the size.
#[derive(Debug, Default, Args)]
#[command(args_override_self = true, allow_negative_numbers = true)]
pub struct TrainArgs {
    /// Texts to train on: .txt, .jsonl, .parquet (also .gz, .zst), folders, globs, or - for
    /// standard input [default: built-in stories]
    pub corpus: Vec<PathBuf>,
    /// Field of a JSON or Parquet record that holds the text [default: guessed]
    #[arg(long, value_name = "NAME", help_heading = "Data")]
    pub text_field: Option<String>,
    /// How text becomes tokens: byte, char, bpe or the path of a tokenizer.json [default: bpe]
    #[arg(long, value_name = "byte|char|bpe|PATH", help_heading = "Data")]
    pub tokenizer: Option<TokenizerKind>,
    /// Tokens of the vocabulary, at most those that the text gives; 0: as many as suit [default: the preset's for bpe, else
    /// the tokenizer's]
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub vocab_size: Option<usize>,
    /// What to hold out: the last share of the corpus, or another text [default: 0.1]
    #[arg(long, value_name = "FRACTION|PATH", help_heading = "Data")]
    pub validation: Option<Validation>,

    /// Family of the model [default: the preset's, gpt2]
    #[arg(long, value_enum, help_heading = "Model")]
    pub model: Option<FamilyName>,
    /// Sizes to start from; single sizes can be set besides [default: tiny for stories, else small]
    #[arg(long, value_name = "NAME", value_parser = preset_names(), help_heading = "Model")]
    pub preset: Option<String>,
    /// Numbers that stand for a token [default: the preset's]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub width: Option<usize>,
    /// Blocks [default: the preset's]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub layers: Option<usize>,
    /// Attention heads; must divide the width [default: the preset's]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub heads: Option<usize>,
    /// Heads of keys and values, not for gpt2; must divide the heads [default: as many as heads]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub kv_heads: Option<usize>,
    /// Numbers of a head, not for gpt2 [default: the width divided by the heads]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub head_size: Option<usize>,
    /// Width of the feed-forward part [default: for gpt2 4 x width, else 8/3 x width]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub feed_forward: Option<usize>,
    /// Tokens of a training sequence [default: the preset's]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub sequence: Option<usize>,
    /// Longest sequence that the model can take [default: the training sequence]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub context: Option<usize>,
    /// Whether the table of tokens is also the projection to logits; alone: true [default: for gpt2 true, else
    /// false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", help_heading = "Model")]
    pub tie_embeddings: Option<bool>,
    /// Added to variances in norms [default: 0.00001]
    #[arg(long, value_name = "X", value_parser = positive_number, help_heading = "Model")]
    pub norm_epsilon: Option<f64>,
    /// Base of the rotary angles, not for gpt2 [default: 10000]
    #[arg(long, value_name = "X", value_parser = positive_number, help_heading = "Model")]
    pub rope_theta: Option<f64>,
    /// Rotary angles scaled as in Llama 3, as in llama3:8,1,4,8192: factor, low and high frequency factors and the
    /// context before; not for gpt2 [default: not scaled]
    #[arg(long, value_name = "llama3:...", help_heading = "Model")]
    pub rope_scaling: Option<RopeScaling>,
    /// Tokens that a token sees at most, for mistral, qwen2 and qwen3 [default: all before it]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Model")]
    pub window: Option<usize>,
    /// Blocks, from the first on, without a window, for qwen2 and qwen3 [default: 0]
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub full_layers: Option<usize>,
    /// Whether the projections of attention have biases, for llama and qwen3; alone: true [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", help_heading = "Model")]
    pub attention_bias: Option<bool>,
    /// Whether those of the feed-forward part have biases, for llama; alone: true [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", help_heading = "Model")]
    pub mlp_bias: Option<bool>,
    /// Start from the weights of this model folder; the sizes are its own
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub init: Option<PathBuf>,

    /// Sequences a step; auto: as many as fit the memory; adaptive:N: N, of which more or fewer are computed at once
    /// as the memory allows [default: 16]
    #[arg(long, value_name = "N|auto|adaptive", help_heading = "Training")]
    pub batch: Option<BatchSize>,
    /// Sequences computed at once; must divide a lane's part of the batch; 0: as suits the memory and the speed
    /// [default: 0]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub micro_batch: Option<usize>,
    /// Parts of the batch, a power of two, whose sums are added by a tree: what ranks share out [default: 1, with --ranks 8 or as
    /// many as ranks]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub lanes: Option<usize>,
    /// What each rank has only a part of: optimizer, what adamw, sgd or lion remember [default: none]
    #[arg(long, value_enum, help_heading = "Training")]
    pub shard: Option<ShardName>,
    /// Whether ranks exchange gradients and weights while they compute [default: true]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", help_heading = "Training")]
    pub overlap: Option<bool>,
    /// How gradients are made smaller before ranks exchange them: 8bit, 4bit, top-k:SHARE of the numbers, threshold:SIZE,
    /// power-sgd:RANK; what is left out is sent later [default: none]
    #[arg(long, value_name = "METHOD", help_heading = "Training")]
    pub compress: Option<Compression>,
    /// Steps before gradients are compressed [default: 0]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub compress_warmup: Option<u64>,
    /// Steps that each lane takes by itself, with weights of its own, before lanes meet; 0: none [default: 0]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub local_steps: Option<u64>,
    /// Learning rate of the outer step with which lanes meet [default: 0.7]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub outer_learning_rate: Option<f64>,
    /// Momentum of that step, Nesterov's [default: 0.9]
    #[arg(long, value_name = "X", help_heading = "Training")]
    pub outer_momentum: Option<f64>,
    /// Length of the run in steps [default: 900 for stories, else 2000]
    #[arg(long, value_name = "N", group = "length", help_heading = "Training")]
    pub steps: Option<u64>,
    /// Length of the run in passes over the corpus
    #[arg(long, value_name = "X", value_parser = positive_number, group = "length", help_heading = "Training")]
    pub epochs: Option<f64>,
    /// Length of the run in time, as in 90s, 10m or 1h30m; such a run cannot resume to the same bits
    #[arg(long, value_name = "TIME", group = "length", help_heading = "Training")]
    pub time: Option<Seconds>,
    /// Highest learning rate [default: 0.001, for muon 0.008, soap 0.004, lion and sophia 0.0003, sgd 0.3; less for wide models; with
    /// --init a tenth]
    #[arg(long, value_name = "X", value_parser = positive_number, help_heading = "Training")]
    pub learning_rate: Option<f64>,
    /// Lowest learning rate, as a share of the highest; not for a constant schedule [default: 0.1]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Training")]
    pub min_learning_rate_share: Option<f64>,
    /// Steps over which the learning rate rises [default: a twentieth of the steps, 100 at most]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub warmup_steps: Option<u64>,
    /// How the learning rate falls [default: cosine]
    #[arg(long, value_enum, help_heading = "Training")]
    pub schedule: Option<ScheduleName>,
    /// Step at which the learning rate has fallen; it stays there after it [default: the end of the run as it began]
    #[arg(long, value_name = "N", group = "decay", help_heading = "Training")]
    pub decay_steps: Option<u64>,
    /// Time of training after which the learning rate has fallen, as in 10m
    #[arg(long, value_name = "TIME", group = "decay", help_heading = "Training")]
    pub decay_time: Option<Seconds>,
    /// Rule that updates weights; the usual learning rate, decay and betas go with it [default: adamw]
    #[arg(long, value_enum, help_heading = "Training")]
    pub optimizer: Option<OptimizerName>,
    /// Decay of matrices, times the learning rate [default: 0.1, for lion 0.3, for sgd 0.0003]
    #[arg(long, value_name = "X", value_parser = not_negative, help_heading = "Training")]
    pub weight_decay: Option<f64>,
    /// Share of the first moment kept at each step; sgd's and muon's momentum; not for adafactor [default: 0.9; muon, soap 0.95; sophia 0.96]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Training")]
    pub beta1: Option<f64>,
    /// Share of the second moment kept at each step; not for sgd and adafactor [default: 0.95, for lion and sophia 0.99]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Training")]
    pub beta2: Option<f64>,
    /// Clip gradients: to a norm (1.0), each number (value:0.5), adaptive or none [default: 1.0]
    #[arg(long, value_name = "NORM|adaptive|none", help_heading = "Training")]
    pub clip: Option<Clip>,
    /// Share of activations dropped [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = fraction, help_heading = "Training")]
    pub dropout: Option<f64>,
    /// Seed of everything random [default: 1]
    #[arg(long, value_name = "N", help_heading = "Training")]
    pub seed: Option<u32>,

    /// Element type of the computation; bf16 takes less memory, and less time where the machine multiplies it; f16 is finer,
    /// scales the loss, and on a CPU takes more time than bf16; tf32, on CUDA alone, is f32 with faster products [default: f32]
    #[arg(long, value_enum, help_heading = "Machine")]
    pub precision: Option<PrecisionName>,
    /// What to compute on: cpu, cuda, cuda:N for the device of that number, or auto: a CUDA device if there is one [default: auto]
    #[arg(long, value_name = "DEVICE", help_heading = "Machine")]
    pub device: Option<DeviceChoice>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Machine")]
    pub threads: Option<usize>,
    /// Train by so many processes, started by mpirun, to the same bits as by any other number [default: 1]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Machine")]
    pub ranks: Option<usize>,
    /// Share out the blocks of the model over so many neighbouring ranks, each with the weights of its own [default: 1]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Machine")]
    pub stages: Option<usize>,
    /// How often to go on with one rank fewer, or as many as fit --stages, after one was killed or stood still [default: 0]
    #[arg(long, value_name = "N", requires = "ranks", help_heading = "Machine")]
    pub restart: Option<usize>,
    /// What to compute again rather than keep: none, all, every:N layers, selective:N operations a byte, or auto: as
    /// little as the memory allows [default: auto]
    #[arg(long, value_name = "POLICY", help_heading = "Machine")]
    pub recompute: Option<Recomputation>,
    /// Memory to stay within, all of the process: 150MB, 2GiB, or 80% of what is free [default: what the machine has]
    #[arg(long, value_name = "SIZE", help_heading = "Machine")]
    pub memory: Option<Budget>,
    /// Plan by the speeds that `gradus profile --save-speeds` measured [default: those of a usual machine]
    #[arg(long, value_name = "FILE", help_heading = "Machine")]
    pub speeds: Option<MeasuredSpeeds>,

    /// Folder of the run [default: runs/NAME-N]
    #[arg(long, value_name = "DIR", help_heading = "Run")]
    pub out: Option<PathBuf>,
    /// Go on with the run in this folder, or in the one of --out
    #[arg(long, value_name = "DIR", num_args = 0..=1, help_heading = "Run")]
    pub resume: Option<Option<PathBuf>>,
    /// Steps between validations; 0: only at the end [default: a tenth of the run, 50 at least]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub eval_every: Option<u64>,
    /// Steps between samples of text; 0: only at the end [default: a fifth of the run]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub sample_every: Option<u64>,
    /// Steps between checkpoints; 0: only at the end [default: a fifth of the run]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub save_every: Option<u64>,
    /// Steps between measurements of every gradient's health, by which alerts are raised; off: none [default: auto, every 10 or
    /// as many more as cost less than 1 % of the time]
    #[arg(long, value_name = "N|auto|off", help_heading = "Run")]
    pub health: Option<HealthInterval>,
    /// Steps between measurements of the loss's sharpness, the largest eigenvalue of its Hessian on the first four examples of
    /// the batch, by 16 products with the Hessian, which change no weight; 0: none [default: 0]
    #[arg(long, value_name = "N", help_heading = "Run")]
    pub watch_curvature: Option<u64>,
    /// Checkpoints to keep [default: 2]
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Run")]
    pub keep: Option<usize>,
    /// Element type of the weights in the model folder [default: that of --init, else f32]
    #[arg(long, value_enum, help_heading = "Run")]
    pub export_dtype: Option<ExportDtypeName>,
    /// Serve a page that shows the run as it goes, for this machine alone unless an address is given [default port: 6007, or
    /// a free one]
    #[arg(long, value_name = "PORT|ADDRESS:PORT", num_args = 0..=1, help_heading = "Run")]
    pub dashboard: Option<Option<Address>>,
    /// Write event files that TensorBoard reads, as the run goes and when it is resumed; false: no more [default folder:
    /// RUN/tensorboard]
    #[arg(long, value_name = "DIR|true|false", num_args = 0..=1, default_missing_value = "true", help_heading = "Run")]
    pub tensorboard: Option<EventFolder>,
    /// File of options: one `key = value` a line, the keys as here; the command line wins
    #[arg(long, value_name = "FILE", help_heading = "Run")]
    pub config: Option<PathBuf>,
    /// Print errors, warnings and the final line only
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Run")]
    pub quiet: Option<bool>,
    /// Print one JSON object a line on standard output, as in metrics.jsonl
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(help_heading = "Run")]
    pub json: Option<bool>,
}

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
fn planning_option(option: clap::Arg) -> clap::Arg {
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
fn profiling_option(option: clap::Arg) -> clap::Arg {
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

fn image_models() -> PossibleValuesParser {
    vision::NAMES.iter().map(|(name, about)| PossibleValue::new(name).help(about)).into()
}

fn preset_names() -> PossibleValuesParser {
    PRESETS.iter().map(|preset| PossibleValue::new(preset.name).help(preset.about)).into()
}

/// Names of choices on the command line, each standing for one of the library's.
macro_rules! choices {
    ($($(#[$about:meta])* $name:ident for $choice:ident { $($variant:ident),* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, ValueEnum)]
        pub enum $name { $(#[allow(missing_docs)] $variant),* }

        impl From<$name> for $choice {
            fn from(name: $name) -> $choice {
                match name { $($name::$variant => $choice::$variant),* }
            }
        }
    )*};
}

choices! {
    /// Families of models.
    FamilyName for Family { Gpt2, Llama, Mistral, Qwen2, Qwen3 }
    /// Falls of the learning rate.
    ScheduleName for ScheduleKind { Cosine, Linear, Constant, Wsd }
    /// Optimizers.
    OptimizerName for OptimizerKind { Adamw, Sgd, Lion, Adafactor, Muon, Sophia, Soap }
    /// Element types.
    PrecisionName for Precision { F32, Bf16, F16, Tf32 }
    /// Element types of stored weights.
    ExportDtypeName for ExportDtype { F32, Bf16, F16 }
    /// Layouts of model folders.
    LayoutName for Layout { Timm, Transformers }
    /// What ranks have parts of.
    ShardName for Sharding { None, Optimizer }
}

//! The options of a training run on text.

use super::choices::{
    ExportDtypeName, FamilyName, OptimizerName, PrecisionName, ScheduleName, ShardName, preset_names,
};
use crate::dashboard::Address;
use crate::values::{Seconds, fraction, not_negative, positive, positive_number};
use clap::Args;
use gradus_train::config::{
    BatchSize, Clip, Compression, DeviceChoice, EventFolder, HealthInterval, MeasuredSpeeds, Recomputation,
    TokenizerKind, Validation,
};
use gradus_train::memory::Budget;
use gradus_train::models::RopeScaling;
use std::path::PathBuf;

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
    /// What each rank has only a part of: optimizer, what adamw, sgd or lion remember; gradients, that and the sums of gradients, where
    /// a rank has one lane (--lanes as many as --ranks) computed at once (--micro-batch), and elsewhere as optimizer; on CPUs [default: none]
    #[arg(long, value_enum, help_heading = "Training")]
    pub shard: Option<ShardName>,
    /// Whether ranks on CPUs exchange gradients and weights while they compute [default: true]
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true", help_heading = "Training")]
    pub overlap: Option<bool>,
    /// How gradients are made smaller before ranks exchange them: 8bit, 4bit, top-k:SHARE of the numbers, threshold:SIZE,
    /// power-sgd:RANK, 12 if none is said; what is left out is sent later [default: none]
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
    /// What to compute on: cpu, cuda, cuda:N for the device of that number, or auto: a CUDA device if there is one; ranks of a host
    /// take one each, from that number on [default: auto]
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

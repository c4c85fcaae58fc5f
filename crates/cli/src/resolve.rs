//! From options to a run: every choice made, everything that can be checked checked, nothing written.

use crate::args::TrainArgs;
use crate::layers::{FileOptions, merged};
use crate::numbers::shortest;
use crate::{dashboard, defaults, folders, no_effect, ranks};
use clap::ArgMatches;
use clap::parser::ValueSource;
use gradus_train::config::{
    BatchSize, CONFIG_FILE, Clip, EventFolder, ExportDtype, LocalSteps, OptimizerKind, Precision, ScheduleKind,
    Sharding,
};
use gradus_train::config::{TokenizerKind, TrainConfig, Validation};
use gradus_train::data::Corpus;
use gradus_train::models::{Family, ModelConfig};
use gradus_train::pipeline::check_ranks;
use gradus_train::tokenizer::Tokenizer;
use gradus_train::{Error, Result, training};
use std::path::{Path, PathBuf, absolute};

/// A training run that can begin.
pub struct Resolved {
    /// Everything that states it.
    pub config: TrainConfig,
    /// Whether it goes on with a run that is there.
    pub resume: bool,
    /// Whether only errors and the final line are printed.
    pub quiet: bool,
    /// Whether events are printed as JSON.
    pub json: bool,
    /// Whether a page shows it, and where that is stated.
    pub dashboard: Option<Option<dashboard::Address>>,
    /// What is worth saying of choices that were made for the user.
    pub notes: Vec<String>,
}

/// The run that the command line and its `--config` file state.
pub fn resolve(command_line: &ArgMatches) -> Result<Resolved> {
    let args = merged(command_line, &[])?;
    let mut files = vec![];
    if let Some(path) = &args.config {
        files.push(FileOptions::read(path)?);
    }
    let stated = merged(command_line, &files)?;
    let resumed = folder_to_resume(&stated)?;
    if let Some(folder) = &resumed {
        files.push(FileOptions::read(&folder.join(CONFIG_FILE))?);
    }
    let mut args = merged(command_line, &files)?;
    // What a resumed run computes at once was chosen for the memory it had.
    if args.memory.is_some() && !is_given(command_line, "micro_batch") && is_given(command_line, "memory") {
        args.micro_batch = None;
    }
    let config = match &resumed {
        Some(folder) => resumed_config(&args, folder)?,
        None => new_config(&args)?,
    };
    no_effect::refuse(command_line, &stated, &config)?;
    let (quiet, json) = (args.quiet.unwrap_or(false), args.json.unwrap_or(false));
    let notes = defaults::fine_tuning_note(config.learning_rate, &args).into_iter().collect();
    Ok(Resolved { config, resume: resumed.is_some(), quiet, json, dashboard: args.dashboard, notes })
}

/// What a profile of a deep model may hold of a stated memory: times of each operation of each step, and of each thread's part.
const PROFILE_BYTES: u64 = 2 << 20;
const PROFILE_BYTES_PER_THREAD: u64 = 512 << 10;

/// A training run that is asked about.
pub struct Planned {
    /// Everything that states it, but for its folder.
    pub config: TrainConfig,
    /// Whether the answer is printed as JSON.
    pub json: bool,
}

/// The run that the command line and its `--config` file state, for planning alone: no text is read, so the vocabulary
/// is the one that is stated, or the preset's.
pub fn resolve_for_planning(command_line: &ArgMatches) -> Result<Planned> {
    let args = merged(command_line, &[])?;
    let file = args.config.as_deref().map(FileOptions::read).transpose()?;
    let args = merged(command_line, &Vec::from_iter(file))?;
    if args.resume.is_some() {
        return refused(format!(
            "a plan is made for a new run; give --config DIR/{CONFIG_FILE} instead of --resume DIR"
        ));
    }
    let (model, sequence) = stated_model(&args)?;
    let mut config = train_config(&args, model, sequence, Paths::Needed)?;
    no_effect::refuse(command_line, &args, &config)?;
    config.model.vocabulary = planned_vocabulary(&config)?;
    config.model.validate()?;
    config.place.ranks = args.ranks.or_else(ranks::started).unwrap_or(1);
    check_ranks(config.place.ranks, config.stages)?;
    Ok(Planned { config, json: args.json.unwrap_or(false) })
}

/// The run that the command line and its `--config` file state, to be looked at for a few steps. What is said of its folder and
/// length is not of that run: the command line names a page, and steps to look at.
pub fn resolve_for_profile(command_line: &ArgMatches) -> Result<Resolved> {
    let args = merged(command_line, &[])?;
    let file = args.config.as_deref().map(FileOptions::read).transpose()?;
    let mut args = merged(command_line, &Vec::from_iter(file))?;
    if args.resume.is_some() {
        return refused(format!("a profile is of a new run; give --config DIR/{CONFIG_FILE} instead of --resume DIR"));
    }
    if args.dashboard.is_some() {
        return refused("--dashboard has no effect: a profile has a page of its own; leave it out");
    }
    (args.out, args.steps) = (None, None);
    let mut config = new_config(&args)?;
    no_effect::refuse(command_line, &args, &config)?;
    if config.memory.is_some() {
        config.observer_bytes += PROFILE_BYTES + config.threads as u64 * PROFILE_BYTES_PER_THREAD;
    }
    let (quiet, json) = (args.quiet.unwrap_or(false), args.json.unwrap_or(false));
    Ok(Resolved { config, resume: false, quiet, json, dashboard: None, notes: vec![] })
}

/// Tokens of a model's vocabulary, as far as they are known without the text.
fn planned_vocabulary(config: &TrainConfig) -> Result<usize> {
    if let Some(folder) = &config.init {
        return Ok(crate::library::model_config(folder)?.vocabulary);
    }
    let room = config.vocab_size;
    match &config.tokenizer {
        TokenizerKind::Bpe => Ok(room),
        TokenizerKind::Byte => Ok(room.max(Tokenizer::bytes().vocabulary())),
        TokenizerKind::File(path) => Ok(room.max(Tokenizer::open(path)?.vocabulary())),
        TokenizerKind::Char if room == 0 => {
            refused("--tokenizer char finds its tokens in the text, which is not read; say how many with --vocab-size")
        }
        TokenizerKind::Char => Ok(room),
    }
}

fn is_given(command_line: &ArgMatches, option: &str) -> bool {
    command_line.value_source(option) == Some(ValueSource::CommandLine)
}

fn new_config(args: &TrainArgs) -> Result<TrainConfig> {
    let (model, sequence) = stated_model(args)?;
    let mut config = train_config(args, model, sequence, Paths::Needed)?;
    config.out = match &args.out {
        Some(folder) => {
            training::check_free(folder)?;
            folder.clone()
        }
        None => folders::next_free(&args.corpus)?,
    };
    config.validate()?;
    Ok(config)
}

/// The run of a folder with what is stated now. What it was made from is not looked at: the run has all of it.
fn resumed_config(args: &TrainArgs, folder: &Path) -> Result<TrainConfig> {
    let (model, sequence) = sized_model(args)?;
    let mut config = train_config(args, model, sequence, Paths::Saved)?;
    config.out = folder.to_path_buf();
    config.validate()?;
    training::check_resumable(&config)?;
    Ok(config)
}

/// The run folder that `--resume` names, by itself or through `--out`.
fn folder_to_resume(args: &TrainArgs) -> Result<Option<PathBuf>> {
    let folder = match (&args.resume, &args.out) {
        (None, _) => return Ok(None),
        (Some(Some(folder)), Some(out)) if folder != out => {
            return refused(format!(
                "--resume {} and --out {} name two folders; a run goes on in its own, so leave --out away",
                folder.display(),
                out.display()
            ));
        }
        (Some(Some(folder)), _) | (Some(None), Some(folder)) => folder,
        (Some(None), None) => {
            let newest = folders::newest().map_or("runs/NAME-1".into(), |folder| folder.display().to_string());
            return refused(format!("--resume needs the folder of the run; give it, as in --resume {newest}"));
        }
    };
    if !folder.join(CONFIG_FILE).is_file() {
        let problem =
            format!("not the folder of a run (it has no {CONFIG_FILE}); give one that has, or leave --resume out");
        return Err(Error::checkpoint(folder, problem));
    }
    Ok(Some(folder.clone()))
}

/// The model that is stated in one way or the other, and the length of the sequences to train it on.
fn stated_model(args: &TrainArgs) -> Result<(ModelConfig, usize)> {
    match &args.init {
        Some(folder) => initial_model(args, folder),
        None => sized_model(args),
    }
}

/// The model of an existing folder, and the length of the sequences to train it on.
fn initial_model(args: &TrainArgs, folder: &Path) -> Result<(ModelConfig, usize)> {
    let sizes = [
        ("model", args.model.is_some()),
        ("preset", args.preset.is_some()),
        ("vocab-size", args.vocab_size.is_some()),
        ("width", args.width.is_some()),
        ("layers", args.layers.is_some()),
        ("heads", args.heads.is_some()),
        ("kv-heads", args.kv_heads.is_some()),
        ("head-size", args.head_size.is_some()),
        ("feed-forward", args.feed_forward.is_some()),
        ("context", args.context.is_some()),
        ("tie-embeddings", args.tie_embeddings.is_some()),
        ("norm-epsilon", args.norm_epsilon.is_some()),
        ("rope-theta", args.rope_theta.is_some()),
        ("rope-scaling", args.rope_scaling.is_some()),
        ("window", args.window.is_some()),
        ("full-layers", args.full_layers.is_some()),
        ("attention-bias", args.attention_bias.is_some()),
        ("mlp-bias", args.mlp_bias.is_some()),
    ];
    if let Some((name, _)) = sizes.iter().find(|(_, given)| *given) {
        return refused(format!("--{name} and --init cannot both be: the model in {} has its sizes", folder.display()));
    }
    let model = crate::library::model_config(&folders::model(folder)?)?;
    let sequence = args.sequence.unwrap_or(model.context);
    Ok((ModelConfig { vocabulary: 0, ..model }, sequence))
}

/// The model that options and preset state, and the length of the sequences to train it on.
fn sized_model(args: &TrainArgs) -> Result<(ModelConfig, usize)> {
    let preset = preset(args);
    let family = args.model.map_or(preset.family, Family::from);
    let sequence = args.sequence.unwrap_or_else(|| defaults::sequence(args, &preset));
    let sizes = [args.width.unwrap_or(preset.width), args.layers.unwrap_or(preset.layers)];
    let heads = args.heads.unwrap_or(preset.heads);
    let context = args.context.unwrap_or(sequence);
    let usual = ModelConfig::new(family, 0, sizes[0], sizes[1], heads, context);
    // Of the preset, what fits: sizes that follow from others are those of the sizes that are stated.
    let base = if family == preset.family { preset.clone() } else { usual.clone() };
    let same_heads = (base.width, base.heads) == (sizes[0], heads);
    let base = ModelConfig {
        width: sizes[0],
        layers: sizes[1],
        heads,
        context,
        vocabulary: 0,
        kv_heads: if heads == base.heads { base.kv_heads } else { heads },
        feed_forward: if sizes[0] == base.width { base.feed_forward } else { usual.feed_forward },
        head_size: base.head_size.filter(|_| same_heads),
        ..base
    };
    let base = match args.head_size {
        Some(size) => base.with_head_size(size),
        None => base,
    };
    let model = ModelConfig {
        kv_heads: args.kv_heads.unwrap_or(base.kv_heads),
        feed_forward: args.feed_forward.unwrap_or(base.feed_forward),
        tie_embeddings: args.tie_embeddings.unwrap_or(base.tie_embeddings),
        norm_epsilon: args.norm_epsilon.map_or(base.norm_epsilon, |number| number as f32),
        rope_theta: args.rope_theta.map_or(base.rope_theta, |number| number as f32),
        rope_scaling: args.rope_scaling.or(base.rope_scaling),
        window: args.window.or(base.window),
        full_layers: args.full_layers.unwrap_or(base.full_layers),
        attention_bias: args.attention_bias.unwrap_or(base.attention_bias),
        mlp_bias: args.mlp_bias.unwrap_or(base.mlp_bias),
        ..base
    };
    model.validate_without_vocabulary()?;
    Ok((model, sequence))
}

fn preset(args: &TrainArgs) -> ModelConfig {
    let name = args.preset.as_deref().unwrap_or_else(|| defaults::preset(args));
    ModelConfig::preset(name).expect("the option takes only presets that there are")
}

/// Whether what paths name must be there.
#[derive(Clone, Copy, PartialEq)]
enum Paths {
    /// A run begins with it.
    Needed,
    /// The run has what it needs of it.
    Saved,
}

/// All the rest, with the model known; the folder of the run is not chosen yet.
fn train_config(args: &TrainArgs, model: ModelConfig, sequence: usize, paths: Paths) -> Result<TrainConfig> {
    let corpus = args.corpus.iter().map(|path| corpus_path(path, paths)).collect::<Result<Vec<_>>>()?;
    if corpus.is_empty() && args.text_field.is_some() {
        return refused("--text-field is of no use without a corpus; leave it out or name the files");
    }
    let tokenizer = tokenizer(args, paths)?;
    let vocab_size = vocab_size(args, &model, &tokenizer);
    // A tokenizer that is trained decides how many tokens it finds; any other must fit the room stated.
    let vocabulary = if tokenizer == TokenizerKind::Bpe { 0 } else { vocab_size };
    let steps = defaults::steps(args);
    let optimizer = args.optimizer.map_or(OptimizerKind::Adamw, OptimizerKind::from);
    let usual = optimizer.usual();
    let config = TrainConfig {
        text_field: args.text_field.clone(),
        out: PathBuf::new(),
        init: args.init.as_deref().map(|folder| model_path(folder, paths)).transpose()?,
        preset: args.preset.clone(),
        vocab_size,
        validation: validation(args, paths)?,
        batch: args.batch.unwrap_or(BatchSize::Fixed(BatchSize::USUAL)),
        micro_batch: args.micro_batch.unwrap_or_else(|| defaults::micro_batch(args)),
        lanes: args.lanes.unwrap_or_else(|| defaults::lanes(args)),
        shard: args.shard.map_or(Sharding::None, Sharding::from),
        overlap: args.overlap.unwrap_or(true),
        compress: args.compress.unwrap_or_default(),
        compress_warmup: args.compress_warmup.unwrap_or(0),
        local_steps: args.local_steps.unwrap_or(0),
        outer_learning_rate: args.outer_learning_rate.unwrap_or(LocalSteps::USUAL_RATE),
        outer_momentum: args.outer_momentum.unwrap_or(LocalSteps::USUAL_MOMENTUM),
        stages: args.stages.unwrap_or(1),
        memory: args.memory,
        recompute: args.recompute.unwrap_or_default(),
        speeds: args.speeds.clone(),
        steps,
        epochs: args.epochs,
        time_seconds: args.time.map(|time| time.0),
        learning_rate: args
            .learning_rate
            .unwrap_or_else(|| defaults::fine_tuned(defaults::learning_rate(&model, optimizer), args)),
        final_learning_rate_share: args.min_learning_rate_share.unwrap_or(0.1),
        warmup_steps: args.warmup_steps.unwrap_or_else(|| defaults::warmup_steps(steps)),
        schedule: args.schedule.map_or(ScheduleKind::Cosine, ScheduleKind::from),
        decay_steps: args.decay_steps,
        decay_time: args.decay_time.map(|time| time.0),
        optimizer,
        weight_decay: args.weight_decay.unwrap_or_else(|| shortest(usual.weight_decay)),
        beta1: args.beta1.unwrap_or_else(|| shortest(usual.beta1)),
        beta2: args.beta2.unwrap_or_else(|| shortest(usual.beta2)),
        clip: args.clip.unwrap_or(Clip::Norm(1.0)),
        dropout: args.dropout.unwrap_or(0.0),
        precision: args.precision.map_or(Precision::F32, Precision::from),
        device: args.device.unwrap_or_default().resolved(),
        threads: args.threads.unwrap_or_else(defaults::threads),
        seed: args.seed.unwrap_or(1),
        eval_every: args.eval_every.unwrap_or_else(|| defaults::eval_every(steps)),
        sample_every: args.sample_every.unwrap_or_else(|| defaults::every(steps, 5)),
        save_every: args.save_every.unwrap_or_else(|| defaults::every(steps, 5)),
        keep: args.keep.unwrap_or(2),
        health: args.health.unwrap_or_default(),
        watch_curvature: args.watch_curvature.unwrap_or(0),
        export_dtype: args.export_dtype.map(ExportDtype::from),
        tensorboard: event_folder(args, paths)?,
        place: Default::default(),
        observer_bytes: if args.dashboard.is_some() { dashboard::MEMORY_BYTES } else { 0 },
        corpus,
        model: ModelConfig { vocabulary, ..model },
        sequence,
        tokenizer,
    };
    config.validate()?;
    Ok(config)
}

fn tokenizer(args: &TrainArgs, paths: Paths) -> Result<TokenizerKind> {
    Ok(match (&args.tokenizer, &args.init) {
        (Some(TokenizerKind::File(path)), _) if paths == Paths::Needed && !path.exists() => {
            let problem = "no such file; give byte, char, bpe or the path of a tokenizer.json".into();
            return Err(Error::Tokenizer { name: path.display().to_string(), problem });
        }
        (Some(TokenizerKind::File(path)), _) => TokenizerKind::File(absolute_path(path)?),
        (Some(kind), _) => kind.clone(),
        (None, Some(folder)) => TokenizerKind::File(model_path(folder, paths)?),
        (None, None) => TokenizerKind::Bpe,
    })
}

/// Where events go, to be found from anywhere.
fn event_folder(args: &TrainArgs, paths: Paths) -> Result<EventFolder> {
    match args.tensorboard.clone().unwrap_or_default() {
        EventFolder::At(path) if paths == Paths::Needed && path.is_file() => refused(format!(
            "--tensorboard {} is a file; give a folder for events, or none (a corpus stands before --tensorboard)",
            path.display()
        )),
        EventFolder::At(path) => Ok(EventFolder::At(absolute_path(&path)?)),
        own => Ok(own),
    }
}

fn vocab_size(args: &TrainArgs, model: &ModelConfig, tokenizer: &TokenizerKind) -> usize {
    match args.vocab_size.unwrap_or(0) {
        0 if *tokenizer == TokenizerKind::Bpe => defaults::vocab_size(&preset(args), model),
        size => size,
    }
}

fn validation(args: &TrainArgs, paths: Paths) -> Result<Validation> {
    Ok(match &args.validation {
        Some(Validation::File(path)) => Validation::File(corpus_path(path, paths)?),
        Some(share) => share.clone(),
        None => Validation::Fraction(0.1),
    })
}

/// A path of text that can be found from anywhere. What a glob stands for is seen when it is opened.
fn corpus_path(path: &Path, paths: Paths) -> Result<PathBuf> {
    if path.as_os_str() == Corpus::STANDARD_INPUT {
        return Ok(path.to_path_buf());
    }
    let is_glob = path.to_string_lossy().contains(['*', '?', '[']);
    if paths == Paths::Needed && !is_glob && !path.exists() {
        return Err(Error::corpus(path, "no such file or folder; check the path of the text"));
    }
    absolute_path(path)
}

/// The model folder that a user means, to be found from anywhere.
fn model_path(folder: &Path, paths: Paths) -> Result<PathBuf> {
    match paths {
        Paths::Needed => absolute_path(&folders::model(folder)?),
        // What is no longer there cannot be looked into; the run has its path as it was found.
        Paths::Saved => absolute_path(&folders::model(folder).unwrap_or(folder.to_path_buf())),
    }
}

fn absolute_path(path: &Path) -> Result<PathBuf> {
    absolute(path).map_err(Error::io("find", path))
}

fn refused<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::Config(problem.into()))
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;

//! From a configuration to a run that is ready to step: folder, tokenizer, tokens, program, weights.

use super::account;
use super::adaptive::Adaptive;
use super::folder::FolderBefore;
use crate::checkpoint::{Contents, Found, Progress, Store};
use crate::config::{Batch, CONFIG_FILE, ExportDtype, TokenizerKind, TrainConfig};
use crate::data::{self, Batches, Corpus, Encoding, Stories, TokenFile, Windows};
use crate::export::{self, COMPANIONS_FOLDER, Export};
use crate::files::atomic;
use crate::memory::{Account, Stages, heap};
use crate::planning::RunMemory;
use crate::run::{Event, Observer};
use crate::step::TrainingStep;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use gradus_engine::backend::Cpu;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything that a run works with.
pub(crate) struct Session {
    /// The configuration, its model's vocabulary filled in.
    pub config: TrainConfig,
    pub tokenizer: Tokenizer,
    pub train: Arc<TokenFile>,
    pub validation: Option<Arc<TokenFile>>,
    pub backend: Cpu,
    /// How the micro-batch follows the memory, if it does.
    pub adaptive: Option<Adaptive>,
    /// What is predicted of the memory.
    pub predicted: Account,
    pub training: TrainingStep,
    pub batches: Batches,
    /// Steps of the whole run, if that is known.
    pub steps: Option<u64>,
    /// Where a resumed run stands.
    pub resumed: Option<Progress>,
    store: Store,
    /// What a checkpoint holds.
    contents: Contents,
}

/// Makes everything ready, saying what takes time. A new run that cannot begin leaves nothing behind.
pub(super) fn prepare(config: &TrainConfig, resume: bool, observer: &mut dyn Observer) -> Result<Session> {
    let corpus = corpus(config)?;
    refuse_early(config)?;
    let before = FolderBefore::of(&config.out);
    // From here on nobody else writes there, so what has come when something fails has come from here.
    let store = Store::open(&config.out)?;
    prepare_in(store, config.clone(), corpus, resume, observer).inspect_err(|_| {
        if !resume {
            before.restore();
        }
    })
}

/// Refuses a budget that cannot be kept before anything is read or written, as far as the model is known by then.
fn refuse_early(config: &TrainConfig) -> Result<()> {
    let mut config = config.clone();
    config.model.vocabulary = match &config.tokenizer {
        TokenizerKind::Byte => config.vocab_size.max(Tokenizer::bytes().vocabulary()),
        TokenizerKind::Bpe | TokenizerKind::Char | TokenizerKind::File(_) => config.vocab_size,
    };
    if config.memory.is_none() {
        return Ok(());
    }
    let mut memory = RunMemory::of(&config);
    if config.init.is_some() || config.model.vocabulary == 0 {
        return memory.check_stages();
    }
    config.model.validate()?;
    let backend = Cpu::new(config.threads)?;
    memory.choose(&mut config, &backend).map(drop)
}

fn prepare_in(
    store: Store,
    mut config: TrainConfig,
    corpus: Corpus,
    resume: bool,
    observer: &mut dyn Observer,
) -> Result<Session> {
    // Before anything else: a run that is killed from here on can be resumed.
    save_config(&config)?;
    make_folders(&config.out)?;
    let stages = Stages::within(config.memory.map(|_| RunMemory::of(&config).limit), &config);
    let tokenizer = tokenizer(&config, &corpus, stages.words, observer)?;
    if let Some(words) = stages.words {
        tokenizer.limit_memory(words);
    }
    fit_vocabulary(&mut config, &tokenizer)?;
    if let Some(folder) = &config.init {
        export::keep_companions(folder, &config.out, &tokenizer)?;
    }
    config.model.validate()?;
    let (train, validation) = tokens(&config, &corpus, &tokenizer, observer)?;
    // What the stages before training held is gone before the arena is mapped.
    tokenizer.forget_words();
    heap::give_back();
    let backend = Cpu::new(config.threads)?;
    let mut memory = RunMemory::of(&config);
    let chosen = memory.choose(&mut config, &backend)?;
    let adaptive = matches!(config.batch, Batch::Adaptive(_)).then(|| Adaptive::new(memory.limit));
    heap::give_back();
    let predicted = account::predicted(&chosen, memory.outside);
    let training = TrainingStep::link(chosen, &backend)?;
    let contents = Contents::of_program(training.program(), training.parameters(), TrainingStep::outlasts_a_step);
    save_config(&config)?;
    let windows = Windows::new(train.len(), config.sequence, config.seed);
    let steps = steps_of(&config, &windows);
    let batches = Batches::new(train.clone(), windows, config.batch.size(), 0)?;
    let resumed = None;
    let mut session = Session {
        config,
        tokenizer,
        train,
        validation,
        backend,
        adaptive,
        predicted,
        training,
        batches,
        steps,
        resumed,
        store,
        contents,
    };
    session.fill_weights(resume)?;
    heap::give_back();
    heap::give_back_code();
    Ok(session)
}

/// The corpus that was stated, or the built-in stories.
fn corpus(config: &TrainConfig) -> Result<Corpus> {
    match config.corpus.is_empty() {
        true => Ok(Corpus::stories(config.seed, Stories::DEFAULT_COUNT)),
        false => Corpus::open(&config.corpus, config.text_field.as_deref()),
    }
}

fn make_folders(run: &Path) -> Result<()> {
    for folder in [run.join("samples"), run.join("data")] {
        std::fs::create_dir_all(&folder).map_err(atomic::failed("make", &folder))?;
    }
    Ok(())
}

/// The run's own tokenizer if it has one already; otherwise as stated.
fn tokenizer(
    config: &TrainConfig,
    corpus: &Corpus,
    limit: Option<u64>,
    observer: &mut dyn Observer,
) -> Result<Tokenizer> {
    let own = config.out.join("tokenizer.json");
    if own.exists() {
        return Tokenizer::open(&own);
    }
    let total = corpus.text_bytes();
    let texts = || corpus.documents().map(|document| document.map(|document| document.text));
    let tokenizer = match &config.tokenizer {
        TokenizerKind::File(path) => Tokenizer::open(path)?,
        TokenizerKind::Byte => Tokenizer::bytes(),
        TokenizerKind::Char => Tokenizer::characters(texts())?,
        TokenizerKind::Bpe => {
            let progress = |done| observer.event(&Event::Preparing { what: "learning the vocabulary", done, total });
            Tokenizer::train_bpe(config.vocab_size, texts(), limit, progress)?
        }
    };
    tokenizer.save_in(&config.out)?;
    Ok(tokenizer)
}

/// The model's vocabulary is the tokenizer's, or that of the weights to start from, which must hold it.
fn fit_vocabulary(config: &mut TrainConfig, tokenizer: &Tokenizer) -> Result<()> {
    let have = tokenizer.vocabulary();
    if let Some(folder) = &config.init {
        config.model = export::read_model_config(folder)?;
        if config.export_dtype.is_none() {
            config.export_dtype = Some(export::stored_dtype(folder, &config.model)?);
        }
    } else {
        let room = if config.tokenizer == TokenizerKind::Bpe { 0 } else { config.vocab_size };
        config.model.vocabulary = have.max(room);
    }
    export::check_vocabulary(tokenizer, &config.model)
}

/// The tokens to train on, and those held out.
fn tokens(
    config: &TrainConfig,
    corpus: &Corpus,
    tokenizer: &Tokenizer,
    observer: &mut dyn Observer,
) -> Result<(Arc<TokenFile>, Option<Arc<TokenFile>>)> {
    let mut progress = |done, total| observer.event(&Event::Preparing { what: "tokenising", done, total });
    let encoding = Encoding {
        encode: &|text| tokenizer.encode(text),
        vocabulary: tokenizer.vocabulary(),
        starts_with: tokenizer.document_start(),
        ends_with: &tokenizer.document_end(),
        fingerprint: tokenizer.fingerprint(),
    };
    let folder = config.out.join("data");
    let prepared = data::prepare(corpus, &encoding, &config.validation, config.sequence, &folder, &mut progress)?;
    Ok((Arc::new(prepared.train), prepared.validation.map(Arc::new)))
}

fn steps_of(config: &TrainConfig, windows: &Windows) -> Option<u64> {
    let by_epochs =
        config.epochs.map(|epochs| (epochs * windows.count() as f64 / config.batch.size() as f64).ceil() as u64);
    config.steps.or(by_epochs)
}

fn save_config(config: &TrainConfig) -> Result<()> {
    atomic::write_file(&config.out.join(CONFIG_FILE), config.to_toml().as_bytes())
}

impl Session {
    /// Tokens that a step is trained on.
    pub fn tokens_per_step(&self) -> u64 {
        (self.config.batch.size() * self.config.sequence) as u64
    }

    /// Numbers in the model.
    pub fn parameter_count(&self) -> usize {
        self.training.parameters().iter().map(|parameter| parameter.shape.elements()).sum()
    }

    /// Weights from the newest whole checkpoint, from existing weights, or new ones.
    fn fill_weights(&mut self, resume: bool) -> Result<()> {
        if resume && let Some(found) = self.store.newest_whole()? {
            return self.restore(found);
        }
        match &self.config.init {
            Some(folder) => export::read_model_weights(folder, &self.config.model, self.training.program_mut()),
            None => self.training.initialise(self.config.seed),
        }
    }

    fn restore(&mut self, found: Found) -> Result<()> {
        if found.progress.data_fingerprint != self.train.fingerprint() {
            let problem = "was trained on other text; name the same corpus, or start a new run with --init";
            return Err(Error::checkpoint(&found.folder, problem));
        }
        found.restore(&self.contents, self.training.program_mut())?;
        let windows = Windows::new(self.train.len(), self.config.sequence, found.progress.seed);
        let position = found.progress.data_position;
        self.batches = Batches::new(self.train.clone(), windows, self.config.batch.size(), position)?;
        self.resumed = Some(found.progress);
        Ok(())
    }

    /// Writes a checkpoint and drops the oldest beyond those to keep.
    pub fn save(&mut self, progress: &Progress) -> Result<PathBuf> {
        self.store.save(&self.contents, self.training.program(), progress, self.config.keep)
    }

    /// Writes the model folder that other tools open.
    pub fn export(&self) -> Result<()> {
        let companions = self.config.out.join(COMPANIONS_FOLDER);
        let export = Export {
            config: &self.config.model,
            weights: self.training.program(),
            dtype: self.config.export_dtype.unwrap_or(ExportDtype::F32),
            tokenizer: &self.tokenizer,
            origin: companions.exists().then_some(&companions),
        };
        export.write(&self.config.out.join("model"))
    }
}

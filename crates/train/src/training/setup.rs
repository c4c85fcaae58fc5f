//! From a configuration to a run that is ready to step: folder, tokenizer, tokens, program, weights.

use super::folder::{self, FolderBefore};
use super::resume;
use super::text::Text;
use super::vocabulary;
use super::watched::Watched;
use crate::checkpoint::{Found, Store};
use crate::config::{BatchSize, CONFIG_FILE, HealthInterval, Sharding, TokenizerKind, TrainConfig, Validation};
use crate::data::{self, Corpus, Encoding, Stories, TokenFile, Windows};
use crate::device;
use crate::export;
use crate::files::atomic;
use crate::lanes::{Lanes, Place};
use crate::memory::guard::{self, Doing};
use crate::memory::heap;
use crate::pipeline::{self, Stage};
use crate::planning::RunMemory;
use crate::ranks::Ranks;
use crate::run::{Event, Observer};
use crate::step::TrainingStep;
use crate::tokenizer::{LEARNING_BYTES_MIN, Tokenizer};
use crate::trainer::{Adaptive, Batches, Every, Identity, Limits, RunFolder, Session, predicted};
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The folder of a run that holds its tokens.
const DATA: &str = "data";

/// Tells the other ranks what the run is.
pub(super) fn tell(ranks: &mut Ranks, config: &TrainConfig) -> Result<()> {
    let told = serde_json::to_vec(config).expect("a configuration can be written");
    ranks.bytes_of_first(told).map(drop)
}

/// The run that the first rank tells of.
pub(super) fn hear(ranks: &mut Ranks) -> Result<TrainConfig> {
    understood(&ranks.bytes_of_first(vec![])?)
}

fn understood<T: DeserializeOwned>(told: &[u8]) -> Result<T> {
    let other = |_| Error::Config("the first rank is of another version; give all ranks the same program".into());
    serde_json::from_slice(told).map_err(other)
}

/// Makes everything ready, saying what takes time. A new run that cannot begin leaves nothing behind, and one that
/// cannot go on is as it was.
pub(super) fn prepare(
    mut ranks: Option<Ranks>,
    config: &TrainConfig,
    resume: bool,
    observer: &mut dyn Observer,
) -> Result<(Session, Text)> {
    let place = ranks.as_ref().map_or_else(Place::default, Ranks::place);
    let config = &TrainConfig { place, ..config.clone() };
    let backend = device::backend_of(config)?;
    config.precision.check(&*backend)?;
    check_ranks(config)?;
    ranks.as_mut().map_or(Ok(()), |ranks| ranks.connect(&*backend))?;
    let mut memory = RunMemory::of(config, &*backend)?;
    let observer = Watched::new(observer);
    let begun = match &mut ranks {
        None => begin(config, resume, (&*backend, &mut memory), &observer)?,
        Some(ranks) => begin_on(ranks, config, || begin(config, resume, (&*backend, &mut memory), &observer))?,
    };
    let Begun { text, store, found, before } = begun;
    let ready = assemble(ranks, text, store, found, (backend, memory), &observer);
    ready.inspect_err(|_| before.restore())
}

/// Refuses what several ranks cannot do.
fn check_ranks(config: &TrainConfig) -> Result<()> {
    let place = config.place;
    pipeline::check_ranks(place.ranks, config.stages)?;
    Lanes::at(config.lanes, Stage::of(place, config.stages).1).check()?;
    match config.batch {
        BatchSize::Auto | BatchSize::Adaptive(_) if place.ranks > 1 => Err(Error::Config(format!(
            "`settings.batch` {} follows the memory of one process, and this run has {} ranks; state how many sequences",
            config.batch, place.ranks
        ))),
        _ => Ok(()),
    }
}

/// A run whose text is tokens.
struct Begun {
    text: Text,
    /// What the run is written to, if this is the rank that does.
    store: Option<Store>,
    found: Option<Found>,
    before: FolderBefore,
}

/// What the other ranks are told once a run has begun.
#[derive(Serialize, Deserialize)]
struct Told {
    config: TrainConfig,
    fingerprint: u64,
    /// The step of the checkpoint that the run goes on from.
    step: Option<u64>,
}

/// Has the first rank begin the run, and the others find what it has made.
fn begin_on(ranks: &mut Ranks, config: &TrainConfig, begin: impl FnOnce() -> Result<Begun>) -> Result<Begun> {
    let begun = ranks.first_by_itself(begin)?.needed()?;
    let told = begun.as_ref().map(|Begun { text, found, .. }| Told {
        config: text.config.clone(),
        fingerprint: text.train.fingerprint(),
        step: found.as_ref().map(|found| found.progress.step),
    });
    let told = told.map_or_else(Vec::new, |told| serde_json::to_vec(&told).expect("a configuration can be written"));
    let told = ranks.bytes_of_first(told)?;
    let own = begun.map_or_else(|| follow_first(config, &told), Ok);
    ranks.agreed(own)
}

/// What the first rank has made, as another one finds it.
fn follow_first(config: &TrainConfig, told: &[u8]) -> Result<Begun> {
    let told: Told = understood(told)?;
    let config = TrainConfig { place: config.place, ..told.config };
    let Some((train, validation)) = own_tokens(&config, told.fingerprint) else {
        let problem = "the tokens of the first rank are not there; give `settings.out` a folder that all ranks see";
        return Err(Error::corpus(&config.out.join(DATA), problem));
    };
    let tokenizer = Tokenizer::open(&own_tokenizer(&config))?;
    let found = told.step.map(|step| Found::at(&config.out, step)).transpose()?;
    let text = Text { config, tokenizer, train, validation };
    Ok(Begun { text, store: None, found, before: FolderBefore::InUse })
}

/// Opens the folder of a run, and makes tokens of its text if that was not done before.
fn begin(
    config: &TrainConfig,
    resume: bool,
    (backend, memory): (&dyn Backend, &mut RunMemory),
    observer: &Watched,
) -> Result<Begun> {
    if resume {
        resume::check_resumable(config)?;
        let mut store = Store::open(&config.out)?;
        let found = store.newest_whole()?;
        let text = read(config.clone(), None, found.as_ref(), (backend, memory), observer)?;
        return Ok(Begun { text, store: Some(store), found, before: FolderBefore::InUse });
    }
    let corpus = corpus(config)?;
    memory.reads(corpus.bytes_held()?);
    refuse_early(config, memory, backend)?;
    folder::check_free(&config.out)?;
    folder::check_unmixed(config)?;
    let before = FolderBefore::of(&config.out);
    let as_before = FolderBefore::of(&config.out);
    guard::on_refusal(move || as_before.restore());
    // From here on nobody else writes there, so what has come when something fails has come from here.
    let store = Store::open(&config.out)?;
    // Someone else may have been quicker.
    folder::check_free(&config.out)?;
    folder::clear_unstarted(&config.out)?;
    // Before anything else: a run that is killed from here on is known for one.
    let saved = save_config(config);
    match saved.and_then(|()| read(config.clone(), Some(corpus), None, (backend, memory), observer)) {
        Ok(text) => Ok(Begun { text, store: Some(store), found: None, before }),
        Err(error) => {
            before.restore();
            Err(error)
        }
    }
}

/// Refuses a budget that cannot be kept before anything is read or written, if the model is known by then.
fn refuse_early(config: &TrainConfig, memory: &mut RunMemory, backend: &dyn Backend) -> Result<()> {
    let mut config = config.clone();
    config.model.vocabulary = match &config.tokenizer {
        TokenizerKind::Byte => config.vocab_size.max(Tokenizer::bytes().vocabulary()),
        TokenizerKind::Bpe => config.vocab_size,
        TokenizerKind::Char | TokenizerKind::File(_) => return Ok(()),
    };
    if config.memory.is_none() || config.init.is_some() {
        return Ok(());
    }
    config.model.validate()?;
    refuse(&config, memory, backend)
}

/// Refuses a budget that cannot be kept.
fn refuse(config: &TrainConfig, memory: &mut RunMemory, backend: &dyn Backend) -> Result<()> {
    guard::doing(Doing::Planning);
    memory.choose(&mut config.clone(), backend)?;
    heap::give_back();
    Ok(())
}

/// The text of a run, with its model known.
fn read(
    mut config: TrainConfig,
    corpus: Option<Corpus>,
    found: Option<&Found>,
    (backend, memory): (&dyn Backend, &mut RunMemory),
    observer: &Watched,
) -> Result<Text> {
    if let Some(found) = found {
        observer.tell_skipped(found);
        config.model = resume::model_of(found, &config)?;
    }
    make_folders(&config.out)?;
    let (tokenizer, train, validation) = text(&mut config, corpus, found, (backend, memory), observer)?;
    config.model.validate()?;
    Ok(Text { config, tokenizer, train, validation })
}

/// The run itself: planned, linked, with its weights.
fn assemble(
    mut ranks: Option<Ranks>,
    text: Text,
    store: Option<Store>,
    found: Option<Found>,
    (backend, mut memory): (Arc<dyn Backend>, RunMemory),
    observer: &Watched,
) -> Result<(Session, Text)> {
    let Text { mut config, tokenizer, train, validation } = text;
    // What the stages before training held is gone before the arena is mapped.
    tokenizer.forget_words();
    heap::give_back();
    observer.go_on()?;
    guard::doing(Doing::Planning);
    let asked = config.health;
    let mut chosen = memory.choose(&mut config, &*backend)?;
    let least = ranks.as_mut().map(|ranks| ranks.least(config.micro_batch)).transpose()?;
    if let Some(micro_batch) = least.filter(|micro_batch| *micro_batch != config.micro_batch) {
        config.micro_batch = micro_batch;
        chosen = memory.choose(&mut config, &*backend)?;
    }
    let measures = TrainConfig { health: asked, ..config.clone() }.measures_health();
    if asked == HealthInterval::Auto && !measures {
        let why = match (config.local_steps, config.stages) {
            (0, 1) => format!("`settings.shard` {} no rank has all of them", config.shard),
            (0, _) => "`settings.stages` no rank has all of them".to_string(),
            _ => "`settings.local_steps` each lane has its own".to_string(),
        };
        observer.event(&Event::Note(&format!("gradients are not measured: with {why}")));
    } else if config.health != asked {
        observer
            .event(&Event::Note("gradients are not measured (`settings.health` off): the memory has no room for it"));
    }
    if config.stages > 1 {
        let told = "no samples are written: no rank has all blocks; `gradus generate` takes one from what is saved";
        observer.event(&Event::Note(told));
    }
    if config.shard == Sharding::Gradients && config.place.ranks > 1 && !chosen.config.gives_gradients() {
        let told = "sums of gradients are whole on this rank, for it computes more than at once (`settings.shard` gradients): take as many \
                    `settings.lanes` as ranks, and `settings.micro_batch` all of a lane";
        observer.event(&Event::Note(told));
    }
    heap::give_back();
    observer.go_on()?;
    let outside = memory.outside(&config);
    let adaptive = Adaptive::new(memory.limit.bytes, outside, config.recompute.policy());
    let predicted = predicted(&chosen, outside);
    let training = TrainingStep::link(chosen, &*backend)?;
    let mut training = match ranks {
        Some(ranks) => training.with_ranks(ranks)?,
        None => training,
    };
    let contents = training.contents();
    let steps = steps_of(&config, &Windows::new(train.len(), config.sequence, config.seed));
    let schedule = resume::schedule(&mut config, steps, found.as_ref().map(|found| &found.progress));
    let is_first = training.is_first_rank();
    let mut session = Session {
        batch: config.batch.size(),
        ahead: Batches::AHEAD,
        limits: Limits { steps, seconds: config.time_seconds },
        schedule,
        clip: config.clip,
        seed: config.seed,
        every: Every {
            validation: config.eval_every,
            sample: config.sample_every,
            save: config.save_every,
            health: training.agreed_health_steps(config.health)?,
            curvature: config.watch_curvature,
        },
        folder: store.map(|store| RunFolder { path: config.out.clone(), store, contents, keep: config.keep }),
        events: config.tensorboard.folder(&config.out).filter(|_| is_first),
        identity: Identity {
            data_fingerprint: train.fingerprint(),
            model: Some(config.model.clone()),
            configuration: serde_json::to_value(&config).expect("a configuration can be written"),
        },
        predicted,
        adaptive: matches!(config.batch, BatchSize::Adaptive(_)).then_some(adaptive),
        resumed: None,
        saved: None,
        guard: memory.into_guard(),
        backend,
        training,
    };
    let text = Text { config, tokenizer, train, validation };
    fill_weights(&mut session, &text, found)?;
    // A run that cannot go on so keeps the configuration that it had.
    if is_first {
        save_config(&text.config)?;
    }
    // What is there from here on is a run that can be resumed.
    guard::on_refusal(|| ());
    guard::doing(Doing::Training);
    heap::give_back();
    heap::give_back_code();
    Ok((session, text))
}

/// Weights from a checkpoint, from existing weights, or new ones.
fn fill_weights(session: &mut Session, text: &Text, found: Option<Found>) -> Result<()> {
    match (found, &text.config.init) {
        (Some(found), _) if found.progress.data_fingerprint != text.train.fingerprint() => {
            let problem = "was trained on other text; name the same corpus, or start a new run with `settings.init`";
            Err(Error::checkpoint(&found.folder, problem))
        }
        (Some(found), _) => session.restore(found),
        (None, Some(folder)) => export::read_model_weights(folder, &text.config.model, &mut session.training),
        (None, None) => session.training.initialize(text.config.seed),
    }
}

/// The tokenizer and the tokens: the run's own where it has them, and made from the corpus otherwise.
fn text(
    config: &mut TrainConfig,
    corpus: Option<Corpus>,
    found: Option<&Found>,
    (backend, memory): (&dyn Backend, &mut RunMemory),
    observer: &Watched,
) -> Result<(Tokenizer, Arc<TokenFile>, Option<Arc<TokenFile>>)> {
    let own = found.and_then(|found| own_tokens(config, found.progress.data_fingerprint));
    if let Some((train, validation)) = own {
        return Ok((Tokenizer::open(&own_tokenizer(config))?, train, validation));
    }
    let mut corpus = corpus.map_or_else(|| self::corpus(config), Ok)?;
    memory.reads(corpus.bytes_held()?);
    let words = share_memory(&mut corpus, memory.words(config), config)?;
    observer.tell_left_out(&corpus);
    let tokenizer = tokenizer(config, &corpus, Some(words), observer)?;
    tokenizer.limit_memory(words);
    if found.is_none() {
        vocabulary::check(config, &tokenizer, observer)?;
        fit_vocabulary(config, &tokenizer)?;
        if let Some(folder) = &config.init {
            export::keep_companions(folder, &config.out, &tokenizer)?;
        }
    }
    if config.memory.is_some() {
        // Now the model is known, and the longest stage has not begun.
        config.model.validate()?;
        refuse(config, memory, backend)?;
    }
    guard::doing(Doing::Tokenizing);
    let (train, validation) = tokens(config, &corpus, &tokenizer, observer)?;
    Ok((tokenizer, train, validation))
}

/// Gives the words' share of what is left of the memory, and lets the corpus take what words do not need.
fn share_memory(corpus: &mut Corpus, left: u64, config: &TrainConfig) -> Result<u64> {
    corpus.keep_input_in(&config.out.join(DATA));
    let words_min = if config.tokenizer == TokenizerKind::Bpe { LEARNING_BYTES_MIN } else { 0 };
    corpus.limit_memory(corpus.bytes_held()?.saturating_add(left.saturating_sub(words_min)));
    Ok(left.max(words_min))
}

/// The tokens that a run was trained on, if they are in its folder, whole, with its tokenizer.
fn own_tokens(config: &TrainConfig, fingerprint: u64) -> Option<(Arc<TokenFile>, Option<Arc<TokenFile>>)> {
    let holds_out = config.validation != Validation::Fraction(0.0);
    let prepared = data::reuse(&config.out.join(DATA), fingerprint, holds_out)?;
    own_tokenizer(config).is_file().then(|| (Arc::new(prepared.train), prepared.validation.map(Arc::new)))
}

fn own_tokenizer(config: &TrainConfig) -> PathBuf {
    config.out.join("tokenizer.json")
}

/// The corpus that was stated, or the built-in stories.
fn corpus(config: &TrainConfig) -> Result<Corpus> {
    match config.corpus.is_empty() {
        true => Ok(Corpus::stories(config.seed, Stories::DEFAULT_COUNT)),
        false => Corpus::open(&config.corpus, config.text_field.as_deref()),
    }
}

fn make_folders(run: &Path) -> Result<()> {
    let samples = run.join("samples");
    atomic::make_folder(&samples)?;
    atomic::remove_leftovers(&samples)?;
    atomic::make_folder(&run.join(DATA))
}

/// The run's own tokenizer if it has one already; otherwise as stated.
fn tokenizer(config: &TrainConfig, corpus: &Corpus, limit: Option<u64>, observer: &Watched) -> Result<Tokenizer> {
    let own = own_tokenizer(config);
    if own.exists() {
        return Tokenizer::open(&own);
    }
    let total = corpus.text_bytes();
    let texts = || corpus.documents().map(|document| observer.go_on().and(document).map(|document| document.text));
    guard::doing(match &config.tokenizer {
        TokenizerKind::Bpe | TokenizerKind::Char => Doing::LearningVocabulary,
        TokenizerKind::Byte | TokenizerKind::File(_) => Doing::OpeningTokenizer,
    });
    let tokenizer = match &config.tokenizer {
        TokenizerKind::File(path) => Tokenizer::open(path)?,
        TokenizerKind::Byte => Tokenizer::bytes(),
        TokenizerKind::Char => Tokenizer::characters(texts())?,
        TokenizerKind::Bpe => {
            let progress = |done| observer.event(&Event::Preparing { what: "learning the vocabulary", done, total });
            Tokenizer::train_bpe(config.vocab_size, texts(), limit, progress)?
        }
    };
    observer.tell_forgotten(&tokenizer);
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
    export::check_vocabulary(tokenizer, &config.model, "leave `settings.tokenizer` out to use the model's own")
}

/// The tokens to train on, and those held out.
fn tokens(
    config: &TrainConfig,
    corpus: &Corpus,
    tokenizer: &Tokenizer,
    observer: &Watched,
) -> Result<(Arc<TokenFile>, Option<Arc<TokenFile>>)> {
    let mut progress = |done, total| {
        observer.event(&Event::Preparing { what: "tokenizing", done, total });
        observer.go_on()
    };
    let encoding = Encoding {
        encode: &|text| tokenizer.encode(text),
        vocabulary: tokenizer.vocabulary(),
        starts_with: tokenizer.document_start(),
        ends_with: &tokenizer.document_end(),
        fingerprint: tokenizer.fingerprint(),
    };
    let folder = config.out.join(DATA);
    let prepared = data::prepare(corpus, &encoding, &config.validation, config.sequence, &folder, &mut progress)?;
    Ok((Arc::new(prepared.train), prepared.validation.map(Arc::new)))
}

fn steps_of(config: &TrainConfig, windows: &Windows) -> Option<u64> {
    let by_epochs =
        config.epochs.map(|epochs| (epochs * windows.count() as f64 / config.batch.size() as f64).ceil() as u64);
    config.steps.or(by_epochs)
}

/// Writes the configuration, unless it is there as it is: a run can go on where nothing more can be written.
fn save_config(config: &TrainConfig) -> Result<()> {
    let (path, text) = (config.out.join(CONFIG_FILE), config.to_toml());
    match std::fs::read_to_string(&path) {
        Ok(saved) if saved == text => Ok(()),
        _ => atomic::write_file(&path, text.as_bytes()),
    }
}

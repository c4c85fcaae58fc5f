//! The calls of the library, one for each command.

use crate::args::{EvalArgs, GenerateArgs, TokenizeArgs};
use gradus_train::config::TokenizerKind;
use gradus_train::data::{Corpus, Stories};
use gradus_train::evaluate::{self, Evaluation, Window};
use gradus_train::generate::{Generator, Sampling, Texts, Written};
use gradus_train::memory::guard::{self, Doing};
use gradus_train::memory::heap;
use gradus_train::models::ModelConfig;
use gradus_train::tokenizer::{Report, TextStream, Tokenizer, tokenize_report};
use gradus_train::{Error, Result, device, export};
use std::path::Path;

/// The seed of the built-in stories where no other is given.
const STORIES_SEED: u32 = 1;

/// Tokens that `tokenize` has byte pairs learned for.
const VOCAB_SIZE: usize = 4096;

/// The sizes of the model in a model folder.
pub fn model_config(model_folder: &Path) -> Result<ModelConfig> {
    export::read_model_config(model_folder)
}

/// Who is told what is written: the number of the text, what comes to it, and whether it ends.
pub type Hear<'a> = &'a mut dyn FnMut(usize, &str, bool) -> Result<()>;

/// Texts from the model in a model folder, each without the prompt.
pub fn generate(model_folder: &Path, args: &GenerateArgs, prompt: &str, threads: usize, hear: Hear) -> Result<()> {
    let config = export::read_model_config(model_folder)?;
    let backend = &*device::backend(args.device, threads)?;
    let precision = args.precision.into();
    let memory = Generator::memory(&config, precision, backend, args.memory)?;
    guard::doing(Doing::OpeningTokenizer);
    let tokenizer = Tokenizer::open(model_folder)?;
    guard::doing(Doing::Generating);
    export::check_vocabulary(&tokenizer, &config, export::USE_ITS_OWN_TOKENIZER)?;
    let prompt = prompt_tokens(model_folder, &tokenizer, prompt)?;
    let stops = signed(&export::stop_tokens(model_folder, &tokenizer)?);
    // Nothing is encoded from here on: what that takes is given back before there are weights.
    let tokens = tokenizer.into_texts();
    let texts = Texts { count: args.count, prompt_tokens: prompt.len(), max_tokens: args.max_tokens };
    let mut generator = Generator::without_weights(&config, precision, backend, texts, &memory)?;
    generator.allow_only(|token| tokens.knows(token))?;
    export::read_model_weights(model_folder, &config, &mut generator)?;
    heap::give_back();
    heap::give_back_code();
    let sampling =
        Sampling { temperature: args.temperature as f32, top_k: args.top_k, top_p: args.top_p as f32, seed: args.seed };
    let mut streams: Vec<_> = (0..args.count).map(|_| TextStream::after(&tokens, &prompt)).collect();
    let mut written = |number: usize, written: Written| match written {
        Written::Token(token) => hear(number, &streams[number].push(token as u32)?, false),
        Written::End => hear(number, &streams[number].finish()?, true),
    };
    generator.generate(&signed(&prompt), &sampling, args.max_tokens, &stops, &mut written).map(drop)
}

/// The tokens of a prompt. Without one, a text begins as the model's tokenizer or its settings say.
fn prompt_tokens(model_folder: &Path, tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
    if !prompt.is_empty() {
        return tokenizer.encode_prompt(prompt);
    }
    let start = export::start_tokens(model_folder, tokenizer)?;
    if start.is_empty() {
        return Err(Error::Config("this model needs a text to go on from; give one by --prompt".into()));
    }
    Ok(start)
}

/// Ids as a program takes them.
fn signed(ids: &[u32]) -> Vec<i32> {
    ids.iter().map(|&id| id as i32).collect()
}

/// How well the model in a model folder predicts a corpus.
pub fn evaluate(model_folder: &Path, args: &EvalArgs, threads: usize) -> Result<Evaluation> {
    let corpus = Corpus::open(&args.corpus, args.text_field.as_deref())?;
    let window = Window { batch: args.batch, sequence: args.sequence, memory: args.memory };
    evaluate::evaluate(model_folder, &corpus, &*device::backend(args.device, threads)?, window, &mut |_, _| {})
}

/// Makes or opens the tokenizer, saves it if asked to, and tokenizes the corpus.
pub fn tokenize(args: &TokenizeArgs) -> Result<(Tokenizer, Report)> {
    if args.vocab_size.is_some() && args.tokenizer != TokenizerKind::Bpe {
        let problem =
            format!("--vocab-size has no effect: --tokenizer {} has its own tokens; leave it out", args.tokenizer);
        return Err(Error::Config(problem));
    }
    if args.text_field.is_some() && args.corpus.is_empty() {
        return Err(Error::Config(
            "--text-field has no effect without a corpus; name the files, or leave it out".into(),
        ));
    }
    let corpus = match args.corpus.is_empty() {
        true => Corpus::stories(STORIES_SEED, Stories::DEFAULT_COUNT),
        false => Corpus::open(&args.corpus, args.text_field.as_deref())?,
    };
    let texts = || corpus.documents().map(|document| document.map(|document| document.text));
    let tokenizer = match &args.tokenizer {
        TokenizerKind::Byte => Tokenizer::bytes(),
        TokenizerKind::Char => Tokenizer::characters(texts())?,
        TokenizerKind::Bpe => Tokenizer::train_bpe(args.vocab_size.unwrap_or(VOCAB_SIZE), texts(), None, |_| {})?,
        TokenizerKind::File(path) => Tokenizer::open(path)?,
    };
    let report = tokenize_report(&tokenizer, texts())?;
    if let Some(path) = &args.out {
        tokenizer.save(path)?;
    }
    Ok((tokenizer, report))
}

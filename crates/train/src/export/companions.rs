//! What a model folder holds besides its weights, kept with a run that starts from it.

use super::{CONFIG, GENERATION, TOKENIZER, config, read_json, read_model_config, write_json};
use crate::files::atomic;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The folder of a run that holds what the model it started from had besides its weights.
pub const COMPANIONS_FOLDER: &str = "init";

/// Files that say how a model's text becomes tokens and how a conversation is written.
pub(super) const OF_TOKENIZERS: [&str; 9] = [
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
];

/// Copies what a model folder holds besides its weights into a run's folder, if it is not there yet: configuration,
/// generation settings and, if the run keeps the model's tokenizer, all that belongs to that. A tokenizer whose ids
/// stand for other tokens is refused, for the weights would mean other words.
pub fn keep_companions(model: &Path, run: &Path, tokenizer: &Tokenizer) -> Result<()> {
    let kept = run.join(COMPANIONS_FOLDER);
    if kept.exists() {
        return Ok(());
    }
    let is_own = is_own_tokenizer(model, tokenizer)?;
    atomic::write_folder(&kept, |beside| {
        write_json(&beside.join(CONFIG), &model_config(model)?)?;
        copy(&[GENERATION], model, beside)?;
        if is_own { copy(&OF_TOKENIZERS, model, beside) } else { Ok(()) }
    })
}

/// The configuration of a model as it came, except that it says whether its embeddings are tied in fact: the weights,
/// which also say it, are not kept.
fn model_config(model: &Path) -> Result<Value> {
    let path = model.join(CONFIG);
    let mut settings = read_json(&path)?;
    let in_fact = read_model_config(model)?.tie_embeddings;
    if config::stated_config(&path)?.tie_embeddings != in_fact {
        settings.insert("tie_word_embeddings".into(), json!(in_fact));
    }
    Ok(Value::Object(settings))
}

/// Whether a tokenizer is the one in a model's folder. Another one must have all its tokens under the same ids.
fn is_own_tokenizer(model: &Path, tokenizer: &Tokenizer) -> Result<bool> {
    let path = model.join(TOKENIZER);
    if !path.exists() || tokenizer.name() == path.display().to_string() {
        return Ok(path.exists());
    }
    let own = Tokenizer::open(model)?;
    if own.fingerprint() == tokenizer.fingerprint() {
        return Ok(true);
    }
    match own.first_difference(tokenizer) {
        None => Ok(false),
        Some((id, own, other)) => {
            let problem = format!(
                "its token {id} is {other:?} and the model was trained with {own:?}; leave `settings.tokenizer` out to use the model's own"
            );
            Err(Error::Tokenizer { name: tokenizer.name().to_string(), problem })
        }
    }
}

/// Copies those of some files that are there.
pub(super) fn copy(files: &[&str], from: &Path, to: &Path) -> Result<()> {
    for name in files {
        let (source, target) = (from.join(name), to.join(name));
        if source.is_file() {
            fs::copy(&source, &target).map_err(atomic::failed("write", &target))?;
        }
    }
    Ok(())
}

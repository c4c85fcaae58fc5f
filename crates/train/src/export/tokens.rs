//! The special tokens that a model folder states for writing text.

use super::{CONFIG, GENERATION, read_object_if_there};
use crate::models::ModelConfig;
use crate::tokenizer::{Tokenizer, token_ids};
use crate::{Error, Result};
use std::path::Path;

/// The tokens that end a text: those of the folder's generation settings, else of its `config.json`, else the
/// tokenizer's end of text.
pub fn stop_tokens(folder: &Path, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    Ok(match stated(folder, "eos_token_id")? {
        ids if ids.is_empty() => tokenizer.end_of_text().into_iter().collect(),
        ids => ids,
    })
}

/// What a text begins with that has no prompt: what the tokenizer's template says, else the token that the folder
/// states, else the end of another text. Nothing if there is none of these.
pub fn start_tokens(folder: &Path, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let template = tokenizer.encode_prompt("")?;
    if !template.is_empty() {
        return Ok(template);
    }
    let stated = stated(folder, "bos_token_id")?.into_iter().find(|id| tokenizer.knows(*id));
    Ok(stated.or(tokenizer.end_of_text()).into_iter().collect())
}

fn stated(folder: &Path, key: &str) -> Result<Vec<u32>> {
    for file in [GENERATION, CONFIG] {
        let ids = token_ids(&read_object_if_there(&folder.join(file))?, key);
        if !ids.is_empty() {
            return Ok(ids);
        }
    }
    Ok(vec![])
}

/// What to do about a model folder whose tokenizer is another model's.
pub const USE_ITS_OWN_TOKENIZER: &str = "copy the folder again with the tokenizer.json that the model was trained with";

/// Refuses a tokenizer with ids that a model has no room for, with this advice.
pub fn check_vocabulary(tokenizer: &Tokenizer, config: &ModelConfig, advice: &str) -> Result<()> {
    let (have, room) = (tokenizer.vocabulary(), config.vocabulary);
    if have <= room {
        return Ok(());
    }
    let problem = format!("it has {have} tokens and the model has room for {room}; {advice}");
    Err(Error::Tokenizer { name: tokenizer.name().to_string(), problem })
}

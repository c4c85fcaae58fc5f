//! What a `tokenizer.json` states, checked before the library takes it: to its size and to its ids it trusts.

use super::problem;
use crate::{Error, Result};
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// The largest file that is read. The largest vocabularies in use, of 256,000 tokens, take half of it.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Ids below the largest that no token has, at most: the library goes through them one by one and notes each.
const UNUSED_IDS_MAX: u64 = 1 << 16;

/// The bytes of a `tokenizer.json`.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let file = File::open(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => problem(
            &path.display(),
            "there is no such file: name a tokenizer.json, a folder with one, byte, char or bpe",
        ),
        _ => Error::io("read", path)(error),
    })?;
    let mut bytes = vec![];
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => {
            let advice = "name a tokenizer.json, the file of a tokenizer alone";
            Err(problem(&path.display(), format!("it is over {} MiB: {advice}", FILE_BYTES_MAX >> 20)))
        }
        false => Ok(bytes),
    }
}

/// Whether ids lie so close together that a table of them is not much larger than the tokens, and no two tokens of the
/// vocabulary share one: the library would keep both and write only one of them back.
pub fn ids(value: &Value) -> Result<(), String> {
    let (vocabulary, added) = (&value["model"]["vocab"], value["added_tokens"].as_array());
    if let Some(id) = shared_id(vocabulary) {
        return Err(format!(
            "two of its tokens have the id {id}: name a tokenizer.json whose tokens have ids of their own"
        ));
    }
    // In a list the places are the ids.
    let listed = vocabulary.as_array().map_or(0, Vec::len);
    let stated = vocabulary.as_object().into_iter().flat_map(|vocabulary| vocabulary.values());
    let stated = stated.chain(added.into_iter().flatten().map(|token| &token["id"]));
    let (mut tokens, mut largest) = (listed as u64, 0);
    for id in stated.filter_map(Value::as_u64) {
        (tokens, largest) = (tokens + 1, largest.max(id));
    }
    if largest <= tokens + UNUSED_IDS_MAX {
        return Ok(());
    }
    let advice = "name a tokenizer.json whose ids follow one another";
    Err(format!("it has an id of {largest} where it has {tokens} tokens: {advice}"))
}

/// An id that several tokens of a vocabulary have.
fn shared_id(vocabulary: &Value) -> Option<u64> {
    let mut ids: Vec<u64> = vocabulary.as_object()?.values().filter_map(Value::as_u64).collect();
    ids.sort_unstable();
    ids.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// Whether every special token that a template names is one that it states: the library takes that for granted.
pub fn template(processor: &Value) -> Result<(), String> {
    processor["processors"].as_array().into_iter().flatten().try_for_each(template)?;
    let pieces = ["single", "pair"].into_iter().filter_map(|form| processor[form].as_array()).flatten();
    for name in pieces.filter_map(|piece| piece["SpecialToken"]["id"].as_str()) {
        if processor["special_tokens"].get(name).is_none() {
            let advice = "name a tokenizer.json that is whole";
            return Err(format!("its template begins or ends texts with {name:?}, which it does not state: {advice}"));
        }
    }
    Ok(())
}

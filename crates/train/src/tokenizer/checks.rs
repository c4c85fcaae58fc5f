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

/// Whether ids lie so close together that a table of them is not much larger than the tokens.
pub fn ids(value: &Value) -> Result<(), String> {
    let (vocabulary, added) = (&value["model"]["vocab"], value["added_tokens"].as_array());
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

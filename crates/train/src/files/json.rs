//! Small JSON files that belong to others.

use crate::{Error, Result};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The largest file that is read: an index of the largest models' weights takes a few MB.
const BYTES_MAX: u64 = 16 << 20;

/// The keys of a file that holds one JSON object.
pub(crate) fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let mut text = vec![];
    let file = File::open(path).map_err(Error::io("read", path))?;
    file.take(BYTES_MAX + 1).read_to_end(&mut text).map_err(Error::io("read", path))?;
    if text.len() as u64 > BYTES_MAX {
        let problem = format!("larger than {} MiB, which such a file never is; save it again", BYTES_MAX >> 20);
        return Err(Error::checkpoint(path, problem));
    }
    let broken = |error| Error::checkpoint(path, format!("broken JSON ({error}); copy or save it again"));
    match serde_json::from_slice(&text).map_err(broken)? {
        Value::Object(values) => Ok(values),
        _ => Err(Error::checkpoint(path, "not a JSON object; copy or save it again")),
    }
}

/// As [`read_object`], or no keys if there is no such file.
pub(crate) fn read_object_if_there(path: &Path) -> Result<Map<String, Value>> {
    if path.exists() { read_object(path) } else { Ok(Map::new()) }
}

//! From what a user names to files.

use super::{Compression, Format, SourceFile, TAKEN};
use crate::{Error, Result};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Adds the files that `path` stands for.
pub fn find(path: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let before = files.len();
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => walk(path, files)?,
        Ok(metadata) => files.push(file(path, &metadata).ok_or_else(|| unknown(path))?),
        Err(_) if is_glob(path) => expand(path, files)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::corpus(path, "there is no such file or folder: check the path"));
        }
        Err(error) => return Err(Error::io("read", path)(error)),
    }
    if files.len() == before {
        return Err(Error::corpus(path, format!("no file of a corpus is found there: {TAKEN} are taken")));
    }
    Ok(())
}

/// The files of a folder and its folders, sorted by path; what is not text is passed over. Links to folders are
/// not followed, so that no ring of them is walked for ever.
fn walk(folder: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let mut entries = entries.map_err(Error::io("read", folder))?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(Error::io("read", &path))?.is_dir() {
            walk(&path, files)?;
        } else if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            files.extend(file(&path, &metadata));
        }
    }
    Ok(())
}

fn expand(pattern: &Path, files: &mut Vec<SourceFile>) -> Result<()> {
    let text = pattern.to_str().ok_or_else(|| Error::corpus(pattern, "the path is not UTF-8: rename it"))?;
    let found = glob::glob(text).map_err(|error| {
        Error::corpus(pattern, format!("the pattern is wrong at character {}: {}", error.pos, error.msg))
    })?;
    for path in found {
        let path: PathBuf = path.map_err(|error| {
            let path = error.path().to_path_buf();
            Error::io("read", &path)(error.into())
        })?;
        let metadata = fs::metadata(&path).map_err(Error::io("read", &path))?;
        match metadata.is_dir() {
            true => walk(&path, files)?,
            false => files.extend(file(&path, &metadata)),
        }
    }
    Ok(())
}

fn is_glob(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// The file with its format, if its name has an ending that we know.
fn file(path: &Path, metadata: &Metadata) -> Option<SourceFile> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let (name, compression) = match name.rsplit_once('.')? {
        (rest, "gz") => (rest, Compression::Gzip),
        (rest, "zst") => (rest, Compression::Zstandard),
        _ => (name.as_str(), Compression::None),
    };
    let format = match name.rsplit_once('.')?.1 {
        "txt" => Format::PlainText,
        "jsonl" | "json" | "ndjson" => Format::JsonLines,
        "parquet" => Format::Parquet,
        _ => return None,
    };
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    Some(SourceFile {
        path: path.to_path_buf(),
        format,
        compression,
        bytes: metadata.len(),
        modified_nanoseconds: modified.map_or(0, |since| since.as_nanos() as u64),
    })
}

fn unknown(path: &Path) -> Error {
    Error::corpus(
        path,
        format!("its name does not say what it holds: {TAKEN} are taken; rename it, to .txt if it is text"),
    )
}

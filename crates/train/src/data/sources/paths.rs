//! From what a user names to files.

use super::{Compression, Format, SourceFile, TAKEN};
use crate::config::{CONFIG_FILE, TrainConfig};
use crate::{Error, Result};
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The largest file that may be the configuration of a run.
const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Adds the files that `path` stands for, and the folders of runs that do not belong to them.
pub fn find(path: &Path, files: &mut Vec<SourceFile>, left_out: &mut Vec<PathBuf>) -> Result<()> {
    let before = (files.len(), left_out.len());
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => walk(path, files, left_out)?,
        Ok(metadata) => files.push(file(path, &metadata).ok_or_else(|| unknown(path))?),
        Err(_) if is_glob(path) => expand(path, files, left_out)?,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Error::corpus(path, "there is no such file or folder: check the path"));
        }
        Err(error) => return Err(Error::io("read", path)(error)),
    }
    if files.len() > before.0 {
        return Ok(());
    }
    let problem = format!("no file of a corpus is found there: {TAKEN} are taken");
    let runs = if left_out.len() > before.1 { "; folders of runs are, if they are named themselves" } else { "" };
    Err(Error::corpus(path, problem + runs))
}

/// Whether a folder is that of a run: its texts are what a model wrote, and what it was trained on.
fn is_run(folder: &Path) -> bool {
    let is_small = fs::metadata(folder.join(CONFIG_FILE)).is_ok_and(|about| about.len() <= CONFIG_BYTES_MAX);
    is_small && (TrainConfig::is_in(folder) || TrainConfig::read(folder).is_ok())
}

/// The files of a folder and its folders, sorted by path; what is not text is passed over. Links to folders are
/// not followed, so that no ring of them is walked for ever.
fn walk(folder: &Path, files: &mut Vec<SourceFile>, left_out: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
    let mut entries = entries.map_err(Error::io("read", folder))?;
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = entry.path();
        if entry.file_type().map_err(Error::io("read", &path))?.is_dir() {
            walk_unless_run(&path, files, left_out)?;
        } else if let Ok(metadata) = fs::metadata(&path)
            && metadata.is_file()
        {
            files.extend(file(&path, &metadata));
        }
    }
    Ok(())
}

fn walk_unless_run(folder: &Path, files: &mut Vec<SourceFile>, left_out: &mut Vec<PathBuf>) -> Result<()> {
    match is_run(folder) {
        true => left_out.push(folder.to_path_buf()),
        false => walk(folder, files, left_out)?,
    }
    Ok(())
}

fn expand(pattern: &Path, files: &mut Vec<SourceFile>, left_out: &mut Vec<PathBuf>) -> Result<()> {
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
            true => walk_unless_run(&path, files, left_out)?,
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
    Some(SourceFile {
        path: path.to_path_buf(),
        place: path.to_path_buf(),
        format,
        compression,
        bytes: metadata.len(),
        modified_nanoseconds: modified_nanoseconds(metadata),
        bytes_max: u64::MAX,
    })
}

/// When a file was modified last, as a number.
pub fn modified_nanoseconds(metadata: &Metadata) -> u64 {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    modified.map_or(0, |since| since.as_nanos() as u64)
}

fn unknown(path: &Path) -> Error {
    Error::corpus(
        path,
        format!("its name does not say what it holds: {TAKEN} are taken; rename it, to .txt if it is text"),
    )
}

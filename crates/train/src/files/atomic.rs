//! Files and folders that are there whole or not at all: written beside their place, synced, and renamed.
//!
//! A process that is killed while it writes leaves `NAME.tmp-PID` behind, or, between the two renames that replace
//! a folder, the former one as `NAME.old-PID`. [`remove_leftovers`] clears the one and puts the other back.

use crate::{Error, Result};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

const UNFINISHED: &str = ".tmp-";
const FORMER: &str = ".old-";

/// Writes a file, or replaces it.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let beside = beside(path, UNFINISHED);
    let written = create(&beside, bytes).and_then(|()| fs::rename(&beside, path)).and_then(|()| sync_parent(path));
    written.map_err(|source| {
        let _ = fs::remove_file(&beside);
        failed("write", path)(source)
    })
}

/// Writes a folder, or replaces it, with the files that `fill` puts into the folder it is given.
pub fn write_folder<T>(path: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let beside = beside(path, UNFINISHED);
    let fill_and_place = || {
        remove_any(&beside).and_then(|()| fs::create_dir(&beside)).map_err(failed("write", path))?;
        let made = fill(&beside)?;
        sync_folder(&beside).and_then(|()| replace_folder(&beside, path)).map_err(failed("write", path))?;
        Ok(made)
    };
    fill_and_place().map_err(|error| {
        let _ = fs::remove_dir_all(&beside);
        told_of(error, &beside, path)
    })
}

/// Removes a folder so that it is never seen in part.
pub fn remove_folder(path: &Path) -> Result<()> {
    let beside = beside(path, UNFINISHED);
    let removed = remove_any(&beside).and_then(|()| fs::rename(path, &beside)).and_then(|()| remove_any(&beside));
    removed.map_err(failed("remove", path))
}

/// Clears away what processes that were killed left in a folder. Nobody may be writing there.
pub fn remove_leftovers(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io("read", folder))?,
    };
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder))?.path();
        let place = |mark| place_of(&path, mark).map(|name| folder.join(name));
        let cleared = match (place(UNFINISHED), place(FORMER)) {
            (None, None) => Ok(()),
            (None, Some(place)) if !place.exists() => fs::rename(&path, place),
            _ => remove_any(&path),
        };
        cleared.map_err(failed("remove", &path))?;
    }
    Ok(())
}

/// Makes sure that a folder can be written to, before hours are spent on what is to lie there.
pub fn check_writable(folder: &Path) -> Result<()> {
    let probe = beside(&folder.join("probe"), UNFINISHED);
    File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(failed("write to", folder))
}

/// For `map_err` on what changes files: an error that also says what to do.
pub fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| {
        let advice = match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "free some space there or choose another folder; what was there before is intact"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "choose a folder that you may write to",
            ErrorKind::NotFound => "make the folder that it is to lie in, or choose another",
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                "a file is in the way; move it or choose another name"
            }
            _ => "what was there before is intact; try again or choose another folder",
        };
        Error::Io { action, path, source: io::Error::new(source.kind(), format!("{source}; {advice}")) }
    }
}

/// The name to write under, or to move away to.
fn beside(path: &Path, mark: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!("{mark}{}", std::process::id()));
    path.with_file_name(name)
}

/// The name that a leftover was meant for, if the path is one.
fn place_of<'a>(path: &'a Path, mark: &str) -> Option<&'a str> {
    let (name, process) = path.file_name()?.to_str()?.rsplit_once(mark)?;
    let is_number = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && !name.is_empty()).then_some(name)
}

fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Puts a folder in the place of another, which stays whole until the new one is there.
fn replace_folder(new: &Path, path: &Path) -> io::Result<()> {
    let former = beside(path, FORMER);
    remove_any(&former)?;
    match fs::rename(path, &former) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    if let Err(error) = fs::rename(new, path) {
        let _ = fs::rename(&former, path);
        return Err(error);
    }
    sync_parent(path)?;
    remove_any(&former)
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        File::open(entry?.path())?.sync_all()?;
    }
    File::open(folder)?.sync_all()
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

fn remove_any(path: &Path) -> io::Result<()> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

/// The error as the user should see it: with the place a file was meant for, not the name it was written under.
fn told_of(error: Error, beside: &Path, place: &Path) -> Error {
    match error {
        Error::Io { action, path, source } => {
            let path = path.strip_prefix(beside).map(|rest| place.join(rest)).unwrap_or(path);
            Error::Io { action, path, source }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Folder;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = Folder::new("atomic-file");
        let path = folder.path().join("a");
        write_file(&path, b"one").unwrap();
        write_file(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn a_failed_write_leaves_the_former_content() {
        let folder = Folder::new("atomic-failed");
        let path = folder.path().join("model");
        let put = |text: &'static str| move |beside: &Path| write_file(&beside.join("a"), text.as_bytes());
        write_folder(&path, put("one")).unwrap();
        let error = write_folder(&path, |beside| -> Result<()> {
            put("torn")(beside)?;
            let full = io::Error::from(ErrorKind::StorageFull);
            Err(failed("write", &beside.join("b"))(full))
        })
        .unwrap_err()
        .to_string();
        assert!(error.contains("model/b") && error.contains("free some space") && !error.contains(".tmp-"), "{error}");
        assert_eq!(fs::read(path.join("a")).unwrap(), b"one");
        write_folder(&path, put("two")).unwrap();
        assert_eq!(fs::read(path.join("a")).unwrap(), b"two");
        assert_eq!(names(folder.path()), ["model"]);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error_that_says_what_to_do() {
        let folder = Folder::new("atomic-refused");
        let missing = folder.path().join("missing").join("a");
        let error = write_file(&missing, b"one").unwrap_err().to_string();
        assert!(error.contains("make the folder"), "{error}");
        let file = folder.path().join("file");
        write_file(&file, b"one").unwrap();
        let error = write_folder(&file.join("model"), |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("in the way") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn leftovers_are_cleared_and_a_former_folder_is_put_back() {
        let folder = Folder::new("atomic-leftovers");
        let at = |name: &str| folder.path().join(name);
        for name in ["step.tmp-17", "model.old-17", "kept", "other.old-9"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), name).unwrap();
        }
        fs::create_dir(at("other")).unwrap();
        for name in ["config.tmp-3", "notes.tmp-mine", ".tmp-5"] {
            fs::write(at(name), name).unwrap();
        }
        remove_leftovers(folder.path()).unwrap();
        assert_eq!(names(folder.path()), [".tmp-5", "kept", "model", "notes.tmp-mine", "other"]);
        assert_eq!(fs::read(at("model").join("file")).unwrap(), b"model.old-17");
        remove_leftovers(&at("missing")).unwrap();
        remove_folder(&at("kept")).unwrap();
        assert!(!at("kept").exists());
    }
}

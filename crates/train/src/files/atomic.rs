//! Files and folders that are there whole or not at all: written aside, synced, and renamed to their place.
//!
//! Aside is a folder of its own beside the place, `.gradus-unfinished-PID-N`, known by the mark in it. There a new thing
//! is written, and there a former folder lies between the two renames that replace it. A process that is killed leaves
//! it behind; [`remove_leftovers`] puts a former folder back and removes the rest, and nothing that does not lie there.

use crate::{Error, Result};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What the names of folders begin with that hold what is not finished.
const UNFINISHED: &str = ".gradus-unfinished-";
/// The file that says that such a folder is one, and what is in it.
const MARK: &str = "MARK";
const MARK_TEXT: &str =
    "Files that gradus is writing. Left by a process that was killed, they are removed by the next.\n";
const NEW: &str = "new";
const FORMER: &str = "former";

/// Writes a file, or replaces it.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        let aside = Aside::of(path)?;
        let new = aside.place(NEW, path)?;
        create(&new, bytes)?;
        fs::rename(&new, path)?;
        sync_parent(path)
    };
    write().map_err(failed("write", path))
}

/// Writes a folder, or replaces it, with the files that `fill` puts into the folder it is given.
pub fn write_folder<T>(path: &Path, fill: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
    let aside = Aside::of(path).map_err(failed("write", path))?;
    let new = aside.place(NEW, path).map_err(failed("write", path))?;
    let fill_and_place = || {
        fs::create_dir(&new).map_err(failed("write", path))?;
        let made = fill(&new)?;
        sync_folder(&new).and_then(|()| aside.replace(&new, path)).map_err(failed("write", path))?;
        Ok(made)
    };
    fill_and_place().map_err(|error| told_of(error, &new, path))
}

/// Removes a folder so that it is never seen in part.
pub fn remove_folder(path: &Path) -> Result<()> {
    let remove = || {
        let aside = Aside::of(path)?;
        fs::rename(path, aside.place(NEW, path)?)?;
        clear(&aside.folder)
    };
    remove().map_err(failed("remove", path))
}

/// Makes a folder and those around it that are not there, so that they outlast a crash of the system.
pub fn make_folder(path: &Path) -> Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    for folder in missing.into_iter().rev() {
        let made = match fs::create_dir(folder) {
            // Someone else was quicker.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => Ok(()),
            made => made,
        };
        made.and_then(|()| sync_parent(folder)).map_err(failed("make", path))?;
    }
    Ok(())
}

/// Clears away what processes that were killed left in a folder. Nobody may be writing there.
pub fn remove_leftovers(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(Error::io("read", folder))?,
    };
    for entry in entries {
        let path = entry.map_err(Error::io("read", folder))?.path();
        if is_unfinished(&path) {
            clear(&path).map_err(failed("remove", &path))?;
        }
    }
    Ok(())
}

/// Whether this is a folder of what a process is writing, or was when it was killed.
pub fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let process = name.strip_prefix(UNFINISHED).unwrap_or_default();
    let is_named_so = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    // One without a mark is ours only if it is empty: its process was killed before the mark was there.
    is_named_so && path.is_dir() && (is_marked(path) || is_empty(path))
}

fn is_marked(folder: &Path) -> bool {
    fs::read(folder.join(MARK)).is_ok_and(|text| MARK_TEXT.as_bytes().starts_with(&text))
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none())
}

/// The folder in which something is written that is to lie beside it. It is cleared away in the end.
struct Aside {
    folder: PathBuf,
}

impl Drop for Aside {
    /// What cannot be cleared now is a leftover.
    fn drop(&mut self) {
        let _ = clear(&self.folder);
    }
}

impl Aside {
    /// That for what is to lie at a path, new and empty.
    fn of(path: &Path) -> io::Result<Aside> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = path.with_file_name(format!("{UNFINISHED}{process}-{number}"));
        // Another process may have had this number before it was killed.
        if is_unfinished(&folder) {
            clear(&folder)?;
        }
        fs::create_dir(&folder)?;
        let aside = Aside { folder };
        fs::write(aside.folder.join(MARK), MARK_TEXT)?;
        Ok(aside)
    }

    /// Where a thing lies while it is new, or when it was replaced.
    fn place(&self, part: &str, path: &Path) -> io::Result<PathBuf> {
        let folder = self.folder.join(part);
        fs::create_dir(&folder)?;
        Ok(folder.join(path.file_name().unwrap_or_default()))
    }

    /// Puts a folder in the place of another, which stays whole until the new one is there.
    fn replace(&self, new: &Path, path: &Path) -> io::Result<()> {
        let former = self.place(FORMER, path)?;
        match fs::rename(path, &former) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if let Err(error) = fs::rename(new, path) {
            let _ = fs::rename(&former, path);
            return Err(error);
        }
        sync_parent(path)
    }
}

/// Puts a former folder back whose place is empty, and removes the rest, the mark last: whenever this is cut short, it
/// can be done again.
fn clear(aside: &Path) -> io::Result<()> {
    for former in fs::read_dir(aside.join(FORMER)).into_iter().flatten() {
        let former = former?;
        let place = aside.with_file_name(former.file_name());
        if !place.exists() {
            fs::rename(former.path(), &place).and_then(|()| sync_parent(&place))?;
        }
    }
    for part in [FORMER, NEW, MARK] {
        remove_any(&aside.join(part))?;
    }
    fs::remove_dir(aside)
}

/// Makes sure that a folder can be written to, before hours are spent on what is to lie there.
pub fn check_writable(folder: &Path) -> Result<()> {
    Aside::of(&folder.join("probe")).map(drop).map_err(failed("write to", folder))
}

/// The same of a file.
pub fn check_file_writable(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(failed("write", path)(ErrorKind::AlreadyExists.into()));
    }
    check_writable(path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new(".")))
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

fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
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
fn told_of(error: Error, new: &Path, place: &Path) -> Error {
    match error {
        Error::Io { action, path, source } => {
            let path = path.strip_prefix(new).map(|rest| place.join(rest)).unwrap_or(path);
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
        assert!(
            error.contains("model/b") && error.contains("free some space") && !error.contains(UNFINISHED),
            "{error}"
        );
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

    /// A folder aside with a mark, and what a process has put there so far: folders, with a file unless they end in `/`.
    fn left(place: &Path, number: u32, parts: &[&str]) -> PathBuf {
        let aside = place.join(format!("{UNFINISHED}{number}-0"));
        fs::create_dir(&aside).unwrap();
        fs::write(aside.join(MARK), MARK_TEXT).unwrap();
        for part in parts {
            fs::create_dir_all(aside.join(part)).unwrap();
            if !part.ends_with('/') {
                fs::write(aside.join(part).join("file"), part).unwrap();
            }
        }
        aside
    }

    /// Every moment at which a process can be killed while it replaces a folder.
    #[test]
    fn whenever_a_process_is_killed_the_former_folder_or_the_new_one_is_there() {
        let whole = |place: &Path, text: &str| {
            fs::create_dir_all(place.join("model")).unwrap();
            fs::write(place.join("model/file"), text).unwrap();
        };
        type Moment = fn(&Path);
        let moments: [(&str, Moment, &str); 7] = [
            ("before the mark", |place| fs::create_dir(place.join(format!("{UNFINISHED}5-0"))).unwrap(), "one"),
            ("within the mark", |place| fs::write(left(place, 5, &[]).join(MARK), "Files").unwrap(), "one"),
            ("while the new one is written", |place| drop(left(place, 5, &["new/model"])), "one"),
            ("before the former one moves", |place| drop(left(place, 5, &["new/model", "former/"])), "one"),
            (
                "between the renames",
                |place| {
                    let aside = left(place, 5, &["new/model", "former/"]);
                    fs::rename(place.join("model"), aside.join("former/model")).unwrap();
                },
                "one",
            ),
            (
                "after the renames",
                |place| {
                    left(place, 5, &["former/model"]);
                    fs::write(place.join("model/file"), "two").unwrap();
                },
                "two",
            ),
            ("while it clears up", |place| drop(left(place, 5, &[])), "one"),
        ];
        for (name, moment, expected) in moments {
            let folder = Folder::new("atomic-killed");
            whole(folder.path(), "one");
            moment(folder.path());
            remove_leftovers(folder.path()).unwrap();
            assert_eq!(names(folder.path()), ["model"], "{name}");
            assert_eq!(fs::read_to_string(folder.path().join("model/file")).unwrap(), expected, "{name}");
        }
    }

    #[test]
    fn only_what_is_ours_is_removed() {
        let folder = Folder::new("atomic-ours");
        let at = |name: &str| folder.path().join(name);
        let theirs = ["model.old-1", "step.tmp-17", "notes.tmp-mine", "model", ".gradus-unfinished-mine"];
        for name in theirs {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), name).unwrap();
        }
        // Named as ours are, but without the mark.
        fs::create_dir(at(".gradus-unfinished-7-0")).unwrap();
        fs::write(at(".gradus-unfinished-7-0/notes"), "mine").unwrap();
        let ours = left(folder.path(), 8, &["new/model"]);
        remove_leftovers(folder.path()).unwrap();
        assert!(!ours.exists());
        for name in theirs {
            assert_eq!(fs::read_to_string(at(name).join("file")).unwrap(), name);
        }
        assert!(at(".gradus-unfinished-7-0/notes").exists());
        remove_leftovers(&at("missing")).unwrap();
        remove_folder(&at("model")).unwrap();
        assert!(!at("model").exists());
    }

    #[test]
    fn folders_are_made_with_those_around_them() {
        let folder = Folder::new("atomic-made");
        let deep = folder.path().join("a/b/c");
        make_folder(&deep).unwrap();
        make_folder(&deep).unwrap();
        assert!(deep.is_dir());
        fs::write(deep.join("file"), "").unwrap();
        let error = make_folder(&deep.join("file/d")).unwrap_err().to_string();
        assert!(error.contains("cannot make") && error.contains("in the way"), "{error}");
    }
}

//! The folder of a run: whether a new one can be put there, and how it was before.

use crate::config::{CONFIG_FILE, OWN_EVENTS, TrainConfig};
use crate::files::atomic;
use crate::{Error, Result, tensorboard};
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

/// Where figures go, a line a step.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// Folders of a run, with what the names of all files in them begin with before the first step.
const SUBFOLDERS: [(&str, &[&str]); 5] = [
    ("samples", &[]),
    ("checkpoints", &[]),
    ("data", &["train.tokens", "validation.tokens"]),
    (OWN_EVENTS, &[tensorboard::NAME]),
    (
        "init",
        &[
            "config.json",
            "generation_config.json",
            "tokenizer",
            "special_tokens_map.json",
            "added_tokens.json",
            "chat_template",
            "vocab.json",
            "merges.txt",
        ],
    ),
];

/// The checkpoint of weights that a run starts from.
const INITIAL_CHECKPOINT: &str = "checkpoints/step-00000000";

/// Refuses a folder that a new run cannot be put into. A run that was killed before it took a step is no hindrance, as
/// long as nothing else is there: what it left is made again.
pub fn check_free(folder: &Path) -> Result<()> {
    let problem = match fs::read_dir(folder) {
        Err(_) if folder.exists() => "not a folder that can be read; choose another `settings.out`".to_string(),
        Err(_) => return Ok(()),
        Ok(_) if is_vacant(folder) || is_unstarted(folder) => return Ok(()),
        Ok(_) if TrainConfig::read(folder).is_ok() => format!(
            "holds a run already; go on with it by `settings.resume` {}, or choose another `settings.out` for a new one",
            folder.display()
        ),
        Ok(_) => "holds other files; choose an empty or new folder as `settings.out`".to_string(),
    };
    Err(Error::checkpoint(folder, problem))
}

/// Refuses a folder for events where TensorBoard would take those of another run for this one's.
pub(super) fn check_unmixed(config: &TrainConfig) -> Result<()> {
    match config.tensorboard.folder(&config.out).filter(|folder| tensorboard::holds_events(folder)) {
        None => Ok(()),
        Some(folder) => {
            let problem = "holds the events of another run already; choose another `settings.tensorboard`";
            Err(Error::checkpoint(&folder, problem))
        }
    }
}

/// Removes what a run left that was killed before it took a step, the configuration last: that says whose it is.
pub(super) fn clear_unstarted(folder: &Path) -> Result<()> {
    if !is_unstarted(folder) {
        return Ok(());
    }
    let mut paths: Vec<PathBuf> = entries(folder).iter().map(DirEntry::path).collect();
    paths.sort_by_key(|path| path.ends_with(CONFIG_FILE));
    for path in paths {
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(atomic::failed("remove", &path))?;
    }
    Ok(())
}

/// Whether a folder holds nothing but what a killed process was writing.
fn is_vacant(folder: &Path) -> bool {
    entries(folder).iter().all(|entry| atomic::is_unfinished(&entry.path()))
}

/// Whether a folder holds a run that never took a step, and nothing that is not the run's.
fn is_unstarted(folder: &Path) -> bool {
    TrainConfig::is_in(folder) && entries(folder).iter().all(is_of_a_start)
}

/// Whether an entry of a run's folder is one that a run makes before its first step.
fn is_of_a_start(entry: &DirEntry) -> bool {
    let (path, name) = (entry.path(), entry.file_name());
    let is_plain = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let name = name.to_str().unwrap_or_default();
    if let Some((_, starts)) = SUBFOLDERS.iter().find(|(folder, _)| *folder == name) {
        let is_ours = |entry: &DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_file = is_plain(entry) && starts.iter().any(|start| name.starts_with(start));
            is_file || entry.path().ends_with(INITIAL_CHECKPOINT)
        };
        return entry.file_type().is_ok_and(|kind| kind.is_dir())
            && entries(&path).iter().all(|entry| is_ours(entry) || atomic::is_unfinished(&entry.path()));
    }
    match name {
        CONFIG_FILE | "tokenizer.json" | "tokenizer_config.json" => is_plain(entry),
        METRICS => entry.metadata().is_ok_and(|about| about.is_file() && about.len() == 0),
        _ => atomic::is_unfinished(&path),
    }
}

fn entries(folder: &Path) -> Vec<DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten().collect()
}

/// What was in the place of a run's folder, so that it can be so again.
pub(crate) enum FolderBefore {
    /// Nothing; these folders are new, the innermost first.
    Nothing(Vec<PathBuf>),
    /// A folder with nothing in it, or with what is made again.
    Empty(PathBuf),
    /// Something that is not touched.
    InUse,
}

impl FolderBefore {
    /// Looks before anything is written.
    pub fn of(folder: &Path) -> FolderBefore {
        let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
        let missing: Vec<PathBuf> = folder.ancestors().take_while(is_missing).map(Path::to_path_buf).collect();
        if !missing.is_empty() {
            return FolderBefore::Nothing(missing);
        }
        match is_vacant(folder) || is_unstarted(folder) {
            true => FolderBefore::Empty(folder.to_path_buf()),
            false => FolderBefore::InUse,
        }
    }

    /// Removes what was written since. This is done when something went wrong, which is what the user should hear
    /// about, so what cannot be removed stays.
    pub fn restore(self) {
        match self {
            FolderBefore::Nothing(folders) => {
                let _ = fs::remove_dir_all(&folders[0]);
                // Folders around it go too, unless someone else has put something there.
                for folder in &folders[1..] {
                    let _ = fs::remove_dir(folder);
                }
            }
            FolderBefore::Empty(folder) => {
                for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                    let path = entry.path();
                    let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                }
            }
            FolderBefore::InUse => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Folder;

    #[test]
    fn what_was_there_before_is_there_again() {
        let place = std::env::temp_dir().join(format!("gradus-folder-before-{}", std::process::id()));
        let run = place.join("runs/run-1");
        fs::create_dir_all(&place).unwrap();
        let fill = || {
            fs::create_dir_all(run.join("data")).unwrap();
            fs::write(run.join("config.toml"), "").unwrap();
        };
        let before = FolderBefore::of(&run);
        fill();
        before.restore();
        assert!(place.exists() && !place.join("runs").exists(), "new folders are gone");
        fs::create_dir_all(&run).unwrap();
        let before = FolderBefore::of(&run);
        fill();
        before.restore();
        assert_eq!(fs::read_dir(&run).unwrap().count(), 0, "an empty folder is empty again");
        fill();
        FolderBefore::of(&run).restore();
        assert!(run.join("config.toml").exists(), "what was there stays");
        fs::remove_dir_all(&place).unwrap();
    }

    /// What a start leaves that is killed before its first step.
    fn start(folder: &Path) {
        for name in ["samples", "data", "checkpoints", OWN_EVENTS] {
            fs::create_dir_all(folder.join(name)).unwrap();
        }
        fs::write(folder.join(CONFIG_FILE), "# A run of gradus: every choice, resolved.\nwidth = 16\n").unwrap();
        for name in ["tokenizer.json", "data/train.tokens", "data/validation.tokens.partial", METRICS] {
            fs::write(folder.join(name), "").unwrap();
        }
        tensorboard::EventLog::begin(&folder.join(OWN_EVENTS), None).unwrap();
    }

    #[test]
    fn a_start_that_took_no_step_is_made_again_and_nothing_else_is() {
        let folder = Folder::new("folder-start");
        let run = folder.path().join("run");
        check_free(&run).unwrap();
        start(&run);
        fs::create_dir(run.join(INITIAL_CHECKPOINT)).unwrap();
        check_free(&run).unwrap();
        clear_unstarted(&run).unwrap();
        assert_eq!(fs::read_dir(&run).unwrap().count(), 0);
        type Change = fn(&Path);
        let changes: [(&str, Change); 6] = [
            ("a step", |run| fs::write(run.join(METRICS), "{\"step\":1}\n").unwrap()),
            ("a checkpoint", |run| fs::create_dir(run.join("checkpoints/step-00000002")).unwrap()),
            ("notes", |run| fs::write(run.join("notes.txt"), "mine").unwrap()),
            ("other data", |run| fs::write(run.join("data/corpus.txt"), "mine").unwrap()),
            ("a model", |run| fs::create_dir(run.join("model")).unwrap()),
            ("another configuration", |run| fs::write(run.join(CONFIG_FILE), "width = 16\n").unwrap()),
        ];
        for (name, change) in changes {
            fs::remove_dir_all(&run).unwrap();
            start(&run);
            change(&run);
            let before = entries(&run).len();
            let error = check_free(&run).unwrap_err().to_string();
            assert!(error.contains("holds other files"), "{name}: {error}");
            clear_unstarted(&run).unwrap();
            assert_eq!(entries(&run).len(), before, "{name}: nothing is removed");
        }
    }
}

//! The folder of a run as it was before the run.

use std::fs;
use std::path::{Path, PathBuf};

/// What was in the place of a run's folder, so that it can be so again.
pub(super) enum FolderBefore {
    /// Nothing; these folders are new, the innermost first.
    Nothing(Vec<PathBuf>),
    /// An empty folder.
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
        match fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none()) {
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
}

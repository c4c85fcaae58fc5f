//! The files of a run that are shown. Their names are fixed or found in the folder, never those of a request.

use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a configuration, or of a sample, that are shown.
const CONFIG_BYTES_MAX: u64 = 64 << 10;
const SAMPLE_BYTES_MAX: u64 = 8 << 10;
/// Samples that are given at once, the newest.
const SAMPLES_MAX: usize = 8;

/// Opens a file to read that is one: a link would lead out of the folder, and a pipe would wait for a writer.
pub fn open_plain(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("not a plain file")),
    }
}

/// The configuration of a run.
pub fn config(folder: &Path) -> io::Result<String> {
    let mut text = vec![];
    open_plain(&folder.join("config.toml"))?.take(CONFIG_BYTES_MAX + 1).read_to_end(&mut text)?;
    match text.len() as u64 > CONFIG_BYTES_MAX {
        true => Err(io::Error::other("longer than 64 KB")),
        false => String::from_utf8(text).map_err(io::Error::other),
    }
}

/// A text that the model wrote.
#[derive(Debug, PartialEq, Serialize)]
pub struct Sample {
    /// After this step.
    step: u64,
    text: String,
    /// Whether there is more of it.
    cut: bool,
}

/// The newest samples after a step, the oldest first.
pub fn samples(folder: &Path, after: Option<u64>) -> Vec<Sample> {
    let folder = folder.join("samples");
    if !fs::symlink_metadata(&folder).is_ok_and(|about| about.is_dir()) {
        return vec![];
    }
    let mut newest = BTreeSet::new();
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let step = entry.file_name().to_str().and_then(step_of);
        if let Some(step) = step.filter(|step| after.is_none_or(|after| *step > after)) {
            newest.insert(step);
            if newest.len() > SAMPLES_MAX {
                newest.pop_first();
            }
        }
    }
    newest.into_iter().filter_map(|step| sample(&folder, step).ok()).collect()
}

fn sample(folder: &Path, step: u64) -> io::Result<Sample> {
    let mut text = vec![];
    let file = open_plain(&folder.join(format!("step-{step:08}.txt")))?;
    file.take(SAMPLE_BYTES_MAX + 1).read_to_end(&mut text)?;
    let cut = text.len() as u64 > SAMPLE_BYTES_MAX;
    text.truncate(SAMPLE_BYTES_MAX as usize);
    Ok(Sample { step, text: String::from_utf8_lossy(&text).into_owned(), cut })
}

/// The step of a sample's file.
fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.strip_suffix(".txt")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;

    #[test]
    fn the_newest_samples_are_given_and_nothing_else() {
        let folder = Folder::new("samples");
        assert_eq!(samples(folder.path(), None), []);
        let inside = folder.path().join("samples");
        fs::create_dir_all(&inside).unwrap();
        for step in 1..=20 {
            fs::write(inside.join(format!("step-{step:08}.txt")), format!("text {step}")).unwrap();
        }
        fs::write(inside.join("notes.txt"), "no sample").unwrap();
        fs::write(inside.join("step-00000021.txt"), "\u{e9}".repeat(9000)).unwrap();
        let steps = |after| samples(folder.path(), after).iter().map(|sample| sample.step).collect::<Vec<_>>();
        assert_eq!(steps(None), (14..=21).collect::<Vec<_>>());
        assert_eq!((steps(Some(19)), steps(Some(21))), (vec![20, 21], vec![]));
        let last = samples(folder.path(), Some(20)).pop().unwrap();
        assert!(last.cut && last.text.len() as u64 == SAMPLE_BYTES_MAX);
        assert_eq!(samples(folder.path(), Some(19))[0].text, "text 20");
    }

    #[cfg(unix)]
    #[test]
    fn what_leads_out_of_the_folder_or_would_wait_is_not_opened() {
        let folder = Folder::new("links");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("outside"), "secret").unwrap();
        std::os::unix::fs::symlink(path("outside"), path("config.toml")).unwrap();
        assert!(config(folder.path()).is_err());
        fs::create_dir(path("samples")).unwrap();
        std::os::unix::fs::symlink(path("outside"), path("samples/step-00000001.txt")).unwrap();
        assert_eq!(samples(folder.path(), None), []);
        let pipe = std::ffi::CString::new(path("pipe").to_str().unwrap()).unwrap();
        // SAFETY: the path is a text that ends with a zero.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        assert!(open_plain(&path("pipe")).is_err() && open_plain(folder.path()).is_err());
    }

    #[test]
    fn a_configuration_is_text_of_some_length() {
        let folder = Folder::new("configs");
        let path = folder.path().join("config.toml");
        assert!(config(folder.path()).is_err());
        fs::write(&path, "steps = 5\n").unwrap();
        assert_eq!(config(folder.path()).unwrap(), "steps = 5\n");
        fs::write(&path, "x".repeat(CONFIG_BYTES_MAX as usize + 1)).unwrap();
        assert!(config(folder.path()).unwrap_err().to_string().contains("64 KB"));
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(config(folder.path()).is_err());
    }
}

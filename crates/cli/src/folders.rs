//! Folders of runs, checkpoints and models: which is which, and which name is free.

use gradus_train::checkpoint;
use gradus_train::config::CONFIG_FILE;
use gradus_train::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

/// Where runs go whose folder is not named.
const RUNS: &str = "runs";

/// The next free `runs/NAME-N`, the name being that of the corpus.
pub fn next_free(corpus: &[PathBuf]) -> Result<PathBuf> {
    next_free_named(&corpus.first().map_or("stories".into(), |path| corpus_name(path)))
}

/// The next free `runs/NAME-N`.
pub fn next_free_named(name: &str) -> Result<PathBuf> {
    let number_of = |(run, _): &(String, PathBuf)| run.strip_prefix(&format!("{name}-"))?.parse::<u64>().ok();
    let last = runs().iter().filter_map(number_of).max().unwrap_or(0);
    Ok(Path::new(RUNS).join(format!("{name}-{}", last + 1)))
}

/// The run that was touched last.
pub fn newest() -> Option<PathBuf> {
    let configured = runs().into_iter().map(|(_, path)| path).filter(|path| path.join(CONFIG_FILE).is_file());
    configured.max_by_key(|path| fs::metadata(path).and_then(|about| about.modified()).ok())
}

/// Names and paths in the folder of runs.
fn runs() -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(RUNS).into_iter().flatten().flatten();
    entries
        .map(|entry| (entry.file_name().to_string_lossy().into_owned(), Path::new(RUNS).join(entry.file_name())))
        .collect()
}

/// A corpus's name without its endings, of characters that need no quotes.
pub fn corpus_name(path: &Path) -> String {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = file_name.split('.').find(|part| !part.is_empty()).unwrap_or_default();
    let plain: String = stem.chars().filter(|c| c.is_alphanumeric() || *c == '-' || *c == '_').collect();
    let plain = plain.trim_matches('-');
    if plain.is_empty() { "corpus".into() } else { plain.into() }
}

/// The model folder that a user means: it itself, which may be a checkpoint; or that of a run, or while it has none the
/// run's newest whole checkpoint.
pub fn model(folder: &Path) -> Result<PathBuf> {
    let candidates = [folder.to_path_buf(), folder.join("model")];
    if let Some(found) = candidates.into_iter().find(|candidate| candidate.join("config.json").is_file()) {
        if checkpoint::is_checkpoint(&found) {
            checkpoint::check(&found)?;
        }
        return Ok(found);
    }
    if let Some(found) = checkpoint::newest_whole(folder)? {
        return Ok(found.folder);
    }
    let problem = match (folder.exists(), folder.join(CONFIG_FILE).exists()) {
        (false, _) => "no such folder; check the path of the model".to_string(),
        (true, true) => format!(
            "the run has no model and no checkpoint yet; let it come to one: gradus train --resume {}",
            folder.display()
        ),
        (true, false) => {
            "not a model folder (no config.json); give one of a run or of Hugging Face, or a checkpoint".to_string()
        }
    };
    Err(Error::checkpoint(folder, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_named_after_their_corpus() {
        assert_eq!(corpus_name(Path::new("data/tiny shakespeare.txt.gz")), "tinyshakespeare");
        assert_eq!(corpus_name(Path::new("texts/*.jsonl")), "corpus");
        assert_eq!(corpus_name(Path::new("/")), "corpus");
        assert_eq!(corpus_name(Path::new("-")), "corpus");
        assert_eq!(next_free(&[]).unwrap(), Path::new("runs/stories-1"));
    }

    #[test]
    fn a_folder_without_a_model_is_told_apart() {
        let folder = std::env::temp_dir().join(format!("gradus-model-{}", std::process::id()));
        assert!(model(&folder).unwrap_err().to_string().contains("no such folder"));
        fs::create_dir_all(&folder).unwrap();
        assert!(model(&folder).unwrap_err().to_string().contains("not a model folder"));
        fs::write(folder.join(CONFIG_FILE), "").unwrap();
        assert!(model(&folder).unwrap_err().to_string().contains("no checkpoint yet"));
        fs::remove_dir_all(&folder).unwrap();
    }
}

//! What can go wrong around training, in one line each: what, where, and what to do.

use std::path::{Path, PathBuf};

/// An error that a user can cause or that the system gave.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model or program that the engine refuses.
    #[error(transparent)]
    Engine(#[from] gradus_engine::Error),
    /// Settings that do not fit together.
    #[error("{0}")]
    Config(String),
    /// A corpus that cannot be used.
    #[error("{}: {problem}", path.display())]
    Corpus {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, where, and what to do.
        problem: String,
    },
    /// A tokenizer that cannot be used.
    #[error("tokenizer {name}: {problem}")]
    Tokenizer {
        /// Its file or kind.
        name: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A checkpoint or model folder that cannot be used.
    #[error("{}: {problem}", path.display())]
    Checkpoint {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A run that was stopped because its numbers are of no more use.
    #[error("{0}")]
    Diverged(String),
    /// A run that was asked to stop before there was anything to save.
    #[error("{0}")]
    Stopped(String),
    /// Another rank that is gone or does something else.
    #[error(transparent)]
    Ranks(#[from] gradus_comm::Error),
    /// A file that the system would not read or write.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The result of what can go wrong around training.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// For `map_err` on what the system does with a file.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { action, path, source }
    }

    /// A corpus that cannot be used.
    pub fn corpus(path: &Path, problem: impl Into<String>) -> Error {
        Error::Corpus { path: path.to_path_buf(), problem: problem.into() }
    }

    /// A checkpoint or model folder that cannot be used.
    pub fn checkpoint(path: &Path, problem: impl Into<String>) -> Error {
        Error::Checkpoint { path: path.to_path_buf(), problem: problem.into() }
    }
}

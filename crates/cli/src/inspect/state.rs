//! Whether a run goes on, and how it ended if it does not.

use super::figures::Figures;
use super::report::checkpoints;
use super::stated::Stated;
use crate::numbers::count;
use serde_json::Value;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::path::Path;

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has taken no step, and goes on or not.
    NotStarted,
    /// A process is training it.
    GoesOn,
    /// All of it is done.
    Ended,
    /// It was asked to stop, and saved.
    Stopped,
    /// It ended otherwise: its process was killed, or could not go on.
    Killed,
}

impl State {
    /// Of the run in a folder.
    pub fn of(folder: &Path, stated: &Stated, figures: &Figures) -> State {
        match &figures.last {
            _ if is_locked(folder) => State::GoesOn,
            None => State::NotStarted,
            // Only a session that comes to its end accounts for its memory.
            Some(last) if last.account.is_none() => State::Killed,
            Some(last) if is_done(folder, stated, last.step) => State::Ended,
            Some(_) => State::Stopped,
        }
    }
}

/// Whether a process has the run for itself. A run that begins at this very moment might be refused because of the look,
/// which is why it is as short as can be.
fn is_locked(folder: &Path) -> bool {
    let looked = File::open(folder).map(|folder| folder.try_lock_shared());
    matches!(looked, Ok(Err(TryLockError::WouldBlock)))
}

/// Whether a run has come as far as its configuration states.
fn is_done(folder: &Path, stated: &Stated, step: u64) -> bool {
    if let Some(steps) = stated.steps {
        return step >= steps;
    }
    let seconds = checkpoints(folder).last().and_then(|newest| {
        let state: Value = serde_json::from_slice(&fs::read(newest.join("state.json")).ok()?).ok()?;
        state["seconds"].as_f64()
    });
    stated.seconds.zip(seconds).is_none_or(|(time, seconds)| seconds >= time)
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::NotStarted => "no steps yet",
            State::GoesOn => "training now",
            State::Ended => "ended",
            State::Stopped => "stopped and saved; --resume goes on",
            State::Killed => "killed, or ended by an error; --resume goes on from its newest checkpoint",
        })
    }
}

impl State {
    /// In a word, with how far it came.
    pub fn in_short(self, step: Option<u64>) -> String {
        let name = match self {
            State::NotStarted => return self.to_string(),
            State::GoesOn => "training",
            State::Ended => "ended",
            State::Stopped => "stopped",
            State::Killed => "killed",
        };
        step.map_or(name.into(), |step| format!("{name}, step {}", count(step)))
    }
}

//! Checkpoints: all that a run needs to go on with the same bits.
//!
//! `RUN/checkpoints/step-00000123/` holds `weights.safetensors` (the model, by its published names),
//! `optimizer.safetensors` (every other state), `state.json` (how far the run is, and the seals of the two others) and
//! the settings and the tokenizer of the model, so that it can be used as a model too. A checkpoint is written whole or
//! not at all, and is used only if all its seals are right.
//!
//! What is removed: after a save, all that are older than the newest `keep` whole ones. So the one just saved stays, and
//! a damaged one does not count, and goes with those that are older than what is kept.

mod progress;

pub use progress::Progress;

use crate::files::atomic;
use crate::files::tensors::{self, Entry, TensorFile, Tensors, TensorsMut};
use crate::{Error, Result};
use gradus_engine::{Program, Role, TensorType};
use progress::Record;
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file of a checkpoint that holds the model's weights.
pub(crate) const WEIGHTS: &str = "weights.safetensors";
const STATES: &str = "optimizer.safetensors";
const RECORD: &str = "state.json";

/// The tensors of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The model's weights.
    pub weights: Vec<Entry>,
    /// The other states.
    pub states: Vec<Entry>,
}

impl Contents {
    /// The states of a program: those that are weights, and the others that the next step depends on.
    pub fn of_program(program: &Program) -> Contents {
        let kept = program.states().filter(|(_, role, _)| role.outlasts_a_step());
        let (weights, states): (Vec<_>, Vec<_>) = kept.partition(|(_, role, _)| *role == Role::Weight);
        let entries = |states: Vec<(&str, Role, &TensorType)>| {
            states.into_iter().map(|(name, _, ty)| Entry { name: name.to_string(), ty: ty.clone() }).collect()
        };
        Contents { weights: entries(weights), states: entries(states) }
    }
}

/// The checkpoints of a run that this process alone writes.
pub struct Store {
    folder: PathBuf,
    /// Steps of the checkpoints that are known to be whole: written by this process, or read to their end.
    whole: BTreeSet<u64>,
    /// Held until the store is dropped or the process ends, however it ends.
    _lock: File,
}

impl Store {
    /// Makes the run's folder if it is not there, keeps other processes out, clears what killed ones left, and makes
    /// sure that the first checkpoint will not be refused. To be opened before anything else writes into the run's
    /// folder. Adds nothing to it, so that a run that is killed before it has a configuration leaves an empty one.
    pub fn open(run_folder: &Path) -> Result<Store> {
        let folder = checkpoints_of(run_folder);
        atomic::make_folder(run_folder)?;
        let lock = File::open(run_folder).map_err(Error::io("read", run_folder))?;
        // Some file systems have no locks; a run there relies on its user.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let problem = "another run is training in this folder; wait for it, stop it, or choose another folder";
            return Err(Error::checkpoint(run_folder, problem));
        }
        atomic::remove_leftovers(run_folder)?;
        atomic::remove_leftovers(&folder)?;
        atomic::check_writable(if folder.exists() { &folder } else { run_folder })?;
        Ok(Store { folder, whole: BTreeSet::new(), _lock: lock })
    }

    /// Saves a checkpoint, asking for one tensor's bytes at a time; `settings` writes what else a model folder holds.
    /// Gives the checkpoint's folder.
    pub fn save(
        &mut self,
        contents: &Contents,
        tensors: &dyn Tensors,
        progress: &Progress,
        settings: &dyn Fn(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        atomic::make_folder(&self.folder)?;
        let folder = folder_of(&self.folder, progress.step);
        atomic::write_folder(&folder, |beside| {
            let weights = tensors::write(&beside.join(WEIGHTS), &contents.weights, tensors)?;
            let states = tensors::write(&beside.join(STATES), &contents.states, tensors)?;
            settings(beside)?;
            let record = Record::new(progress, [(WEIGHTS, weights), (STATES, states)]);
            let path = beside.join(RECORD);
            fs::write(&path, record.to_text()).map_err(atomic::failed("write", &path))
        })?;
        self.whole.insert(progress.step);
        Ok(folder)
    }

    /// The newest checkpoint that is whole.
    pub fn newest_whole(&mut self) -> Result<Option<Found>> {
        let found = newest_in(&self.folder)?;
        self.whole.extend(found.iter().map(|found| found.progress.step));
        Ok(found)
    }

    /// Removes the checkpoints that are older than the newest `keep` whole ones, of which that of step `saved`, which
    /// was just saved, is the first.
    pub fn prune(&mut self, saved: u64, keep: usize) -> Result<()> {
        let mut kept = 1;
        for (step, folder) in listed(&self.folder)?.into_iter().filter(|(step, _)| *step < saved) {
            if kept >= keep {
                atomic::remove_folder(&folder)?;
                self.whole.remove(&step);
            } else if self.is_whole(step, &folder) {
                self.whole.insert(step);
                kept += 1;
            }
        }
        Ok(())
    }

    /// Whether a checkpoint is whole; one that is known to have been is not read to its end again.
    fn is_whole(&self, step: u64, folder: &Path) -> bool {
        match self.whole.contains(&step) {
            true => Record::read(&folder.join(RECORD)).is_ok_and(|record| record.check_sizes(folder).is_ok()),
            false => whole(step, folder).is_ok(),
        }
    }
}

/// A checkpoint that is whole.
#[derive(Debug)]
pub struct Found {
    /// Its folder.
    pub folder: PathBuf,
    /// How far the run was.
    pub progress: Progress,
    /// Newer ones that are not whole.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Skipped {
    /// Its folder.
    pub folder: PathBuf,
    /// Why not.
    pub reason: String,
}

impl Found {
    /// That of a step of a run, which another rank has found to be whole.
    pub(crate) fn at(run_folder: &Path, step: u64) -> Result<Found> {
        let folder = folder_of(&checkpoints_of(run_folder), step);
        match Record::read(&folder.join(RECORD)) {
            Ok(record) => Ok(Found { folder, progress: record.progress, skipped: vec![] }),
            Err(reason) => {
                let problem = format!(
                    "the first rank has found a checkpoint there, and this one cannot read it ({reason}); give a folder \
                     that all ranks see"
                );
                Err(Error::checkpoint(&folder, problem))
            }
        }
    }

    /// Reads the weights and the other states, which must be those of the checkpoint.
    pub fn restore(&self, contents: &Contents, tensors: &mut dyn TensorsMut) -> Result<()> {
        TensorFile::open(&self.folder.join(WEIGHTS))?.read(&contents.weights, tensors)?;
        TensorFile::open(&self.folder.join(STATES))?.read(&contents.states, tensors)
    }
}

/// The newest checkpoint of a run that is whole, for those who only read. None if the run has none at all; an
/// error if none is whole.
pub fn newest_whole(run_folder: &Path) -> Result<Option<Found>> {
    newest_in(&checkpoints_of(run_folder))
}

fn checkpoints_of(run_folder: &Path) -> PathBuf {
    run_folder.join("checkpoints")
}

fn folder_of(checkpoints: &Path, step: u64) -> PathBuf {
    checkpoints.join(format!("step-{step:08}"))
}

/// Whether a folder is a checkpoint.
pub fn is_checkpoint(folder: &Path) -> bool {
    folder.join(RECORD).is_file()
}

/// Refuses a checkpoint that is not as it was written, wherever it lies.
pub fn check(folder: &Path) -> Result<()> {
    read_whole(folder).map(drop).map_err(|reason| {
        Error::checkpoint(folder, format!("the checkpoint is not whole ({reason}); use another, or copy it again"))
    })
}

fn newest_in(checkpoints: &Path) -> Result<Option<Found>> {
    let mut skipped = vec![];
    for (step, folder) in listed(checkpoints)? {
        match whole(step, &folder) {
            Ok(progress) => return Ok(Some(Found { folder, progress, skipped })),
            Err(reason) => skipped.push(Skipped { folder, reason }),
        }
    }
    match skipped.first() {
        None => Ok(None),
        Some(Skipped { folder, reason }) => {
            let problem = format!("no checkpoint is whole ({reason}); put a whole one there or start a new run");
            Err(Error::checkpoint(folder, problem))
        }
    }
}

/// Steps and folders of all checkpoints, newest first.
fn listed(checkpoints: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(checkpoints) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(Error::io("read", checkpoints))?,
    };
    let mut found = vec![];
    for entry in entries {
        let path = entry.map_err(Error::io("read", checkpoints))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let step = name.strip_prefix("step-").and_then(|step| step.parse().ok());
        // A name that is almost one of ours is not.
        if let Some(step) = step.filter(|step| folder_of(checkpoints, *step) == path) {
            found.push((step, path));
        }
    }
    found.sort();
    found.reverse();
    Ok(found)
}

/// How far the run was, if the checkpoint is whole and of the step that it is said to be of.
fn whole(step: u64, folder: &Path) -> Result<Progress, String> {
    let progress = read_whole(folder)?;
    match progress.step == step {
        true => Ok(progress),
        false => Err(format!("it is of step {}, not of step {step}", progress.step)),
    }
}

/// How far the run was, if all of the checkpoint is as it was written.
fn read_whole(folder: &Path) -> Result<Progress, String> {
    let record = Record::read(&folder.join(RECORD))?;
    record.check_sizes(folder)?;
    record.check_sums(folder)?;
    Ok(record.progress)
}

#[cfg(test)]
mod tests;

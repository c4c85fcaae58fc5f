//! Checkpoints: all that a run needs to go on with the same bits.
//!
//! `RUN/checkpoints/step-00000123/` holds `weights.safetensors` (the model, by its published names),
//! `optimizer.safetensors` (every other state) and `state.json` (how far the run is, and the seals of the two
//! others). A checkpoint is written whole or not at all, and is used only if all its seals are right.

mod progress;

pub use progress::Progress;

use crate::files::atomic;
use crate::files::tensors::{self, Entry, TensorFile, Tensors, TensorsMut};
use crate::models::Parameter;
use crate::{Error, Result};
use gradus_engine::Program;
use progress::Record;
use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const WEIGHTS: &str = "weights.safetensors";
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
    /// The states of a program: those that are weights, and the others that are worth keeping.
    pub fn of_program(program: &Program, parameters: &[Parameter], keep: impl Fn(&str) -> bool) -> Contents {
        let weights = Entry::of_parameters(parameters);
        let names: HashSet<&str> = weights.iter().map(|entry| &entry.name[..]).collect();
        let others = program.states().filter(|(name, _)| !names.contains(name) && keep(name));
        let states = others.map(|(name, ty)| Entry { name: name.to_string(), ty: ty.clone() }).collect();
        Contents { weights, states }
    }
}

/// The checkpoints of a run that this process alone writes.
pub struct Store {
    folder: PathBuf,
    /// Held until the store is dropped or the process ends, however it ends.
    _lock: File,
}

impl Store {
    /// Makes the run's folder if it is not there, keeps other processes out, clears what killed ones left, and makes
    /// sure that the first checkpoint will not be refused. To be opened before anything else writes into the run's
    /// folder. Adds nothing to it, so that a run that is killed before it has a configuration leaves an empty one.
    pub fn open(run_folder: &Path) -> Result<Store> {
        let folder = checkpoints_of(run_folder);
        fs::create_dir_all(run_folder).map_err(atomic::failed("make", run_folder))?;
        let lock = File::open(run_folder).map_err(Error::io("read", run_folder))?;
        // Some file systems have no locks; a run there relies on its user.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let problem = "another process is training in this folder; wait for it, stop it, or choose another --out";
            return Err(Error::checkpoint(run_folder, problem));
        }
        atomic::remove_leftovers(run_folder)?;
        atomic::remove_leftovers(&folder)?;
        atomic::check_writable(if folder.exists() { &folder } else { run_folder })?;
        Ok(Store { folder, _lock: lock })
    }

    /// Saves a checkpoint, asking for one tensor's bytes at a time, and then removes all that are older than the
    /// newest `keep` whole ones. Gives the checkpoint's folder.
    pub fn save(
        &self,
        contents: &Contents,
        tensors: &dyn Tensors,
        progress: &Progress,
        keep: usize,
    ) -> Result<PathBuf> {
        fs::create_dir_all(&self.folder).map_err(atomic::failed("make", &self.folder))?;
        let folder = self.folder.join(format!("step-{:08}", progress.step));
        atomic::write_folder(&folder, |beside| {
            let weights = tensors::write(&beside.join(WEIGHTS), &contents.weights, tensors)?;
            let states = tensors::write(&beside.join(STATES), &contents.states, tensors)?;
            let record = Record::new(progress, [(WEIGHTS, weights), (STATES, states)]);
            let path = beside.join(RECORD);
            fs::write(&path, record.to_text()).map_err(atomic::failed("write", &path))
        })?;
        self.prune(keep)?;
        Ok(folder)
    }

    /// The newest checkpoint that is whole.
    pub fn newest_whole(&self) -> Result<Option<Found>> {
        newest_in(&self.folder)
    }

    fn prune(&self, keep: usize) -> Result<()> {
        let mut whole = 0;
        for (_, folder) in listed(&self.folder)? {
            if whole >= keep.max(1) {
                atomic::remove_folder(&folder)?;
            } else if Record::read(&folder.join(RECORD)).and_then(|record| record.check_sizes(&folder)).is_ok() {
                whole += 1;
            }
        }
        Ok(())
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
        if let Some(step) = name.strip_prefix("step-").and_then(|step| step.parse().ok()) {
            found.push((step, path));
        }
    }
    found.sort();
    found.reverse();
    Ok(found)
}

/// How far the run was, if all of the checkpoint is as it was written.
fn whole(step: u64, folder: &Path) -> Result<Progress, String> {
    let record = Record::read(&folder.join(RECORD))?;
    record.check_sizes(folder)?;
    record.check_sums(folder)?;
    if record.progress.step != step {
        return Err(format!("it is of step {}, not of step {step}", record.progress.step));
    }
    Ok(record.progress)
}

#[cfg(test)]
mod tests;

//! What a run does besides its steps.

use crate::Result;
use crate::files::tensors::Tensors;
use crate::run::Accuracy;
use crate::schedule::Length;
use crate::step::TrainingStep;
use std::path::Path;

/// Work that belongs to a run besides its steps: held-out data, samples, files. All of it is optional.
pub trait Hooks {
    /// The setting that makes the learning rate's decay so long, named in remarks; `None` where a run has none.
    fn decay_setting(&self, length: Length) -> Option<String> {
        Some(format!("`settings.decay` {length:?}"))
    }

    /// What a batch of so many examples is counted as in reports: tokens, of a language model.
    fn tokens(&self, examples: u64) -> u64 {
        examples
    }

    /// All that there is to train on, counted likewise; 0 where that is not known.
    fn data_tokens(&self) -> u64 {
        0
    }

    /// Writes what a checkpoint's folder holds besides the states.
    fn write_settings(&self, _: &TrainingStep, _: &Path) -> Result<()> {
        Ok(())
    }

    /// How many batches a validation of at most so many has.
    fn validation_batches(&self, _: &TrainingStep, _: usize) -> usize {
        0
    }

    /// The mean loss over at most so many batches of held-out data; `None` if none is held out, or if `goes_on`, which is
    /// asked after each part with the parts done and all of them, says no.
    fn validation_loss(&mut self, _: &mut TrainingStep, _: usize, _: GoesOn<'_>) -> Result<Option<f32>> {
        Ok(None)
    }

    /// How often the model was right in the last validation, if it tells classes.
    fn accuracy(&self) -> Option<Accuracy> {
        None
    }

    /// Something that the model makes as it stands, for people to look at.
    fn sample(&mut self, _: &mut TrainingStep) -> Result<Option<String>> {
        Ok(None)
    }

    /// Writes what others are to use of the run, at its end. The last has all weights, also those of other ranks.
    fn export(&mut self, _: &TrainingStep, _: &dyn Tensors) -> Result<()> {
        Ok(())
    }
}

/// Is told how many parts are done, of how many, and says whether to go on.
pub type GoesOn<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// Nothing besides steps.
pub(super) struct NoHooks;

impl Hooks for NoHooks {}

//! A run of `gradus train`: a language model on text, by the trainer.

mod folder;
mod profiled;
mod resume;
mod setup;
mod text;
mod vocabulary;
mod watched;

pub(crate) use folder::METRICS;
pub use folder::check_free;
pub use profiled::{Profiled, Stage, profile};
pub use resume::check_resumable;

use crate::Result;
use crate::config::TrainConfig;
use crate::ranks::Ranks;
use crate::run::{Event, Observer, Summary};
use crate::trainer::Run;

/// Trains a model as stated, or goes on with a run that was stopped; returns when the run is done or was asked to stop.
pub fn train(config: &TrainConfig, resume: bool, observer: &mut dyn Observer) -> Result<Summary> {
    train_on(None, config, resume, observer)
}

/// As [`train`], on one of several ranks if there are any: each is told the same configuration, and the first writes all files.
pub fn train_on(
    ranks: Option<Ranks>,
    config: &TrainConfig,
    resume: bool,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    config.validate()?;
    let (mut session, mut text) = setup::prepare(ranks, config, resume, observer)?;
    let mut run = Run::new(&session)?;
    observer.event(&Event::Resolved(&text.config));
    run.tell_start(&session, &text, observer);
    // The weights that a run starts from are in the run from the start, if they are someone else's.
    if text.config.init.is_some() && session.saved.is_none() {
        run.save(&mut session, &text, observer)?;
    }
    let mut batches = session.batches(Box::new(text.windows(run.position)), run.step)?;
    run.until_the_end(&mut session, &mut batches, &mut text, observer)?;
    run.finish(&mut session, &mut text, observer)
}

//! A run of `gradus train`: a language model on text, by the trainer.

mod folder;
mod profiled;
mod resume;
mod setup;
mod text;
mod vocabulary;
mod watched;

pub use folder::check_free;
pub(crate) use folder::{FolderBefore, METRICS};
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

/// As [`train`], on the first of several ranks if there are any, which writes all files; the others [`follow`] it.
pub fn train_on(
    mut ranks: Option<Ranks>,
    config: &TrainConfig,
    resume: bool,
    observer: &mut dyn Observer,
) -> Result<Summary> {
    config.validate()?;
    ranks.as_mut().map_or(Ok(()), |ranks| setup::tell(ranks, config))?;
    trained(ranks, config, resume, observer)
}

/// Takes part in the run that the first rank states.
pub fn follow(mut ranks: Ranks, observer: &mut dyn Observer) -> Result<Summary> {
    let config = setup::hear(&mut ranks)?;
    trained(Some(ranks), &config, false, observer)
}

fn trained(ranks: Option<Ranks>, config: &TrainConfig, resume: bool, observer: &mut dyn Observer) -> Result<Summary> {
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

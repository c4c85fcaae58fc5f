//! The stages before training, watched by someone who may ask to stop.

use crate::checkpoint::Found;
use crate::data::Corpus;
use crate::run::{Event, Observer, Stop};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use std::cell::RefCell;

/// Who watches, shared by all that tell and ask.
pub(super) struct Watched<'a>(RefCell<&'a mut dyn Observer>);

impl<'a> Watched<'a> {
    pub fn new(observer: &'a mut dyn Observer) -> Watched<'a> {
        Watched(RefCell::new(observer))
    }

    pub fn event(&self, event: &Event<'_>) {
        self.0.borrow_mut().event(event);
    }

    /// An error if the run should end.
    pub fn go_on(&self) -> Result<()> {
        match self.0.borrow().should_stop() {
            Stop::No => Ok(()),
            Stop::AfterStep => Err(Error::Stopped("stopped before the first step; nothing was trained".into())),
        }
    }

    /// Says what was found among the corpus and is not part of it.
    pub fn tell_left_out(&self, corpus: &Corpus) {
        for folder in corpus.left_out() {
            let problem = "is the folder of a run and not part of the corpus; name it to train on it";
            self.event(&Event::Note(&format!("{} {problem}", folder.display())));
        }
    }

    /// Says that a vocabulary was not learned from all words.
    pub fn tell_forgotten(&self, tokenizer: &Tokenizer) {
        if tokenizer.words_forgotten() > 0 {
            self.event(&Event::Note(&format!(
                "the vocabulary was learned without {} of the rarest words, which did not fit into the memory",
                tokenizer.words_forgotten()
            )));
        }
    }

    /// Says that a run does not go on from its newest checkpoint.
    pub fn tell_skipped(&self, found: &Found) {
        for skipped in &found.skipped {
            self.event(&Event::Warning(&format!(
                "{}: the checkpoint is not whole ({}); going on from step {} instead",
                skipped.folder.display(),
                skipped.reason,
                found.progress.step
            )));
        }
    }
}

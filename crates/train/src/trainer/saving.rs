//! What a run writes down as it goes. Only the last checkpoint must succeed: whatever else cannot be written is told, and
//! the run goes on and tries again.

use super::hooks::Hooks;
use super::run::Run;
use super::session::{Identity, Session};
use crate::checkpoint::Progress;
use crate::files::atomic;
use crate::memory::heap;
use crate::ranks::{Alone, Asking};
use crate::run::{Event, Observer, StepReport};
use crate::step::Collected;
use crate::{Error, Result};
use std::path::Path;
use std::time::Instant;

/// A checkpoint that could not be saved is tried again so many times until the next one is due.
const TRIES_BETWEEN: u64 = 10;

impl Run {
    /// Writes a step's figures.
    pub(super) fn log(&mut self, report: &StepReport, observer: &mut dyn Observer) {
        if let Some(log) = &mut self.log {
            tell(log.write(report), ("metrics", "lines", log.lost()), &mut self.metrics_fail, observer);
        }
        if let Some(events) = &mut self.events {
            tell(events.write(report), ("events", "events", events.lost()), &mut self.events_fail, observer);
        }
    }

    pub(super) fn sample(
        &mut self,
        session: &mut Session,
        hooks: &mut dyn Hooks,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        session.first_alone(|session, _| self.sample_here(session, hooks, observer))?.needed().map(drop)
    }

    fn sample_here(&mut self, session: &mut Session, hooks: &mut dyn Hooks, observer: &mut dyn Observer) -> Result<()> {
        let start = Instant::now();
        // What is resident of the step's code makes room for that of the sample; a checkpoint does likewise.
        heap::give_back_code();
        let Some(text) = hooks.sample(&mut session.training)? else { return Ok(()) };
        if let Some(run) = &session.folder {
            let folder = run.path.join("samples");
            let path = folder.join(format!("step-{:08}.txt", self.step));
            let written = atomic::make_folder(&folder).and_then(|()| atomic::write_file(&path, text.as_bytes()));
            if let (Err(error), false) = (&written, self.samples_fail) {
                observer.event(&Event::Warning(&format!("{error}; the run goes on without this sample")));
            }
            self.samples_fail = written.is_err();
        }
        if let Some(events) = &mut self.events {
            let written = events.sample(self.step, &text);
            tell(written, ("events", "events", events.lost()), &mut self.events_fail, observer);
        }
        observer.event(&Event::Sample { step: self.step, text: &text });
        self.pace.sample.see(start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Saves a checkpoint along the way: one that cannot be written is told, and tried again before the next is due.
    pub(super) fn save_along(
        &mut self,
        session: &mut Session,
        hooks: &dyn Hooks,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        self.save_again_at = None;
        let again = self.step + (session.every.save / TRIES_BETWEEN).max(1);
        match self.save_alone(session, hooks, observer) {
            Ok(Alone::Failed) => {
                self.save_again_at = Some(again);
                Ok(())
            }
            Err(error @ Error::Io { .. }) => {
                self.save_again_at = Some(again);
                let told = format!("step {}: not saved: {error}; tried again after step {again}", self.step);
                observer.event(&Event::Warning(&told));
                Ok(())
            }
            saved => saved.map(drop),
        }
    }

    /// Saves a checkpoint, if the run has a folder.
    pub(crate) fn save(&mut self, session: &mut Session, hooks: &dyn Hooks, observer: &mut dyn Observer) -> Result<()> {
        self.save_alone(session, hooks, observer)?.needed().map(drop)
    }

    /// Has the first rank save a checkpoint.
    fn save_alone(
        &mut self,
        session: &mut Session,
        hooks: &dyn Hooks,
        observer: &mut dyn Observer,
    ) -> Result<Alone<()>> {
        session.first_alone(|session, asking| self.save_here(session, asking, hooks, observer))
    }

    fn save_here(
        &mut self,
        session: &mut Session,
        asking: Option<&Asking<'_>>,
        hooks: &dyn Hooks,
        observer: &mut dyn Observer,
    ) -> Result<()> {
        let start = Instant::now();
        let progress = self.progress(session, hooks);
        let Some(folder) = &mut session.folder else { return Ok(()) };
        heap::give_back_code();
        // Lines that do not last are missing after a crash, and that is all.
        let _ = self.log.as_ref().map(|log| log.sync());
        let _ = self.events.as_ref().map(|events| events.sync());
        let settings = |folder: &Path| hooks.write_settings(&session.training, folder);
        let path = folder.store.save(
            &folder.contents,
            &Collected { training: &session.training, asking },
            &progress,
            &settings,
        )?;
        session.saved = Some(progress.step);
        observer.event(&Event::Saved { step: self.step, path: &path });
        if let Err(error) = folder.store.prune(progress.step, folder.keep) {
            observer.event(&Event::Warning(&format!("{error}; older checkpoints stay")));
        }
        self.pace.save.see(start.elapsed().as_secs_f64());
        Ok(())
    }

    fn progress(&self, session: &Session, hooks: &dyn Hooks) -> Progress {
        let Identity { data_fingerprint, model, configuration } = session.identity.clone();
        Progress {
            step: self.step,
            tokens: self.step.saturating_mul(hooks.tokens(session.batch as u64)),
            data_position: self.position,
            data_fingerprint,
            seed: session.seed,
            seconds: self.seconds(),
            skipped_in_a_row: self.skipped_in_a_row,
            clipping: self.statistics,
            monitor: self.watching.monitor.clone(),
            decay: Some(session.schedule.decay),
            model,
            configuration,
        }
    }
}

/// Tells when entries of a file begin to wait, and when they are written again.
fn tell(written: Result<()>, (what, entries, lost): (&str, &str, u64), failed: &mut bool, observer: &mut dyn Observer) {
    match &written {
        Err(error) if !*failed => {
            observer.event(&Event::Warning(&format!("{error}; the run goes on, and {entries} wait to be written")));
        }
        Ok(()) if *failed => {
            observer.event(&Event::Note(&format!("{what} are written again; {lost} {entries} were lost")));
        }
        _ => {}
    }
    *failed = written.is_err();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Stop;

    /// Keeps what is told.
    struct Listener(Vec<String>);

    impl Observer for Listener {
        fn event(&mut self, event: &Event<'_>) {
            self.0.push(format!("{event:?}"));
        }

        fn should_stop(&self) -> Stop {
            Stop::No
        }
    }

    #[test]
    fn what_cannot_be_written_is_told_once_and_so_is_its_end() {
        let (mut listener, mut failed) = (Listener(vec![]), false);
        let full = || Err(Error::Config("the disk is full".into()));
        for written in [Ok(()), full(), full(), Ok(()), Ok(()), full()] {
            tell(written, ("events", "events", 3), &mut failed, &mut listener);
        }
        let waits = "Warning(\"the disk is full; the run goes on, and events wait to be written\")";
        assert_eq!(listener.0, [waits, "Note(\"events are written again; 3 events were lost\")", waits]);
    }
}

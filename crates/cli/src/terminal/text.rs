//! A run on standard error: lines that stay, and what changes all the time, which a thread of its own shows. Whoever trains
//! only leaves figures for it: no step waits for a terminal, or allocates what is printed.

use super::view::{Allowed, Stage, View};
use crate::charts::Glyphs;
use crate::numbers::{bytes, rounded};
use crate::{background, print, settings};
use gradus_train::run::{Event, Observer, StepReport, Stop};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between redraws of the frame, and between looks at whether there is something to show.
const REDRAW: Duration = Duration::from_millis(100);
/// Time between lines about steps where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

/// How what changes all the time is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A frame at the bottom of the terminal.
    Frame(Glyphs),
    /// A line now and then.
    Lines,
}

/// Lines on standard error, and how the run stands.
pub struct Text {
    shared: Arc<Shared>,
    showing: Option<JoinHandle<()>>,
    /// What was chosen, to be told when the run begins.
    settings: String,
    /// What the run counts.
    unit: &'static str,
}

struct Shared {
    form: Form,
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    view: View,
    /// Whether the view is another than what is shown.
    is_new: bool,
    /// When it was last shown.
    shown: Option<Instant>,
    has_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, view: &View) {
        match self.form {
            Form::Frame(glyphs) => print::frame(&view.lines(print::terminal_size(), glyphs)),
            Form::Lines => print::note(view.line()),
        }
    }

    /// Shows what there is to show, until the end. While it writes, the run goes on.
    fn follow(&self) {
        let pause = if self.form == Form::Lines { LINE } else { REDRAW };
        let mut state = self.lock();
        while !state.has_ended {
            if state.is_new && state.shown.is_none_or(|shown| shown.elapsed() >= pause) {
                (state.is_new, state.shown) = (false, Some(Instant::now()));
                let view = state.view.clone();
                drop(state);
                self.show(&view);
                state = self.lock();
            }
            state = self.ended.wait_timeout(state, REDRAW).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Text {
    /// Shown in this form, of a run that counts these.
    pub fn new(form: Form, unit: &'static str) -> Text {
        // Elsewhere than on a terminal, only work that takes long is worth a line before the training.
        let shown = (form == Form::Lines).then(Instant::now);
        let state = State { view: View::new(unit), is_new: false, shown, has_ended: false };
        let shared = Arc::new(Shared { form, state: Mutex::new(state), ended: Condvar::new() });
        let follower = shared.clone();
        // Without a thread the lines that stay are there all the same.
        let showing = background::spawn("terminal", move || follower.follow()).ok();
        Text { shared, showing, settings: String::new(), unit }
    }

    /// A line that stays. A frame comes back below it.
    fn line(&self, text: &str) {
        print::note(text);
        if self.shared.form != Form::Lines {
            self.shared.lock().is_new = true;
        }
    }

    fn stage(&self, stage: Stage) {
        let mut state = self.shared.lock();
        (state.view.stage, state.is_new) = (stage, true);
    }

    fn preparing(&self, what: &str, done: u64, total: Option<u64>) {
        let share = total.filter(|total| *total > 0).map(|total| done as f64 / total as f64);
        let part = share.map_or(bytes(done), |share| format!("{:.0} %", share * 100.0));
        self.stage(Stage::Preparing(format!("{what} {part}"), share));
    }

    fn started(&self, begin: &str, planned: u64, budget: Option<u64>) {
        let allowed = Allowed { bytes: budget.unwrap_or(planned), is_budget: budget.is_some() };
        let mut state = self.shared.lock();
        (state.view.stage, state.view.started) = (Stage::Training, Instant::now());
        (state.view.allowed, state.shown) = (Some(allowed), None);
        drop(state);
        let settings = if self.settings.is_empty() { String::new() } else { format!("\n{}", self.settings) };
        self.line(&format!("{begin}{settings}"));
        self.shared.lock().is_new = self.shared.form != Form::Lines;
    }

    /// Leaves the figures of a step to be shown. The last one is shown at once: nothing follows that would show it.
    fn step(&self, report: &StepReport) {
        if let Some(sharpness) = report.sharpness {
            self.line(&format!("step {}: {}", report.step, sharpness_line(sharpness)));
        }
        let mut state = self.shared.lock();
        state.view.see(report);
        state.is_new = true;
        if report.steps == Some(report.step) {
            (state.is_new, state.shown) = (false, Some(Instant::now()));
            let view = state.view.clone();
            drop(state);
            self.shared.show(&view);
        }
    }

    fn end(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.ended.notify_one();
        let _ = self.showing.take().map(JoinHandle::join);
        print::frame(&[]);
    }
}

impl Observer for Text {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Step(report) => self.step(report),
            Event::Preparing { what, done, total } => self.preparing(what, *done, *total),
            Event::Resolved(config) => self.settings = settings::lines(config),
            Event::Started { parameters, tokens, memory_bytes, budget_bytes, resumed_at, .. } => {
                let begin = resumed_at.map_or("training".into(), |step| format!("going on from step {step}:"));
                let (parameters, tokens) = (rounded(*parameters as u64), rounded(*tokens));
                let planned = bytes(*memory_bytes);
                let unit = self.unit;
                let begin = format!("{begin} {parameters} parameters on {tokens} {unit}, {planned} of memory planned");
                self.started(&begin, *memory_bytes, *budget_bytes);
            }
            // Elsewhere than on a terminal the line with the result is enough.
            Event::Validating { .. } if self.shared.form == Form::Lines => {}
            Event::Validating { step, done, total } => self.stage(Stage::Validating(*step, *done, *total)),
            Event::Validated { step, loss, accuracy } => {
                self.shared.lock().view.validation_loss = Some(*loss);
                let right = accuracy.map_or(String::new(), |accuracy| {
                    format!(", {:.1} % right, {:.1} % in five", 100.0 * accuracy.top1, 100.0 * accuracy.top5)
                });
                self.line(&format!("step {step}: validation loss {loss:.4}{right}"));
            }
            Event::Sample { step, text } => self.line(&format!("step {step}: sample\n{}", indented(text))),
            Event::Saved { step, path } => self.line(&format!("step {step}: saved {}", path.display())),
            Event::Adapted { step, micro_batch, memory_bytes } => {
                let memory = bytes(*memory_bytes);
                self.line(&format!("step {step}: {micro_batch} sequences at once from now on (memory {memory})"));
            }
            Event::Skipped { step, reason } => self.line(&format!("step {step}: skipped: {reason}")),
            Event::Alert { step, alert } => self.line(&format!("step {step}: {alert}")),
            Event::Note(text) => self.line(text),
            Event::Warning(text) => self.line(&format!("warning: {text}")),
            Event::Finished(_) => self.end(),
        }
    }

    fn should_stop(&self) -> Stop {
        super::stop()
    }
}

impl Drop for Text {
    /// A run that ends with an error leaves no frame behind, so that the error has its own line.
    fn drop(&mut self) {
        self.end();
    }
}

/// The sharpness, and what it allows.
fn sharpness_line(sharpness: f32) -> String {
    let limit = match sharpness > 0.0 {
        true => format!(": plain gradient descent holds below a learning rate of {:.3e}", 2.0 / sharpness),
        false => String::new(),
    };
    format!("sharpness {sharpness:.4}{limit}")
}

/// A sample set off from the lines around it.
fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| format!("    {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_set_off() {
        assert_eq!(indented("one\n  two"), "    one\n      two");
    }
}

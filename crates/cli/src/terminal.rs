//! How a run is shown: a progress bar on a terminal, plain lines elsewhere, JSON for programs, or nothing.

use crate::numbers::{bytes, duration, rounded};
use crate::step_line::StepLine;
use crate::{interrupt, print, settings};
use gradus_train::run::{Event, Observer, StepReport, Stop};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Parts that the bar is divided into.
const BAR_LENGTH: u64 = 1000;
/// Columns of the bar and the space after it, where the terminal is not narrower than that leaves sense.
const BAR_COLUMNS: usize = 13;
const NARROW: usize = 60;
/// Time between redraws of the bar.
const REDRAW: Duration = Duration::from_millis(100);
/// Time between lines about steps where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

/// The observer that the options ask for.
pub fn observer(quiet: bool, json: bool) -> Box<dyn Observer> {
    match (json, quiet) {
        (true, _) => Box::new(Json),
        (false, true) => Box::new(Quiet),
        (false, false) if std::io::stderr().is_terminal() => Box::new(Text::new(Some(progress_bar()))),
        (false, false) => Box::new(Text::new(None)),
    }
}

fn stop() -> Stop {
    if interrupt::asked() { Stop::AfterStep } else { Stop::No }
}

/// Says only what did not work.
struct Quiet;

impl Observer for Quiet {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Warning(text) = event {
            print::note(format!("warning: {text}"));
        }
    }

    fn should_stop(&self) -> Stop {
        stop()
    }
}

/// One object a line on standard output, with the keys of `metrics.jsonl`.
struct Json;

impl Observer for Json {
    fn event(&mut self, event: &Event<'_>) {
        let object = match event {
            // The only one that occurs at each step goes out without a value made of it.
            Event::Step(report) => return print_json(report),
            // Alerts are in the objects of their steps.
            Event::Preparing { .. } | Event::Validating { .. } | Event::Resolved(_) | Event::Alert { .. } => return,
            Event::Started { parameters, tokens, steps, memory_bytes, resumed_at } => json!({"started": {
                "parameters": parameters, "tokens": tokens, "steps": steps, "memory_bytes": memory_bytes,
                "resumed_at": resumed_at,
            }}),
            Event::Validated { step, loss } => json!({"step": step, "validation_loss": loss}),
            Event::Sample { step, text } => json!({"step": step, "sample": text}),
            Event::Saved { step, path } => json!({"step": step, "saved": path}),
            Event::Adapted { step, micro_batch, memory_bytes } => {
                json!({"step": step, "micro_batch": micro_batch, "memory_bytes": memory_bytes})
            }
            Event::Skipped { step, reason } => json!({"step": step, "skipped": reason}),
            Event::Note(text) => json!({"note": text}),
            Event::Warning(text) => json!({"warning": text}),
            Event::Finished(summary) => json!({"finished": summary}),
        };
        print_json(&object);
    }

    fn should_stop(&self) -> Stop {
        stop()
    }
}

/// A reader that has gone away does not end the training.
fn print_json(object: &impl serde::Serialize) {
    let mut out = std::io::stdout().lock();
    if serde_json::to_writer(&mut out, object).is_ok() {
        let _ = out.write_all(b"\n");
    }
}

/// Lines on standard error, with a bar under them where it is a terminal.
struct Text {
    bar: Option<ProgressBar>,
    started: Instant,
    /// When something about a step or about preparing was last shown.
    shown: Option<Instant>,
    /// What is told of steps.
    steps: StepLine,
    /// Seconds until the run ends, by the last step.
    left: Option<f64>,
    /// What was chosen, to be told when the run begins.
    settings: String,
}

impl Text {
    fn new(bar: Option<ProgressBar>) -> Text {
        // Elsewhere than on a terminal, only work that takes long is worth a line before the training.
        let shown = bar.is_none().then(Instant::now);
        Text { bar, started: Instant::now(), shown, steps: StepLine::default(), left: None, settings: String::new() }
    }

    /// A line that stays.
    fn line(&self, text: &str) {
        match &self.bar {
            // The bar's own way to print fills lines up with spaces, which would be copied with them.
            Some(bar) => bar.suspend(|| print::note(text)),
            None => print::note(text),
        }
    }

    /// Whether it is time to show what changes all the time.
    fn is_due(&mut self) -> bool {
        let pause = if self.bar.is_some() { REDRAW } else { LINE };
        let now = Instant::now();
        let due = self.shown.is_none_or(|shown| now - shown >= pause);
        if due {
            self.shown = Some(now);
        }
        due
    }

    /// Text that the next one replaces, with how much is done where that is known.
    fn progress(&self, share: Option<f64>, text: String) {
        match &self.bar {
            Some(bar) => {
                bar.set_position((share.unwrap_or(0.0).clamp(0.0, 1.0) * BAR_LENGTH as f64) as u64);
                bar.set_message(text);
            }
            None => print::note(text),
        }
    }

    fn preparing(&mut self, what: &str, done: u64, total: Option<u64>) {
        if self.is_due() {
            let share = total.filter(|total| *total > 0).map(|total| done as f64 / total as f64);
            let part = share.map_or(bytes(done), |share| format!("{:.0} %", share * 100.0));
            self.progress(share, format!("{what} {part}"));
        }
    }

    /// Shown where there is a bar: elsewhere the line with the result is enough. The bar goes through the validation, and
    /// is that of the run again with the next step.
    fn validating(&mut self, step: u64, done: u64, total: u64) {
        if self.bar.is_some() && self.is_due() {
            let share = done as f64 / total.max(1) as f64;
            let left = self.left.map_or(String::new(), |seconds| format!("  {} left", duration(seconds)));
            self.progress(Some(share), format!("step {step}  validating {:.0} %{left}", share * 100.0));
        }
    }

    fn step(&mut self, report: &StepReport) {
        self.steps.see(report);
        self.left = report.seconds_left;
        if self.is_due() || report.steps == Some(report.step) {
            let elapsed = self.started.elapsed().as_secs_f64();
            let by_time = report.seconds_left.map(|left| elapsed / (elapsed + left).max(f64::MIN_POSITIVE));
            let by_steps = report.steps.map(|steps| report.step as f64 / steps.max(1) as f64);
            let columns = self.bar.as_ref().and_then(|_| message_columns());
            self.progress(by_steps.or(by_time), self.steps.text(report, columns));
        }
    }
}

impl Observer for Text {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Step(report) => self.step(report),
            Event::Preparing { what, done, total } => self.preparing(what, *done, *total),
            Event::Resolved(config) => self.settings = settings::lines(config),
            Event::Started { parameters, tokens, memory_bytes, resumed_at, .. } => {
                (self.started, self.shown) = (Instant::now(), None);
                let begin = resumed_at.map_or("training".into(), |step| format!("going on from step {step}:"));
                let (parameters, tokens) = (rounded(*parameters as u64), rounded(*tokens));
                let planned = bytes(*memory_bytes);
                self.line(&format!(
                    "{begin} {parameters} parameters on {tokens} tokens, {planned} of memory planned\n{}",
                    self.settings
                ));
            }
            Event::Validating { step, done, total } => self.validating(*step, *done, *total),
            Event::Validated { step, loss } => self.line(&format!("step {step}: validation loss {loss:.4}")),
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
            Event::Finished(_) => self.bar.iter().for_each(ProgressBar::finish_and_clear),
        }
    }

    fn should_stop(&self) -> Stop {
        stop()
    }
}

impl Drop for Text {
    /// A run that ends with an error leaves no bar behind, so that the error has its own line.
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

fn progress_bar() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(BAR_LENGTH), ProgressDrawTarget::stderr_with_hz(10));
    let template = if columns().is_some_and(|columns| columns < NARROW) { "{wide_msg}" } else { "{bar:12} {wide_msg}" };
    bar.with_style(ProgressStyle::with_template(template).expect("the template is right"))
}

/// Columns of the terminal, where it says.
fn columns() -> Option<usize> {
    console::Term::stderr().size_checked().map(|(_, columns)| columns.into())
}

/// Columns that the bar leaves to the message; the last one stays free, since some terminals begin a line after it.
fn message_columns() -> Option<usize> {
    columns().map(|columns| if columns < NARROW { columns } else { columns - BAR_COLUMNS }.saturating_sub(1))
}

/// A sample set off from the lines around it.
fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| format!("    {line}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> StepReport {
        StepReport {
            step: 7,
            steps: Some(20),
            tokens: 700,
            loss: 2.5,
            validation_loss: None,
            gradient_norm: 1.0,
            learning_rate: 0.001,
            loss_scale: None,
            skipped_steps: None,
            tokens_per_second: 12_345.6,
            step_ms: 8.0,
            memory_bytes: 85_000_000,
            peak_memory_bytes: 90_000_000,
            account: None,
            verdict: None,
            alerts: vec![],
            health: None,
            seconds_left: Some(65.0),
        }
    }

    #[test]
    fn a_step_has_the_keys_of_the_metrics() {
        let value = serde_json::to_value(report()).unwrap();
        let mut keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        keys.sort();
        let expected =
            "gradient_norm learning_rate loss memory_bytes peak_memory_bytes step step_ms tokens tokens_per_second";
        assert_eq!(keys, expected.split(' ').collect::<Vec<_>>());
    }

    #[test]
    fn samples_are_set_off() {
        assert_eq!(indented("one\n  two"), "    one\n      two");
    }
}

//! How a run is shown: a frame on a terminal, plain lines elsewhere, JSON for programs, or nothing.

mod step_line;
mod text;
mod trend;
mod view;

use crate::charts::Glyphs;
use crate::{interrupt, print};
use gradus_train::run::{Event, Observer, Stop};
use serde_json::json;
use std::io::Write;
use text::{Form, Text};

/// The observer that the options ask for, of a run that counts these.
pub fn observer(quiet: bool, json: bool, unit: &'static str) -> Box<dyn Observer> {
    match (json, quiet) {
        (true, _) => Box::new(Json),
        (false, true) => Box::new(Quiet),
        (false, false) if print::draws() => Box::new(Text::new(Form::Frame(Glyphs::of_locale()), unit)),
        (false, false) => Box::new(Text::new(Form::Lines, unit)),
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
            Event::Started { parameters, tokens, steps, memory_bytes, budget_bytes, resumed_at } => json!({"started": {
                "parameters": parameters, "tokens": tokens, "steps": steps, "memory_bytes": memory_bytes,
                "budget_bytes": budget_bytes, "resumed_at": resumed_at,
            }}),
            Event::Validated { step, loss, accuracy: None } => json!({"step": step, "validation_loss": loss}),
            Event::Validated { step, loss, accuracy: Some(accuracy) } => json!({
                "step": step, "validation_loss": loss, "validation_accuracy": accuracy.top1,
                "validation_accuracy_top5": accuracy.top5,
            }),
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

#[cfg(test)]
mod tests {
    use gradus_train::run::StepReport;

    fn report() -> StepReport {
        StepReport {
            step: 7,
            steps: Some(20),
            tokens: 700,
            loss: 2.5,
            validation_loss: None,
            accuracy: None,
            gradient_norm: 1.0,
            sharpness: None,
            learning_rate: 0.001,
            loss_scale: None,
            skipped_steps: None,
            bytes_sent: None,
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
}

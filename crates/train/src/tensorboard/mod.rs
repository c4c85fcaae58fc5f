//! Event files, which TensorBoard reads: the figures of `metrics.jsonl` by their keys, and samples.
//!
//! A run that goes on begins another file, whose first events say from which step on it counts: what earlier files have of
//! that step and later ones, TensorBoard then drops. Files sort by when they were begun.

mod message;
mod record;

use crate::Result;
use crate::files::appended::Appended;
use crate::files::atomic;
use crate::run::StepReport;
use message::{Message, double, float, integer, nested, text};
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// What the names of event files begin with, by which TensorBoard knows them.
pub(crate) const NAME: &str = "events.out.tfevents.";
/// What ours end with.
const ENDING: &str = ".gradus";
/// The version that the first event of a file states.
const VERSION: &str = "brain.Event:2";
/// The name of samples.
const SAMPLE: &str = "sample";

/// Fields of the messages, by the names that TensorFlow's `event.proto`, `summary.proto` and `tensor.proto` give them.
mod field {
    pub const EVENT_WALL_TIME: u32 = 1;
    pub const EVENT_STEP: u32 = 2;
    pub const EVENT_FILE_VERSION: u32 = 3;
    pub const EVENT_SUMMARY: u32 = 5;
    pub const EVENT_SESSION_LOG: u32 = 7;
    pub const SESSION_LOG_STATUS: u32 = 1;
    pub const SUMMARY_VALUE: u32 = 1;
    pub const VALUE_TAG: u32 = 1;
    pub const VALUE_SIMPLE_VALUE: u32 = 2;
    pub const VALUE_TENSOR: u32 = 8;
    pub const VALUE_METADATA: u32 = 9;
    pub const METADATA_PLUGIN_DATA: u32 = 1;
    pub const PLUGIN_DATA_NAME: u32 = 1;
    pub const TENSOR_DTYPE: u32 = 1;
    pub const TENSOR_SHAPE: u32 = 2;
    pub const TENSOR_STRING_VAL: u32 = 8;
}

/// `SessionLog::START`, and `DT_STRING`.
const START: u64 = 1;
const STRING: u64 = 7;

/// An event file, written a step at a time without allocating. What cannot be written waits for the next time.
pub struct EventLog {
    file: Appended,
}

impl EventLog {
    /// Begins a file in a folder, for the steps after `last_step`.
    pub fn begin(folder: &Path, last_step: Option<u64>) -> Result<EventLog> {
        atomic::make_folder(folder)?;
        let path = folder.join(format!("{NAME}{:010}{ENDING}", next_time(folder)));
        let (file, ()) = Appended::open(path, |_| Ok((0, ())))?;
        let mut log = EventLog { file };
        log.file.add(|out| {
            append_event(out, 0, |out| text(out, field::EVENT_FILE_VERSION, VERSION));
            append_event(out, last_step.unwrap_or(0) + 1, |out| {
                nested(out, field::EVENT_SESSION_LOG, |out| integer(out, field::SESSION_LOG_STATUS, START));
            });
        })?;
        Ok(log)
    }

    /// Has room for the figures of so many bytes of gradients, so that none is allocated when they come.
    pub(crate) fn make_room(&mut self, bytes: usize) {
        self.file.make_room(bytes);
    }

    /// Adds a step's figures. One that cannot be written comes with the next that can, unless too many wait.
    pub fn write(&mut self, report: &StepReport) -> Result<()> {
        self.file.add(|out| {
            append_event(out, report.step, |out| {
                nested(out, field::EVENT_SUMMARY, |out| {
                    each_scalar(report, |key, value| scalar(out, &[key], value));
                    each_gradient_scalar(report, |key, name, value| scalar(out, &[key, "/", name], value));
                });
            });
        })
    }

    /// Adds a text that the model wrote after a step.
    pub fn sample(&mut self, step: u64, sample: &str) -> Result<()> {
        self.file.add(|out| {
            append_event(out, step, |out| {
                nested(out, field::EVENT_SUMMARY, |out| {
                    nested(out, field::SUMMARY_VALUE, |out| sample_value(out, sample));
                });
            });
        })
    }

    /// Events that were given up because too many waited.
    pub fn lost(&self) -> u64 {
        self.file.lost()
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Makes the events so far last.
    pub fn sync(&self) -> Result<()> {
        self.file.sync()
    }
}

/// The figures of a step that are shown, by the keys that they have in `metrics.jsonl`.
fn each_scalar(report: &StepReport, mut show: impl FnMut(&str, f32)) {
    show("loss", report.loss);
    report.validation_loss.into_iter().for_each(|loss| show("validation_loss", loss));
    if let Some(accuracy) = report.accuracy {
        show("validation_accuracy", accuracy.top1);
        show("validation_accuracy_top5", accuracy.top5);
    }
    show("gradient_norm", report.gradient_norm);
    report.sharpness.into_iter().for_each(|sharpness| show("sharpness", sharpness));
    show("learning_rate", report.learning_rate);
    report.loss_scale.into_iter().for_each(|scale| show("loss_scale", scale));
    report.skipped_steps.into_iter().for_each(|steps| show("skipped_steps", steps as f32));
    show("tokens", report.tokens as f32);
    show("tokens_per_second", report.tokens_per_second as f32);
    show("step_ms", report.step_ms as f32);
    show("memory_bytes", report.memory_bytes as f32);
    show("peak_memory_bytes", report.peak_memory_bytes as f32);
}

/// The figures of gradients in a step that measured them. TensorBoard shows what is before the stroke as a group.
fn each_gradient_scalar(report: &StepReport, mut show: impl FnMut(&str, &str, f32)) {
    let Some(health) = &report.health else { return };
    let shown: Result<(), Infallible> = health.try_each_row(|name, figures| {
        show("gradients", name, figures.gradient_norm);
        show("mean_abs", name, figures.mean_abs);
        show("zeros", name, figures.zeros);
        (figures.non_finite > 0).then(|| show("non_finite", name, figures.non_finite as f32));
        figures.update_ratio().into_iter().for_each(|ratio| show("update_ratio", name, ratio));
        Ok(())
    });
    let Ok(()) = shown;
}

/// A number by its tag, which is given in parts.
fn scalar(out: &mut Message, tag: &[&str], value: f32) {
    nested(out, field::SUMMARY_VALUE, |out| {
        nested(out, field::VALUE_TAG, |out| tag.iter().for_each(|part| out.extend_from_slice(part.as_bytes())));
        float(out, field::VALUE_SIMPLE_VALUE, value);
    });
}

fn append_event(out: &mut Message, step: u64, what: impl FnOnce(&mut Message)) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    record::append(out, |out| {
        double(out, field::EVENT_WALL_TIME, time.as_secs_f64());
        integer(out, field::EVENT_STEP, step);
        what(out);
    });
}

/// A text is a tensor of one string that a plug-in shows. It takes it for Markdown, in which four spaces before each line
/// mean that the text is shown as it is.
fn sample_value(out: &mut Message, sample: &str) {
    text(out, field::VALUE_TAG, SAMPLE);
    nested(out, field::VALUE_METADATA, |out| {
        nested(out, field::METADATA_PLUGIN_DATA, |out| text(out, field::PLUGIN_DATA_NAME, "text"));
    });
    nested(out, field::VALUE_TENSOR, |out| {
        integer(out, field::TENSOR_DTYPE, STRING);
        nested(out, field::TENSOR_SHAPE, |_| {});
        nested(out, field::TENSOR_STRING_VAL, |out| {
            for (index, line) in sample.split('\n').enumerate() {
                out.extend_from_slice(if index == 0 { b"    " } else { b"\n    " });
                out.extend_from_slice(line.as_bytes());
            }
        });
    });
}

/// The seconds by which the next file is named: now, or after those that are there.
fn next_time(folder: &Path) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time_of = |path: PathBuf| path.file_name()?.to_str()?.strip_prefix(NAME)?.get(..10)?.parse::<u64>().ok();
    event_files(folder).into_iter().filter_map(time_of).max().map_or(now, |newest| now.max(newest + 1))
}

/// The event files of a folder, whoever wrote them.
fn event_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_one = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().contains("tfevents"));
    entries.map(|entry| entry.path()).filter(is_one).collect()
}

/// Whether a folder holds events of steps, which those of a new run would be mixed with.
pub(crate) fn holds_events(folder: &Path) -> bool {
    // The two events with which a file begins take less.
    const BEGINNING: u64 = 100;
    event_files(folder).iter().any(|path| fs::metadata(path).is_ok_and(|about| about.len() > BEGINNING))
}

#[cfg(test)]
mod tests;

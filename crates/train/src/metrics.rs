//! `metrics.jsonl`: a line for every step, that other tools read.

use crate::files::atomic;
use crate::run::StepReport;
use crate::{Error, Result};
use serde::Deserialize;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// The file, written line by line without allocating.
pub struct MetricsLog {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
    last_loss: f32,
}

/// What is read back of a line.
#[derive(Deserialize)]
struct Line {
    step: u64,
    loss: Option<f32>,
}

impl MetricsLog {
    /// Opens `metrics.jsonl` of a run to go on after `last_step`; lines of later steps, which a resumed run will
    /// write again, are dropped.
    pub fn open(folder: &Path, last_step: Option<u64>) -> Result<MetricsLog> {
        let path = folder.join("metrics.jsonl");
        let opened = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = opened.map_err(atomic::failed("write", &path))?;
        let (kept_bytes, last_loss) = kept(&file, last_step.unwrap_or(0)).map_err(Error::io("read", &path))?;
        file.set_len(kept_bytes).map_err(atomic::failed("write", &path))?;
        Ok(MetricsLog { path, file, line: Vec::with_capacity(1024), last_loss })
    }

    /// The loss of the last step that was there when the file was opened; not a number if there was none.
    pub fn last_loss(&self) -> f32 {
        self.last_loss
    }

    /// Adds a step's line; numbers that are not finite become null.
    pub fn write(&mut self, report: &StepReport) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, report).expect("numbers can be written to memory");
        self.line.push(b'\n');
        // The path is copied only if there is an error to report.
        self.file.write_all(&self.line).map_err(|error| atomic::failed("write", &self.path)(error))
    }

    /// Makes the lines so far last, as a checkpoint that goes on after them does.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| atomic::failed("write", &self.path)(error))
    }
}

/// The bytes of the whole lines of steps up to `last`, which come first, and the loss of the last of them.
fn kept(file: &File, last: u64) -> io::Result<(u64, f32)> {
    let (mut reader, mut line) = (BufReader::new(file), vec![]);
    let (mut bytes, mut loss) = (0, f32::NAN);
    loop {
        line.clear();
        reader.read_until(b'\n', &mut line)?;
        match serde_json::from_slice::<Line>(&line) {
            Ok(read) if read.step <= last && line.ends_with(b"\n") => {
                bytes += line.len() as u64;
                loss = read.loss.unwrap_or(f32::NAN);
            }
            _ => return Ok((bytes, loss)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: u64) -> StepReport {
        StepReport {
            step,
            steps: None,
            account: None,
            seconds_left: None,
            tokens: step * 100,
            loss: 2.5,
            validation_loss: (step == 2).then_some(2.25),
            gradient_norm: f32::NAN,
            learning_rate: 3e-4,
            tokens_per_second: 1234.5,
            step_ms: 10.25,
            peak_memory_bytes: 7,
            memory_bytes: 5,
        }
    }

    #[test]
    fn lines_are_json_and_a_resumed_run_drops_what_it_will_write_again() {
        let folder = std::env::temp_dir().join(format!("gradus-metrics-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut log = MetricsLog::open(&folder, None).unwrap();
        (1..=4).for_each(|step| log.write(&metrics(step)).unwrap());
        // A line that a kill cut short.
        log.file.write_all(b"{\"step\":5,\"tok").unwrap();
        let mut log = MetricsLog::open(&folder, Some(2)).unwrap();
        assert_eq!(log.last_loss(), 2.5);
        log.write(&metrics(3)).unwrap();
        log.sync().unwrap();
        let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(lines[1]["validation_loss"], 2.25);
        assert!(lines[0].get("validation_loss").is_none() && lines[0]["gradient_norm"].is_null());
        assert!((lines[0]["learning_rate"].as_f64().unwrap() - 3e-4).abs() < 1e-9);
        assert!(MetricsLog::open(&folder, None).unwrap().last_loss().is_nan());
        assert_eq!(std::fs::read(folder.join("metrics.jsonl")).unwrap(), b"");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! `metrics.jsonl`: a line for every step, that other tools read.

use crate::files::atomic;
use crate::run::StepReport;
use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// The file, written line by line without allocating.
pub struct MetricsLog {
    path: PathBuf,
    file: File,
    line: Vec<u8>,
}

impl MetricsLog {
    /// Opens `metrics.jsonl` of a run to go on after `last_step`; lines of later steps, which a resumed run will
    /// write again, are dropped.
    pub fn open(folder: &Path, last_step: Option<u64>) -> Result<MetricsLog> {
        let path = folder.join("metrics.jsonl");
        let kept = match last_step {
            Some(last) => kept_lines(&path, last)?,
            None => vec![],
        };
        // Whole or not at all, so that a kill here loses nothing.
        atomic::write_file(&path, &kept)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(atomic::failed("write", &path))?;
        Ok(MetricsLog { path, file, line: Vec::with_capacity(1024) })
    }

    /// Adds a step's line; numbers that are not finite become null.
    pub fn write(&mut self, report: &StepReport) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, report).expect("numbers can be written to memory");
        self.line.push(b'\n');
        // The path is copied only if there is an error to report.
        self.file.write_all(&self.line).map_err(|error| atomic::failed("write", &self.path)(error))
    }
}

/// The whole lines of steps up to `last`.
fn kept_lines(path: &Path, last: u64) -> Result<Vec<u8>> {
    let Ok(file) = File::open(path) else { return Ok(vec![]) };
    let mut kept = vec![];
    for line in BufReader::new(file).lines() {
        let line = line.map_err(Error::io("read", path))?;
        let step = serde_json::from_str::<serde_json::Value>(&line).ok().and_then(|line| line["step"].as_u64());
        if step.is_some_and(|step| step <= last) {
            kept.extend_from_slice(line.as_bytes());
            kept.push(b'\n');
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(step: u64) -> StepReport {
        StepReport {
            step,
            steps: None,
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
        log.write(&metrics(3)).unwrap();
        let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
        let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.iter().map(|line| line["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(lines[1]["validation_loss"], 2.25);
        assert!(lines[0].get("validation_loss").is_none() && lines[0]["gradient_norm"].is_null());
        assert!((lines[0]["learning_rate"].as_f64().unwrap() - 3e-4).abs() < 1e-9);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

//! `metrics.jsonl`: a line for every step, that other tools read.

use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// What is written down of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Metrics {
    pub step: u64,
    pub tokens: u64,
    pub loss: f32,
    pub validation_loss: Option<f32>,
    pub gradient_norm: f32,
    pub learning_rate: f32,
    pub tokens_per_second: f64,
    pub step_ms: f64,
    pub peak_memory_bytes: u64,
    pub memory_bytes: u64,
}

impl Metrics {
    /// The step as one JSON object; numbers that are not finite become null.
    pub fn write_json(&self, to: &mut impl Write) -> std::io::Result<()> {
        write!(to, "{{\"step\":{},\"tokens\":{},\"loss\":", self.step, self.tokens)?;
        number(to, self.loss as f64)?;
        if let Some(loss) = self.validation_loss {
            write!(to, ",\"validation_loss\":")?;
            number(to, loss as f64)?;
        }
        write!(to, ",\"gradient_norm\":")?;
        number(to, self.gradient_norm as f64)?;
        write!(to, ",\"learning_rate\":{:e}", self.learning_rate)?;
        write!(to, ",\"tokens_per_second\":{:.1},\"step_ms\":{:.3}", self.tokens_per_second, self.step_ms)?;
        write!(to, ",\"peak_memory_bytes\":{},\"memory_bytes\":{}}}", self.peak_memory_bytes, self.memory_bytes)
    }
}

fn number(to: &mut impl Write, number: f64) -> std::io::Result<()> {
    if number.is_finite() { write!(to, "{number:.6}") } else { write!(to, "null") }
}

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
        // Written beside and renamed, so that a kill here loses nothing.
        let beside = folder.join("metrics.jsonl.tmp");
        std::fs::write(&beside, &kept).map_err(Error::io("write", &beside))?;
        std::fs::rename(&beside, &path).map_err(Error::io("write", &path))?;
        let file = OpenOptions::new().append(true).open(&path).map_err(Error::io("write", &path))?;
        Ok(MetricsLog { path, file, line: Vec::with_capacity(1024) })
    }

    /// Adds a line.
    pub fn write(&mut self, metrics: &Metrics) -> Result<()> {
        self.line.clear();
        let written = metrics.write_json(&mut self.line).and_then(|()| self.line.write_all(b"\n"));
        written.and_then(|()| self.file.write_all(&self.line)).map_err(Error::io("write", &self.path))
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

    fn metrics(step: u64) -> Metrics {
        Metrics {
            step,
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

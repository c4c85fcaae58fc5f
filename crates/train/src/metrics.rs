//! `metrics.jsonl`: a line for every step, that other tools read.

use crate::Result;
use crate::files::appended::Appended;
use crate::run::StepReport;
use crate::training::METRICS;
use serde::Deserialize;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

/// The file, written line by line without allocating. What cannot be written waits for the next time.
pub struct MetricsLog {
    file: Appended,
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
        let (file, last_loss) = Appended::open(folder.join(METRICS), |file| kept(file, last_step.unwrap_or(0)))?;
        Ok(MetricsLog { file, last_loss })
    }

    /// The loss of the last step that was there when the file was opened; not a number if there was none.
    pub fn last_loss(&self) -> f32 {
        self.last_loss
    }

    /// Has room for lines that are so many bytes longer than usual, so that none is allocated when one comes.
    pub(crate) fn make_room(&mut self, bytes: usize) {
        self.file.make_room(bytes);
    }

    /// Adds a step's line; numbers that are not finite become null. A line that cannot be written comes with the next
    /// that can, unless too many wait.
    pub fn write(&mut self, report: &StepReport) -> Result<()> {
        self.file.add(|out| {
            serde_json::to_writer(&mut *out, report).expect("numbers can be written to memory");
            out.push(b'\n');
        })
    }

    /// Lines that were given up because too many waited.
    pub fn lost(&self) -> u64 {
        self.file.lost()
    }

    /// Makes the lines so far last, as a checkpoint that goes on after them does.
    pub fn sync(&self) -> Result<()> {
        self.file.sync()
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
            verdict: None,
            alerts: vec![],
            health: None,
            seconds_left: None,
            tokens: step * 100,
            loss: 2.5,
            validation_loss: (step == 2).then_some(2.25),
            accuracy: None,
            gradient_norm: f32::NAN,
            sharpness: None,
            learning_rate: 3e-4,
            loss_scale: None,
            skipped_steps: None,
            bytes_sent: None,
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
        log.file.add(|out| out.extend_from_slice(b"{\"step\":5,\"tok")).unwrap();
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

//! `metrics.jsonl` as it grows: what has come is read once, whole lines only, and held by where it stands.

use super::files::open_plain;
use super::history::{Facts, History};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of the file that are given at once. No line may be longer.
pub const RANGE_BYTES: u64 = 256 << 10;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 8 << 10;

/// What is known of the file.
#[derive(Debug, Default)]
pub struct Log {
    path: PathBuf,
    /// How often the file was found to be another than before, as when a run goes on from an earlier step.
    pub generation: u64,
    /// Bytes of its whole lines.
    pub bytes: u64,
    /// Its whole lines.
    pub lines: u64,
    /// Seconds of all steps.
    pub seconds: f64,
    /// Time since it was written to.
    pub age: Option<Duration>,
    /// The last line, with its end.
    last: Vec<u8>,
    /// The last line with figures of gradients.
    measured: Vec<u8>,
    /// Alerts in all lines.
    pub alerts: usize,
    /// The last loss on held-out text.
    pub validation_loss: Option<f64>,
    /// The last sharpness of the loss.
    pub sharpness: Option<f64>,
    /// What is wrong with the line after the last one that is shown.
    pub problem: Option<String>,
    /// What is shown first.
    pub history: History,
}

impl Log {
    /// The file of a run.
    pub fn new(folder: &Path) -> Log {
        Log { path: folder.join("metrics.jsonl"), ..Log::default() }
    }

    /// The last line.
    pub fn last(&self) -> Option<Value> {
        serde_json::from_slice(&self.last).ok()
    }

    /// The last line with figures of gradients.
    pub fn measured(&self) -> Option<Value> {
        serde_json::from_slice(&self.measured).ok()
    }

    /// Reads what has come since the last time; gives the file, or why there is none.
    pub fn catch_up(&mut self) -> Result<File, String> {
        let told = |error: io::Error| format!("metrics.jsonl: {error}");
        let mut file = open_plain(&self.path).map_err(told)?;
        let about = file.metadata().map_err(told)?;
        self.age = about.modified().ok().and_then(|time| time.elapsed().ok());
        if !self.is_continued(&mut file, about.len()).map_err(told)? {
            let (path, age) = (std::mem::take(&mut self.path), self.age);
            *self = Log { path, age, generation: self.generation + 1, ..Log::default() };
        }
        file.seek(SeekFrom::Start(self.bytes)).map_err(told)?;
        let mut reader = BufReader::with_capacity(PIECE_BYTES, &file);
        let mut line = vec![];
        self.problem = loop {
            line.clear();
            (&mut reader).take(RANGE_BYTES).read_until(b'\n', &mut line).map_err(told)?;
            let problem = match line.ends_with(b"\n") {
                true if self.add(&line) => continue,
                true => "is not a line of figures",
                false if line.len() as u64 == RANGE_BYTES => "is longer than 256 KB",
                // The end, or a line that is not whole yet.
                false => break None,
            };
            break Some(format!(
                "metrics.jsonl: line {} {problem}; only the lines before it are shown",
                self.lines + 1
            ));
        };
        Ok(file)
    }

    /// Whether the file still has what was read of it. Figures of time are in every line, so that the last one is as good
    /// as all of them.
    fn is_continued(&self, file: &mut File, length: u64) -> io::Result<bool> {
        if length < self.bytes {
            return Ok(false);
        }
        let mut there = vec![0; self.last.len()];
        file.seek(SeekFrom::Start(self.bytes - self.last.len() as u64))?;
        file.read_exact(&mut there)?;
        Ok(there == self.last)
    }

    /// Takes the next line, if it is one of figures.
    fn add(&mut self, line: &[u8]) -> bool {
        let Ok(facts) = serde_json::from_slice::<Facts>(line) else { return false };
        self.seconds += facts.step_ms.unwrap_or(0.0) / 1e3;
        self.history.add(facts.at(self.bytes, line.len() as u32 - 1, self.seconds), &facts);
        self.validation_loss = facts.validation_loss.or(self.validation_loss);
        self.sharpness = facts.sharpness.or(self.sharpness);
        let (is_measured, alerts) = facts.health();
        self.alerts += alerts;
        if is_measured {
            self.measured.clear();
            self.measured.extend_from_slice(line);
        }
        self.bytes += line.len() as u64;
        self.lines += 1;
        self.last.clear();
        self.last.extend_from_slice(line);
        true
    }

    /// The whole lines from a byte on that can be given at once, by their length; `None` if no line begins there.
    pub fn range(&self, file: &mut File, from: u64) -> io::Result<Option<u64>> {
        if from > self.bytes || (from > 0 && !ends_line(file, from)?) {
            return Ok(None);
        }
        let left = self.bytes - from;
        if left <= RANGE_BYTES {
            return Ok(Some(left));
        }
        file.seek(SeekFrom::Start(from))?;
        let mut reader = BufReader::with_capacity(PIECE_BYTES, file).take(RANGE_BYTES);
        let (mut seen, mut whole) = (0, 0);
        loop {
            let piece = reader.fill_buf()?;
            if piece.is_empty() {
                return Ok(Some(whole));
            }
            if let Some(end) = piece.iter().rposition(|byte| *byte == b'\n') {
                whole = seen + end as u64 + 1;
            }
            let length = piece.len();
            seen += length as u64;
            reader.consume(length);
        }
    }
}

/// Whether a line ends right before this byte.
fn ends_line(file: &mut File, byte: u64) -> io::Result<bool> {
    let mut before = [0];
    file.seek(SeekFrom::Start(byte - 1))?;
    file.read_exact(&mut before)?;
    Ok(before == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    fn line(step: u64) -> String {
        format!("{{\"step\":{step},\"loss\":{}.5,\"step_ms\":250.0}}\n", step % 7)
    }

    fn append(folder: &Folder, text: &str) {
        let path = folder.path().join("metrics.jsonl");
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn a_file_that_grows_is_read_once_and_a_line_in_part_waits() {
        let folder = Folder::new("log-grows");
        let mut log = Log::new(folder.path());
        assert!(log.catch_up().unwrap_err().starts_with("metrics.jsonl: "), "no file yet");
        append(&folder, &(line(1) + &line(2) + "{\"step\":3,\"lo"));
        log.catch_up().unwrap();
        let whole = (line(1) + &line(2)).len() as u64;
        assert_eq!((log.lines, log.bytes, log.seconds, log.generation), (2, whole, 0.5, 0));
        append(&folder, "ss\":9.5}\n");
        log.catch_up().unwrap();
        assert_eq!((log.lines, log.generation), (3, 0));
        assert_eq!(log.last().unwrap()["loss"], 9.5);
    }

    #[test]
    fn a_file_that_was_cut_and_went_on_is_another() {
        let folder = Folder::new("log-cut");
        let mut log = Log::new(folder.path());
        (1..=5).for_each(|step| append(&folder, &line(step)));
        log.catch_up().unwrap();
        // Shorter; and as long as before, with other figures.
        fs::write(folder.path().join("metrics.jsonl"), line(1)).unwrap();
        log.catch_up().unwrap();
        assert_eq!((log.lines, log.generation), (1, 1));
        fs::write(folder.path().join("metrics.jsonl"), line(2) + &line(3)).unwrap();
        log.catch_up().unwrap();
        assert_eq!((log.lines, log.generation, log.history.lines().len()), (2, 2, 2));
    }

    #[test]
    fn what_is_not_a_line_of_figures_is_told_and_what_is_before_it_stays() {
        let folder = Folder::new("log-odd");
        append(&folder, &(line(1) + "no figures\n" + &line(2)));
        let mut log = Log::new(folder.path());
        for _ in 0..2 {
            log.catch_up().unwrap();
            let told = log.problem.as_ref().expect("a problem");
            assert!(told.contains("line 2 is not a line of figures"), "{told}");
            assert_eq!(log.lines, 1);
        }
        fs::write(folder.path().join("metrics.jsonl"), line(1) + &"x".repeat(RANGE_BYTES as usize + 1)).unwrap();
        log.catch_up().unwrap();
        assert!(log.problem.as_ref().is_some_and(|told| told.contains("line 2 is longer")), "{:?}", log.problem);
        fs::write(folder.path().join("metrics.jsonl"), line(1) + &line(2)).unwrap();
        log.catch_up().unwrap();
        assert_eq!((&log.problem, log.lines), (&None, 2));
    }

    #[test]
    fn ranges_are_whole_lines() {
        let folder = Folder::new("log-ranges");
        let text: String = (1..=20_000).map(line).collect();
        append(&folder, &text);
        let mut log = Log::new(folder.path());
        let mut file = log.catch_up().unwrap();
        let (mut from, mut parts) = (0, 0);
        while from < log.bytes {
            let length = log.range(&mut file, from).unwrap().expect("a line begins there");
            assert!(length > 0 && length <= RANGE_BYTES);
            assert_eq!(text.as_bytes()[(from + length - 1) as usize], b'\n');
            (from, parts) = (from + length, parts + 1);
        }
        assert!(from == text.len() as u64 && parts > 2, "{from} bytes in {parts} parts");
        assert_eq!(log.range(&mut file, log.bytes).unwrap(), Some(0));
        assert_eq!(log.range(&mut file, log.bytes + 1).unwrap(), None);
        assert_eq!(log.range(&mut file, 7).unwrap(), None, "within a line");
    }
}

//! The figures of a run, from its `metrics.jsonl`.

use crate::charts::{Glyphs, Plot, Series};
use gradus_train::{Error, Result};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A line of the file.
#[derive(Debug, Deserialize)]
pub struct Line {
    pub step: u64,
    pub tokens: Option<u64>,
    pub loss: Option<f32>,
    pub validation_loss: Option<f32>,
    pub validation_accuracy: Option<f32>,
    tokens_per_second: Option<f64>,
    step_ms: Option<f64>,
    pub peak_memory_bytes: Option<u64>,
    /// What the memory was for, which the last step of a session has.
    pub account: Option<IgnoredAny>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Figures {
    /// Losses by step; those that were not finite are left out.
    pub losses: Vec<(u64, f32)>,
    /// Losses on held-out text by step.
    pub validations: Vec<(u64, f32)>,
    /// The last line that is whole.
    pub last: Option<Line>,
    /// Seconds of all steps.
    pub seconds: f64,
    /// Tokens of all steps whose time is known.
    tokens: f64,
}

impl Figures {
    /// Reads the file of a run; none if it has none yet. Its last line may be half-written, while the run goes on or because
    /// it was killed, so whole lines count alone.
    pub fn read(run: &Path) -> Result<Figures> {
        let path = run.join("metrics.jsonl");
        match (path.is_file(), path.symlink_metadata().is_ok()) {
            (false, false) => return Ok(Figures::default()),
            (false, true) => return Err(Error::checkpoint(&path, "not a file; put back the run's own, or remove it")),
            (true, _) => {}
        }
        let mut reader = BufReader::new(File::open(&path).map_err(Error::io("open", &path))?);
        let (mut figures, mut line) = (Figures::default(), vec![]);
        for number in 1.. {
            line.clear();
            reader.read_until(b'\n', &mut line).map_err(Error::io("read", &path))?;
            if !line.ends_with(b"\n") {
                break;
            }
            let read = serde_json::from_slice(&line).map_err(|error| {
                let problem =
                    format!("line {number} is not a line of figures ({error}); remove it, or give another run");
                Error::checkpoint(&path, problem)
            })?;
            figures.add(read);
        }
        Ok(figures)
    }

    fn add(&mut self, line: Line) {
        let finite = |loss: Option<f32>| loss.filter(|loss| loss.is_finite()).map(|loss| (line.step, loss));
        self.losses.extend(finite(line.loss));
        self.validations.extend(finite(line.validation_loss));
        let seconds = line.step_ms.unwrap_or(0.0) / 1e3;
        self.seconds += seconds;
        self.tokens += line.tokens_per_second.unwrap_or(0.0) * seconds;
        self.last = Some(line);
    }

    /// Tokens a second over all steps.
    pub fn tokens_per_second(&self) -> Option<f64> {
        (self.tokens > 0.0).then(|| self.tokens / self.seconds)
    }

    /// The step of the lowest loss, and the loss.
    pub fn best_loss(&self) -> Option<(u64, f32)> {
        best(&self.losses)
    }

    /// The same on held-out text.
    pub fn best_validation(&self) -> Option<(u64, f32)> {
        best(&self.validations)
    }

    /// The losses, drawn by themselves.
    pub fn plot(&self, columns: usize, glyphs: Glyphs) -> Option<String> {
        let curve = Series { mark: '*', points: self.losses.clone() };
        let points = Series { mark: validation_mark(glyphs), points: self.validations.clone() };
        Plot { curves: &[curve], points: &[points] }.text(columns, glyphs)
    }

    /// What the marks of the plot mean, if there are several.
    pub fn legend(&self, glyphs: Glyphs) -> String {
        match self.validations.is_empty() {
            true => String::new(),
            false => format!(", {} validation", validation_mark(glyphs)),
        }
    }
}

fn validation_mark(glyphs: Glyphs) -> char {
    if glyphs == Glyphs::Unicode { '●' } else { 'o' }
}

/// The first of the lowest.
fn best(points: &[(u64, f32)]) -> Option<(u64, f32)> {
    points.iter().copied().reduce(|best, point| if point.1 < best.1 { point } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn read(name: &str, text: impl AsRef<[u8]>) -> Result<Figures> {
        let folder = std::env::temp_dir().join(format!("gradus-figures-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("metrics.jsonl"), text).unwrap();
        let figures = Figures::read(&folder);
        fs::remove_dir_all(&folder).unwrap();
        figures
    }

    #[test]
    fn figures_are_those_of_the_file() {
        let lines = [
            r#"{"step":1,"tokens":10,"loss":3.5,"step_ms":500.0,"tokens_per_second":20.0}"#,
            r#"{"step":2,"tokens":20,"loss":null,"step_ms":500.0,"tokens_per_second":20.0,"other":[1]}"#,
            r#"{"step":3,"tokens":30,"loss":2.5,"validation_loss":2.75,"step_ms":1000.0,"tokens_per_second":10.0,"account":{}}"#,
        ];
        let figures = read("whole", lines.join("\n") + "\n{\"step\":4,\"lo").unwrap();
        assert_eq!(figures.losses, [(1, 3.5), (3, 2.5)]);
        assert_eq!((figures.best_loss(), figures.best_validation()), (Some((3, 2.5)), Some((3, 2.75))));
        assert_eq!((figures.tokens_per_second(), figures.seconds), (Some(15.0), 2.0));
        let last = figures.last.as_ref().unwrap();
        assert!(last.step == 3 && last.account.is_some());
        assert!(
            figures.plot(60, Glyphs::Ascii).unwrap().contains('o') && figures.legend(Glyphs::Ascii).contains("o val")
        );
        let nothing = read("nothing", "").unwrap();
        assert!(nothing.last.is_none() && nothing.plot(60, Glyphs::Ascii).is_none());
    }

    #[test]
    fn a_broken_line_is_named() {
        for (name, text) in [
            ("garbage", &b"{\"step\":1}\nno figures\n{\"step\":2}\n"[..]),
            ("zeros", b"{\"step\":1}\n\0\0\0\0\n"),
            ("no-step", b"{\"step\":1}\n{\"loss\":1.0}\n"),
            ("empty", b"{\"step\":1}\n\n"),
        ] {
            let error = read(name, text).unwrap_err().to_string();
            assert!(error.contains("line 2 is not a line of figures") && !error.contains('\n'), "{error}");
        }
    }
}

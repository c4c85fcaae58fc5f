//! Several runs beside each other: their losses in one plot, their figures in one table, and what they were told.

use super::figures::Figures;
use super::report::setting;
use super::state::State;
use super::stated::Stated;
use crate::charts::{Glyphs, Plot, Series};
use crate::numbers::{bytes, count, duration, short_time};
use gradus_train::config::CONFIG_FILE;
use gradus_train::{Error, Result};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A letter for each run.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

struct Run<'a> {
    letter: char,
    folder: &'a Path,
    stated: Stated,
    figures: Figures,
}

impl<'a> Run<'a> {
    fn read(letter: char, folder: &'a Path) -> Result<Run<'a>> {
        let problem = match (folder.is_dir(), folder.join(CONFIG_FILE).is_file()) {
            (true, true) => {
                return Ok(Run { letter, folder, stated: Stated::read(folder)?, figures: Figures::read(folder)? });
            }
            (true, false) => "not the folder of a run (it has no config.toml); several folders are compared as runs",
            (false, _) => "no such folder; check the path",
        };
        Err(Error::checkpoint(folder, problem))
    }
}

/// How runs compare, in so many columns.
pub fn report(folders: &[PathBuf], columns: usize, glyphs: Glyphs) -> Result<String> {
    if folders.len() > LETTERS.len() {
        return Err(Error::Config(format!(
            "{} runs are too many to compare; give {} at most",
            folders.len(),
            LETTERS.len()
        )));
    }
    let runs = LETTERS.chars().zip(folders).map(|(letter, folder)| Run::read(letter, folder));
    let runs = runs.collect::<Result<Vec<Run>>>()?;
    let parts = [legend(&runs), plot(&runs, columns, glyphs), table(&runs), differences(&runs)];
    Ok(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n"))
}

fn legend(runs: &[Run]) -> String {
    let width = runs.iter().map(|run| run.folder.display().to_string().chars().count()).max().unwrap_or(0);
    let line = |run: &Run| {
        let step = run.figures.last.as_ref().map(|last| last.step);
        let state = State::of(run.folder, &run.stated, &run.figures).in_short(step);
        format!("{}  {:width$}  {state}\n", run.letter, run.folder.display().to_string())
    };
    runs.iter().map(line).collect()
}

fn plot(runs: &[Run], columns: usize, glyphs: Glyphs) -> String {
    let curve = |run: &Run| Series { mark: run.letter, points: run.figures.losses.clone() };
    let points = |run: &Run| Series { mark: run.letter.to_ascii_lowercase(), points: run.figures.validations.clone() };
    let curves: Vec<Series> = runs.iter().map(curve).collect();
    let points: Vec<Series> = runs.iter().map(points).collect();
    let small = if points.iter().any(|series| !series.points.is_empty()) { "; small letters: validation" } else { "" };
    let drawn = Plot { curves: &curves, points: &points }.text(columns, glyphs);
    drawn.map_or(String::new(), |plot| format!("loss by step{small}\n{plot}"))
}

/// Figures of each run, a line each.
fn table(runs: &[Run]) -> String {
    let loss = |loss: Option<f32>| loss.map_or("-".into(), |loss| format!("{loss:.4}"));
    // Of what each run is made of.
    let rate = if runs.iter().all(|run| run.stated.examples == "images") { "images/s" } else { "tokens/s" };
    let mut rows: Vec<Vec<String>> = vec![
        ["run", "loss", "best", "validation", "best", rate, "a step", "peak memory", "steps took"]
            .map(String::from)
            .to_vec(),
    ];
    for Run { letter, figures, .. } in runs {
        let last = figures.last.as_ref();
        let steps = last.map_or(0, |last| last.step);
        let known = |text: Option<String>| text.unwrap_or("-".into());
        rows.push(vec![
            letter.to_string(),
            loss(last.and_then(|last| last.loss)),
            loss(figures.best_loss().map(|(_, loss)| loss)),
            loss(figures.validations.last().map(|(_, loss)| *loss)),
            loss(figures.best_validation().map(|(_, loss)| loss)),
            known(figures.tokens_per_second().map(|rate| count(rate.round() as u64))),
            known((steps > 0 && figures.seconds > 0.0).then(|| short_time(figures.seconds / steps as f64))),
            known(last.and_then(|last| last.peak_memory_bytes).map(bytes)),
            known((figures.seconds > 0.0).then(|| duration(figures.seconds))),
        ]);
    }
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    rows.iter().map(line).collect()
}

/// Each setting that is not the same in all runs.
fn differences(runs: &[Run]) -> String {
    let tables: Vec<&toml::Table> = runs.iter().map(|run| &run.stated.settings).collect();
    let mut keys: Vec<&String> = tables.iter().flat_map(|table| table.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.retain(|key| tables.iter().any(|table| table.get(*key) != tables[0].get(*key)));
    if keys.is_empty() {
        return "the same configuration\n".into();
    }
    let width = keys.iter().map(|key| key.len()).max().unwrap_or(0);
    let mut text = String::from("what differs in their configurations\n");
    for key in keys {
        let told = |table: &toml::Table| table.get(key).map_or("-".into(), |value| setting(key, value));
        let values = runs.iter().zip(&tables).map(|(run, table)| format!("{} {}", run.letter, told(table)));
        writeln!(text, "  {key:width$}  {}", values.collect::<Vec<_>>().join("   "))
            .expect("a string takes every line");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("gradus-compare-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        /// A run that came to its end.
        fn run(&self, name: &str, seed: u32, loss: f32) -> PathBuf {
            let folder = self.0.join(name);
            fs::create_dir_all(&folder).unwrap();
            let mut config = crate::resolve::resolve(&crate::layers::nothing_given()).unwrap().config;
            (config.seed, config.steps) = (seed, Some(100));
            fs::write(folder.join(CONFIG_FILE), config.to_toml()).unwrap();
            let line = |step: u64| {
                let (validation, account) =
                    if step == 100 { (",\"validation_loss\":2.5", ",\"account\":{}") } else { ("", "") };
                let loss = loss + 5.0 / step as f32;
                format!(
                    "{{\"step\":{step},\"tokens\":{},\"loss\":{loss},\"step_ms\":20.0,\"tokens_per_second\":5000.0,\"peak_memory_bytes\":58000000{validation}{account}}}\n",
                    100 * step
                )
            };
            fs::write(folder.join("metrics.jsonl"), (1..=100).map(line).collect::<String>()).unwrap();
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn runs_are_laid_beside_each_other() {
        let place = Folder::new("two");
        let runs = [place.run("one", 1, 1.0), place.run("two", 2, 2.0)];
        let text = report(&runs, 80, Glyphs::Ascii).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("A  ") && lines[0].ends_with("one  ended, step 100"), "{text}");
        assert!(text.contains("loss by step; small letters: validation\n"), "{text}");
        assert!(text.contains("AAA") && text.contains("BBB") && text.contains('b'), "{text}");
        let row = |letter: &str| {
            let row =
                lines.iter().find(|line| line.trim_start().starts_with(&format!("{letter}  ")) && line.contains("MB"));
            row.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("A"), "A 1.0500 1.0500 2.5000 2.5000 5,000 20.0 ms 58 MB 2s");
        assert_eq!(row("B"), "B 2.0500 2.0500 2.5000 2.5000 5,000 20.0 ms 58 MB 2s");
        assert!(text.ends_with("what differs in their configurations\n  seed  A 1   B 2\n"), "{text}");
        assert!(lines.iter().all(|line| line.len() <= 90 || line.starts_with(['A', 'B'])), "{text}");
        let same = report(&[runs[0].clone(), runs[0].clone()], 80, Glyphs::Unicode).unwrap();
        assert!(same.ends_with("the same configuration\n"), "{same}");
    }

    #[test]
    fn how_a_run_stands_is_told() {
        let place = Folder::new("states");
        let run = place.run("run", 1, 1.0);
        let state = || {
            let (stated, figures) = (Stated::read(&run).unwrap(), Figures::read(&run).unwrap());
            State::of(&run, &stated, &figures)
        };
        assert_eq!(state(), State::Ended);
        let lock = fs::File::open(&run).unwrap();
        lock.lock().unwrap();
        assert_eq!(state(), State::GoesOn);
        drop(lock);
        let whole = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
        fs::write(run.join("metrics.jsonl"), whole.replace("\"step\":100,", "\"step\":99,")).unwrap();
        assert_eq!(state(), State::Stopped, "before its last step");
        fs::write(run.join("metrics.jsonl"), whole.replace(",\"account\":{}", "")).unwrap();
        assert_eq!(state(), State::Killed);
        fs::write(run.join("metrics.jsonl"), "").unwrap();
        assert_eq!(state(), State::NotStarted);
        assert!(report(&[run.clone(), run.clone()], 80, Glyphs::Ascii).unwrap().contains("no steps yet"));
    }

    #[test]
    fn what_cannot_be_compared_is_refused_in_one_line() {
        let place = Folder::new("refused");
        let run = place.run("run", 1, 1.0);
        let refused = |folders: &[PathBuf]| report(folders, 80, Glyphs::Ascii).unwrap_err().to_string();
        assert!(refused(&[run.clone(), place.0.join("missing")]).contains("missing: no such folder"));
        assert!(refused(&[run.clone(), place.0.clone()]).contains("not the folder of a run"));
        assert!(refused(&vec![run.clone(); 27]).contains("26 at most"));
        fs::write(run.join("metrics.jsonl"), "garbage\n").unwrap();
        assert!(refused(&[run.clone(), run.clone()]).contains("metrics.jsonl: line 1 is not a line of figures"));
        fs::write(run.join(CONFIG_FILE), "garbage").unwrap();
        assert!(refused(&[run.clone(), run]).contains("config.toml"));
    }
}

//! What a folder holds, read from its files alone.

use super::figures::Figures;
use super::state::State;
use super::stated::Stated;
use crate::charts::Glyphs;
use crate::numbers::{bytes, count, duration, rounded};
use gradus_train::config::CONFIG_FILE;
use gradus_train::memory::Budget;
use gradus_train::{Error, Result};
use safetensors::tensor::Metadata;
use serde_json::Value;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// A header larger than this is not one.
const LARGEST_HEADER: u64 = 100 << 20;
/// The file beside the weights that holds what only training needs.
const OPTIMIZER_FILE: &str = "optimizer.safetensors";

/// What a run, checkpoint or model folder holds, in so many columns.
pub fn report(folder: &Path, columns: usize, glyphs: Glyphs) -> Result<String> {
    let mut text = String::new();
    if folder.join(CONFIG_FILE).is_file() {
        run_report(folder, (columns, glyphs), &mut text)?;
    } else if folder.join("state.json").is_file() {
        line(&mut text, "checkpoint", folder.display());
        json_report(&folder.join("state.json"), &mut text)?;
        weights_report(folder, &mut text)?;
    } else if folder.join("config.json").is_file() {
        line(&mut text, "model", folder.display());
        json_report(&folder.join("config.json"), &mut text)?;
        weights_report(folder, &mut text)?;
    } else {
        let problem = if folder.is_dir() {
            "not a run, checkpoint or model folder (no config.toml, state.json or config.json); give one that is"
        } else {
            "no such folder; check the path"
        };
        return Err(Error::checkpoint(folder, problem));
    }
    Ok(text)
}

fn run_report(folder: &Path, (columns, glyphs): (usize, Glyphs), text: &mut String) -> Result<()> {
    line(text, "run", folder.display());
    let stated = Stated::read(folder)?;
    for (key, value) in &stated.settings {
        line(text, &format!("  {key}"), setting(key, value));
    }
    line(text, "files", "");
    for name in ["checkpoints", "model", "samples", "metrics.jsonl"] {
        line(text, &format!("  {name}"), bytes(size(&folder.join(name))));
    }
    let figures = Figures::read(folder)?;
    progress_report(&figures, &stated, &State::of(folder, &stated, &figures), text);
    if let Some(plot) = figures.plot(columns, glyphs) {
        writeln!(text, "loss by step{}", figures.legend(glyphs)).expect("a string takes every line");
        text.push_str(&plot);
    }
    let checkpoints = checkpoints(folder);
    line(text, "checkpoints", checkpoints.len());
    if let Some(newest) = checkpoints.last() {
        line(text, "newest", newest.display());
    }
    let holders = checkpoints.last().into_iter().cloned().chain([folder.join("model")]);
    match holders.into_iter().find(|holder| holder.is_dir()) {
        Some(holder) => weights_report(&holder, text),
        None => Ok(()),
    }
}

/// How a run stands, and its last figures.
fn progress_report(figures: &Figures, stated: &Stated, state: &State, text: &mut String) {
    line(text, "progress", state);
    let Some(last) = &figures.last else { return };
    line(text, "  step", count(last.step));
    let mut told = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            line(text, &format!("  {name}"), value);
        }
    };
    told(stated.examples, last.tokens.map(exact_and_rounded));
    told("loss", last.loss.map(|loss| format!("{loss:.4}")));
    told("best loss", figures.best_loss().map(|(step, loss)| format!("{loss:.4} (step {})", count(step))));
    told("validation loss", figures.validations.last().map(|(_, loss)| format!("{loss:.4}")));
    let best = figures.best_validation().filter(|_| figures.validations.len() > 1);
    told("best validation loss", best.map(|(step, loss)| format!("{loss:.4} (step {})", count(step))));
    told("right", last.validation_accuracy.map(|share| format!("{:.1} %", 100.0 * share)));
    told(&format!("{} a second", stated.examples), figures.tokens_per_second().map(|rate| count(rate.round() as u64)));
    told("peak memory", last.peak_memory_bytes.map(bytes));
}

/// The checkpoints of a run, the newest last.
pub fn checkpoints(run_folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(run_folder.join("checkpoints")).into_iter().flatten().flatten();
    let mut whole: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join("state.json").is_file() && !is_half(path)).collect();
    whole.sort();
    whole
}

/// A folder still being written, or left so by a run that was killed.
fn is_half(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().contains(".tmp-"))
}

/// Bytes of a file, or of all files under a folder.
fn size(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => {
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| size(&entry.path())).sum()
        }
        Ok(about) => about.len(),
        Err(_) => 0,
    }
}

fn json_report(path: &Path, text: &mut String) -> Result<()> {
    let content = fs::read(path).map_err(Error::io("read", path))?;
    let Ok(Value::Object(object)) = serde_json::from_slice(&content) else {
        return Err(Error::checkpoint(path, "not a JSON object; the file is broken, use another checkpoint or copy"));
    };
    for (key, value) in &object {
        match value {
            // How rotary positions are scaled; other objects are long and no part of what a model is.
            Value::Object(inner) if key.starts_with("rope_") => {
                for (inner_key, value) in inner {
                    line(text, &format!("  {key}.{inner_key}"), figure(inner_key, value));
                }
            }
            Value::Object(_) => {}
            value => line(text, &format!("  {key}"), figure(key, value)),
        }
    }
    Ok(())
}

/// A setting of a run as people read it: memory and time in units, texts without quotes.
pub fn setting(key: &str, value: &toml::Value) -> String {
    match (key, value) {
        ("memory", toml::Value::String(text)) => match text.parse() {
            Ok(Budget::Bytes(size)) => size.to_string(),
            _ => text.clone(),
        },
        ("time", toml::Value::Float(seconds)) => duration(*seconds),
        (_, toml::Value::String(text)) => text.clone(),
        ("seed", _) => value.to_string(),
        (_, toml::Value::Integer(number @ 0..)) => count(*number as u64),
        (_, toml::Value::Array(values)) => {
            values.iter().map(|value| setting(key, value)).collect::<Vec<_>>().join(", ")
        }
        _ => value.to_string(),
    }
}

/// A count, and how much that is about where it is many.
fn exact_and_rounded(number: u64) -> String {
    if number < 1000 { count(number) } else { format!("{} ({})", count(number), rounded(number)) }
}

/// A figure of a file as people read it, by what its key says it is.
fn figure(key: &str, value: &Value) -> String {
    match (key, value) {
        (_, Value::String(text)) => text.clone(),
        (_, Value::Array(values)) => values.iter().map(|value| figure(key, value)).collect::<Vec<_>>().join(", "),
        (_, Value::Number(number)) => match (key, number.as_u64(), number.as_f64()) {
            (key, Some(size), _) if key.ends_with("bytes") => bytes(size),
            ("seconds", _, Some(seconds)) => duration(seconds),
            ("tokens", Some(tokens), _) => exact_and_rounded(tokens),
            (key, _, Some(loss)) if key.ends_with("loss") => format!("{loss:.4}"),
            // Names rather than amounts, though they are numbers.
            (key, Some(_), _) if key.contains("seed") || key.contains("fingerprint") || key.ends_with("_id") => {
                number.to_string()
            }
            (_, Some(number), _) => count(number),
            _ => number.to_string(),
        },
        _ => value.to_string(),
    }
}

/// The numbers of a part of a model: a block, or a weight outside of blocks.
#[derive(Debug, PartialEq)]
struct Part {
    block: Option<usize>,
    name: String,
    parameters: u64,
}

fn weights_report(folder: &Path, text: &mut String) -> Result<()> {
    let mut parts: Vec<Part> = vec![];
    let mut stored = 0;
    for path in weight_files(folder) {
        let header = header(&path)?;
        stored += header.data_len() as u64;
        for (name, info) in header.tensors() {
            add(&mut parts, &name, info.shape.iter().map(|size| *size as u64).product());
        }
    }
    parts.sort_by(|a, b| (a.block, &a.name).cmp(&(b.block, &b.name)));
    let total = parts.iter().map(|part| part.parameters).sum();
    line(text, "parameters", exact_and_rounded(total));
    line(text, "weights", bytes(stored));
    // Blocks of the same size that follow each other share a line.
    for alike in parts.chunk_by(|a, b| a.block.is_some() && b.block.is_some() && a.parameters == b.parameters) {
        let (first, last) = (&alike[0], &alike[alike.len() - 1]);
        match (first.block, last.block) {
            (Some(from), Some(to)) if from < to => {
                line(text, &format!("  blocks {from} to {to}"), format!("{} each", count(first.parameters)));
            }
            (Some(block), _) => line(text, &format!("  block {block}"), count(first.parameters)),
            _ => line(text, &format!("  {}", first.name), count(first.parameters)),
        }
    }
    Ok(())
}

fn add(parts: &mut Vec<Part>, name: &str, parameters: u64) {
    let block = name.split('.').find_map(|piece| piece.parse().ok());
    let name = if block.is_some() { "" } else { name };
    match parts.iter_mut().find(|part| part.block == block && part.name == name) {
        Some(part) => part.parameters += parameters,
        None => parts.push(Part { block, name: name.into(), parameters }),
    }
}

/// The files of weights in a folder, in order.
fn weight_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_weights = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "safetensors")
            && path.file_name().is_some_and(|name| name != OPTIMIZER_FILE)
    };
    let mut files: Vec<PathBuf> = entries.filter(is_weights).collect();
    files.sort();
    files
}

/// The header of a safetensors file, if the file is as long as it says.
fn header(path: &Path) -> Result<Metadata> {
    let broken = || Error::checkpoint(path, "not a whole safetensors file; use another checkpoint or copy it again");
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let total = file.metadata().map_err(Error::io("read", path))?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|_| broken())?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_HEADER.min(total) {
        return Err(broken());
    }
    let mut content = vec![0; length as usize];
    file.read_exact(&mut content).map_err(|_| broken())?;
    let metadata: Metadata = serde_json::from_slice(&content).map_err(|_| broken())?;
    if 8 + length + metadata.data_len() as u64 != total {
        return Err(broken());
    }
    Ok(metadata)
}

fn line(text: &mut String, name: &str, value: impl std::fmt::Display) {
    let written = writeln!(text, "{}", format!("{name:<28} {value}").trim_end());
    written.expect("a string takes every line");
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::{Dtype, tensor::TensorView};

    fn write_weights(path: &Path, sizes: &[(&str, usize)]) {
        let zeros = vec![0u8; 4096];
        let tensors = sizes.iter().map(|(name, size)| {
            let view = TensorView::new(Dtype::F32, vec![*size], &zeros[..size * 4]).unwrap();
            (name.to_string(), view)
        });
        safetensors::serialize_to_file(tensors, None, path).unwrap();
    }

    fn report(folder: &Path) -> Result<String> {
        super::report(folder, 80, Glyphs::Ascii)
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("gradus-inspect-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_model_folder_is_told_by_its_parts() {
        let folder = folder("model");
        fs::write(folder.join("config.json"), r#"{"model_type": "gpt2", "n_embd": 4}"#).unwrap();
        let sizes = [("h.0.a", 6), ("h.0.b", 4), ("h.1.a", 10), ("h.10.a", 7), ("wte.weight", 1000)];
        write_weights(&folder.join("model.safetensors"), &sizes);
        let text = report(&folder).unwrap();
        let lines: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected =
            ["parameters 1,027 (1.0 K)", "weights 4.1 KB", "wte.weight 1,000", "blocks 0 to 1 10 each", "block 10 7"];
        assert_eq!(lines[lines.len() - 5..], expected);
        assert!(lines.contains(&"n_embd 4".to_string()));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_torn_file_is_refused() {
        let folder = folder("torn");
        fs::write(folder.join("state.json"), r#"{"step": 3}"#).unwrap();
        let path = folder.join("weights.safetensors");
        write_weights(&path, &[("a", 100)]);
        assert!(report(&folder).unwrap().contains("parameters"));
        let whole = fs::read(&path).unwrap();
        for length in [0, 4, 8, 20, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(
                report(&folder).unwrap_err().to_string().contains("not a whole safetensors file"),
                "{length} bytes"
            );
        }
        fs::write(folder.join("state.json"), "{").unwrap();
        assert!(report(&folder).unwrap_err().to_string().contains("not a JSON object"));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_run_is_told_with_its_newest_checkpoint_and_last_whole_figures() {
        let folder = folder("run");
        let mut config = crate::resolve::resolve(&crate::layers::nothing_given()).unwrap().config;
        config.memory = Some("150MB".parse().unwrap());
        (config.steps, config.time_seconds) = (None, Some(5400.0));
        fs::write(folder.join(CONFIG_FILE), config.to_toml()).unwrap();
        let metrics = "{\"step\": 1, \"loss\": 3.5, \"tokens_per_second\": 12345.6, \"step_ms\": 10.0, \"validation_loss\": 3.25}\n{\"step\": 2000, \"tokens\": 1234567, \"loss\": 2.5, \"tokens_per_second\": 12345.6, \"step_ms\": 10.0, \"peak_memory_bytes\": 85300000}\n{\"step\"";
        fs::write(folder.join("metrics.jsonl"), metrics).unwrap();
        for (name, size) in [("step-00000001", 10), ("step-00000002", 20), ("step-00000003.tmp-7", 30)] {
            let checkpoint = folder.join("checkpoints").join(name);
            fs::create_dir_all(&checkpoint).unwrap();
            fs::write(checkpoint.join("state.json"), "{}").unwrap();
            write_weights(&checkpoint.join("weights.safetensors"), &[("a", size)]);
            write_weights(&checkpoint.join(OPTIMIZER_FILE), &[("a", 500)]);
        }
        let text = report(&folder).unwrap();
        let value = |name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(&format!("{name}  "))).expect(name);
            line.trim_start()[name.len()..].trim().to_string()
        };
        for (name, told) in [
            ("step", "2,000"),
            ("tokens", "1,234,567 (1.2 M)"),
            ("loss", "2.5000"),
            ("best loss", "2.5000 (step 2,000)"),
            ("validation loss", "3.2500"),
            ("tokens a second", "12,346"),
            ("peak memory", "85 MB"),
            ("memory", "150 MB"),
            ("time", "1h30m"),
            ("optimizer", "adamw"),
        ] {
            assert_eq!(value(name), told, "{name}");
        }
        assert!(value("newest").ends_with("step-00000002"));
        assert_eq!((value("parameters"), value("width")), ("20".into(), "128".into()));
        fs::remove_dir_all(&folder).unwrap();
    }
}

//! How far a run is, and the file of a checkpoint that says so.

use crate::clipping::NormStatistics;
use crate::files::tensors::Seal;
use crate::models::ModelConfig;
use crate::schedule::Decay;
use crate::watch::Monitor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The layout of a checkpoint; a number more with every change that older versions could not read.
const FORMAT: u32 = 1;

/// Stands where the checksum goes while the checksum is taken.
const NO_CHECKSUM: &str = "00000000";

/// How far a run is: all that is not in a tensor and that the next step depends on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps done.
    pub step: u64,
    /// Tokens seen, or examples.
    pub tokens: u64,
    /// Examples, such as sequences, taken from the data. With the seed it says which come next.
    pub data_position: u64,
    /// What identifies the tokens of the corpus, so that a run does not go on with others.
    pub data_fingerprint: u64,
    /// The seed of everything random. All random numbers are made from it and from counters: there is no other
    /// random state.
    pub seed: u32,
    /// Seconds spent training.
    pub seconds: f64,
    /// Steps skipped without one that was good between.
    pub skipped_in_a_row: u32,
    /// What adaptive clipping knows.
    pub clipping: NormStatistics,
    /// What is known of how the run is doing; checkpoints of older versions do not say.
    #[serde(default)]
    pub monitor: Monitor,
    /// The fall of the learning rate that the run was in; checkpoints of older versions do not say.
    #[serde(default, rename = "fall")]
    pub decay: Option<Decay>,
    /// The model, if it is one of ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelConfig>,
    /// The whole configuration, for people to read; the run's `config.toml` is what counts.
    pub configuration: serde_json::Value,
}

/// What `state.json` holds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    /// Of this text, with zeros here.
    checksum: String,
    format: u32,
    gradus: String,
    pub progress: Progress,
    files: BTreeMap<String, Seal>,
}

impl Record {
    pub fn new<const N: usize>(progress: &Progress, files: [(&str, Seal); N]) -> Record {
        Record {
            checksum: NO_CHECKSUM.to_string(),
            format: FORMAT,
            gradus: env!("CARGO_PKG_VERSION").to_string(),
            progress: progress.clone(),
            files: files.into_iter().map(|(name, seal)| (name.to_string(), seal)).collect(),
        }
    }

    /// The text of the file.
    pub fn to_text(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("a record is valid JSON");
        text.replacen(NO_CHECKSUM, &checksum(&text), 1)
    }

    /// Reads the file, or says in a few words why it cannot be used.
    pub fn read(path: &Path) -> Result<Record, String> {
        let name = path.file_name().unwrap_or_default().display();
        let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
        let damaged = || format!("{name} is damaged");
        // What any version can read comes first, so that a newer one's file is known for what it is.
        let parsed: serde_json::Value = serde_json::from_str(&text).map_err(|_| damaged())?;
        let stated = parsed["checksum"].as_str().ok_or_else(damaged)?;
        if checksum(&text.replacen(stated, NO_CHECKSUM, 1)) != stated {
            return Err(damaged());
        }
        if parsed["format"] != FORMAT {
            let (format, version) = (&parsed["format"], &parsed["gradus"]);
            return Err(format!("it has format {format} of gradus {version}, and this version knows {FORMAT}"));
        }
        serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"))
    }

    /// Whether the files are there, in their full sizes.
    pub fn check_sizes(&self, folder: &Path) -> Result<(), String> {
        for (name, seal) in &self.files {
            let bytes = fs::metadata(folder.join(name)).map_err(|error| format!("{name}: {error}"))?.len();
            if bytes != seal.bytes {
                return Err(format!("{name} has {bytes} bytes instead of {}", seal.bytes));
            }
        }
        Ok(())
    }

    /// Whether every byte of the files is as it was written.
    pub fn check_sums(&self, folder: &Path) -> Result<(), String> {
        for (name, seal) in &self.files {
            if Seal::of_file(&folder.join(name)).map_err(|error| format!("{name}: {error}"))? != *seal {
                return Err(format!("{name} is damaged: its checksum is wrong"));
            }
        }
        Ok(())
    }
}

fn checksum(text: &str) -> String {
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}

//! What the `config.toml` of a run states, whatever it is trained on.

use gradus_train::config::{CONFIG_FILE, TrainConfig};
use gradus_train::images::ImagesConfig;
use gradus_train::{Error, Result};
use std::fs;
use std::path::Path;
use toml::Table;

/// The settings of a run.
pub struct Stated {
    /// By the names of options.
    pub settings: Table,
    /// What its steps are made of.
    pub examples: &'static str,
    /// Its length in steps, if that is known.
    pub steps: Option<u64>,
    /// Its length in time, if that is stated.
    pub seconds: Option<f64>,
}

impl Stated {
    /// Of the run in a folder.
    pub fn read(folder: &Path) -> Result<Stated> {
        let path = folder.join(CONFIG_FILE);
        let written = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        match written.parse::<Table>() {
            // A run on text has a family.
            Ok(settings) if settings.contains_key("architecture") => {
                let steps = Some(ImagesConfig::read(folder)?.steps);
                Ok(Stated { settings, examples: "images", steps, seconds: None })
            }
            _ => {
                let config = TrainConfig::read(folder)?;
                let steps = config.steps.or(config.epochs.and(config.decay_steps));
                Ok(Stated { settings: config.to_table(), examples: "tokens", steps, seconds: config.time_seconds })
            }
        }
    }
}

//! What a run that goes on keeps, and what may differ.

use crate::checkpoint::{Found, Progress};
use crate::config::{CONFIG_FILE, TrainConfig};
use crate::models::ModelConfig;
use crate::schedule::{Decay, Elapsed, Length, Schedule};
use crate::{Error, Result};

/// What may differ when a run is resumed: nothing here changes the model, the data or what the optimizer remembers.
const CHANGEABLE: [&str; 27] = [
    "clip",
    "decay-steps",
    "decay-time",
    "epochs",
    "device",
    "eval-every",
    "export-dtype",
    "health",
    "keep",
    "learning-rate",
    "memory",
    "micro-batch",
    "min-learning-rate-share",
    "overlap",
    "recompute",
    "sample-every",
    "save-every",
    "schedule",
    "shard",
    "speeds",
    "steps",
    "tensorboard",
    "threads",
    "time",
    "warmup-steps",
    "watch-curvature",
    "weight-decay",
];

/// Refuses a configuration with which the run in its folder cannot go on.
pub fn check_resumable(config: &TrainConfig) -> Result<()> {
    let (saved, wanted) = (TrainConfig::read(&config.out)?.to_table(), config.to_table());
    for key in saved.keys().chain(wanted.keys()).filter(|key| !CHANGEABLE.contains(&&key[..])) {
        if saved.get(key) != wanted.get(key) {
            let was = saved.get(key).map_or("nothing".into(), |value| value.to_string());
            return Err(Error::Config(format!(
                "`settings.{}` cannot change when a run is resumed ({} has {was}); leave it out, or start a new run with \
                 another `settings.out`",
                key.replace('-', "_"),
                config.out.join(CONFIG_FILE).display()
            )));
        }
    }
    Ok(())
}

/// The model of a checkpoint, which must be the one that the configuration states.
pub(super) fn model_of(found: &Found, config: &TrainConfig) -> Result<ModelConfig> {
    let Some(model) = found.progress.model.clone() else {
        let problem = "is of a model of another program; go on with it there, or start a new run";
        return Err(Error::checkpoint(&found.folder, problem));
    };
    let stated = config.to_table();
    let saved = TrainConfig { model: model.clone(), ..config.clone() }.to_table();
    match saved.keys().chain(stated.keys()).find(|key| saved.get(*key) != stated.get(*key)) {
        None => Ok(model),
        Some(key) => {
            let told = |table: &toml::Table| table.get(key).map_or("nothing".into(), |value| value.to_string());
            let problem = format!(
                "is of another model than {CONFIG_FILE} states: {key} is {} here and {} there; put {CONFIG_FILE} \
                 back as it was, or start a new run",
                told(&saved),
                told(&stated)
            );
            Err(Error::checkpoint(&found.folder, problem))
        }
    }
}

/// The learning rate over a run. The end of its decay is the one that is stated, or that of the run as it began.
pub(super) fn schedule(config: &mut TrainConfig, steps: Option<u64>, resumed: Option<&Progress>) -> Schedule {
    let length = steps.map(Length::Steps).or(config.time_seconds.map(Length::Seconds));
    let before = resumed.and_then(|progress| progress.decay.or_else(|| older_decay(config, progress)));
    let stated = config.decay_steps.map(Length::Steps).or(config.decay_time.map(Length::Seconds));
    let until = stated.or(before.map(|decay| decay.until)).or(length).unwrap_or(Length::Steps(0));
    match until {
        Length::Steps(steps) => (config.decay_steps, config.decay_time) = (Some(steps), None),
        Length::Seconds(seconds) => (config.decay_steps, config.decay_time) = (None, Some(seconds)),
    }
    let at = |progress: &Progress| Elapsed { step: progress.step, seconds: progress.seconds };
    let before = before.zip(resumed.map(at));
    let decay = Schedule::decay(config.schedule, Some(until), config.learning_rate, config.warmup_steps, before);
    Schedule {
        highest: config.learning_rate,
        lowest: config.learning_rate * config.final_learning_rate_share,
        warmup_steps: config.warmup_steps,
        decay,
    }
}

/// The decay of a run whose checkpoint does not say, which ended with the run.
fn older_decay(config: &TrainConfig, progress: &Progress) -> Option<Decay> {
    let before = &progress.configuration;
    let steps = before["steps"].as_u64().map(Length::Steps);
    let until = steps.or(before["time"].as_f64().map(Length::Seconds))?;
    Some(Decay::new(config.schedule, until, config.learning_rate, config.warmup_steps))
}

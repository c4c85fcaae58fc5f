//! A tiny run, and someone who watches it.

#![allow(dead_code)]

use gradus_train::config::{
    BatchSize, Clip, EventFolder, HealthInterval, OptimizerKind, Precision, Recomputation, ScheduleKind, TokenizerKind,
    TrainConfig, Validation,
};
use gradus_train::models::ModelConfig;
use gradus_train::run::{Event, Observer, StepReport, Stop};
use std::path::{Path, PathBuf};

/// A folder that is removed at the end.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("gradus-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A run of a model of a few thousand weights on a text of its own.
pub fn tiny(folder: &Path, name: &str) -> TrainConfig {
    let corpus = folder.join("corpus.txt");
    let line = |index: usize| format!("{} and {} make {}.\n", index % 7, index % 5, index % 7 + index % 5);
    std::fs::write(&corpus, (0..800).map(line).collect::<String>()).unwrap();
    TrainConfig {
        corpus: vec![corpus],
        text_field: None,
        out: folder.join(name),
        init: None,
        preset: None,
        sequence: 16,
        model: ModelConfig { vocabulary: 0, ..ModelConfig::gpt2(1, 16, 2, 2, 16) },
        tokenizer: TokenizerKind::Char,
        vocab_size: 0,
        validation: Validation::Fraction(0.1),
        batch: BatchSize::Fixed(4),
        memory: None,
        recompute: Recomputation::Auto,
        speeds: None,
        micro_batch: 2,
        steps: Some(40),
        epochs: None,
        time_seconds: None,
        learning_rate: 1e-2,
        final_learning_rate_share: 0.1,
        warmup_steps: 4,
        schedule: ScheduleKind::Cosine,
        decay_steps: None,
        decay_time: None,
        optimizer: OptimizerKind::Adamw,
        weight_decay: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        clip: Clip::Adaptive,
        dropout: 0.1,
        precision: Precision::F32,
        watch_curvature: 0,
        device: gradus_train::config::DeviceChoice::Cpu,
        threads: 2,
        seed: 7,
        eval_every: 0,
        sample_every: 0,
        save_every: 0,
        keep: 2,
        health: HealthInterval::Steps(5),
        export_dtype: None,
        tensorboard: EventFolder::default(),
        lanes: 1,
        shard: Default::default(),
        overlap: true,
        compress: Default::default(),
        compress_warmup: 0,
        local_steps: 0,
        outer_learning_rate: 0.7,
        outer_momentum: 0.9,
        stages: 1,
        observer_bytes: 0,
        place: Default::default(),
    }
}

/// Remembers losses and can ask to stop.
#[derive(Default)]
pub struct Watcher {
    pub losses: Vec<(u64, f32)>,
    pub reports: Vec<StepReport>,
    pub notes: Vec<String>,
    pub warnings: Vec<String>,
    pub validations: Vec<(u64, f32)>,
    pub samples: Vec<String>,
    pub saved: Vec<PathBuf>,
    pub resumed_at: Option<u64>,
    pub stop_at: Option<u64>,
}

impl Observer for Watcher {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Started { resumed_at, .. } => self.resumed_at = *resumed_at,
            Event::Step(report) => {
                self.losses.push((report.step, report.loss));
                self.reports.push((*report).clone());
            }
            Event::Note(text) => self.notes.push(text.to_string()),
            Event::Warning(text) => self.warnings.push(text.to_string()),
            Event::Validated { step, loss, .. } => self.validations.push((*step, *loss)),
            Event::Sample { text, .. } => self.samples.push(text.to_string()),
            Event::Saved { path, .. } => self.saved.push(path.to_path_buf()),
            _ => {}
        }
    }

    fn should_stop(&self) -> Stop {
        let reached = self.losses.last().is_some_and(|(step, _)| self.stop_at == Some(*step));
        if reached { Stop::AfterStep } else { Stop::No }
    }
}

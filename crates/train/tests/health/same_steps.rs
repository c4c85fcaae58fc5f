//! What is watched is what would be without.

use crate::models::{Mlp, language, points, sequences};
use crate::support::{Folder, Watcher};
use crate::{reports, settings, trainer};
use gradus_engine::Tensor;
use gradus_engine::backend::Cpu;
use gradus_train::config::{HealthInterval, Precision};
use gradus_train::models::Family;
use gradus_train::optimizers::{AdamW, GroupedOptimizer};
use gradus_train::run::Unwatched;
use gradus_train::trainer::{Settings, Trainer};
use gradus_train::watch::layer_of;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

/// The bits of all that a step leaves behind.
pub fn states(trainer: &Trainer) -> Vec<Vec<u8>> {
    let kept = trainer.program().states().filter(|(_, role, _)| role.outlasts_a_step());
    kept.map(|(name, _, _)| trainer.program().bytes(name).unwrap().to_vec()).collect()
}

#[test]
fn measuring_changes_no_bit_on_any_number_of_threads() {
    for (micro_batch, precision) in
        [(8, Precision::F32), (4, Precision::F32), (8, Precision::F16), (4, Precision::Bf16)]
    {
        let run = |health: HealthInterval, threads: usize| {
            let optimizer = GroupedOptimizer::new(AdamW::default()).average(0.9);
            let settings = Settings {
                batch: 8,
                micro_batch,
                precision,
                optimizer,
                health,
                steps: Some(12),
                ..Settings::default()
            };
            let mut trainer =
                Trainer::new(language(Family::Gpt2), settings, Arc::new(Cpu::new(threads).unwrap())).unwrap();
            trainer.train(sequences(|_| false), &mut Unwatched).unwrap();
            states(&trainer)
        };
        let off = run(HealthInterval::Off, 1);
        for (health, threads) in
            [(HealthInterval::Steps(1), 1), (HealthInterval::Steps(5), 2), (HealthInterval::Auto, 3)]
        {
            assert!(
                run(health, threads) == off,
                "{health} on {threads} threads, {micro_batch} at once in {precision:?}"
            );
        }
    }
}

#[test]
fn off_is_nothing() {
    let settings = Settings { health: HealthInterval::Off, ..settings(3) };
    let mut trainer = trainer(Mlp::new(2, Tensor::tanh).losses(), settings);
    assert!(trainer.program().plan().routines.iter().all(|routine| routine.name != "measured"));
    let found = reports(&mut trainer, points);
    assert!(found.iter().all(|report| report.health.is_none() && report.verdict.is_none() && report.alerts.is_empty()));
}

#[test]
fn figures_are_those_of_the_gradients_and_updates() {
    for micro_batch in [32, 8] {
        let settings = Settings { health: HealthInterval::Steps(1), micro_batch, ..settings(3) };
        let mut trainer = trainer(Mlp::new(3, Tensor::relu).losses(), settings);
        let mut batch = trainer.batch();
        for step in 0..3 {
            points(step, &mut batch).unwrap();
            let numbers = |trainer: &Trainer, name: &str| trainer.read(name).unwrap().to_f64();
            let before: Vec<Vec<f64>> =
                (0..3).map(|layer| numbers(&trainer, &format!("layers.{layer}.weight"))).collect();
            let report = trainer.step(&batch).unwrap();
            let health = report.health.expect("every step is measured");
            let squares: f64 = health.weights().map(|(_, figures)| f64::from(figures.gradient_norm).powi(2)).sum();
            assert!((squares.sqrt() / f64::from(report.gradient_norm) - 1.0).abs() < 1e-5);
            let layers: f64 = health.layers().map(|(_, figures)| f64::from(figures.gradient_norm).powi(2)).sum();
            assert!((layers / squares - 1.0).abs() < 1e-5);
            for (layer, before) in before.iter().enumerate() {
                let name = format!("layers.{layer}.weight");
                assert_eq!(layer_of(&name), format!("layers.{layer}"));
                let figures = health.weight(&name).unwrap();
                let after = numbers(&trainer, &name);
                let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|x| x * x).sum::<f64>().sqrt();
                let update = norm(&mut after.iter().zip(before).map(|(after, before)| after - before));
                let ratio = update / norm(&mut before.iter().copied());
                assert!((f64::from(figures.update_ratio().unwrap()) / ratio - 1.0).abs() < 1e-3, "{name}: {figures:?}");
                assert!(figures.mean_abs > 0.0 && figures.mean_abs <= figures.gradient_rms() * 1.0001);
            }
        }
    }
}

pub fn lines(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// With a fault in it, so that there is something to tell.
#[test]
fn a_run_that_goes_on_is_judged_as_one_that_was_never_stopped() {
    let folder = Folder::new("health-resume");
    let stated = |name: &str| Settings {
        batch: 8,
        learning_rate: 3e-3,
        folder: Some(folder.path().join(name)),
        ..settings(140)
    };
    let batches = sequences(|step| (100..115).contains(&step));
    let whole = reports(&mut trainer(language(Family::Gpt2), stated("whole")), batches);
    for stop_at in [Some(103), None] {
        let mut watcher = Watcher { stop_at, ..Watcher::default() };
        trainer(language(Family::Gpt2), stated("pieces")).train(batches, &mut watcher).unwrap();
    }
    let (whole_lines, pieces) = (lines(&folder.path().join("whole")), lines(&folder.path().join("pieces")));
    assert_eq!((whole_lines.len(), pieces.len()), (140, 140));
    assert!(whole_lines.iter().any(|line| line.get("alerts").is_some()));
    for (whole, piece) in whole_lines.iter().zip(&pieces) {
        for key in ["step", "loss", "gradients", "health", "verdict", "alerts"] {
            assert_eq!(whole.get(key), piece.get(key), "{key} of step {}", whole["step"]);
        }
    }
    // The lines are the reports.
    let measured = whole.iter().find(|report| report.step == 5).unwrap();
    let line = &whole_lines[4];
    for (watched, figures) in measured.health.as_ref().unwrap().weights() {
        assert_eq!(
            line["gradients"][&watched.name].as_f64().unwrap() as f32,
            figures.gradient_norm,
            "{}",
            watched.name
        );
        assert_eq!(line["health"][&watched.name]["zeros"].as_f64().unwrap() as f32, figures.zeros);
    }
    assert_eq!(line["verdict"], "healthy");
}

//! The health of training: faults are found and named, healthy runs raise nothing, and watching changes no bit.

mod curvature;
mod faults;
mod healthy;
mod models;
mod same_steps;
#[path = "../support/mod.rs"]
mod support;

use gradus_engine::backend::Cpu;
use gradus_train::config::HealthInterval;
use gradus_train::run::StepReport;
use gradus_train::step::Objective;
use gradus_train::trainer::{BatchSource, Settings, Trainer};
use gradus_train::watch::{Alert, Verdict};
use std::sync::Arc;
use support::Watcher;

/// Measured often, so that short runs tell much.
fn settings(steps: u64) -> Settings {
    Settings { batch: 32, steps: Some(steps), health: HealthInterval::Steps(5), seed: 3, ..Settings::default() }
}

fn trainer(objective: impl Objective + 'static, settings: Settings) -> Trainer {
    Trainer::new(objective, settings, Arc::new(Cpu::new(2).unwrap())).unwrap()
}

/// Trains to the end and gives every report.
fn reports(trainer: &mut Trainer, batches: impl BatchSource + 'static) -> Vec<StepReport> {
    let mut watcher = Watcher::default();
    trainer.train(batches, &mut watcher).unwrap();
    watcher.reports
}

/// Every alert, with its step.
fn alerts(reports: &[StepReport]) -> Vec<(u64, Alert)> {
    reports.iter().flat_map(|report| report.alerts.iter().map(|alert| (report.step, alert.clone()))).collect()
}

/// The first alert, which must be of this kind and say what to try.
#[track_caller]
fn first_alert(reports: &[StepReport], verdict: Verdict) -> (u64, Alert) {
    let alerts = alerts(reports);
    let (step, alert) = alerts.first().unwrap_or_else(|| panic!("no alert of {verdict}")).clone();
    assert_eq!(alert.verdict, verdict, "{alerts:#?}");
    assert!(!alert.reason.is_empty() && !alert.advice.is_empty(), "{alert}");
    let report = reports.iter().find(|report| report.step == step).unwrap();
    assert!(report.verdict >= Some(verdict), "{:?}", report.verdict);
    (step, alert)
}

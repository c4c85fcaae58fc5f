//! Faults that are put in on purpose.

use crate::models::{Mlp, language, points, random, scale_weight, sequences};
use crate::{first_alert, reports, settings, trainer};
use gradus_engine::Tensor;
use gradus_engine::backend::Cpu;
use gradus_train::Result;
use gradus_train::models::Family;
use gradus_train::optimizers::{AdamW, Sgd};
use gradus_train::run::StepReport;
use gradus_train::step::{Batch, StepConfig, StepScalars, TrainingStep};
use gradus_train::trainer::{GoesOn, Hooks, Settings};
use gradus_train::watch::{Alert, Monitor, Observation, Verdict};
use std::rc::Rc;

#[test]
fn a_layer_that_begins_too_small_makes_gradients_vanish() {
    for activation in [Tensor::relu, Tensor::tanh] {
        let model = Mlp { scale: |layer| if layer == 2 { 1e-6 } else { 1.0 }, ..Mlp::new(5, activation) };
        let found = reports(&mut trainer(model.losses(), settings(30)), points);
        let (step, alert) = first_alert(&found, Verdict::Vanishing);
        assert_eq!((step, alert.place.as_deref()), (1, Some("layers.2.weight")), "{alert}");
    }
}

#[test]
fn a_layer_that_begins_too_large_explodes() {
    let model = Mlp { scale: |layer| if layer == 2 { 1e3 } else { 1.0 }, ..Mlp::new(5, Tensor::relu) };
    let found = reports(&mut trainer(model.losses(), settings(30)), points);
    let (step, alert) = first_alert(&found, Verdict::Exploding);
    assert_eq!((step, alert.place.as_deref()), (1, Some("layers.2.weight")), "{alert}");
}

/// In models with norms and residual connections too, whichever layer it is.
#[test]
fn one_layer_of_a_language_model_is_found() {
    for (family, weight) in [
        (Family::Gpt2, "transformer.h.1.mlp.c_fc.weight"),
        (Family::Gpt2, "transformer.h.0.mlp.c_proj.weight"),
        (Family::Gpt2, "transformer.h.0.attn.c_proj.weight"),
        (Family::Llama, "model.layers.1.mlp.down_proj.weight"),
        (Family::Llama, "model.layers.0.self_attn.v_proj.weight"),
    ] {
        for (by, verdict) in [(1e-6, Verdict::Vanishing), (1e3, Verdict::Exploding)] {
            let mut trainer = trainer(language(family), Settings { batch: 8, ..settings(10) });
            scale_weight(&mut trainer, weight, by);
            let (step, alert) = first_alert(&reports(&mut trainer, sequences(|_| false)), verdict);
            assert_eq!((step, alert.place.as_deref()), (1, Some(weight)), "{alert}");
        }
    }
}

#[test]
fn a_narrow_layer_is_a_bottleneck() {
    let model = Mlp { scale: |layer| if layer == 2 { 3e-3 } else { 1.0 }, ..Mlp::new(5, Tensor::tanh) };
    let found = reports(&mut trainer(model.losses(), settings(10)), points);
    let (_, alert) = first_alert(&found, Verdict::BottleneckLayer);
    assert_eq!(alert.place.as_deref(), Some("layers.2.weight"), "{alert}");
}

#[test]
fn gradients_vanish_in_a_deep_network_of_sigmoids() {
    let found = reports(&mut trainer(Mlp::new(12, Tensor::sigmoid).losses(), settings(10)), points);
    let (step, alert) = first_alert(&found, Verdict::Vanishing);
    assert_eq!((step, alert.place.as_deref()), (1, Some("layers.0.weight")), "{alert}");
}

#[test]
fn units_that_never_fire_are_dead() {
    let model = Mlp { bias: |layer| if layer == 1 { -30.0 } else { 0.0 }, ..Mlp::new(4, Tensor::relu) };
    let found = reports(&mut trainer(model.losses(), settings(30)), points);
    first_alert(&found, Verdict::DeadUnits);
}

/// Steps of one's own, followed by a monitor, with the learning rate that this gives.
fn followed(rate: impl Fn(u64) -> f32, steps: u64) -> Vec<(u64, Alert)> {
    let model = Mlp::new(3, Tensor::relu);
    let config = StepConfig {
        health: true,
        ..StepConfig::new(Rc::new(model.losses()), 32, Sgd { momentum: 0.9, ..Sgd::default() })
    };
    let mut training = TrainingStep::new(config, &Cpu::new(1).unwrap()).unwrap();
    training.initialize(1).unwrap();
    let (mut batch, mut health, mut monitor) = (training.batch(), training.health().unwrap(), Monitor::default());
    let mut alerts = vec![];
    for step in 1..=steps {
        points(step, &mut batch).unwrap();
        let scalars = StepScalars { step: step - 1, learning_rate: rate(step), clip_norm: f32::INFINITY, seed: 1 };
        let outcome = training.run_measured(&batch, &scalars, &mut health).unwrap();
        let (loss, learning_rate) = (outcome.loss, scalars.learning_rate);
        let seen = Observation { step, loss, learning_rate, health: Some(&health), ..Observation::default() };
        alerts.extend(monitor.see(&seen).into_iter().map(|alert| (step, alert)));
    }
    alerts
}

#[test]
fn a_spike_of_the_learning_rate_is_told_from_one_of_the_data() {
    assert_eq!(followed(|_| 0.02, 120), vec![]);
    let alerts = followed(|step| if (60..64).contains(&step) { 1.0 } else { 0.02 }, 120);
    let (step, alert) = &alerts[0];
    assert_eq!(alert.verdict, Verdict::LossSpike, "{alerts:#?}");
    assert!((61..75).contains(step) && alert.reason.contains("learning rate rose from 2e-2 to 1e0"), "{step}: {alert}");
}

#[test]
fn a_poisoned_stretch_is_a_spike_of_the_loss() {
    let poisoned = |step| (150..165).contains(&step);
    let settings = Settings { batch: 8, learning_rate: 3e-3, ..settings(220) };
    let found = reports(&mut trainer(language(Family::Gpt2), settings), sequences(poisoned));
    let (step, alert) = first_alert(&found, Verdict::LossSpike);
    assert!((151..160).contains(&step) && alert.reason.contains("data from step 15"), "{step}: {alert}");
    assert_eq!(crate::alerts(&found).len(), 1);
    assert_eq!(found.last().unwrap().verdict, Some(Verdict::Healthy), "it is over");
}

/// Points with classes that nothing follows from: the same ones again and again, or other ones each time.
fn noise(same: bool) -> impl Fn(u64, &mut Batch) -> Result<()> + Send + Sync + Copy {
    move |step, batch| {
        let step = if same { 0 } else { step };
        points(step, batch)?;
        let rows = batch.rows() as u64;
        let classes = batch.numbers_mut::<i32>("class")?.iter_mut();
        classes.enumerate().for_each(|(row, class)| *class = (4.0 * random((step * rows + row as u64) << 20)) as i32);
        Ok(())
    }
}

#[test]
fn a_loss_that_no_longer_falls_is_a_plateau() {
    let mut trainer = trainer(Mlp::new(2, Tensor::tanh).losses(), Settings { learning_rate: 1e-3, ..settings(2500) });
    let (step, alert) = first_alert(&reports(&mut trainer, noise(false)), Verdict::Plateau);
    assert!(step >= 1000, "{step}: {alert}");
}

/// Other points than those of training.
struct HeldOut;

impl Hooks for HeldOut {
    fn validation_batches(&self, _: &TrainingStep, _: usize) -> usize {
        1
    }

    fn validation_loss(&mut self, training: &mut TrainingStep, _: usize, _: GoesOn<'_>) -> Result<Option<f32>> {
        let mut batch = training.micro_batch();
        noise(false)(1_000_000, &mut batch)?;
        training.evaluate(&batch).map(Some)
    }
}

#[test]
fn a_model_that_learns_by_heart_overfits() {
    let optimizer = AdamW::default().into();
    let settings = Settings { validate_every: 20, learning_rate: 3e-3, optimizer, ..settings(400) };
    let mut trainer = trainer(Mlp::new(3, Tensor::tanh).losses(), settings).with_hooks(HeldOut);
    let (_, alert) = first_alert(&reports(&mut trainer, noise(true)), Verdict::Overfitting);
    assert!(alert.reason.contains("validation loss"), "{alert}");
}

#[test]
fn numbers_that_are_not_finite_are_counted_by_weight() {
    let broken = |step: u64, batch: &mut Batch| {
        points(step, batch)?;
        if step == 6 {
            batch.numbers_mut::<f32>("x")?[0] = 1e38;
        }
        Ok(())
    };
    let found =
        reports(&mut trainer(Mlp { scale: |_| 100.0, ..Mlp::new(3, Tensor::relu) }.losses(), settings(12)), broken);
    let refused: &StepReport = &found[6];
    assert!(refused.loss.is_nan() && refused.verdict == Some(Verdict::Exploding));
    assert!(refused.alerts.iter().any(|alert| alert.reason.contains("not finite")), "{:?}", refused.alerts);
    let health = refused.health.as_ref().expect("it is measured");
    assert!(health.weights().any(|(_, figures)| figures.non_finite > 0), "{health:?}");
    let later = found[9].health.as_ref().expect("the tenth step is measured");
    assert!(later.weights().all(|(_, figures)| figures.non_finite == 0 && figures.gradient_norm.is_finite()));
}

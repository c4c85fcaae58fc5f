//! A run followed from step to step.

use super::faults::Faults;
use super::health::Health;
use super::losses::{Overfitting, Plateaus, Spikes};
use super::verdict::{Alert, Verdict};
use serde::{Deserialize, Serialize};

/// What is seen of a step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Observation<'a> {
    /// Which step, from 1.
    pub step: u64,
    /// Its loss; not a number where it was skipped.
    pub loss: f32,
    /// Its learning rate.
    pub learning_rate: f32,
    /// The loss on held-out data, where it was measured after this step.
    pub validation_loss: Option<f32>,
    /// The figures of its gradients, where they were measured.
    pub health: Option<&'a Health>,
    /// What was not finite, if the step was refused for that.
    pub not_finite: Option<&'a str>,
}

/// Follows a run and says what goes wrong in it. Part of a checkpoint, so that a run that goes on is judged as one that was
/// never stopped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Monitor {
    spikes: Spikes,
    plateaus: Plateaus,
    overfitting: Overfitting,
    faults: Faults,
    /// Whether the last step was refused.
    is_refused: bool,
}

impl Monitor {
    /// Sees a step; gives alerts of what begins with it. Once it has seen a measured step, it allocates for alerts alone.
    pub fn see(&mut self, at: &Observation<'_>) -> Vec<Alert> {
        let mut alerts = vec![];
        if let (Some(what), false) = (at.not_finite, self.is_refused) {
            alerts.push(refused(what));
        }
        self.is_refused = at.not_finite.is_some();
        if at.loss.is_finite() {
            alerts.extend(self.spikes.see(at.step, at.loss, at.learning_rate));
            alerts.extend(self.plateaus.see(at.loss, at.learning_rate));
            // Figures of a step that was skipped are none of an update.
            alerts.extend(at.health.into_iter().flat_map(|health| self.faults.see(at.step, health)));
        }
        let validation = at.validation_loss.filter(|loss| loss.is_finite());
        if let Some((validation, training)) = validation.zip(self.plateaus.lately()) {
            alerts.extend(self.overfitting.see(at.step, validation, training));
        }
        alerts
    }

    /// The worst of what is going on.
    pub fn verdict(&self) -> Verdict {
        let going_on = [
            (self.is_refused, Verdict::Exploding),
            (self.spikes.is_active(), Verdict::LossSpike),
            (self.plateaus.is_active(), Verdict::Plateau),
            (self.overfitting.is_active(), Verdict::Overfitting),
        ];
        let of_losses = going_on.into_iter().filter(|(is_active, _)| *is_active).map(|(_, verdict)| verdict);
        of_losses.fold(self.faults.verdict(), Verdict::max)
    }
}

fn refused(what: &str) -> Alert {
    Alert {
        verdict: Verdict::Exploding,
        place: None,
        reason: format!("{what} is not finite"),
        advice: "a lower learning rate, a longer warm-up, or clipping".into(),
    }
}

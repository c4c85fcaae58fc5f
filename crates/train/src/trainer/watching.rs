//! How a run is doing: its gradients measured now and then, and whatever is told of it.

use super::session::Session;
use crate::Result;
use crate::run::StepReport;
use crate::step::{Batch, Outcome, StepScalars};
use crate::watch::{Health, Monitor, Observation};
use std::sync::Arc;

/// What watches a run.
pub(crate) struct Watching {
    /// What is known of the run so far.
    pub monitor: Monitor,
    /// Room for the figures of a step, if they are measured; shared with the step's report.
    health: Option<Arc<Health>>,
    /// Whether they are those of the present step.
    is_measured: bool,
    /// What was not finite in the present step, if it was refused.
    not_finite: Option<String>,
}

impl Watching {
    pub fn of(session: &Session) -> Watching {
        Watching {
            monitor: session.resumed.as_ref().map_or_else(Monitor::default, |progress| progress.monitor.clone()),
            health: session.training.health().filter(|_| session.every.health > 0).map(Arc::new),
            is_measured: false,
            not_finite: None,
        }
    }

    /// The most bytes that figures add to a line of metrics.
    pub fn line_bytes(&self) -> usize {
        self.health.as_ref().map_or(0, |health| health.line_bytes())
    }

    /// Takes a step, which is measured if it is the first one or its turn has come.
    pub fn run(&mut self, session: &mut Session, batch: &Batch, inputs: &StepScalars) -> Result<Outcome> {
        (self.is_measured, self.not_finite) = (false, None);
        let is_due = inputs.step == 0 || (inputs.step + 1).is_multiple_of(session.every.health.max(1));
        match self.health.as_mut().filter(|_| is_due) {
            Some(health) => {
                // A copy, if someone holds on to the figures of an earlier step.
                let outcome = session.training.run_measured(batch, inputs, Arc::make_mut(health))?;
                self.is_measured = true;
                Ok(outcome)
            }
            None => session.training.run(batch, inputs),
        }
    }

    /// The present step was refused because this was not finite.
    pub fn refused(&mut self, session: &mut Session, what: String) -> Result<()> {
        let Some(health) = &mut self.health else { return Ok(()) };
        session.training.count_non_finite(Arc::make_mut(health))?;
        (self.is_measured, self.not_finite) = (true, Some(what));
        Ok(())
    }

    /// Adds to the report of a step how the run is doing.
    pub fn see(&mut self, report: &mut StepReport) {
        if self.health.is_none() {
            return;
        }
        report.health = self.health.clone().filter(|_| self.is_measured);
        report.alerts = self.monitor.see(&Observation {
            step: report.step,
            loss: report.loss,
            learning_rate: report.learning_rate,
            validation_loss: report.validation_loss,
            health: report.health.as_deref(),
            not_finite: self.not_finite.as_deref(),
        });
        report.verdict = Some(self.monitor.verdict());
    }
}

//! Which part of a training step the steps of a plan are.

use gradus_engine::ops::Form;
use gradus_engine::plan::{BufferId, PlannedRoutine};
use serde::Serialize;
use std::collections::HashSet;

/// A pass of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// From the inputs to the losses.
    Forward,
    /// From the losses to the gradients, and what is made again for them.
    Backward,
    /// From the gradients to new weights: norm, clipping, optimizer.
    Update,
}

impl Pass {
    /// Every pass, in order.
    pub const ALL: [Pass; 3] = [Pass::Forward, Pass::Backward, Pass::Update];

    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::Backward => "backward",
            Pass::Update => "update",
        }
    }

    /// The pass of each step of a routine. What is recorded outside of differentiating and reads its results updates; and all
    /// of a routine that updates and differentiates nothing.
    pub fn of(routine: &PlannedRoutine) -> Vec<Pass> {
        let updates = |form: Form<'_>| matches!(form, Form::Update { .. });
        let differentiates = routine.steps.iter().any(|step| step.part.backward);
        if !differentiates && routine.steps.iter().any(|step| updates(step.op.form())) {
            return vec![Pass::Update; routine.steps.len()];
        }
        let mut after_gradients: HashSet<BufferId> = HashSet::new();
        let passes = routine.steps.iter().map(|step| {
            let follows = step.inputs.iter().any(|input| after_gradients.contains(&input.buffer));
            let pass = match () {
                () if updates(step.op.form()) => Pass::Update,
                () if step.part.backward || step.again => Pass::Backward,
                () if follows => Pass::Update,
                () => Pass::Forward,
            };
            // What is made again is made from the forward pass.
            if pass == Pass::Update || step.part.backward {
                after_gradients.extend(step.outputs.iter().map(|output| output.buffer));
            }
            pass
        });
        passes.collect()
    }
}

/// What has a share of a step's time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// What it is.
    pub name: String,
    /// Its seconds in a step.
    pub seconds: f64,
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelConfig;
    use crate::step::{StepConfig, TrainingStep};
    use gradus_engine::backend::Cpu;

    #[test]
    fn every_step_of_a_plan_is_in_its_pass() {
        let model = ModelConfig::gpt2(32, 16, 2, 2, 16);
        for (micro_batches, whole) in [(1, "step"), (2, "accumulate")] {
            let config = StepConfig { micro_batches, ..StepConfig::plain(model.clone(), 2) };
            let step = TrainingStep::new(config, &Cpu::new(1).unwrap()).unwrap();
            let routine = |name: &str| step.program().plan().routines.iter().find(|known| known.name == name).unwrap();
            let passes = Pass::of(routine(whole));
            assert_eq!(passes[0], Pass::Forward);
            let first = passes.iter().position(|pass| *pass == Pass::Backward).unwrap();
            let later = passes[first..].iter().filter(|pass| **pass == Pass::Forward).count();
            assert!(first > 0 && later <= 1, "the mean of the losses may come at the end: {passes:?}");
            for (step, pass) in routine(whole).steps.iter().zip(&passes) {
                let updates = matches!(step.op.form(), Form::Update { .. });
                assert!(!updates || *pass == Pass::Update);
                assert!(!step.part.backward || updates || *pass == Pass::Backward);
                // The norm of the gradients is no part of the forward pass.
                assert!(step.op.name() != "check_finite" || *pass == Pass::Update, "{}", step.op.name());
            }
            let updates = passes.iter().filter(|pass| **pass == Pass::Update).count();
            assert_eq!(updates > 0, micro_batches == 1);
            if micro_batches > 1 {
                assert!(Pass::of(routine("update")).iter().all(|pass| *pass == Pass::Update));
            }
        }
    }
}

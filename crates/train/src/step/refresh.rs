//! What an optimizer does besides its updates, once in some steps: a routine of its own, replayed before such a step.
//!
//! An estimate of curvature is that of the first few examples of the batch, however many are computed at once and whatever memory
//! there is: so neither changes a bit of it.

use super::{Batch, Field, Inputs, StepConfig, StepScalars, TrainingStep};
use crate::optimizers::Refresh;
use crate::parameters::Parameters;
use crate::{Error, Result};
use gradus_engine::{DType, Routine, Shape, Tensor, Trace, hessian_vector_product};

/// The routine.
pub(super) const REFRESH: &str = "refresh";
/// The key of an estimate's random signs.
const KEY: &str = "refresh.key";
/// Examples of an estimate, if there are as many.
pub(super) const EXAMPLES: usize = 4;

/// What is done besides steps, and how its inputs are called.
pub(crate) struct Refreshed {
    every: u64,
    /// By the batch's fields; none where nothing of a batch is taken.
    inputs: Option<Vec<String>>,
}

/// Before the name of an input.
fn input_name(name: &str) -> String {
    format!("refresh.{name}")
}

impl StepConfig {
    /// Refuses what an optimizer that does more than updates cannot be with.
    pub(super) fn check_refresh(&self) -> Result<()> {
        let Some(Refresh { every, by_curvature }) = self.optimizer.refresh() else { return Ok(()) };
        let name = self.optimizer.rule().name();
        let others = [
            (
                by_curvature && self.place().ranks > 1,
                "the curvature of a batch that several ranks have parts of",
                "`ranks` 1",
            ),
            (self.stage.count > 1, "all weights of the model in one place", "`settings.stages` 1"),
            (self.local.is_some(), "weights that all lanes have in common", "`settings.local_steps` 0"),
        ];
        if every == 0 {
            return Err(Error::Config(format!("{name} does more than updates each 0 steps; give a number from 1 up")));
        }
        match others.into_iter().find(|(is_asked_for, _, _)| *is_asked_for) {
            None => Ok(()),
            Some((_, what, choice)) => Err(Error::Config(format!(
                "`settings.optimizer` {name} needs {what}; choose {choice}, or `settings.optimizer` adamw or muon"
            ))),
        }
    }

    /// The routine, and what is written for it. `remembered` are the states of each weight.
    pub(super) fn refresh(
        &self,
        parameters: &Parameters,
        remembered: &[Vec<Tensor>],
    ) -> Result<Option<(Routine, Refreshed)>> {
        let Some(Refresh { every, by_curvature }) = self.optimizer.refresh() else { return Ok(None) };
        let names: Vec<String> = parameters.list().into_iter().map(|parameter| parameter.name).collect();
        let weights: Vec<(&str, Shape)> =
            names.iter().map(|name| &name[..]).zip(parameters.tensors().iter().map(Tensor::shape)).collect();
        let (curvature, fields) = match by_curvature {
            true => self.curvature(parameters).map(|(diagonals, fields)| (Some(diagonals), Some(fields)))?,
            false => (None, None),
        };
        let refreshed = self.optimizer.refreshed(&weights, remembered, curvature.as_deref());
        let routine = refreshed.iter().fold(Routine::new(REFRESH), |routine, (state, new)| routine.assign(state, new));
        let inputs = fields.map(|fields| fields.iter().map(|field: &Field| input_name(&field.name)).collect());
        Ok(Some((routine, Refreshed { every, inputs })))
    }

    /// Estimates of the diagonal of the Hessian for every weight, by Hutchinson: what random signs and their product with the
    /// Hessian have in common. The inputs that it takes come too.
    fn curvature(&self, parameters: &Parameters) -> Result<(Vec<Tensor>, Vec<Field>)> {
        let trace: &Trace = parameters.trace();
        let key = trace.input(KEY, DType::U32, [2]);
        let inputs = Inputs::called(trace, self.examples_of_refresh(), input_name);
        let loss = self.objective.loss(parameters, &inputs);
        let weights = parameters.tensors();
        let signs = random_signs(&key, &weights);
        let products =
            hessian_vector_product(&loss, &weights.iter().collect::<Vec<_>>(), &signs.iter().collect::<Vec<_>>())?;
        let norm = Tensor::global_norm(&products.iter().collect::<Vec<_>>()).check_finite("the curvature");
        // One, but only once it is known to be finite: so no state comes before that.
        let one = &norm * 0.0 + 1.0;
        let diagonals = products.iter().zip(&signs).map(|(product, sign)| product * sign * &one).collect();
        Ok((diagonals, inputs.fields().to_vec()))
    }

    fn examples_of_refresh(&self) -> usize {
        EXAMPLES.min(self.rows())
    }
}

/// 1 or -1 for every number of the weights.
pub(super) fn random_signs(key: &Tensor, weights: &[Tensor]) -> Vec<Tensor> {
    let sign = |(stream, weight): (usize, &Tensor)| {
        let uniform = key.random_uniform(stream as u32, weight.shape());
        uniform.less(&uniform.full_like(0.5)) * 2.0 - 1.0
    };
    weights.iter().enumerate().map(sign).collect()
}

impl TrainingStep {
    /// Does what is to be done before this step, if it is one of those.
    pub(super) fn refresh(&mut self, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        match &self.refreshed {
            Some(refreshed) if inputs.step.is_multiple_of(refreshed.every) => {}
            _ => return Ok(()),
        }
        self.finish()?;
        self.write_refresh(batch, inputs)?;
        self.run_routine(REFRESH)
    }

    /// Writes the examples and the key of an estimate, if there is one.
    fn write_refresh(&mut self, batch: &Batch, inputs: &StepScalars) -> Result<()> {
        let examples = self.config.examples_of_refresh();
        let TrainingStep { refreshed, program, fields, .. } = self;
        let Some(names) = refreshed.as_ref().and_then(|refreshed| refreshed.inputs.as_ref()) else { return Ok(()) };
        for (name, (number, field)) in names.iter().zip(fields.iter().enumerate()) {
            program.write_bytes(name, &batch.bytes(number)[..field.bytes(examples)])?;
        }
        Ok(program.write(KEY, &[inputs.seed, inputs.step as u32])?)
    }
}

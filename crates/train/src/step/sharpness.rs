//! The sharpness of the loss while a model is trained: the largest eigenvalue of its Hessian, by the method of Lanczos.
//!
//! It is that of the first few examples of the step's batch, in f32 and without dropout, and begins from random signs every
//! time: so it depends on the step alone, and neither memory, threads nor where a run was resumed change a bit of it. The vectors
//! are states that no checkpoint has, so the planner counts all that it takes; and so is what the products have in common, where there
//! is the memory to keep that ([`StepConfig::linearized`]).

use super::refresh::{EXAMPLES, random_signs};
use super::{Batch, Field, Inputs, StepConfig, StepScalars, TrainingStep};
use crate::parameters::Parameters;
use crate::{Error, Result};
use gradus_engine::curvature::{Lanczos, Linearized};
use gradus_engine::plan::Plan;
use gradus_engine::{DType, Role, Routine, Tensor, hessian_vector_product};

/// The routine that takes a random vector.
const BEGIN: &str = "sharpness.begin";
/// The routine that computes what the products have in common, where that is kept.
const LINEARIZE: &str = "sharpness.linearize";
/// The routine that multiplies the vector with the Hessian, and goes on with what is left of the product.
const TURN: &str = "sharpness.turn";
/// The key of the random vector.
const KEY: &str = "sharpness.key";
/// What a vector's product with the Hessian is along the vector.
const ALONG: &str = "sharpness.along";
/// How long what is left of the product is.
const LEFT: &str = "sharpness.left";
/// Products of a measurement: enough for two or three digits of the largest eigenvalue of a network's loss.
const PRODUCTS: usize = 16;
/// What is shorter than this is taken to be as long.
const SHORTEST: f32 = 1e-30;

/// How the inputs are called, by the batch's fields; and whether there is a routine that linearizes.
pub(crate) struct Sharpness {
    inputs: Vec<String>,
    linearizes: bool,
}

/// How long a measurement takes, about.
pub(crate) fn seconds(plan: &Plan) -> f64 {
    let times = |name: &str| match name {
        BEGIN | LINEARIZE => 1.0,
        TURN => PRODUCTS as f64,
        _ => 0.0,
    };
    plan.routines.iter().map(|routine| times(&routine.name) * routine.seconds()).sum()
}

/// Before the name of an input.
fn input_name(name: &str) -> String {
    format!("sharpness.{name}")
}

impl StepConfig {
    /// Refuses what has no loss of all weights in one place.
    pub(super) fn check_sharpness(&self) -> Result<()> {
        let others = [
            (self.place().ranks > 1 || self.stage.count > 1, "several ranks", "one rank"),
            (self.local.is_some(), "`settings.local_steps`", "`settings.local_steps` 0"),
        ];
        match others.into_iter().find(|(is_asked_for, _, _)| self.sharpness && *is_asked_for) {
            None => Ok(()),
            Some((_, what, choice)) => Err(Error::Config(format!(
                "`settings.watch_curvature` and {what} do not go together: curvature is that of all weights and of one \
                 batch; choose {choice}, or `settings.watch_curvature` 0"
            ))),
        }
    }

    /// The routines, and what is written for them.
    pub(super) fn sharpness(&self, parameters: &Parameters) -> Result<Option<(Vec<Routine>, Sharpness)>> {
        if !self.sharpness {
            return Ok(None);
        }
        let trace = parameters.trace();
        let key = trace.input(KEY, DType::U32, [2]);
        let inputs = Inputs::called(trace, self.examples_of_sharpness(), input_name);
        let loss = self.objective.loss(parameters, &inputs);
        let weights = parameters.tensors();
        let [vector, before] = ["vector", "before"].map(|name| states(&weights, name));
        let left = trace.zero_state_with_role("sharpness.last_left", Role::Cache, DType::F32, []);
        let product = hessian_vector_product(&loss, &all(&weights), &all(&vector))?;
        let most = if self.linearized { weights.iter().map(|weight| weight.ty().bytes()).sum() } else { 0 };
        let linearized = Linearized::of("sharpness.kept", &product, &all(&vector), most)?;
        let product = linearized.products();
        let shared = |(product, vector): (&Tensor, &Tensor)| (product * vector).sum_all();
        let along = product.iter().zip(&vector).map(shared).reduce(|sum, term| sum + term);
        let along = along.ok_or_else(|| Error::Config("a model without weights has no curvature".into()))?;
        let rest = product.iter().zip(&vector).zip(&before);
        let rest: Vec<Tensor> =
            rest.map(|((product, vector), before)| product - vector * &along - before * &left).collect();
        let length = Tensor::global_norm(&all(&rest));
        let turn = Routine::new(TURN).output(ALONG, &along).output(LEFT, &length).assign(&left, &length);
        let turn = before.iter().zip(&vector).fold(turn, |routine, (before, vector)| routine.assign(before, vector));
        let turn = with_length_one(turn, &vector, &rest, &length);
        let begin = Routine::new(BEGIN).assign(&left, &left.full_like(0.0));
        let begin = before.iter().fold(begin, |routine, before| routine.assign(before, &before.full_like(0.0)));
        let signs: Vec<Tensor> = random_signs(&key, &weights);
        let begin = with_length_one(begin, &vector, &signs, &Tensor::global_norm(&all(&signs)));
        let inputs = inputs.fields().iter().map(|field: &Field| input_name(&field.name)).collect();
        let (mut routines, linearizes) = (vec![begin, turn], linearized.bytes() > 0);
        if linearizes {
            routines.push(linearized.keep(Routine::new(LINEARIZE)));
        }
        Ok(Some((routines, Sharpness { inputs, linearizes })))
    }

    fn examples_of_sharpness(&self) -> usize {
        EXAMPLES.min(self.rows())
    }
}

fn all(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

/// A state of each weight's shape.
fn states(weights: &[Tensor], name: &str) -> Vec<Tensor> {
    let state = |(index, weight): (usize, &Tensor)| {
        let name = format!("sharpness.{name}.{index}");
        weight.trace().zero_state_with_role(&name, Role::Cache, DType::F32, weight.shape())
    };
    weights.iter().enumerate().map(state).collect()
}

/// Each state becomes its part of a vector, divided by the length of all of it.
fn with_length_one(routine: Routine, states: &[Tensor], vector: &[Tensor], length: &Tensor) -> Routine {
    let share = 1.0 / length.maximum(&length.full_like(SHORTEST));
    states.iter().zip(vector).fold(routine, |routine, (state, part)| routine.assign(state, &(part * &share)))
}

impl TrainingStep {
    /// The largest eigenvalue of the Hessian of the loss, as the weights are before this step, on the first examples of its
    /// batch; none where the step was not made for that (`StepConfig::sharpness`).
    pub fn sharpness(&mut self, batch: &Batch, inputs: &StepScalars) -> Result<Option<f32>> {
        if self.sharpness.is_none() {
            return Ok(None);
        }
        self.finish()?;
        let examples = self.config.examples_of_sharpness();
        let TrainingStep { sharpness: Some(sharpness), program, fields, .. } = self else { return Ok(None) };
        for (name, (number, field)) in sharpness.inputs.iter().zip(fields.iter().enumerate()) {
            program.write_bytes(name, &batch.bytes(number)[..field.bytes(examples)])?;
        }
        program.write(KEY, &[inputs.seed, inputs.step as u32])?;
        program.run(BEGIN)?;
        if sharpness.linearizes {
            program.run(LINEARIZE)?;
        }
        let (mut along, mut left) = (vec![], vec![]);
        for _ in 0..PRODUCTS {
            program.run(TURN)?;
            along.push(f64::from(program.scalar(ALONG)?));
            left.push(f64::from(program.scalar(LEFT)?));
            // If what is left is rounding, the vectors so far span all that the Hessian makes of the first.
            let scale = along.iter().chain(&left).fold(0.0f64, |most, x| most.max(x.abs()));
            if left.last().is_some_and(|left| *left <= f64::from(f32::EPSILON) * scale) {
                break;
            }
        }
        Ok(Some(Lanczos::of_steps(&along, &left).map_or(f32::NAN, |found| found.largest().value as f32)))
    }
}

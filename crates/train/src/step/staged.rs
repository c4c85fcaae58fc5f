//! The step of one stage of a pipeline: the routines of some of a model's blocks.

use super::update::Target;
use super::{ALL_SQUARES, Differentiated, Parts, SQUARES, Scalars, Staged, StepConfig, Traced, summed};
use crate::accumulation::{GradientAccumulator, added_up};
use crate::lanes::{self, SQUARES_TOGETHER};
use crate::parameters::{Parameter, Parameters};
use crate::pipeline::Cut;
use crate::step::Inputs;
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::{DType, Routine, Shape, Tensor, Trace, gradient_terms};
use std::ops::Range;

/// The routine that takes a micro-batch through the blocks of a stage.
pub(crate) const FORWARD: &str = "forward";
/// What the stage before gives, and what this one gives to the next.
pub(crate) const GIVEN: &str = "stage.given";
pub(crate) const OUTPUT: &str = "stage.output";
/// The gradients of what is given to the next stage, and of what was given to this one.
pub(crate) const GRADIENT: &str = "stage.gradient";
pub(crate) const INPUT_GRADIENT: &str = "stage.input_gradient";
/// The input that the sum of all losses is written to, and the state of the last stage that has it.
pub(crate) const LOSS_SUM: &str = "stage.loss";
pub(crate) const SUMMED_LOSS: &str = "accumulated.loss";

/// What is known of a stage once it is traced.
#[derive(Clone, Debug)]
pub(crate) struct Staging {
    /// Numbers of a micro-batch between two stages.
    pub between: usize,
    /// Every weight of the model, in order, and the first stage that has it.
    pub weights: Vec<(Parameter, usize)>,
    /// Outputs of the routine [`SQUARES`], one after another, and how many numbers they have.
    pub squares: Vec<(String, usize)>,
    /// Where those of each stage are among all; after them is the sum of the losses, which counts as the last stage's.
    pub squares_at: Vec<usize>,
    /// Weights that another stage has too.
    pub tied: Vec<Tied>,
}

/// A weight that two stages have: a sum of its gradient is in each.
#[derive(Clone, Debug)]
pub(crate) struct Tied {
    /// The states of the sum that is here, and of the other one.
    pub sum: String,
    pub other: String,
    pub numbers: usize,
    /// The other stage.
    pub with: usize,
}

/// The blocks of a stage.
struct Section<'a> {
    staged: &'a dyn Staged,
    blocks: Range<usize>,
    /// What the stage before gives, if there is one.
    given: Option<Tensor>,
}

impl Section<'_> {
    /// What the last of the blocks gives.
    #[track_caller]
    fn output(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        let x = match &self.given {
            Some(given) => given.clone(),
            None => self.staged.begun(parameters, inputs),
        };
        self.staged.through(parameters, inputs, &x, self.blocks.clone())
    }
}

impl StepConfig {
    /// The model as blocks, if it is to be cut.
    pub(crate) fn cuttable(&self) -> Result<Option<&dyn Staged>> {
        let stages = self.stage.count;
        if stages == 1 {
            return Ok(None);
        }
        let Some(staged) = self.objective.staged() else {
            return Err(Error::Config(format!(
                "`settings.stages` {stages} needs a model that says what blocks it is made of (`Objective::staged`), and this one \
                 does not; choose 1"
            )));
        };
        let sharding = format!("`settings.shard` {}", self.shard);
        let others = [
            (self.shard.is_of_updates(), &sharding[..]),
            (self.health, "`settings.health`"),
            (self.compression.is_some(), "`settings.compress`"),
            (self.local.is_some(), "`settings.local_steps`"),
        ];
        if let Some((_, what)) = others.into_iter().find(|(is_asked_for, _)| *is_asked_for) {
            return Err(Error::Config(format!(
                "{what} and `settings.stages` {stages} cannot both be: a rank has the gradients of its own blocks only; leave one \
                 of them out"
            )));
        }
        Ok(Some(staged))
    }

    /// The blocks of each stage, if there are several.
    pub fn blocks_by_stage(&self) -> Result<Vec<Range<usize>>> {
        self.cuttable()?.map_or(Ok(vec![]), |staged| Ok(Cut::of(staged, self.stage.count)?.blocks))
    }

    /// Traces the stage of a pipeline that is computed here.
    pub(super) fn traced_stage(&self, staged: &dyn Staged, machine: &dyn Backend) -> Result<Traced> {
        let (stage, cut) = (self.stage, Cut::of(staged, self.stage.count)?);
        let trace = Trace::new();
        let scalars = Scalars::new(&trace, self.loss_scale());
        let inputs = Inputs::new(&trace, self.micro_batch);
        let between: Vec<usize> = [self.micro_batch].into_iter().chain(staged.between().iter().copied()).collect();
        let numbers = |name: &str| trace.input(name, DType::F32, &between[..]);
        let given = (!stage.is_first()).then(|| numbers(GIVEN));
        let section = Section { staged, blocks: cut.blocks[stage.index].clone(), given };
        let plain = Parameters::new(&trace).with_precision(self.precision).holding_logits(machine.holds_logits());
        let mut routines = vec![evaluation(&section, stage.is_last(), &plain, &inputs)];
        let parameters = plain.training(&scalars.dropout_key).after_streams(cut.streams[stage.index]);
        let output = section.output(&parameters, &inputs);
        if output.shape() != Shape::from(&between[..]) && trace.check().is_ok() {
            let (given, stated) = (output.ty(), Shape::from(&between[..]));
            return Err(Error::Config(format!(
                "`Staged::through` gives {given}, and {stated} in f32 is between blocks"
            )));
        }
        let total = stage.is_last().then(|| summed(&staged.losses_of(&parameters, &inputs, &output)));
        trace.check()?;
        let differentiated = match &total {
            Some(total) => total * scalars.scaled_share(),
            // Times one, and added up: its gradient is the one that is written, to the bit.
            None => {
                let product = &output * numbers(GRADIENT);
                product.sum(&product.all_axes())
            }
        };
        let weights = parameters.tensors();
        let wanted: Vec<&Tensor> = weights.iter().chain(&section.given).collect();
        let mut terms = gradient_terms(&differentiated, &wanted)?;
        let input_gradient = section.given.as_ref().and_then(|_| terms.pop()).map(|terms| added_up(&terms));
        let names: Vec<String> = parameters.list().into_iter().map(|parameter| parameter.name).collect();
        let loss_sum = trace.input(LOSS_SUM, DType::F32, []);
        let losses = staged.losses_of_example() * self.micro_batch;
        let model = Differentiated { scalars, parameters, names, weights, total: loss_sum, terms, losses };

        let named = model.names.iter().zip(&model.terms).map(|(name, terms)| (&name[..], &terms[..]));
        let mut accumulator = GradientAccumulator::new(named);
        total.iter().for_each(|total| drop(accumulator.sum("loss", total)));
        let tied = self.tied(&cut, &model, &mut accumulator)?;
        let with_gradient = |routine: Routine| match &input_gradient {
            Some(gradient) => routine.output(INPUT_GRADIENT, gradient),
            None => routine,
        };
        if !stage.is_last() {
            routines.push(Routine::new(FORWARD).times_per_step(self.passes()).output(OUTPUT, &output));
        }
        let hosted = self.lanes.hosted().len();
        let further = Routine::new("accumulate").times_per_step(self.passes().saturating_sub(hosted));
        routines.push(accumulator.first(with_gradient(Routine::new("first").times_per_step(hosted))));
        routines.push(accumulator.accumulate(with_gradient(further)));
        routines.extend(accumulator.folds(&self.lanes));
        let mut staging = self.staging(&cut, between.iter().product(), tied);
        let mut target = Target::whole(&model, accumulator.gradients().to_vec());
        routines.push(self.own_squares(&mut staging, &target));
        target.squares = Some(self.all_squares(&staging, &trace));
        let update = |name: &str| {
            let update = Routine::new(name).output("loss", &(&model.total * &model.scalars.loss_share));
            accumulator.update(update)
        };
        routines.extend(self.update("update", update, &model, &target).routines);
        routines.push(self.diagnosis(&target));
        routines.extend(model.scalars.loss_scaler.as_ref().map(|scaler| scaler.back_off()));
        trace.check()?;
        let fields = inputs.fields();
        self.check_batch(&fields)?;
        // Those that have the same stage sum a part each.
        let parts = (self.lanes.place().ranks > 1).then(|| Parts::of(self, &model, accumulator.summed()));
        let (parameters, summed) = (model.parameters.list(), accumulator.summed().to_vec());
        let (staging, kept, replicas, reading, refreshed) = (Some(staging), None, None, None, None);
        Ok(Traced {
            trace,
            routines,
            fields,
            parameters,
            losses,
            summed,
            parts,
            kept,
            replicas,
            staging,
            reading,
            refreshed,
            sharpness: None,
        })
    }

    /// Weights that another stage has too: their gradients are of both stages' sums.
    fn tied(&self, cut: &Cut, model: &Differentiated, accumulator: &mut GradientAccumulator) -> Result<Vec<Tied>> {
        let mut tied = vec![];
        for (index, (name, terms)) in model.names.iter().zip(&model.terms).enumerate() {
            let others: Vec<usize> = cut.others(self.stage.index, name).collect();
            match others[..] {
                [] => {}
                // Of two terms it does not matter which is the first.
                [with] if terms.len() == 1 => {
                    let [sum, other] = accumulator.add_from_elsewhere(index);
                    let numbers = model.weights[index].shape().elements();
                    tied.push(Tied { sum, other, numbers, with });
                }
                _ => {
                    return Err(Error::Config(format!(
                        "weight {name:?} is used more than twice, over several stages; choose `settings.stages` 1"
                    )));
                }
            }
        }
        Ok(tied)
    }

    fn staging(&self, cut: &Cut, between: usize, tied: Vec<Tied>) -> Staging {
        let weights = cut.all();
        let mut squares_at = vec![0; self.stage.count + 1];
        for (weight, stage) in &weights {
            squares_at[stage + 1] += self.squares_of(weight.shape.elements());
        }
        squares_at[self.stage.count] += 1;
        for stage in 0..self.stage.count {
            squares_at[stage + 1] += squares_at[stage];
        }
        Staging { between, weights, squares: vec![], squares_at, tied }
    }

    /// How many squares a gradient of so many numbers has: as many as a single rank adds up apart.
    fn squares_of(&self, numbers: usize) -> usize {
        if self.lanes.count() == 1 { 1 } else { numbers.div_ceil(SQUARES_TOGETHER) }
    }

    /// The routine that gives the squares of the gradients that this stage answers for.
    fn own_squares(&self, staging: &mut Staging, target: &Target<'_>) -> Routine {
        let mut routine = Routine::new(SQUARES).times_per_step(1);
        for (part, gradient) in target.parts.iter().zip(&target.gradients) {
            let answers = |(weight, stage): &(Parameter, usize)| weight.name == part.name && *stage == self.stage.index;
            if !staging.weights.iter().any(answers) {
                continue;
            }
            let squares = match self.lanes.count() {
                1 => vec![gradient.sum_of_squares(&gradient.all_axes())],
                _ => lanes::squares(gradient),
            };
            for sums in squares {
                let name = format!("squares.{}", staging.squares.len());
                routine = routine.output(&name, &sums);
                staging.squares.push((name, sums.shape().elements()));
            }
        }
        routine
    }

    /// The squares of all gradients, which come from outside, by weight.
    fn all_squares(&self, staging: &Staging, trace: &Trace) -> Vec<Vec<Tensor>> {
        let all = staging.squares_at[self.stage.count] - 1;
        let squares = trace.input(ALL_SQUARES, DType::F32, [all]);
        let mut start = 0;
        let of_weight = |(weight, _): &(Parameter, usize)| {
            let numbers = weight.shape.elements();
            let end = start + self.squares_of(numbers);
            let whole = if self.lanes.count() == 1 { end } else { start + numbers / SQUARES_TOGETHER };
            let ranges = [start..whole, whole..end];
            start = end;
            ranges.into_iter().filter(|range| !range.is_empty()).map(|range| squares.slice(0, range)).collect()
        };
        staging.weights.iter().map(of_weight).collect()
    }
}

/// What a stage does of an evaluation.
fn evaluation(section: &Section<'_>, is_last: bool, parameters: &Parameters, inputs: &Inputs) -> Routine {
    let (routine, output) = (Routine::new("evaluate"), section.output(parameters, inputs));
    match is_last {
        true => routine.output("loss", &section.staged.loss_of(parameters, inputs, &output)),
        false => routine.output(OUTPUT, &output),
    }
}

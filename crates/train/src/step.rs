//! The training step as a program: micro-batches, accumulation, clipping, update, evaluation, diagnosis; all traced
//! once and replayed.
//!
//! A step over several micro-batches replays `first` and then `accumulate` into gradient states, and ends with
//! `update`; a step of one micro-batch is the single routine `step`, which keeps no gradients between. Nothing is
//! assigned by a step whose gradient norm is not finite: every update waits for that check.
//!
//! Gradients are summed from the first row of a batch to the last, whatever the micro-batches: each goes on with the
//! sums of the one before. So (without dropout, whose masks follow the micro-batches) their number changes no bit of
//! the weights, if sequences have a multiple of 32 tokens.

use crate::accumulation::{GradientAccumulator, added_up};
use crate::clipping::{clip_by_norm, clip_by_value};
use crate::config::{Batch, Clip, Precision, TrainConfig};
use crate::generate::{Decoder, Sampling};
use crate::models::{CausalModel, IGNORED_TARGET, ModelConfig, Parameter, Weights};
use crate::optimizers::{GroupedOptimizer, OptimizerKind, Settings, StepNumbers};
use crate::planning::Chosen;
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Options, Planner};
use gradus_engine::{DType, Program, Routine, Tensor, Trace, gradient_terms};

/// What the training program is built from.
#[derive(Clone, Debug)]
pub struct StepConfig {
    /// The model.
    pub model: ModelConfig,
    /// Sequences computed at once.
    pub micro_batch: usize,
    /// Micro-batches of a step.
    pub micro_batches: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// The update.
    pub optimizer: GroupedOptimizer,
    /// Each gradient number's limit, if there is one.
    pub clip_value: Option<f32>,
    /// Share of activations dropped.
    pub dropout: f32,
    /// Element type of the computation.
    pub precision: Precision,
    /// Whether gradients are summed in states even over a single micro-batch, so that the step can go on with another
    /// one ([`TrainingStep::relink`]).
    pub relinkable: bool,
    /// Whether the program can also write text with its weights.
    pub samples: bool,
}

impl StepConfig {
    /// A step over so many sequences of the model's context at once: AdamW, f32, nothing dropped or clipped by value.
    pub fn plain(model: ModelConfig, batch: usize) -> StepConfig {
        StepConfig {
            sequence: model.context,
            model,
            micro_batch: batch,
            micro_batches: 1,
            optimizer: OptimizerKind::Adamw.grouped(OptimizerKind::Adamw.usual()),
            clip_value: None,
            dropout: 0.0,
            precision: Precision::F32,
            relinkable: false,
            samples: false,
        }
    }

    /// The part of a run's configuration that shapes its program. A micro-batch of 0 is still to be chosen.
    pub fn of(config: &TrainConfig) -> StepConfig {
        StepConfig {
            model: config.model.clone(),
            micro_batch: config.micro_batch,
            micro_batches: config.batch.size().checked_div(config.micro_batch).unwrap_or(0),
            sequence: config.sequence,
            optimizer: config.optimizer.grouped(Settings {
                weight_decay: config.weight_decay as f32,
                beta1: config.beta1 as f32,
                beta2: config.beta2 as f32,
            }),
            clip_value: if let Clip::Value(limit) = config.clip { Some(limit as f32) } else { None },
            dropout: config.dropout as f32,
            precision: config.precision,
            relinkable: matches!(config.batch, Batch::Adaptive(_)),
            samples: true,
        }
    }

    /// What plans the program within any limit of memory, taking none itself.
    pub fn planner<'a>(&self, backend: &'a dyn Backend, options: Options) -> Result<Planner<'a>> {
        let (trace, routines) = self.traced()?;
        Ok(trace.planner(backend, &routines, options)?)
    }

    /// The routines over one trace.
    fn traced(&self) -> Result<(Trace, Vec<Routine>)> {
        let trace = Trace::new();
        let tokens = trace.input("tokens", DType::I32, [self.micro_batch, self.sequence]);
        let targets = trace.input("targets", DType::I32, [self.micro_batch, self.sequence]);
        let key = trace.input("dropout_key", DType::U32, [2]);
        let model = ModelConfig { dropout: self.dropout, ..self.model.clone() };
        let parameters = model.declare(&trace);
        let weights = Weights::of(&parameters);
        let plain = parameters.with_precision(self.precision);
        let evaluate = Routine::new("evaluate").output("loss", &model.loss(&plain, &tokens, &targets));
        // The loss is the mean over all micro-batches; each gives its share of it.
        let share = &trace.input("loss_share", DType::F32, []);
        let total = &model.token_losses(&plain.training(&key), &tokens, &targets).sum(&[1]).sum_in_order(&[0]);
        let terms = gradient_terms(&(total * share), &weights.tensors())?;
        let mut routines = vec![evaluate];
        if !self.accumulates() {
            let gradients: Vec<Tensor> = terms.iter().map(|terms| added_up(terms)).collect();
            let step = Routine::new("step").times_per_step(1).output("loss", &(total * share));
            routines.push(self.update(&trace, step, &weights, &gradients)?);
            routines.push(diagnosis(&weights, &gradients));
        } else {
            self.accumulation(&trace, &mut routines, &weights, (total, share), &terms)?;
        }
        if self.samples {
            routines.extend(self.decoder()?.routines(&model, &parameters));
        }
        trace.check()?;
        Ok((trace, routines))
    }

    /// Whether a step is several routines with sums of gradients between them, rather than one.
    pub fn accumulates(&self) -> bool {
        self.micro_batches > 1 || self.relinkable
    }

    /// What writes a text at a time with the program, from a prompt of one token.
    fn decoder(&self) -> Result<Decoder> {
        Decoder::new(&self.model, 1, 1)
    }

    /// Gradients summed over micro-batches in states, and an update from the sums.
    fn accumulation(
        &self,
        trace: &Trace,
        routines: &mut Vec<Routine>,
        weights: &Weights,
        (total, share): (&Tensor, &Tensor),
        terms: &[Vec<Tensor>],
    ) -> Result<()> {
        let named = weights.iter().zip(terms).map(|((name, _), terms)| (name, &terms[..]));
        let mut accumulator = GradientAccumulator::new(named);
        let summed = accumulator.sum("loss", total);
        let update = Routine::new("update").times_per_step(1).output("loss", &(&summed * share));
        let gradients = accumulator.gradients();
        let further = Routine::new("accumulate").times_per_step(self.micro_batches.saturating_sub(1));
        routines.extend([
            accumulator.first(Routine::new("first").times_per_step(1)),
            accumulator.accumulate(further),
            self.update(trace, accumulator.update(update), weights, gradients)?,
            diagnosis(weights, gradients),
        ]);
        Ok(())
    }

    /// Clipping and the update of every weight.
    fn update(&self, trace: &Trace, routine: Routine, weights: &Weights, gradients: &[Tensor]) -> Result<Routine> {
        let learning_rate = trace.input("learning_rate", DType::F32, []);
        let threshold = trace.input("clip_norm", DType::F32, []);
        let norm = Tensor::global_norm(&gradients.iter().collect::<Vec<_>>()).check_finite("the gradient norm");
        let routine = routine.output("gradient_norm", &norm);
        // One, but only once the norm is known to be finite: so no update comes before that.
        let one = &norm * 0.0 + 1.0;
        let clipped: Vec<Tensor>;
        let (gradients, scale) = match self.clip_value {
            Some(limit) => {
                clipped = clip_by_value(gradients, limit);
                (&clipped[..], one.clone())
            }
            None => (gradients, clip_by_norm(&norm, &threshold)),
        };
        let numbers = StepNumbers { learning_rate, scale, one };
        Ok(self.optimizer.update(routine, weights.iter(), gradients, &numbers))
    }
}

/// The sum of squares of each weight's gradient, to find where a number that is not finite came from.
fn diagnosis(weights: &Weights, gradients: &[Tensor]) -> Routine {
    let mut routine = Routine::new("diagnose");
    for ((name, _), gradient) in weights.iter().zip(gradients) {
        routine = routine.output(name, &gradient.sum_of_squares(&gradient.all_axes()));
    }
    routine
}

/// What a step gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The mean loss.
    pub loss: f32,
    /// The norm of the gradients before clipping.
    pub gradient_norm: f32,
}

/// A linked training step.
pub struct TrainingStep {
    program: Program,
    config: StepConfig,
    parameters: Vec<Parameter>,
}

impl TrainingStep {
    /// Plans and links the step with everything kept for the gradient; weights and optimiser are zero until written.
    pub fn new(config: StepConfig, backend: &dyn Backend) -> Result<TrainingStep> {
        let plan = config.planner(backend, Options::default())?.plan(usize::MAX);
        TrainingStep::link(Chosen { config, plan }, backend)
    }

    /// Links a step that is planned; weights and optimiser are zero until written.
    pub fn link(chosen: Chosen, backend: &dyn Backend) -> Result<TrainingStep> {
        let program = Program::link(chosen.plan, backend)?;
        let parameters = chosen.config.model.parameters();
        Ok(TrainingStep { program, config: chosen.config, parameters })
    }

    /// Goes on in another way: what the step remembers stays, in the same bytes.
    pub fn relink(&mut self, chosen: Chosen) -> Result<()> {
        self.program.relink(chosen.plan)?;
        self.config = chosen.config;
        Ok(())
    }

    /// The weights, in order.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// The program, to read and write its states.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The program, to read and write its states.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Gives every weight the numbers of a new model.
    pub fn initialise(&mut self, seed: u32) -> Result<()> {
        for parameter in &self.parameters {
            self.program.write_array(&parameter.name, &parameter.numbers(seed))?;
        }
        Ok(())
    }

    /// One step over a batch: `tokens` and `targets` are micro-batch after micro-batch. Allocates nothing.
    ///
    /// If a number is not finite, nothing is changed and the error says so.
    pub fn run(&mut self, tokens: &[i32], targets: &[i32], inputs: &StepScalars) -> Result<Outcome> {
        let size = self.config.micro_batch * self.config.sequence;
        let counted = targets.iter().filter(|&&target| target != IGNORED_TARGET).count();
        self.program.write("loss_share", &[1.0 / counted.max(1) as f32])?;
        self.program.write("learning_rate", &[inputs.learning_rate])?;
        self.program.write("clip_norm", &[inputs.clip_norm])?;
        let last = if self.config.accumulates() { "update" } else { "step" };
        for (index, (tokens, targets)) in tokens.chunks_exact(size).zip(targets.chunks_exact(size)).enumerate() {
            self.program.write("tokens", tokens)?;
            self.program.write("targets", targets)?;
            // The key need not count further than it can.
            let micro_step =
                (inputs.step as u32).wrapping_mul(self.config.micro_batches as u32).wrapping_add(index as u32);
            self.program.write("dropout_key", &[inputs.seed, micro_step])?;
            match (last, index) {
                ("step", _) => {}
                (_, 0) => self.program.run("first")?,
                _ => self.program.run("accumulate")?,
            }
        }
        self.program.run(last)?;
        Ok(Outcome { loss: self.program.scalar("loss")?, gradient_norm: self.program.scalar("gradient_norm")? })
    }

    /// The mean loss over one micro-batch, without dropout.
    pub fn evaluate(&mut self, tokens: &[i32], targets: &[i32]) -> Result<f32> {
        self.program.write("tokens", tokens)?;
        self.program.write("targets", targets)?;
        self.program.run("evaluate")?;
        Ok(self.program.scalar("loss")?)
    }

    /// Continues a prompt with the weights as they are, by so many of the tokens that are allowed. The program must be
    /// one that samples.
    pub fn sample(
        &mut self,
        prompt: &[i32],
        settings: &Sampling,
        tokens: usize,
        is_allowed: impl Fn(u32) -> bool,
    ) -> Result<Vec<i32>> {
        let mut decoder = self.config.decoder()?;
        decoder.allow_only(is_allowed)?;
        let mut texts = decoder.generate(&mut self.program, prompt, settings, tokens, &[], &mut |_, _| Ok(()))?;
        Ok(texts.swap_remove(0))
    }

    /// After a step that was refused: the weight that is not finite itself, the first layer's first; else the one whose
    /// gradient is not, the last layer's first, since that is where a gradient starts. `None` if all are finite and only
    /// their norm is not.
    pub fn culprit(&mut self) -> Result<Option<&str>> {
        for parameter in &self.parameters {
            let numbers = self.program.bytes(&parameter.name)?;
            let mut numbers =
                numbers.chunks_exact(4).map(|bytes| f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            if !numbers.all(f32::is_finite) {
                return Ok(Some(&parameter.name));
            }
        }
        self.program.run("diagnose")?;
        for parameter in self.parameters.iter().rev() {
            if !self.program.scalar(&parameter.name)?.is_finite() {
                return Ok(Some(&parameter.name));
            }
        }
        Ok(None)
    }
}

/// The numbers that change from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepScalars {
    /// The step, from 0.
    pub step: u64,
    /// The learning rate.
    pub learning_rate: f32,
    /// The norm above which gradients are scaled down; infinite for none.
    pub clip_norm: f32,
    /// The seed of dropout.
    pub seed: u32,
}

/// Whether an error of [`TrainingStep::run`] says that a number was not finite, which a run can survive.
pub fn is_not_finite(error: &Error) -> bool {
    matches!(error, Error::Engine(gradus_engine::Error::NonFinite { .. }))
}

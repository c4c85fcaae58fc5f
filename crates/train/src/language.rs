//! A language model as what is trained.

use crate::config::{BatchSize, Clip, LocalSteps, TrainConfig};
use crate::generate::{Decoder, Sampling, Texts};
use crate::lanes::Lanes;
use crate::models::{Blocks, CausalModel, IGNORED_TARGET, ModelConfig, WholeSequences};
use crate::optimizers::{Hyperparameters, OptimizerKind};
use crate::parameters::Parameters;
use crate::pipeline::Stage;
use crate::step::{Batch, Inputs, Objective, Staged, StepConfig};
use crate::{Error, Result};
use gradus_engine::{DType, Program, Routine, Shape, Tensor};
use std::ops::Range;
use std::rc::Rc;

/// The inputs of a step: what the model sees, and what it is to say.
pub const TOKENS: &str = "tokens";
/// See [`TOKENS`].
pub const TARGETS: &str = "targets";
/// Tokens of a sample that a run on text writes, at most: its prompt, and what follows.
pub(crate) const SAMPLE_TOKENS_MAX: usize = 176;

/// A causal model that learns to tell the next token.
#[derive(Clone)]
pub struct LanguageModel {
    /// The model.
    pub model: Rc<dyn CausalModel>,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Tokens of the texts that the program can also write with its weights, their prompts included; none: it writes none.
    pub samples: Option<usize>,
    /// Smaller models that could be trained instead, and the settings that make them so.
    pub smaller: Vec<(String, Rc<dyn CausalModel>)>,
}

impl LanguageModel {
    /// On sequences of the model's context.
    pub fn new(model: Rc<dyn CausalModel>) -> LanguageModel {
        LanguageModel { sequence: model.context(), model, samples: None, smaller: vec![] }
    }

    /// What a run's configuration says of it.
    pub fn of(config: &TrainConfig) -> LanguageModel {
        let model = ModelConfig { dropout: config.dropout as f32, ..config.model.clone() };
        let smaller = smaller_models(&model);
        let samples = Some(SAMPLE_TOKENS_MAX);
        LanguageModel { sequence: config.sequence, samples, smaller, ..LanguageModel::new(Rc::new(model)) }
    }

    /// Continues a prompt with the weights as they are, by so many of the tokens that are allowed. The program must be
    /// one that samples.
    pub fn sample(
        &self,
        program: &mut Program,
        prompt: &[i32],
        settings: &Sampling,
        tokens: usize,
        is_allowed: impl Fn(u32) -> bool,
    ) -> Result<Vec<i32>> {
        let Some(longest) = self.samples else {
            return Err(Error::Config("the program has no routines to write text; give `samples` a length".into()));
        };
        let mut decoder = self.decoder(longest)?;
        decoder.allow_only(is_allowed)?;
        let mut texts = decoder.generate(program, prompt, settings, tokens, &[], &mut |_, _| Ok(()))?;
        Ok(texts.swap_remove(0))
    }

    /// What writes a text of so many tokens at a time with the program, from a prompt of one.
    fn decoder(&self, tokens: usize) -> Result<Decoder> {
        Decoder::new(&*self.model, Texts { count: 1, prompt_tokens: 1, max_tokens: tokens.saturating_sub(1) })
    }

    #[track_caller]
    fn inputs(&self, inputs: &Inputs) -> [Tensor; 2] {
        [TOKENS, TARGETS].map(|name| inputs.get(name, DType::I32, [self.sequence]))
    }
}

impl Objective for LanguageModel {
    #[track_caller]
    fn losses(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        let [tokens, targets] = self.inputs(inputs); // [b, t]
        self.model.token_losses(parameters, &tokens, &targets) // [b, t]
    }

    #[track_caller]
    fn loss(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        let [tokens, targets] = self.inputs(inputs); // [b, t]
        self.model.loss(parameters, &tokens, &targets)
    }

    fn counted(&self, batch: &Batch) -> Option<usize> {
        let targets = batch.numbers::<i32>(TARGETS).ok()?;
        Some(targets.iter().filter(|&&target| target != IGNORED_TARGET).count())
    }

    fn routines(&self, parameters: &Parameters) -> Result<Vec<Routine>> {
        match self.samples {
            Some(tokens) => Ok(self.decoder(tokens)?.routines(&*self.model, parameters)),
            None => Ok(vec![]),
        }
    }

    fn staged(&self) -> Option<&dyn Staged> {
        self.model.blocks().map(|_| self as &dyn Staged)
    }

    fn smaller(&self) -> Vec<(String, Rc<dyn Objective>)> {
        let mut smaller: Vec<(String, Rc<dyn Objective>)> = vec![];
        if self.sequence >= 64 {
            let sequence = self.sequence / 2;
            smaller
                .push((format!("`settings.sequence` {sequence}"), Rc::new(LanguageModel { sequence, ..self.clone() })));
        }
        for (setting, model) in &self.smaller {
            smaller.push((setting.clone(), Rc::new(LanguageModel { model: model.clone(), ..self.clone() })));
        }
        smaller
    }
}

impl LanguageModel {
    /// The blocks of a model that has some.
    fn cuttable(&self) -> &dyn Blocks {
        self.model.blocks().expect("only a model of blocks is staged")
    }
}

impl Staged for LanguageModel {
    fn blocks(&self) -> usize {
        self.cuttable().count()
    }

    fn between(&self) -> Shape {
        [self.sequence, self.cuttable().width()].into()
    }

    fn losses_of_example(&self) -> usize {
        self.sequence
    }

    #[track_caller]
    fn begun(&self, parameters: &Parameters, inputs: &Inputs) -> Tensor {
        let [tokens, _] = self.inputs(inputs); // [b, t]
        self.cuttable().embedded(parameters, &tokens, &mut WholeSequences::of(&tokens)) // [b, t, c]
    }

    #[track_caller]
    fn through(&self, parameters: &Parameters, inputs: &Inputs, x: &Tensor, blocks: Range<usize>) -> Tensor {
        let [tokens, _] = self.inputs(inputs); // [b, t]
        self.cuttable().through(parameters, x, blocks, &mut WholeSequences::of(&tokens)) // [b, t, c]
    }

    #[track_caller]
    fn losses_of(&self, parameters: &Parameters, inputs: &Inputs, x: &Tensor) -> Tensor {
        let [_, targets] = self.inputs(inputs); // [b, t]
        let hidden = self.cuttable().normed(parameters, x); // [b, t, c]
        self.model.losses(parameters, &hidden, &targets) // [b, t]
    }

    #[track_caller]
    fn loss_of(&self, parameters: &Parameters, inputs: &Inputs, x: &Tensor) -> Tensor {
        let [_, targets] = self.inputs(inputs); // [b, t]
        self.losses_of(parameters, inputs, x).mean_loss(&targets, Some(IGNORED_TARGET))
    }
}

/// Half as deep, and half as wide.
fn smaller_models(model: &ModelConfig) -> Vec<(String, Rc<dyn CausalModel>)> {
    let mut smaller: Vec<(String, Rc<dyn CausalModel>)> = vec![];
    if model.layers > 1 {
        let layers = model.layers / 2;
        smaller.push((format!("`settings.layers` {layers}"), Rc::new(ModelConfig { layers, ..model.clone() })));
    }
    if model.width / 2 >= model.heads && (model.width / 2).is_multiple_of(2 * model.heads) {
        let (width, feed_forward) = (model.width / 2, model.feed_forward / 2);
        smaller
            .push((format!("`settings.width` {width}"), Rc::new(ModelConfig { width, feed_forward, ..model.clone() })));
    }
    smaller
}

impl StepConfig {
    /// A step of a language model over so many sequences of its context at once: AdamW, f32, nothing dropped or clipped
    /// by value.
    pub fn plain(model: ModelConfig, batch: usize) -> StepConfig {
        let adamw = OptimizerKind::Adamw;
        StepConfig::new(Rc::new(LanguageModel::new(Rc::new(model))), batch, adamw.grouped(adamw.usual()))
    }

    /// The part of a run's configuration that shapes its program. A micro-batch of 0 is still to be chosen.
    pub fn of(config: &TrainConfig) -> StepConfig {
        let (stage, pipeline) = Stage::of(config.place, config.stages);
        StepConfig {
            objective: Rc::new(LanguageModel::of(config)),
            micro_batch: config.micro_batch,
            micro_batches: (config.batch.size() / config.lanes.max(1)).checked_div(config.micro_batch).unwrap_or(0),
            lanes: Lanes::at(config.lanes, pipeline),
            stage,
            optimizer: config.optimizer.grouped(Hyperparameters {
                weight_decay: config.weight_decay as f32,
                beta1: config.beta1 as f32,
                beta2: config.beta2 as f32,
            }),
            shard: config.shard,
            overlap: config.overlap,
            compression: config.compress,
            compression_warmup: config.compress_warmup,
            local: LocalSteps::of(config.local_steps, config.outer_learning_rate, config.outer_momentum),
            clip_value: if let Clip::Value(limit) = config.clip { Some(limit as f32) } else { None },
            precision: config.precision,
            loss_scale: None,
            relinkable: matches!(config.batch, BatchSize::Adaptive(_)),
            health: config.measures_health(),
            sharpness: config.watch_curvature > 0,
            linearized: false,
        }
    }
}

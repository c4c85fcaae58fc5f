//! What a run on text does besides steps: the loss on held-out text, samples, and a model folder at its end.

use crate::Result;
use crate::config::{ExportDtype, TrainConfig};
use crate::data::{TokenFile, WindowReader, Windows, validation_windows};
use crate::export::{COMPANIONS_FOLDER, Export};
use crate::files::tensors::Tensors;
use crate::generate::Sampling;
use crate::lanes::Place;
use crate::language::{LanguageModel, SAMPLE_TOKENS_MAX, TARGETS, TOKENS};
use crate::models::IGNORED_TARGET;
use crate::schedule::Length;
use crate::step::TrainingStep;
use crate::tokenizer::Tokenizer;
use crate::trainer::{GoesOn, Hooks};
use std::path::Path;
use std::sync::Arc;

/// Weights times tokens that a validation may cost: some tens of seconds, whatever the size of the model.
const WEIGHT_TOKENS_MAX: usize = 2_000_000_000_000;
/// Tokens of a sample after its prompt.
const SAMPLE_TOKENS: usize = 160;
/// Documents that a model must see to learn how one begins after another has ended.
const DOCUMENTS_TO_LEARN_STARTS: u64 = 16;

/// The text of a run, and how it becomes tokens.
pub(super) struct Text {
    /// The configuration, its model's vocabulary filled in.
    pub config: TrainConfig,
    pub tokenizer: Tokenizer,
    pub train: Arc<TokenFile>,
    pub validation: Option<Arc<TokenFile>>,
}

impl Text {
    /// The windows of the training text, from a position on.
    pub fn windows(&self, position: u64) -> WindowReader {
        let windows = Windows::new(self.train.len(), self.config.sequence, self.config.seed);
        WindowReader { file: self.train.clone(), windows, position }
    }

    /// Gives `write` the model as it stands.
    fn exported<T>(&self, weights: &dyn Tensors, write: impl FnOnce(&Export<'_>) -> Result<T>) -> Result<T> {
        let companions = self.config.out.join(COMPANIONS_FOLDER);
        write(&Export {
            config: &self.config.model,
            weights,
            dtype: self.config.export_dtype.unwrap_or(ExportDtype::F32),
            tokenizer: &self.tokenizer,
            origin: companions.exists().then_some(&companions),
        })
    }

    /// The tokens up to the end of the first document that is not empty.
    fn first_document(&self, tokens: impl Iterator<Item = u32>) -> Vec<u32> {
        match self.tokenizer.end_of_text() {
            Some(end) => tokens.skip_while(|&token| token == end).take_while(|&token| token != end).collect(),
            None => tokens.collect(),
        }
    }

    /// What every document begins with; or the end of one, after which another begins; or how the held-out or training
    /// text begins.
    fn sample_prompt(&self) -> Result<Vec<i32>> {
        let start = self.tokenizer.document_start();
        if !start.is_empty() {
            return Ok(start.iter().map(|&token| token as i32).collect());
        }
        let learns_starts = self.train.documents() >= DOCUMENTS_TO_LEARN_STARTS;
        if let Some(token) = self.tokenizer.end_of_text().filter(|_| learns_starts) {
            return Ok(vec![token as i32]);
        }
        let mut first = [0];
        self.validation.as_ref().unwrap_or(&self.train).read(0, &mut first)?;
        Ok(first.to_vec())
    }
}

impl Hooks for Text {
    fn decay_setting(&self, length: Length) -> Option<String> {
        Some(match length {
            Length::Steps(steps) => format!("`settings.decay_steps` {steps}"),
            Length::Seconds(seconds) => format!("`settings.decay_time` {seconds:.0}s"),
        })
    }

    fn tokens(&self, sequences: u64) -> u64 {
        sequences * self.config.sequence as u64
    }

    fn data_tokens(&self) -> u64 {
        self.train.len()
    }

    fn write_settings(&self, training: &TrainingStep, folder: &Path) -> Result<()> {
        self.exported(training.program(), |model| model.write_settings(folder))
    }

    /// Fewer where the model is large or little text is held out.
    fn validation_batches(&self, training: &TrainingStep, at_most: usize) -> usize {
        let Some(file) = &self.validation else { return 0 };
        let (batch, sequence) = (self.config.batch.size(), self.config.sequence);
        let affordable = WEIGHT_TOKENS_MAX / (training.parameter_count() * batch * sequence).max(1);
        at_most.min(affordable.max(1)).min(validation_windows(file, sequence).len().div_ceil(batch))
    }

    /// The windows are evenly spread over the held-out text.
    fn validation_loss(
        &mut self,
        training: &mut TrainingStep,
        at_most: usize,
        goes_on: GoesOn<'_>,
    ) -> Result<Option<f32>> {
        let Some(file) = &self.validation else { return Ok(None) };
        let mut batch = training.micro_batch();
        let (size, sequence) = (batch.rows(), self.config.sequence);
        let all = validation_windows(file, sequence);
        let wanted = (self.validation_batches(training, at_most) * self.config.batch.size()).min(all.len());
        let starts: Vec<u64> = (0..wanted).filter_map(|index| all.clone().nth(index * all.len() / wanted)).collect();
        let parts = starts.len().div_ceil(size);
        let Place { rank, ranks } = training.config().lanes.place();
        let mut losses = Vec::with_capacity(parts);
        // Each rank in its turn.
        for (part, rows) in starts.chunks(size).enumerate().skip(rank).step_by(ranks) {
            if !training.agreed(goes_on(part as u64, parts as u64))? {
                break;
            }
            // Rows that the last batch does not fill are there, but do not count.
            for (name, ahead, unfilled) in [(TOKENS, 0, 0), (TARGETS, 1, IGNORED_TARGET)] {
                let numbers = batch.numbers_mut::<i32>(name)?;
                numbers.fill(unfilled);
                for (row, &start) in rows.iter().enumerate() {
                    file.read(start + ahead, &mut numbers[row * sequence..][..sequence])?;
                }
            }
            losses.push(training.evaluate(&batch)?);
        }
        let Some(losses) = training.in_turn(losses, parts)? else { return Ok(None) };
        let sums = losses.iter().zip(starts.chunks(size)).map(|(loss, rows)| *loss as f64 * rows.len() as f64);
        let total = sums.fold(0.0, |total: f64, sum| total + sum);
        Ok((!starts.is_empty()).then(|| (total / starts.len() as f64) as f32))
    }

    /// From the start of a document. No rank of a pipeline has a model to take one from.
    fn sample(&mut self, training: &mut TrainingStep) -> Result<Option<String>> {
        if training.config().stage.count > 1 {
            return Ok(None);
        }
        let prompt = self.sample_prompt()?;
        let settings = Sampling { temperature: 0.8, top_k: Some(50), top_p: 1.0, seed: self.config.seed };
        let (model, program) = (LanguageModel::of(&self.config), training.program_mut());
        let room = SAMPLE_TOKENS_MAX.saturating_sub(prompt.len());
        let tokens =
            model.sample(program, &prompt, &settings, SAMPLE_TOKENS.min(room), |token| self.tokenizer.knows(token))?;
        let ids = prompt.into_iter().chain(tokens).map(|token| token as u32);
        self.tokenizer.decode_text(&self.first_document(ids)).map(Some)
    }

    /// The model folder that other tools open.
    fn export(&mut self, _: &TrainingStep, weights: &dyn Tensors) -> Result<()> {
        let folder = self.config.out.join("model");
        self.exported(weights, |model| model.write(&folder))
    }
}

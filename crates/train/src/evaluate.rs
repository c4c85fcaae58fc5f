//! How well a model predicts a text.

use crate::config::within;
use crate::data::Corpus;
use crate::export;
use crate::files::tensors::{Entry, Tensors, TensorsMut};
use crate::memory::guard::{self, Doing};
use crate::memory::{Budget, Held, WORD_BYTES_MIN};
use crate::models::{CausalModel, IGNORED_TARGET};
use crate::planning::InferenceMemory;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Options, Plan};
use gradus_engine::{DType, Program, Routine, Trace};
use serde::Serialize;
use std::path::Path;

/// What came of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss of a token, in nats.
    pub loss: f64,
    /// The exponential of the loss.
    pub perplexity: f64,
    /// Bits needed for a byte of the text, whatever the tokens are.
    pub bits_per_byte: f64,
    /// Tokens that were predicted.
    pub tokens: u64,
    /// Bytes of text.
    pub bytes: u64,
}

/// How much is evaluated at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Sequences at a time, if the memory allows.
    pub batch: usize,
    /// Tokens of a sequence; the model's context if not given.
    pub sequence: Option<usize>,
    /// Memory to stay within: fewer sequences at a time, if need be.
    pub memory: Option<Budget>,
}

/// The most sequences that are evaluated at a time.
const MOST_SEQUENCES: usize = 1 << 16;

/// Puts a model's weights where they are wanted.
type FillWeights<'a> = &'a dyn Fn(&mut dyn TensorsMut) -> Result<()>;

/// Evaluates the model of a folder on a corpus. Every token but the first is predicted once, from what comes before it
/// in its sequence.
pub fn evaluate(
    folder: &Path,
    corpus: &Corpus,
    backend: &dyn Backend,
    window: Window,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<Evaluation> {
    let config = export::read_model_config(folder)?;
    let memory = memory(&config, backend, window)?;
    guard::doing(Doing::OpeningTokenizer);
    let tokenizer = Tokenizer::open(folder)?;
    export::check_vocabulary(&tokenizer, &config, export::USE_ITS_OWN_TOKENIZER)?;
    let fill = |weights: &mut dyn TensorsMut| export::read_model_weights(folder, &config, weights);
    evaluate_within(&memory, &config, &fill, (&tokenizer, corpus), backend, window, progress)
}

/// As [`evaluate`], of any model, with weights by their names, as a program or a file holds them.
pub fn evaluate_model(
    model: &dyn CausalModel,
    weights: &dyn Tensors,
    text: (&Tokenizer, &Corpus),
    backend: &dyn Backend,
    window: Window,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<Evaluation> {
    let copied = |to: &mut dyn TensorsMut| {
        Entry::of_parameters(&model.parameters()).iter().try_for_each(|entry| {
            let bytes = weights.bytes(&entry.name)?;
            to.fill(entry, &mut |dtype, to| {
                if (dtype, to.len()) != (entry.ty.dtype, bytes.len()) {
                    let problem = format!("{} bytes for {}; give the weights of this model", bytes.len(), entry.ty);
                    return Err(Error::Config(format!("weight {:?} has {problem}", entry.name)));
                }
                to.copy_from_slice(&bytes);
                Ok(())
            })
        })
    };
    evaluate_within(&memory(model, backend, window)?, model, &copied, text, backend, window, progress)
}

fn memory(model: &dyn CausalModel, backend: &dyn Backend, window: Window) -> Result<InferenceMemory> {
    InferenceMemory::of(window.memory, backend, || rehearsal(model, backend))
}

fn evaluate_within(
    memory: &InferenceMemory,
    model: &dyn CausalModel,
    fill: FillWeights<'_>,
    (tokenizer, corpus): (&Tokenizer, &Corpus),
    backend: &dyn Backend,
    window: Window,
    progress: &mut dyn FnMut(u64, Option<u64>),
) -> Result<Evaluation> {
    guard::doing(Doing::Evaluating);
    let reading = corpus.bytes_held()?.saturating_add(tokenizer.encoding_bytes());
    let mut evaluator = Evaluator::open(model, backend, window, (memory, reading, tokenizer))?;
    fill(&mut evaluator.program)?;
    let (mut bytes, mut in_document) = (0, false);
    for document in corpus.documents() {
        let document = document?;
        if !in_document {
            evaluator.push(tokenizer.document_start())?;
        }
        evaluator.push(&tokenizer.encode(&document.text)?)?;
        if !document.continues {
            evaluator.push(&tokenizer.document_end())?;
        }
        in_document = document.continues;
        bytes += document.text.len() as u64;
        progress(bytes, corpus.text_bytes());
    }
    evaluator.flush()?;
    if evaluator.tokens == 0 {
        return Err(Error::corpus(corpus.name(), "has fewer than two tokens; give a longer text"));
    }
    let loss = evaluator.total / evaluator.tokens as f64;
    let bits_per_byte = evaluator.total / std::f64::consts::LN_2 / bytes as f64;
    Ok(Evaluation { loss, perplexity: loss.exp(), bits_per_byte, tokens: evaluator.tokens, bytes })
}

/// The program that measures a model's loss on so many sequences at a time.
fn plan(model: &dyn CausalModel, batch: usize, sequence: usize, backend: &dyn Backend) -> Result<Plan> {
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [batch, sequence]);
    let targets = trace.input("targets", DType::I32, [batch, sequence]);
    let loss = model.loss(&model.declare(&trace), &tokens, &targets);
    let routine = Routine::new("evaluate").output("loss", &loss);
    Ok(trace.plan(backend, &[routine], Options::default())?)
}

/// The same for a model that is small.
fn rehearsal(model: &dyn CausalModel, backend: &dyn Backend) -> Result<Held> {
    let small = &*model.smallest();
    Held::measure(|begin| {
        let mut program = Program::link(plan(small, 1, small.context(), backend)?, backend)?;
        begin();
        Ok(program.run("evaluate")?)
    })
}

/// A model that sums the loss of the tokens it is given.
struct Evaluator {
    program: Program,
    sequence: usize,
    batch: usize,
    /// Tokens that wait; the first of them was predicted, or is the first of all.
    waiting: Vec<i32>,
    total: f64,
    tokens: u64,
}

impl Evaluator {
    fn open(
        model: &dyn CausalModel,
        backend: &dyn Backend,
        window: Window,
        (memory, reading, tokenizer): (&InferenceMemory, u64, &Tokenizer),
    ) -> Result<Evaluator> {
        let sequence = window.sequence.unwrap_or(model.context());
        if sequence > model.context() {
            let problem =
                format!("`settings.sequence` {sequence} is longer than the model's context of {}", model.context());
            return Err(Error::Config(problem));
        }
        within("batch", window.batch, 1..=MOST_SEQUENCES)?;
        model.check(1, sequence)?;
        let halves = std::iter::successors(Some(window.batch), |batch| (*batch > 1).then_some(batch / 2));
        let plans = halves.filter(|batch| model.check(*batch, sequence).is_ok());
        let plans = plans.map(|batch| plan(model, batch, sequence, backend));
        let (plan, left) = memory.first_fitting(reading.saturating_add(WORD_BYTES_MIN), plans)?;
        tokenizer.limit_memory(WORD_BYTES_MIN + left);
        let program = Program::link(plan, backend)?;
        let batch = program.size("tokens")? / sequence;
        Ok(Evaluator { program, sequence, batch, waiting: vec![], total: 0.0, tokens: 0 })
    }

    fn push(&mut self, tokens: &[u32]) -> Result<()> {
        self.waiting.extend(tokens.iter().map(|&token| token as i32));
        while self.waiting.len() > self.batch * self.sequence {
            self.run(self.batch * self.sequence)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        match self.waiting.len() {
            0 | 1 => Ok(()),
            waiting => self.run(waiting - 1),
        }
    }

    /// Predicts the next `count` tokens; places of the batch that they do not fill do not count.
    fn run(&mut self, count: usize) -> Result<()> {
        let mut tokens = self.waiting[..count].to_vec();
        let mut targets = self.waiting[1..=count].to_vec();
        tokens.resize(self.batch * self.sequence, 0);
        targets.resize(self.batch * self.sequence, IGNORED_TARGET);
        self.program.write("tokens", &tokens)?;
        self.program.write("targets", &targets)?;
        self.program.run("evaluate")?;
        let loss = self.program.scalar("loss")?;
        if !loss.is_finite() {
            let place = self.tokens;
            return Err(Error::Diverged(format!(
                "the loss of the {count} tokens after the first {place} is {loss}: the model's numbers grow beyond f32; \
                 use one from before it diverged"
            )));
        }
        self.total += loss as f64 * count as f64;
        self.tokens += count as u64;
        self.waiting.drain(..count);
        Ok(())
    }
}

//! The curvature of a model's loss on a text: its largest eigenvalue, its trace and its spectrum, whole and by layer.

use crate::config::within;
use crate::data::Corpus;
use crate::export;
use crate::memory::guard::{self, Doing};
use crate::memory::{Budget, Held, WORD_BYTES_MIN};
use crate::models::CausalModel;
use crate::parameters::Parameter;
use crate::planning::InferenceMemory;
use crate::step::is_not_finite;
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};
use gradus_engine::backend::Backend;
use gradus_engine::curvature::{Lanczos, LanczosOptions, Linearized, Matrix, lanczos, trace_estimates};
use gradus_engine::plan::{Options, Plan, Planner, Recompute};
use gradus_engine::{Array, DType, Program, Routine, Tensor, Trace, loss_and_hessian_vector_product};
use serde::Serialize;
use std::ops::Range;
use std::path::Path;

/// Heap where a product is parted and planned in several ways: two layers of width 32 held 0.6 (GPT-2) and 1.2 MB (Llama) more than was
/// predicted without it.
const PLANNING_BYTES: u64 = 1_800_000;

/// What of the text is looked at, and how closely.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Windows of the text, from its beginning on, whose mean loss is looked at.
    pub sequences: usize,
    /// Tokens of a window; the model's context if not given.
    pub sequence: Option<usize>,
    /// Products for the eigenvalues, at most.
    pub steps: usize,
    /// Products for the trace.
    pub samples: usize,
    /// What the random vectors follow from.
    pub seed: u64,
    /// Memory to stay within.
    pub memory: Option<Budget>,
}

/// A share of the spectrum: how much of the Hessian lies near an eigenvalue.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The eigenvalue.
    pub eigenvalue: f64,
    /// The share of all eigenvalues that it stands for, as one random vector tells.
    pub weight: f64,
}

/// A part of the model by itself: its block on the diagonal of the Hessian.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartCurvature {
    /// What it is called.
    pub name: String,
    /// How many numbers its weights hold.
    pub parameters: usize,
    /// The trace of its block.
    pub trace: f64,
    /// The standard error of that.
    pub trace_error: f64,
    /// The largest eigenvalue of its block.
    pub largest_eigenvalue: f64,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Curvature {
    /// Mean loss of a token, in nats.
    pub loss: f64,
    /// The largest eigenvalue of the loss's Hessian: its sharpness.
    pub largest_eigenvalue: f64,
    /// How far from that an eigenvalue lies at most.
    pub eigenvalue_error: f64,
    /// The smallest eigenvalue.
    pub smallest_eigenvalue: f64,
    /// The sum of all eigenvalues.
    pub trace: f64,
    /// The standard error of that.
    pub trace_error: f64,
    /// The learning rate from which on plain gradient descent would climb out of the sharpest direction, 2 over the largest
    /// eigenvalue; none where nothing curves upwards.
    pub learning_rate_limit: Option<f64>,
    /// How many numbers the weights hold.
    pub parameters: usize,
    /// Tokens that were predicted.
    pub tokens: u64,
    /// The spectrum, smallest first.
    pub spectrum: Vec<Line>,
    /// By layer, and of what belongs to none.
    pub parts: Vec<PartCurvature>,
}

/// Vectors that are held besides those of the program: that which is multiplied, the product, and Lanczos's three.
const VECTORS: u64 = 5;
/// Models of more numbers than this are looked at without keeping the vectors of all steps.
const NUMBERS_KEPT: usize = 4_000_000;
/// The most windows, products and samples.
const MOST: usize = 1 << 16;

/// Looks at the model of a folder on the first windows of a corpus.
pub fn curvature(
    folder: &Path,
    corpus: &Corpus,
    backend: &dyn Backend,
    settings: Settings,
    progress: &mut dyn FnMut(&str),
) -> Result<Curvature> {
    let model = export::read_model_config(folder)?;
    let sequence = settings.sequence.unwrap_or(model.context());
    if sequence > model.context() {
        let problem =
            format!("`settings.sequence` {sequence} is longer than the model's context of {}", model.context());
        return Err(Error::Config(problem));
    }
    within("sequences", settings.sequences, 1..=MOST)?;
    within("steps", settings.steps, 1..=MOST)?;
    within("samples", settings.samples, 2..=MOST)?;
    model.check(1, sequence)?;
    let memory = InferenceMemory::of(settings.memory, backend, || rehearsal(&model, backend))?;
    guard::doing(Doing::OpeningTokenizer);
    let tokenizer = Tokenizer::open(folder)?;
    export::check_vocabulary(&tokenizer, &model, export::USE_ITS_OWN_TOKENIZER)?;
    let tokens = first_tokens(&tokenizer, corpus, settings.sequences * sequence + 1)?;
    guard::doing(Doing::Planning);
    let kept = settings.steps as u64 * u64::from(model.parameter_count() <= NUMBERS_KEPT);
    let vectors = (VECTORS + kept) * 4 * model.parameter_count() as u64;
    let weights = model.parameters();
    let part = vec![0.0; weights.iter().map(|weight| weight.shape.elements()).max().unwrap_or(0)];
    let besides = vectors + 4 * part.len() as u64 + WORD_BYTES_MIN + PLANNING_BYTES + 8 * tokens.len() as u64;
    let (plan, kept) = chosen(&model, sequence, settings.sequences, &memory, besides, backend)?;
    let mut program = Program::link(plan, backend)?;
    export::read_model_weights(folder, &model, &mut program)?;
    guard::doing(Doing::Evaluating);
    let losses = Vec::with_capacity(settings.sequences);
    let hessian = Hessian { program, weights, part, tokens, sequence, kept, aside: vec![], losses };
    found(hessian, settings, progress).map_err(|error| match is_not_finite(&error) {
        true => Error::Diverged(
            "the curvature of the loss is no number: the model's numbers grow beyond f32; use one from before it diverged"
                .to_string(),
        ),
        false => error,
    })
}

/// What the products tell.
fn found(mut hessian: Hessian, settings: Settings, progress: &mut dyn FnMut(&str)) -> Result<Curvature> {
    let parts = parts(&hessian.weights);
    let mut blocks: Vec<Range<usize>> = parts.iter().map(|(_, block)| block.clone()).collect();
    blocks.push(0..hessian.size());
    progress("the trace");
    let mut traces = trace_estimates(&mut hessian, &blocks, settings.samples, settings.seed)?;
    let whole_trace = traces.pop().expect("that of the whole");
    let reorthogonalize = hessian.size() <= NUMBERS_KEPT;
    let options = LanczosOptions { steps: settings.steps, seed: settings.seed, reorthogonalize };
    progress("the spectrum");
    let whole: Lanczos = lanczos(&mut hessian, options)?;
    let mut found = vec![];
    for ((name, block), trace) in parts.into_iter().zip(traces) {
        progress(&name);
        let largest = lanczos(&mut Block::of(&mut hessian, block.clone()), options)?.largest();
        found.push(PartCurvature {
            name,
            parameters: block.len(),
            trace: trace.value,
            trace_error: trace.error,
            largest_eigenvalue: largest.value,
        });
    }
    let line = |ritz: &gradus_engine::curvature::Ritz| Line { eigenvalue: ritz.value, weight: ritz.weight };
    let largest = whole.largest();
    Ok(Curvature {
        loss: hessian.loss(),
        largest_eigenvalue: largest.value,
        eigenvalue_error: largest.error,
        smallest_eigenvalue: whole.smallest().value,
        trace: whole_trace.value,
        trace_error: whole_trace.error,
        learning_rate_limit: (largest.value > 0.0).then(|| 2.0 / largest.value),
        parameters: hessian.size(),
        tokens: (hessian.tokens.len() - 1) as u64,
        spectrum: whole.eigenvalues.iter().map(line).collect(),
        parts: found,
    })
}

/// The first tokens of a corpus, documents as training and evaluation see them.
fn first_tokens(tokenizer: &Tokenizer, corpus: &Corpus, count: usize) -> Result<Vec<i32>> {
    let (mut tokens, mut in_document): (Vec<u32>, bool) = (vec![], false);
    for document in corpus.documents() {
        let document = document?;
        if !in_document {
            tokens.extend_from_slice(tokenizer.document_start());
        }
        tokens.extend(tokenizer.encode(&document.text)?);
        if !document.continues {
            tokens.extend(tokenizer.document_end());
        }
        in_document = document.continues;
        if tokens.len() >= count {
            tokens.truncate(count);
            return Ok(tokens.into_iter().map(|token| token as i32).collect());
        }
    }
    let problem =
        format!("has {} tokens, and {count} are asked for; give fewer sequences, or a longer text", tokens.len());
    Err(Error::corpus(corpus.name(), problem))
}

/// The routine that computes what the products of a window have in common, where there is one.
const LINEARIZE: &str = "linearize";
/// The routine that multiplies.
const PRODUCT: &str = "product";

/// The ways to multiply a vector with the Hessian of a window's loss.
struct Ways<'a> {
    planner: Planner<'a>,
    /// The states that hold what the products have in common, if any do.
    kept: Vec<String>,
    /// Bytes of these.
    kept_bytes: u64,
}

impl<'a> Ways<'a> {
    /// With at most so many bytes of what the products have in common.
    fn of(model: &dyn CausalModel, sequence: usize, backend: &'a dyn Backend, bytes: usize) -> Result<Ways<'a>> {
        let trace = Trace::new();
        let [tokens, targets] = ["tokens", "targets"].map(|name| trace.input(name, DType::I32, [1, sequence]));
        let parameters = model.declare(&trace);
        let loss = model.loss(&parameters, &tokens, &targets);
        let weights = parameters.tensors();
        let vector = |(index, weight): (usize, &Tensor)| trace.input(&vector_name(index), DType::F32, weight.shape());
        let vectors: Vec<Tensor> = weights.iter().enumerate().map(vector).collect();
        let vectors: Vec<&Tensor> = vectors.iter().collect();
        let (loss, products) = loss_and_hessian_vector_product(&loss, &weights.iter().collect::<Vec<_>>(), &vectors)?;
        let linearized = Linearized::of("curvature.kept", &products, &vectors, bytes)?;
        let kept_bytes = linearized.bytes() as u64;
        let product = linearized
            .products()
            .iter()
            .enumerate()
            .fold(Routine::new(PRODUCT), |routine, (index, product)| routine.output(&product_name(index), product));
        let (routines, recompute) = match kept_bytes {
            0 => (vec![product.output("loss", &loss)], Recompute::Auto),
            // Keeping is of use where nothing else is to be computed again for it.
            _ => (vec![linearized.keep(Routine::new(LINEARIZE).output("loss", &loss)), product], Recompute::None),
        };
        let planner = trace.planner(backend, &routines, Options { recompute, ..Options::default() })?;
        Ok(Ways { planner, kept: linearized.names().map(str::to_string).collect(), kept_bytes })
    }
}

/// Of what products have in common, as many bytes are kept as the weights have, or these parts of that.
const PARTS_KEPT: [usize; 3] = [1, 2, 4];

/// How vectors are multiplied within the memory: with what the products of a window have in common kept, of all windows, if nothing
/// is to be computed again for that. Says in which states that is.
fn chosen(
    model: &dyn CausalModel,
    sequence: usize,
    windows: usize,
    memory: &InferenceMemory,
    besides: u64,
    backend: &dyn Backend,
) -> Result<(Plan, Vec<String>)> {
    let plain = memory.fastest_fitting(besides, &Ways::of(model, sequence, backend, 0)?.planner)?;
    // A device would have to be given what is kept of each window again and again.
    if windows > 1 && backend.memory()?.is_some() {
        return Ok((plain, vec![]));
    }
    for part in PARTS_KEPT {
        let ways = Ways::of(model, sequence, backend, 4 * model.parameter_count() / part)?;
        let plan = ways.planner.plan(usize::MAX);
        let aside = if windows > 1 { windows as u64 * ways.kept_bytes } else { 0 };
        if memory.left(besides + aside, &plan).is_some() {
            return Ok((plan, ways.kept));
        }
    }
    Ok((plain, vec![]))
}

fn vector_name(index: usize) -> String {
    format!("curvature.vector.{index}")
}

fn product_name(index: usize) -> String {
    format!("curvature.product.{index}")
}

/// The same for a model that is small.
fn rehearsal(model: &dyn CausalModel, backend: &dyn Backend) -> Result<Held> {
    let small = &*model.smallest();
    Held::measure(|begin| {
        let ways = Ways::of(small, small.context(), backend, usize::MAX)?;
        let mut program = Program::link(ways.planner.plan(usize::MAX), backend)?;
        begin();
        if ways.kept_bytes > 0 {
            program.run(LINEARIZE)?;
        }
        Ok(program.run(PRODUCT)?)
    })
}

/// The Hessian of the mean loss over windows.
struct Hessian {
    program: Program,
    weights: Vec<Parameter>,
    /// Room for the part of a product that is a weight's.
    part: Vec<f32>,
    tokens: Vec<i32>,
    sequence: usize,
    /// The states that hold what the products of a window have in common, if that is kept.
    kept: Vec<String>,
    /// What they are to hold, of each window, where there are several.
    aside: Vec<Vec<Array>>,
    /// The loss of each window, once there was a product.
    losses: Vec<f64>,
}

impl Matrix for Hessian {
    fn size(&self) -> usize {
        self.weights.iter().map(|weight| weight.shape.elements()).sum()
    }

    fn product(&mut self, vector: &[f32], product: &mut [f32]) -> gradus_engine::Result<()> {
        let mut at = 0;
        for (index, weight) in self.weights.iter().enumerate() {
            let elements = weight.shape.elements();
            self.program.write(&vector_name(index), &vector[at..at + elements])?;
            at += elements;
        }
        product.fill(0.0);
        let windows = self.windows();
        for window in 0..windows {
            let first = window * self.sequence;
            self.program.write("tokens", &self.tokens[first..first + self.sequence])?;
            self.program.write("targets", &self.tokens[first + 1..=first + self.sequence])?;
            self.multiply(window)?;
            self.add_products(product, 1.0 / windows as f32)?;
        }
        Ok(())
    }
}

impl Hessian {
    fn windows(&self) -> usize {
        (self.tokens.len() - 1) / self.sequence
    }

    /// The mean loss.
    fn loss(&self) -> f64 {
        self.losses.iter().sum::<f64>() / self.losses.len() as f64
    }

    /// Multiplies for a window, whose tokens are written.
    fn multiply(&mut self, window: usize) -> gradus_engine::Result<()> {
        let is_first = self.losses.len() == window;
        if self.kept.is_empty() {
            self.program.run(PRODUCT)?;
        } else if is_first {
            self.program.run(LINEARIZE)?;
        } else if let Some(held) = self.aside.get(window) {
            self.kept.iter().zip(held).try_for_each(|(name, array)| self.program.write_array(&name[..], array))?;
        }
        if is_first {
            self.losses.push(f64::from(self.program.scalar("loss")?));
        }
        if self.kept.is_empty() {
            return Ok(());
        }
        if is_first && self.windows() > 1 {
            let held = self.kept.iter().map(|name| self.program.read(&name[..]));
            self.aside.push(held.collect::<gradus_engine::Result<_>>()?);
        }
        self.program.run(PRODUCT)
    }

    /// Adds what the program found, times a share.
    fn add_products(&mut self, product: &mut [f32], share: f32) -> gradus_engine::Result<()> {
        let mut at = 0;
        for (index, weight) in self.weights.iter().enumerate() {
            let elements = weight.shape.elements();
            let part = &mut self.part[..elements];
            self.program.read_into(&product_name(index)[..], part)?;
            product[at..at + elements].iter_mut().zip(part).for_each(|(sum, number)| *sum += share * *number);
            at += elements;
        }
        Ok(())
    }
}

/// A block on the diagonal of a matrix.
struct Block<'a> {
    whole: &'a mut Hessian,
    block: Range<usize>,
    vector: Vec<f32>,
    product: Vec<f32>,
}

impl<'a> Block<'a> {
    fn of(whole: &'a mut Hessian, block: Range<usize>) -> Block<'a> {
        let size = whole.size();
        Block { whole, block, vector: vec![0.0; size], product: vec![0.0; size] }
    }
}

impl Matrix for Block<'_> {
    fn size(&self) -> usize {
        self.block.len()
    }

    fn product(&mut self, vector: &[f32], product: &mut [f32]) -> gradus_engine::Result<()> {
        self.vector[self.block.clone()].copy_from_slice(vector);
        self.whole.product(&self.vector, &mut self.product)?;
        product.copy_from_slice(&self.product[self.block.clone()]);
        Ok(())
    }
}

/// The layers, and what belongs to none, each with the numbers that it has of all, in the order of the weights.
fn parts(weights: &[Parameter]) -> Vec<(String, Range<usize>)> {
    let mut parts: Vec<(String, Range<usize>)> = vec![];
    let mut at = 0;
    for weight in weights {
        let number = weight.name.split('.').find_map(|piece| piece.parse::<usize>().ok());
        let name = number.map_or(weight.name.clone(), |number| format!("layer {number}"));
        let end = at + weight.shape.elements();
        match parts.last_mut().filter(|(last, _)| *last == name) {
            Some((_, block)) => block.end = end,
            None => parts.push((name, at..end)),
        }
        at = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelConfig;

    #[test]
    fn parts_are_layers_and_what_is_in_none() {
        let model = ModelConfig::gpt2(11, 8, 2, 2, 16);
        let found = parts(&model.parameters());
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.iter().filter(|name| name.starts_with("layer")).count(), 2, "{names:?}");
        assert_eq!(found.last().unwrap().1.end, model.parameter_count());
        assert!(found.windows(2).all(|pair| pair[0].1.end == pair[1].1.start), "{found:?}");
    }
}

//! Text from a model: several sequences at a time, each token computed once.

mod cache;
mod decoder;
mod sampling;

pub use decoder::{Hear, Texts, Written};
pub use sampling::Sampling;

pub(crate) use decoder::Decoder;

use crate::Result;
use crate::config::{Precision, within};
use crate::files::tensors::{self, Entry, Fill, TensorsMut};
use crate::memory::{Budget, Held};
use crate::models::{CausalModel, Parameter};
use crate::parameters::Parameters;
use crate::planning::InferenceMemory;
use gradus_engine::backend::Backend;
use gradus_engine::plan::{Options, Plan};
use gradus_engine::{Array, Program, Trace};

/// The most sequences that are continued at a time.
const MOST_SEQUENCES: usize = 1 << 16;

/// A model compiled to continue texts, with its own copy of the weights.
pub struct Generator {
    program: Program,
    decoder: Decoder,
}

impl Generator {
    /// The routine of its program that takes one more token of each text, where texts are decoded over a cache.
    pub const NEXT: &str = decoder::NEXT;

    /// A generator of such texts, with these weights. Products are computed in the precision, and matrices held in it.
    pub fn new(
        model: &dyn CausalModel,
        weights: impl Fn(&Parameter) -> Array,
        precision: Precision,
        backend: &dyn Backend,
        texts: Texts,
    ) -> Result<Generator> {
        let memory = Generator::memory(model, precision, backend, None)?;
        let mut generator = Generator::without_weights(model, precision, backend, texts, &memory)?;
        for parameter in model.parameters() {
            generator.set_weight(&parameter.name, &weights(&parameter).to_vec::<f32>()?)?;
        }
        Ok(generator)
    }

    /// The plan of a generator of such texts.
    pub fn plan(model: &dyn CausalModel, precision: Precision, backend: &dyn Backend, texts: Texts) -> Result<Plan> {
        plan(model, precision, &Decoder::new(model, texts)?, backend)
    }

    /// The memory of a process that generates, within what is stated.
    pub fn memory(
        model: &dyn CausalModel,
        precision: Precision,
        backend: &dyn Backend,
        stated: Option<Budget>,
    ) -> Result<InferenceMemory> {
        InferenceMemory::of(stated, backend, || rehearsal(model, precision, backend))
    }

    /// As [`Generator::new`], with weights that are zero until each is set, within the memory of the process.
    pub fn without_weights(
        model: &dyn CausalModel,
        precision: Precision,
        backend: &dyn Backend,
        texts: Texts,
        memory: &InferenceMemory,
    ) -> Result<Generator> {
        Generator::check_count(texts.count)?;
        let decoder = Decoder::new(model, texts)?;
        let (plan, _) =
            memory.first_fitting(decoder.bytes(), std::iter::once(plan(model, precision, &decoder, backend)))?;
        Ok(Generator { program: Program::link(plan, backend)?, decoder })
    }

    /// Refuses more sequences than are continued at a time.
    pub fn check_count(count: usize) -> Result<()> {
        within("count", count, 1..=MOST_SEQUENCES)
    }

    /// From now on, only these tokens are written. A model may have room for more than its tokenizer knows.
    pub fn allow_only(&mut self, is_allowed: impl Fn(u32) -> bool) -> Result<()> {
        self.decoder.allow_only(is_allowed)
    }

    /// Replaces a weight by these numbers, rounded to what it is held in.
    pub fn set_weight(&mut self, name: &str, numbers: &[f32]) -> Result<()> {
        tensors::write_numbers(&mut self.program, name, numbers)
    }

    /// How many sequences are continued at a time.
    pub fn count(&self) -> usize {
        self.decoder.count()
    }

    /// The program, to look at what it does.
    pub fn program_mut(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Bytes that the generator holds.
    pub fn memory_bytes(&self) -> usize {
        self.program.plan().regions.total()
    }

    /// Continues the prompt, once for each sequence, by up to `max_tokens`; a sequence ends before any of the tokens
    /// `stops`. Texts that outgrow what the generator was made for are refused, unless that is the model's context: then the
    /// last half of it is kept. Gives the new tokens of each, and tells `hear` the number of the sequence and what is written to it.
    pub fn generate(
        &mut self,
        prompt: &[i32],
        settings: &Sampling,
        max_tokens: usize,
        stops: &[i32],
        hear: Hear<'_>,
    ) -> Result<Vec<Vec<i32>>> {
        self.decoder.generate(&mut self.program, prompt, settings, max_tokens, stops, hear)
    }
}

/// The program of a decoder.
fn plan(model: &dyn CausalModel, precision: Precision, decoder: &Decoder, backend: &dyn Backend) -> Result<Plan> {
    precision.check(backend)?;
    let trace = Trace::new();
    let parameters = Parameters::new(&trace).held_in(precision);
    parameters.declare(&model.parameters());
    Ok(trace.plan(backend, &decoder.routines(model, &parameters), Options::default())?)
}

/// A text of a model that is small.
fn rehearsal(model: &dyn CausalModel, precision: Precision, backend: &dyn Backend) -> Result<Held> {
    let small = &*model.smallest();
    let max_tokens = small.context();
    let mut decoder = Decoder::new(small, Texts { count: 1, prompt_tokens: 1, max_tokens })?;
    let settings = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 1 };
    Held::measure(|begin| {
        let mut program = Program::link(plan(small, precision, &decoder, backend)?, backend)?;
        begin();
        decoder.generate(&mut program, &[0], &settings, max_tokens, &[], &mut |_, _| Ok(())).map(drop)
    })
}

impl TensorsMut for Generator {
    fn fill(&mut self, entry: &Entry, fill: Fill<'_>) -> Result<()> {
        TensorsMut::fill(&mut self.program, entry, fill)
    }
}

#[cfg(test)]
mod tests;

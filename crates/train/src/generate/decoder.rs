//! Decoding: the routines that a program needs for it, and the loop over them.

use super::cache::{FirstTokens, KeyValueCache, NextToken};
use super::sampling::{Choice, Sampling};
use crate::models::{CausalModel, WholeSequences};
use crate::parameters::Parameters;
use crate::{Error, Result};
use gradus_engine::{DType, Program, Routine, Tensor};

/// What is written to a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// One more token.
    Token(i32),
    /// Nothing more.
    End,
}

/// Who is told what is written, with the number of the sequence; an error ends the writing.
pub type Hear<'a> = &'a mut dyn FnMut(usize, Written) -> Result<()>;

/// The routine that takes one more token of each sequence.
const NEXT: &str = "next";

/// Continues texts with a program that has the routines for it, be it one that does nothing else or one that trains
/// the weights.
pub(crate) struct Decoder {
    vocabulary: usize,
    context: usize,
    /// Whether a text goes on from what is kept of it, rather than being computed anew for each token.
    is_cached: bool,
    /// Sequences continued at a time.
    count: usize,
    /// How many tokens each prompt routine takes at most, the shortest first.
    prompt_lengths: Vec<usize>,
    /// Tokens of each sequence that are in the cache.
    pub(super) cached: usize,
    /// The tokens that may be chosen.
    allowed: Vec<usize>,
    /// What the routine that ran last gave: [count, v].
    pub(super) logits: Vec<f32>,
}

impl Decoder {
    /// For `count` sequences from prompts of about `prompt_tokens`. Longer prompts are taken too, but slower.
    pub fn new(model: &dyn CausalModel, count: usize, prompt_tokens: usize) -> Result<Decoder> {
        let (vocabulary, context, is_cached) = (model.vocabulary(), model.context(), model.attends_only());
        model.check(count, context)?;
        if count == 0 {
            return Err(Error::Config("count is 0, which asks for no text; choose 1 or more".to_string()));
        }
        let longest = if is_cached { half(context) } else { context };
        let mut prompt_lengths = vec![prompt_tokens.clamp(1, context), longest];
        prompt_lengths.sort();
        prompt_lengths.dedup();
        let logits = vec![0.0; count * vocabulary];
        let allowed = (0..vocabulary).collect();
        Ok(Decoder { vocabulary, context, is_cached, count, prompt_lengths, cached: 0, allowed, logits })
    }

    /// Bytes that it takes to choose tokens, besides the program: their logits, and tables of those that are allowed.
    pub fn bytes(&self) -> u64 {
        (4 * self.logits.len() + 32 * self.vocabulary) as u64
    }

    /// The routines of the model: one for prompts of each capacity and, over one cache with those, one for the next token.
    pub fn routines(&self, model: &dyn CausalModel, parameters: &Parameters) -> Vec<Routine> {
        let trace = parameters.trace();
        let cache = KeyValueCache::new(trace, self.context);
        let last_rows = &trace.input("last_rows", DType::I32, [self.count]);
        let mut routines = vec![];
        if self.is_cached {
            routines.push(next_routine(model, parameters, &cache, self.count));
        }
        for &sequence in &self.prompt_lengths {
            let tokens = trace.input(&prompt_tokens_name(sequence), DType::I32, [self.count, sequence]); // [n, t]
            let mut first = FirstTokens { cache: &cache, sequence, filled: vec![] };
            let hidden = match self.is_cached {
                true => model.hidden(parameters, &tokens, &mut first), // [n, t, c]
                false => model.hidden(parameters, &tokens, &mut WholeSequences::of(&tokens)), // [n, t, c]
            };
            let logits = last_logits(model, parameters, &hidden, last_rows); // [n, v]
            let routine = Routine::new(&prompt_name(sequence)).output("logits", &logits);
            routines.push(cache.assigned(routine, &first.filled));
        }
        routines
    }

    /// How many sequences are continued at a time.
    pub fn count(&self) -> usize {
        self.count
    }

    /// From now on, only these tokens are written. A model may have room for more than its tokenizer knows.
    pub fn allow_only(&mut self, is_allowed: impl Fn(u32) -> bool) -> Result<()> {
        self.allowed = (0..self.vocabulary).filter(|token| is_allowed(*token as u32)).collect();
        match self.allowed.is_empty() {
            true => {
                Err(Error::Config("the model has no token of its tokenizer; use the one it was trained with".into()))
            }
            false => Ok(()),
        }
    }

    /// Continues the prompt, once for each sequence, by up to `max_tokens`; a sequence ends before any of the tokens
    /// `stops`. Gives the new tokens of each, and tells `hear` the number of the sequence and what is written to it.
    pub fn generate(
        &mut self,
        program: &mut Program,
        prompt: &[i32],
        settings: &Sampling,
        max_tokens: usize,
        stops: &[i32],
        hear: Hear<'_>,
    ) -> Result<Vec<Vec<i32>>> {
        settings.validate()?;
        self.check_prompt(prompt)?;
        self.cached = 0;
        let mut sequences = vec![prompt.to_vec(); self.count];
        let mut ends = vec![None; self.count];
        for index in 0..max_tokens {
            self.advance(program, &sequences)?;
            for (number, sequence) in sequences.iter_mut().enumerate() {
                let token = self.choose(settings, Choice { sequence: number, index })?;
                if ends[number].is_none() && stops.contains(&token) {
                    ends[number] = Some(sequence.len());
                    hear(number, Written::End)?;
                } else if ends[number].is_none() {
                    hear(number, Written::Token(token))?;
                }
                // A sequence that ended goes on unheard, so that all stay of one length.
                sequence.push(token);
            }
            if ends.iter().all(Option::is_some) {
                break;
            }
        }
        for number in (0..self.count).filter(|number| ends[*number].is_none()) {
            hear(number, Written::End)?;
        }
        let new =
            |(sequence, end): (Vec<i32>, Option<usize>)| sequence[prompt.len()..end.unwrap_or(sequence.len())].to_vec();
        Ok(sequences.into_iter().zip(ends).map(new).collect())
    }

    fn check_prompt(&self, prompt: &[i32]) -> Result<()> {
        let wrong = |problem: String| Err(Error::Config(problem));
        if prompt.is_empty() {
            return wrong("the prompt has no tokens; give it one at least".to_string());
        }
        let vocabulary = self.vocabulary;
        match prompt.iter().find(|token| usize::try_from(**token).map_or(true, |token| token >= vocabulary)) {
            Some(token) => wrong(format!(
                "the prompt has token {token}, but the model knows 0..{vocabulary}; use the tokenizer it was trained with"
            )),
            None => Ok(()),
        }
    }

    fn choose(&self, settings: &Sampling, choice: Choice) -> Result<i32> {
        let row = choice.sequence * self.vocabulary..(choice.sequence + 1) * self.vocabulary;
        Ok(settings.choose(&self.logits[row], &self.allowed, choice)? as i32)
    }

    /// Brings the logits to the end of the sequences, which are of one length and went on by one token since, or
    /// are new.
    pub(super) fn advance(&mut self, program: &mut Program, sequences: &[Vec<i32>]) -> Result<()> {
        let length = sequences[0].len();
        if !self.is_cached {
            return self.begin(program, sequences, length.saturating_sub(self.context));
        }
        if self.cached == 0 || self.cached == self.context {
            // Of what does not fit, the last half of a context is kept, so that there is room to go on.
            let kept = if length <= self.context { length } else { half(self.context) };
            return self.begin(program, sequences, length - kept);
        }
        self.next(program, sequences, length - 1)
    }

    /// Fills the cache anew with the tokens from a place on.
    fn begin(&mut self, program: &mut Program, sequences: &[Vec<i32>], from: usize) -> Result<()> {
        let length = sequences[0].len() - from;
        let longest = self.prompt_lengths[self.prompt_lengths.len() - 1];
        let capacity = self.prompt_lengths.iter().copied().find(|&capacity| capacity >= length).unwrap_or(longest);
        let taken = length.min(capacity);
        let mut tokens = vec![0i32; self.count * capacity];
        for (row, sequence) in tokens.chunks_exact_mut(capacity).zip(sequences) {
            row[..taken].copy_from_slice(&sequence[from..from + taken]);
        }
        let last_rows: Vec<i32> = (0..self.count).map(|number| (number * capacity + taken - 1) as i32).collect();
        program.write(&prompt_tokens_name(capacity), &tokens)?;
        program.write("last_rows", &last_rows)?;
        program.run(&prompt_name(capacity))?;
        program.read_into("logits", &mut self.logits)?;
        self.cached = taken;
        (from + taken..from + length).try_for_each(|place| self.next(program, sequences, place))
    }

    /// Takes the token at a place of each sequence, after those in the cache.
    fn next(&mut self, program: &mut Program, sequences: &[Vec<i32>], place: usize) -> Result<()> {
        let tokens: Vec<i32> = sequences.iter().map(|sequence| sequence[place]).collect();
        program.write("next_tokens", &tokens)?;
        program.write("position", &[self.cached as i32])?;
        program.run(NEXT)?;
        program.read_into("logits", &mut self.logits)?;
        self.cached += 1;
        Ok(())
    }
}

fn half(context: usize) -> usize {
    context.div_ceil(2)
}

fn prompt_name(capacity: usize) -> String {
    format!("prompt of {capacity}")
}

fn prompt_tokens_name(capacity: usize) -> String {
    format!("prompt_tokens of {capacity}")
}

fn next_routine(model: &dyn CausalModel, parameters: &Parameters, cache: &KeyValueCache, count: usize) -> Routine {
    let trace = parameters.trace();
    let tokens = trace.input("next_tokens", DType::I32, [count, 1]); // [n, 1]
    let position = trace.input("position", DType::I32, [1]); // [1]
    let mut next = NextToken::new(cache, &position);
    let hidden = model.hidden(parameters, &tokens, &mut next); // [n, 1, c]
    let routine = Routine::new(NEXT).output("logits", &model.logits(parameters, &hidden)); // [n, 1, v]
    cache.assigned(routine, &next.filled)
}

/// Logits [n, v] after the last tokens of prompts, which may be shorter than the routine: what follows a last token
/// changes nothing before it.
fn last_logits(model: &dyn CausalModel, parameters: &Parameters, hidden: &Tensor, last_rows: &Tensor) -> Tensor {
    let (rows, width) = (hidden.size(0).saturating_mul(hidden.size(1)), hidden.size(-1));
    model.logits(parameters, &hidden.reshape([rows, width]).embedding(last_rows))
}

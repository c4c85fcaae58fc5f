//! Decoding: the routines that a program needs for it, and the loop over them.

use super::cache::{Cache, FirstTokens, NextToken};
use super::sampling::{Choice, Sampling};
use crate::models::{Model, ModelConfig, Weights};
use crate::{Error, Result};
use gradus_engine::{DType, Program, Routine, Trace};

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
    config: ModelConfig,
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
    pub fn new(config: &ModelConfig, count: usize, prompt_tokens: usize) -> Result<Decoder> {
        config.validate()?;
        if count == 0 {
            return Err(Error::Config("count is 0, which asks for no text; choose 1 or more".to_string()));
        }
        let mut prompt_lengths = vec![prompt_tokens.clamp(1, config.context), half(config.context)];
        prompt_lengths.sort();
        prompt_lengths.dedup();
        let logits = vec![0.0; count * config.vocabulary];
        let allowed = (0..config.vocabulary).collect();
        Ok(Decoder { config: config.clone(), count, prompt_lengths, cached: 0, allowed, logits })
    }

    /// Bytes that it takes to choose tokens, besides the program: their logits, and tables of those that are allowed.
    pub fn bytes(&self) -> u64 {
        (4 * self.logits.len() + 32 * self.config.vocabulary) as u64
    }

    /// The routines over one cache: one for prompts of each capacity, and one for the next token.
    pub fn routines(&self, trace: &Trace, weights: &Weights) -> Vec<Routine> {
        let (config, count) = (&self.config, self.count);
        let model = Model::new(config, weights);
        let cache = Cache::new(trace, config, count);
        let last_rows = trace.input("last_rows", DType::I32, [count]);
        let mut routines = vec![next_routine(trace, &model, &cache, count)];
        for &sequence in &self.prompt_lengths {
            let tokens = trace.input(&prompt_tokens_name(sequence), DType::I32, [count, sequence]); // [n, t]
            let mut first = FirstTokens { cache: &cache, sequence, filled: vec![] };
            let hidden = model.hidden_in(&tokens, &mut first); // [n, t, c]
            // A prompt may be shorter than the routine: what follows its last token changes nothing before it.
            let last = hidden.reshape([count * sequence, config.width]).embedding(&last_rows); // [n, c]
            let routine = Routine::new(&prompt_name(sequence)).output("logits", &model.project(&last));
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
        self.allowed = (0..self.config.vocabulary).filter(|token| is_allowed(*token as u32)).collect();
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
        let vocabulary = self.config.vocabulary;
        match prompt.iter().find(|token| usize::try_from(**token).map_or(true, |token| token >= vocabulary)) {
            Some(token) => wrong(format!(
                "the prompt has token {token}, but the model knows 0..{vocabulary}; use the tokenizer it was trained with"
            )),
            None => Ok(()),
        }
    }

    fn choose(&self, settings: &Sampling, choice: Choice) -> Result<i32> {
        let row = choice.sequence * self.config.vocabulary..(choice.sequence + 1) * self.config.vocabulary;
        Ok(settings.choose(&self.logits[row], &self.allowed, choice)? as i32)
    }

    /// Brings the logits to the end of the sequences, which are of one length and went on by one token since, or
    /// are new.
    pub(super) fn advance(&mut self, program: &mut Program, sequences: &[Vec<i32>]) -> Result<()> {
        let length = sequences[0].len();
        if self.cached == 0 || self.cached == self.config.context {
            // Of what does not fit, the last half of a context is kept, so that there is room to go on.
            let kept = if length <= self.config.context { length } else { half(self.config.context) };
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

fn next_routine(trace: &Trace, model: &Model<'_>, cache: &Cache, count: usize) -> Routine {
    let tokens = trace.input("next_tokens", DType::I32, [count, 1]); // [n, 1]
    let position = trace.input("position", DType::I32, [1]); // [1]
    let mut next = NextToken::new(cache, &position);
    let hidden = model.hidden_in(&tokens, &mut next); // [n, 1, c]
    let routine = Routine::new(NEXT).output("logits", &model.project(&hidden)); // [n, 1, v]
    cache.assigned(routine, &next.filled)
}

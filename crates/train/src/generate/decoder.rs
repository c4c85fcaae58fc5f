//! Decoding: the routines that a program needs for it, and the loop over them.

use super::cache::{FirstTokens, KeyValueCache, NextToken};
use super::sampling::{Choice, Sampling};
use crate::models::{CausalModel, WholeSequences};
use crate::parameters::Parameters;
use crate::{Error, Result};
use gradus_engine::{DType, Program, Role, Routine, Tensor};

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

/// The texts that a program is made to write: how many at a time, and how long they are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Texts {
    /// Sequences continued at a time.
    pub count: usize,
    /// Tokens of the prompt. Longer ones are taken too, but slower.
    pub prompt_tokens: usize,
    /// Tokens written after it at most.
    pub max_tokens: usize,
}

impl Texts {
    /// Places of a cache that holds such a text, no more than the context.
    fn places(&self, context: usize) -> usize {
        // Texts of about the same length have the same programs.
        const MULTIPLE: usize = 16;
        self.tokens().min(context).next_multiple_of(MULTIPLE).min(context)
    }

    fn tokens(&self) -> usize {
        self.prompt_tokens.saturating_add(self.max_tokens)
    }
}

/// The routine that takes one more token of each sequence.
const NEXT: &str = "next";
/// The tokens that it takes.
const TOKENS: &str = "cache.tokens";
/// Where the last token of those that a [`Refill`] takes stands among them.
const LAST: &str = "last_token";

/// A routine that fills the cache anew, from its start.
#[derive(Clone, Copy, Debug)]
struct Refill {
    name: &'static str,
    /// Sequences that it computes: all, or one if all are the same.
    sequences: usize,
    /// Tokens of each that it takes at most.
    tokens: usize,
}

impl Refill {
    /// The input for its tokens.
    fn input(&self) -> String {
        format!("{}.tokens", self.name)
    }
}

/// Continues texts with a program that has the routines for it, be it one that does nothing else or one that trains
/// the weights.
pub(crate) struct Decoder {
    texts: Texts,
    vocabulary: usize,
    context: usize,
    /// Whether a text goes on from what is kept of it, rather than being computed anew for each token.
    is_cached: bool,
    /// Tokens of each sequence that can be kept.
    places: usize,
    /// Takes the prompt, which is one for all sequences, in.
    prompt: Refill,
    /// Takes the last half of each text in, where texts are longer than the context.
    slide: Option<Refill>,
    /// Tokens of each sequence that are in the cache.
    pub(super) cached: usize,
    /// The tokens that may be chosen.
    allowed: Vec<usize>,
    /// What the routine that ran last gave: [count, v].
    pub(super) logits: Vec<f32>,
}

impl Decoder {
    /// For such texts.
    pub fn new(model: &dyn CausalModel, texts: Texts) -> Result<Decoder> {
        let (vocabulary, context, is_cached) = (model.vocabulary(), model.context(), model.attends_only());
        let Texts { count, prompt_tokens, .. } = texts;
        model.check(count, context)?;
        if count == 0 {
            return Err(Error::Config("count is 0, which asks for no text; choose 1 or more".to_string()));
        }
        let places = if is_cached { texts.places(context).max(1) } else { context };
        let prompt = match is_cached {
            true => Refill { name: "prompt", sequences: 1, tokens: prompt_tokens.clamp(1, places) },
            false => Refill { name: "prompt", sequences: count, tokens: context },
        };
        let slide = Refill { name: "slide", sequences: count, tokens: half(context) };
        let slide = (is_cached && texts.tokens() > context).then_some(slide);
        let logits = vec![0.0; count * vocabulary];
        let allowed = (0..vocabulary).collect();
        Ok(Decoder { texts, vocabulary, context, is_cached, places, prompt, slide, cached: 0, allowed, logits })
    }

    /// Bytes that it takes to choose tokens, besides the program: their logits, and tables of those that are allowed.
    pub fn bytes(&self) -> u64 {
        (4 * self.logits.len() + 32 * self.vocabulary) as u64
    }

    /// The routines of the model: those that take texts in and, over one cache with those, one for the next token.
    pub fn routines(&self, model: &dyn CausalModel, parameters: &Parameters) -> Vec<Routine> {
        let trace = parameters.trace();
        let last = &trace.input(LAST, DType::I32, [1]);
        if !self.is_cached {
            return vec![self.refill(model, parameters, None, self.prompt, last)];
        }
        let cache = &KeyValueCache::new(trace, self.texts.count, self.places);
        let refills = std::iter::once(self.prompt).chain(self.slide);
        let next = std::iter::once(self.next_token(model, parameters, cache));
        next.chain(refills.map(|refill| self.refill(model, parameters, Some(cache), refill, last))).collect()
    }

    fn next_token(&self, model: &dyn CausalModel, parameters: &Parameters, cache: &KeyValueCache) -> Routine {
        let tokens = parameters.trace().zero_state_with_role(TOKENS, Role::Cache, DType::I32, [self.texts.count, 1]);
        let mut next = NextToken::new(cache);
        let hidden = model.hidden(parameters, &tokens, &mut next); // [n, 1, c]
        next.assigned(Routine::new(NEXT).output("logits", &model.logits(parameters, &hidden))) // [n, 1, v]
    }

    /// Logits after the last token that counts: what follows it changes nothing before it.
    fn refill(
        &self,
        model: &dyn CausalModel,
        parameters: &Parameters,
        cache: Option<&KeyValueCache>,
        refill: Refill,
        last: &Tensor,
    ) -> Routine {
        let trace = parameters.trace();
        let tokens = trace.input(&refill.input(), DType::I32, [refill.sequences, refill.tokens]); // [n, t]
        let mut first = cache.map(|cache| FirstTokens::new(cache, refill.tokens, &(last + 1.0)));
        let hidden = match &mut first {
            Some(first) => model.hidden(parameters, &tokens, first), // [n, t, c]
            None => model.hidden(parameters, &tokens, &mut WholeSequences::of(&tokens)), // [n, t, c]
        };
        let places = trace.arange(refill.tokens, DType::I32);
        let is_last = places.equal(last).unsqueeze(-1); // [t, 1]
        let hidden = is_last.select(&hidden, &hidden.zeros_like()).sum(&[1]); // [n, c]
        let logits = model.logits(parameters, &hidden).broadcast([self.texts.count, self.vocabulary]); // [n, v]
        let routine = Routine::new(refill.name).output("logits", &logits);
        first.map_or(routine.clone(), |first| first.assigned(routine))
    }

    /// How many sequences are continued at a time.
    pub fn count(&self) -> usize {
        self.texts.count
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
        self.check_length(prompt.len(), max_tokens)?;
        self.cached = 0;
        let mut sequences = vec![prompt.to_vec(); self.texts.count];
        let mut ends = vec![None; self.texts.count];
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
        for number in (0..self.texts.count).filter(|number| ends[*number].is_none()) {
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

    /// A text goes on beyond the context of the model, but not beyond a cache that was made for less than that.
    fn check_length(&self, prompt: usize, max_tokens: usize) -> Result<()> {
        if self.places == self.context || prompt.saturating_add(max_tokens) <= self.places {
            return Ok(());
        }
        Err(Error::Config(format!(
            "a prompt of {prompt} tokens and {max_tokens} more are wanted, but there is room for {} in all; make room for more, \
             or ask for fewer",
            self.places
        )))
    }

    fn choose(&self, settings: &Sampling, choice: Choice) -> Result<i32> {
        let row = choice.sequence * self.vocabulary..(choice.sequence + 1) * self.vocabulary;
        Ok(settings.choose(&self.logits[row], &self.allowed, choice)? as i32)
    }

    /// Brings the logits to the end of the sequences, which went on by one token since, or are new and all the same.
    pub(super) fn advance(&mut self, program: &mut Program, sequences: &[Vec<i32>]) -> Result<()> {
        let length = sequences[0].len();
        if !self.is_cached {
            return self.begin(program, self.prompt, sequences, length.saturating_sub(self.context));
        }
        let refill = match self.cached {
            0 => self.prompt,
            cached if cached == self.places => self.slide.expect("texts that outgrow the cache were refused"),
            _ => return self.next(program, sequences, length - 1),
        };
        // Of what does not fit, the last half of a context is kept, so that there is room to go on.
        let kept = if length <= self.context { length } else { half(self.context) };
        self.begin(program, refill, sequences, length - kept)
    }

    /// Fills the cache anew with the tokens from a place on.
    fn begin(&mut self, program: &mut Program, refill: Refill, sequences: &[Vec<i32>], from: usize) -> Result<()> {
        let length = sequences[0].len();
        let taken = (length - from).min(refill.tokens);
        let mut tokens = vec![0i32; refill.sequences * refill.tokens];
        for (row, sequence) in tokens.chunks_exact_mut(refill.tokens).zip(sequences) {
            row[..taken].copy_from_slice(&sequence[from..from + taken]);
        }
        program.write(refill.input().as_str(), &tokens)?;
        program.write(LAST, &[taken as i32 - 1])?;
        program.run(refill.name)?;
        program.read_into("logits", &mut self.logits)?;
        self.cached = taken;
        (from + taken..length).try_for_each(|place| self.next(program, sequences, place))
    }

    /// Takes the token at a place of each sequence, after those in the cache.
    fn next(&mut self, program: &mut Program, sequences: &[Vec<i32>], place: usize) -> Result<()> {
        let tokens: Vec<i32> = sequences.iter().map(|sequence| sequence[place]).collect();
        program.write(TOKENS, &tokens)?;
        program.run(NEXT)?;
        program.read_into("logits", &mut self.logits)?;
        self.cached += 1;
        Ok(())
    }
}

fn half(context: usize) -> usize {
    context.div_ceil(2)
}

//! Decoding: the routines that a program needs for it, and the loop over them.

use super::cache::{FirstTokens, KeyValueCache, NextToken};
use super::sampling::{ALLOWED, CHOSEN, Chooser, KEY, Sampling, TOKENS, allowed_words};
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
pub(super) const NEXT: &str = "next";
/// What tokens were chosen by last: [n, v], or [1, v] if they are those of all sequences.
pub(super) const LOGITS: &str = "logits";
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
    /// The tokens that may be chosen, as [`ALLOWED`] has them.
    allowed: Vec<u32>,
    /// The tokens chosen last, one of each sequence.
    chosen: Vec<i32>,
    /// Which choice comes next, as [`KEY`] has it.
    key: [u32; 2],
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
        let (allowed, chosen) = (vec![u32::MAX; allowed_words(vocabulary)], vec![0; count]);
        let (cached, key) = (0, [0; 2]);
        Ok(Decoder { texts, vocabulary, context, is_cached, places, prompt, slide, cached, allowed, chosen, key })
    }

    /// Bytes that it takes besides the program.
    pub fn bytes(&self) -> u64 {
        4 * (self.allowed.len() + self.chosen.len()) as u64
    }

    /// The routines of the model: those that take texts in and, over one cache with those, one for the next token. Each
    /// chooses the tokens that follow.
    pub fn routines(&self, model: &dyn CausalModel, parameters: &Parameters) -> Vec<Routine> {
        let trace = parameters.trace();
        let cache = self.is_cached.then(|| KeyValueCache::new(trace, self.texts.count, self.places));
        let chooser = Chooser::new(trace, self.texts.count, self.vocabulary);
        let traced = &Traced { model, parameters, cache, chooser, last: trace.input(LAST, DType::I32, [1]) };
        let refills = std::iter::once(self.prompt).chain(self.slide);
        traced.next().into_iter().chain(refills.map(|refill| traced.refill(refill))).collect()
    }

    /// How many sequences are continued at a time.
    pub fn count(&self) -> usize {
        self.texts.count
    }

    /// From now on, only these tokens are written. A model may have room for more than its tokenizer knows.
    pub fn allow_only(&mut self, is_allowed: impl Fn(u32) -> bool) -> Result<()> {
        self.allowed.fill(0);
        for token in (0..self.vocabulary as u32).filter(|&token| is_allowed(token)) {
            self.allowed[(token / u32::BITS) as usize] |= 1 << (token % u32::BITS);
        }
        match self.allowed.iter().all(|&word| word == 0) {
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
        settings.write(program)?;
        program.write(ALLOWED, &self.allowed)?;
        self.cached = 0;
        let mut sequences = vec![prompt.to_vec(); self.texts.count];
        let mut ends = vec![None; self.texts.count];
        for index in 0..max_tokens {
            self.key = [settings.seed, index as u32];
            self.advance(program, &sequences)?;
            for (number, (sequence, &token)) in sequences.iter_mut().zip(self.chosen(program)?).enumerate() {
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

    /// The tokens chosen last. A model that gives logits that are not finite has no choice to make.
    fn chosen(&mut self, program: &Program) -> Result<&[i32]> {
        program.read_into(CHOSEN, &mut self.chosen)?;
        if self.chosen.iter().any(|&token| token < 0) {
            let problem = "the model gives logits that are not finite; use a checkpoint from before it diverged";
            return Err(Error::Diverged(problem.to_string()));
        }
        Ok(&self.chosen)
    }

    /// Chooses what follows the sequences, which went on by the tokens chosen last, or are new and all the same.
    pub(super) fn advance(&mut self, program: &mut Program, sequences: &[Vec<i32>]) -> Result<()> {
        let length = sequences[0].len();
        if !self.is_cached {
            return self.begin(program, self.prompt, sequences, length.saturating_sub(self.context));
        }
        let refill = match self.cached {
            0 => self.prompt,
            cached if cached == self.places => self.slide.expect("texts that outgrow the cache were refused"),
            _ => return self.next(program),
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
        program.write(KEY, &self.key)?;
        program.run(refill.name)?;
        self.cached = taken;
        (from + taken..length).try_for_each(|place| self.take(program, sequences, place))
    }

    /// Takes the token at a place of each sequence in, whatever was chosen.
    fn take(&mut self, program: &mut Program, sequences: &[Vec<i32>], place: usize) -> Result<()> {
        let tokens: Vec<i32> = sequences.iter().map(|sequence| sequence[place]).collect();
        program.write(TOKENS, &tokens)?;
        program.write(KEY, &self.key)?;
        self.next(program)
    }

    /// Takes the tokens chosen last in, after those in the cache.
    fn next(&mut self, program: &mut Program) -> Result<()> {
        program.run(NEXT)?;
        self.cached += 1;
        Ok(())
    }
}

fn half(context: usize) -> usize {
    context.div_ceil(2)
}

/// What the routines of a decoder are made of.
struct Traced<'a> {
    model: &'a dyn CausalModel,
    parameters: &'a Parameters,
    /// Unless texts are computed anew for each token.
    cache: Option<KeyValueCache>,
    chooser: Chooser,
    /// See [`LAST`].
    last: Tensor,
}

impl Traced<'_> {
    fn next(&self) -> Option<Routine> {
        let mut next = NextToken::new(self.cache.as_ref()?);
        let tokens = self.chooser.tokens.unsqueeze(-1); // [n, 1]
        let hidden = self.model.hidden(self.parameters, &tokens, &mut next); // [n, 1, c]
        let logits = self.model.logits(self.parameters, &hidden).squeeze(1); // [n, v]
        Some(next.assigned(self.chosen(Routine::new(NEXT), &logits)))
    }

    /// What follows the last token that counts changes nothing before it.
    fn refill(&self, refill: Refill) -> Routine {
        let trace = self.parameters.trace();
        let tokens = trace.input(&refill.input(), DType::I32, [refill.sequences, refill.tokens]); // [n, t]
        let length = &self.last + 1.0;
        let mut first = self.cache.as_ref().map(|cache| FirstTokens::new(cache, refill.tokens, &length));
        let hidden = match &mut first {
            Some(first) => self.model.hidden(self.parameters, &tokens, first), // [n, t, c]
            None => self.model.hidden(self.parameters, &tokens, &mut WholeSequences::of(&tokens)), // [n, t, c]
        };
        let is_last = trace.arange(refill.tokens, DType::I32).equal(&self.last).unsqueeze(-1); // [t, 1]
        let hidden = is_last.select(&hidden, &hidden.zeros_like()).sum(&[1]); // [n, c]
        let routine = self.chosen(Routine::new(refill.name), &self.model.logits(self.parameters, &hidden));
        match first {
            Some(first) => first.assigned(routine),
            None => routine,
        }
    }

    /// The routine in which tokens are chosen by their logits [n, v].
    fn chosen(&self, routine: Routine, logits: &Tensor) -> Routine {
        self.chooser.assigned(routine.output(LOGITS, logits), logits)
    }
}

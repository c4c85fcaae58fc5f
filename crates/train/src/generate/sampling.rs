//! How tokens are chosen by their logits.

use crate::{Error, Result};
use gradus_engine::ops::SampleInputs;
use gradus_engine::{DType, Program, Role, Routine, Tensor, Trace};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; 0 always takes the likeliest token.
    pub temperature: f32,
    /// Only so many of the likeliest tokens are considered; none: all.
    pub top_k: Option<usize>,
    /// Only the likeliest tokens that together have this probability are considered; 1: all.
    pub top_p: f32,
    /// The same seed gives the same tokens.
    pub seed: u32,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.8, top_k: None, top_p: 1.0, seed: 1 }
    }
}

impl Sampling {
    /// Says which setting is impossible, and what to do.
    pub fn validate(&self) -> Result<()> {
        let wrong = |problem: String| Err(Error::Config(problem));
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong(format!("temperature is {}; choose 0 for the likeliest token, or more", self.temperature));
        }
        if self.top_k == Some(0) {
            return wrong("top-k is 0, which leaves no token; choose 1 or more, or leave it out".to_string());
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong(format!("top-p is {}; choose a probability above 0 and up to 1", self.top_p));
        }
        Ok(())
    }
}

/// The tokens chosen last, i32 [n]: what the next are to follow.
pub(super) const TOKENS: &str = "chosen.tokens";
/// The same as a result of the routine that chose them, which a device has ready for the host.
pub(super) const CHOSEN: &str = "chosen";
/// Which choice comes next, u32 [2]: the seed, and its number. Each has random numbers of its own.
pub(super) const KEY: &str = "chosen.key";
/// The tokens that may be chosen, u32 [v / 32, rounded up]: a bit for each.
pub(super) const ALLOWED: &str = "sampling.allowed";
const TEMPERATURE: &str = "sampling.temperature";
const TOP_K: &str = "sampling.top_k";
const TOP_P: &str = "sampling.top_p";

/// The choice of tokens in a program: its settings are inputs, so that one program serves all.
pub(super) struct Chooser {
    /// See [`TOKENS`].
    pub tokens: Tensor,
    key: Tensor,
    allowed: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
}

impl Chooser {
    /// Of a token for each of so many sequences.
    #[track_caller]
    pub fn new(trace: &Trace, sequences: usize, vocabulary: usize) -> Chooser {
        Chooser {
            tokens: trace.zero_state_with_role(TOKENS, Role::Cache, DType::I32, [sequences]),
            key: trace.zero_state_with_role(KEY, Role::Cache, DType::U32, [2]),
            allowed: trace.input(ALLOWED, DType::U32, [allowed_words(vocabulary)]),
            temperature: trace.input(TEMPERATURE, DType::F32, [1]),
            top_k: trace.input(TOP_K, DType::I32, [1]),
            top_p: trace.input(TOP_P, DType::F32, [1]),
        }
    }

    /// The routine in which a token of each sequence is chosen by logits [n, v], or by those of all [1, v].
    #[track_caller]
    pub fn assigned(&self, routine: Routine, logits: &Tensor) -> Routine {
        let sequences = self.tokens.size(0);
        let chosen = logits.broadcast([sequences, logits.size(-1)]).sample(SampleInputs {
            allowed: &self.allowed,
            uniform: &self.key.random_uniform(0, [sequences]),
            temperature: &self.temperature,
            top_k: &self.top_k,
            top_p: &self.top_p,
        });
        let one_more = self.key.trace().arange(2, DType::U32); // 0 for the seed, 1 for the number
        let routine = routine.output(CHOSEN, &chosen).assign(&self.tokens, &chosen);
        routine.assign(&self.key, &(&self.key + one_more))
    }
}

/// Words of a bit for each token.
pub(super) fn allowed_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(u32::BITS as usize)
}

impl Sampling {
    /// Tells a program to choose so.
    pub(super) fn write(&self, program: &mut Program) -> Result<()> {
        let top_k = self.top_k.and_then(|top_k| i32::try_from(top_k).ok()).unwrap_or(i32::MAX);
        program.write(TEMPERATURE, &[self.temperature])?;
        program.write(TOP_K, &[top_k])?;
        Ok(program.write(TOP_P, &[self.top_p])?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gradus_engine::backend::Cpu;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, -1.0, 2.0];
    const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 7 };
    const SEQUENCES: usize = 100;

    /// How often each token is chosen in many choices among those that are allowed.
    fn frequencies_among(sampling: &Sampling, allowed: u32) -> [f64; 5] {
        let trace = Trace::new();
        let chooser = Chooser::new(&trace, SEQUENCES, LOGITS.len());
        let logits = trace.input("logits", DType::F32, [1, LOGITS.len()]);
        let routine = chooser.assigned(Routine::new("choose"), &logits);
        let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
        program.write("logits", &LOGITS).unwrap();
        program.write(ALLOWED, &[allowed]).unwrap();
        program.write(KEY, &[sampling.seed, 0]).unwrap();
        sampling.write(&mut program).unwrap();
        let (mut counts, mut tokens) = ([0.0; 5], [0; SEQUENCES]);
        for _ in 0..200 {
            program.run("choose").unwrap();
            program.read_into(TOKENS, &mut tokens).unwrap();
            tokens.iter().for_each(|&token: &i32| counts[token as usize] += 1.0 / (200 * SEQUENCES) as f64);
        }
        counts
    }

    fn frequencies(sampling: &Sampling) -> [f64; 5] {
        frequencies_among(sampling, 0b11111)
    }

    #[test]
    fn tokens_are_chosen_as_often_as_they_are_likely() {
        for temperature in [0.5f32, 1.0, 3.0] {
            let shares = LOGITS.map(|logit| (logit as f64 / temperature as f64).exp());
            let total: f64 = shares.iter().sum();
            for (frequency, share) in frequencies(&Sampling { temperature, ..PLAIN }).into_iter().zip(shares) {
                assert!((frequency - share / total).abs() < 0.015, "{frequency}, {}", share / total);
            }
        }
    }

    #[test]
    fn temperature_zero_takes_the_first_of_the_likeliest() {
        assert_eq!(frequencies(&Sampling { temperature: 0.0, ..PLAIN }).map(f64::round), [0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn top_k_and_top_p_leave_out_the_unlikely() {
        let chosen = |sampling: Sampling| frequencies(&sampling).map(|frequency| frequency > 0.0);
        assert_eq!(chosen(Sampling { top_k: Some(1), ..PLAIN }), [false, true, false, false, false]);
        assert_eq!(chosen(Sampling { top_k: Some(3), ..PLAIN }), [false, true, true, false, true]);
        assert_eq!(chosen(Sampling { top_k: Some(usize::MAX), ..PLAIN }), [true; 5]);
        assert_eq!(chosen(Sampling { top_p: 0.7, ..PLAIN }), [false, true, false, false, true]);
        assert_eq!(chosen(Sampling { top_p: 0.9, ..PLAIN }), [false, true, true, false, true]);
        assert_eq!(chosen(Sampling { top_p: 1e-6, ..PLAIN }), [false, true, false, false, false]);
    }

    #[test]
    fn only_allowed_tokens_are_chosen() {
        let is_chosen = frequencies_among(&PLAIN, 0b01001).map(|frequency| frequency > 0.0);
        assert_eq!(is_chosen, [true, false, false, true, false]);
    }

    #[test]
    fn impossible_settings_are_named() {
        let problem = |sampling: Sampling| sampling.validate().unwrap_err().to_string();
        assert!(problem(Sampling { temperature: -1.0, ..PLAIN }).starts_with("temperature is -1"));
        assert!(problem(Sampling { temperature: f32::NAN, ..PLAIN }).starts_with("temperature is NaN"));
        assert!(problem(Sampling { top_k: Some(0), ..PLAIN }).starts_with("top-k is 0"));
        assert!(problem(Sampling { top_p: 0.0, ..PLAIN }).starts_with("top-p is 0"));
        assert!(problem(Sampling { top_p: 1.5, ..PLAIN }).starts_with("top-p is 1.5"));
        PLAIN.validate().unwrap();
    }
}

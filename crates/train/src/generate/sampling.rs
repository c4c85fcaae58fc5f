//! Choosing a token by its logits.

use crate::{Error, Result};
use gradus_kernels::random::philox;

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

/// Which choice is made: each has random bits of its own.
#[derive(Clone, Copy)]
pub(super) struct Choice {
    pub sequence: usize,
    pub index: usize,
}

impl Choice {
    /// A number from 0 to 1, 1 excluded.
    fn uniform(self, seed: u32) -> f64 {
        let words = philox([self.index as u32, self.sequence as u32, 0, 0], [seed, 0]);
        let bits = (words[0] as u64) << 32 | words[1] as u64;
        (bits >> 11) as f64 / (1u64 << 53) as f64
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

    /// The chosen one of the tokens that may be chosen. Logits that are not finite are an error: such a model has no
    /// choice to make.
    pub(super) fn choose(&self, logits: &[f32], allowed: &[usize], choice: Choice) -> Result<usize> {
        if logits.iter().any(|logit| !logit.is_finite()) {
            let problem = "the model gives logits that are not finite; use a checkpoint from before it diverged";
            return Err(Error::Diverged(problem.to_string()));
        }
        let candidates = self.candidates(logits, allowed);
        let total: f64 = candidates.iter().map(|&(_, share)| share).sum();
        let mut left = choice.uniform(self.seed) * total;
        for &(token, share) in &candidates {
            left -= share;
            if left < 0.0 {
                return Ok(token);
            }
        }
        // Rounding may leave a little; the first has a share above zero for certain.
        Ok(candidates[0].0)
    }

    /// The tokens that are considered, the likeliest first, each with a number in proportion to its probability.
    fn candidates(&self, logits: &[f32], allowed: &[usize]) -> Vec<(usize, f64)> {
        let mut order = allowed.to_vec();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let most = if self.temperature == 0.0 { 1 } else { self.top_k.unwrap_or(usize::MAX) };
        order.truncate(most);
        let largest = logits[order[0]] as f64;
        let share = |token: usize| match self.temperature {
            0.0 => 1.0,
            temperature => ((logits[token] as f64 - largest) / temperature as f64).exp(),
        };
        let mut candidates: Vec<(usize, f64)> = order.into_iter().map(|token| (token, share(token))).collect();
        if self.top_p < 1.0 {
            keep_probable(&mut candidates, self.top_p as f64);
        }
        candidates
    }
}

/// Keeps the first candidates that together have a probability, one at least.
fn keep_probable(candidates: &mut Vec<(usize, f64)>, probability: f64) {
    let wanted = probability * candidates.iter().map(|&(_, share)| share).sum::<f64>();
    let mut sum = 0.0;
    let enough = candidates.iter().position(|&(_, share)| {
        sum += share;
        sum >= wanted
    });
    candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, -1.0, 2.0];
    const ALL: [usize; 5] = [0, 1, 2, 3, 4];
    const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 7 };

    /// How often each token is chosen in many choices.
    fn frequencies(sampling: &Sampling) -> [f64; 5] {
        let mut counts = [0.0; 5];
        for index in 0..20_000 {
            counts[sampling.choose(&LOGITS, &ALL, Choice { sequence: index % 3, index }).unwrap()] += 1.0 / 20_000.0;
        }
        counts
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
        assert_eq!(frequencies(&Sampling { temperature: 0.0, ..PLAIN })[1].round(), 1.0);
    }

    #[test]
    fn top_k_and_top_p_leave_out_the_unlikely() {
        let chosen = |sampling: Sampling| frequencies(&sampling).map(|frequency| frequency > 0.0);
        assert_eq!(chosen(Sampling { top_k: Some(1), ..PLAIN }), [false, true, false, false, false]);
        assert_eq!(chosen(Sampling { top_k: Some(3), ..PLAIN }), [false, true, true, false, true]);
        assert_eq!(chosen(Sampling { top_k: Some(100), ..PLAIN }), [true; 5]);
        assert_eq!(chosen(Sampling { top_p: 0.7, ..PLAIN }), [false, true, false, false, true]);
        assert_eq!(chosen(Sampling { top_p: 0.9, ..PLAIN }), [false, true, true, false, true]);
        assert_eq!(chosen(Sampling { top_p: 1e-6, ..PLAIN }), [false, true, false, false, false]);
    }

    #[test]
    fn only_allowed_tokens_are_chosen() {
        for index in 0..1000 {
            let token = PLAIN.choose(&LOGITS, &[0, 3], Choice { sequence: 0, index }).unwrap();
            assert!(token == 0 || token == 3, "{token}");
        }
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
        assert!(PLAIN.choose(&[1.0, f32::NAN], &[0, 1], Choice { sequence: 0, index: 0 }).is_err());
    }
}

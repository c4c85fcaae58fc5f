//! Rotary positions: frequencies, and how a longer context scales them.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;
use std::fmt;
use std::str::FromStr;

/// Rotary angles scaled as in Llama 3: what turns slowly over the context of pretraining is slowed down further, what
/// turns fast stays, and between the two it changes smoothly.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RopeScaling {
    /// By how much slow frequencies are divided.
    pub factor: f32,
    /// Frequencies that turn fewer times than this over the original context are slow.
    pub low_freq_factor: f32,
    /// Frequencies that turn more often than this over the original context are fast.
    pub high_freq_factor: f32,
    /// The context of pretraining, in tokens.
    pub original_context: usize,
}

/// How the scaling begins in its one text, after which its four numbers come.
const LLAMA3: &str = "llama3:";

impl RopeScaling {
    /// Says which number is impossible.
    pub fn validate(&self) -> Result<()> {
        let RopeScaling { factor, low_freq_factor: low, high_freq_factor: high, original_context } = *self;
        let positive = |number: f32| number > 0.0 && number.is_finite();
        if [factor, low, high].into_iter().all(positive) && low < high && original_context > 0 {
            return Ok(());
        }
        Err(Error::Config(format!(
            "rope-scaling is {self}; its four numbers must be above zero, and the second below the third"
        )))
    }

    /// A frequency, in radians a token, as it is scaled.
    fn scaled(&self, frequency: f64) -> f64 {
        let turns = self.original_context as f64 * frequency / TAU;
        let [factor, low, high] = [self.factor, self.low_freq_factor, self.high_freq_factor].map(f64::from);
        let fast = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 - fast) * frequency / factor + fast * frequency
    }
}

/// The frequency of each pair of numbers of a head, in radians a token.
pub(super) fn frequencies(head_size: usize, theta: f32, scaling: Option<RopeScaling>) -> Vec<f64> {
    let plain = |pair: usize| f64::from(theta).powf(-2.0 * pair as f64 / head_size as f64);
    (0..head_size / 2).map(plain).map(|frequency| scaling.map_or(frequency, |by| by.scaled(frequency))).collect()
}

impl fmt::Display for RopeScaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RopeScaling { factor, low_freq_factor, high_freq_factor, original_context } = self;
        write!(f, "{LLAMA3}{factor},{low_freq_factor},{high_freq_factor},{original_context}")
    }
}

impl FromStr for RopeScaling {
    type Err = String;

    fn from_str(text: &str) -> Result<RopeScaling, String> {
        let numbers: Vec<&str> = text.strip_prefix(LLAMA3).unwrap_or("").split(',').collect();
        let read = || {
            let [factor, low, high, original] = numbers[..] else { return None };
            let number = |text: &str| text.parse::<f32>().ok();
            Some(RopeScaling {
                factor: number(factor)?,
                low_freq_factor: number(low)?,
                high_freq_factor: number(high)?,
                original_context: original.parse().ok()?,
            })
        };
        read()
            .filter(|scaling| scaling.validate().is_ok())
            .ok_or_else(|| "give llama3:FACTOR,LOW,HIGH,CONTEXT as in llama3:8,1,4,8192".to_string())
    }
}

impl From<RopeScaling> for String {
    fn from(scaling: RopeScaling) -> String {
        scaling.to_string()
    }
}

impl TryFrom<String> for RopeScaling {
    type Error = String;

    fn try_from(text: String) -> Result<RopeScaling, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLISHED: RopeScaling =
        RopeScaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };

    #[test]
    fn slow_frequencies_are_divided_fast_ones_stay_and_between_it_is_smooth() {
        let plain = frequencies(128, 500_000.0, None);
        let scaled = frequencies(128, 500_000.0, Some(PUBLISHED));
        assert_eq!((plain[0], scaled[0]), (1.0, 1.0));
        assert_eq!(scaled[63], plain[63] / 8.0);
        let shares: Vec<f64> = plain.iter().zip(&scaled).map(|(plain, scaled)| scaled / plain).collect();
        assert!(shares.windows(2).all(|pair| pair[1] <= pair[0]), "{shares:?}");
        let between: Vec<&f64> = shares.iter().filter(|share| **share > 0.126 && **share < 0.999).collect();
        assert!(between.len() > 3, "{shares:?}");
        // Two turns over the original context lie a third of the way from one to four.
        let frequency = 2.0 * TAU / 8192.0;
        assert!((PUBLISHED.scaled(frequency) / frequency - (1.0 / 3.0 + 2.0 / 3.0 / 8.0)).abs() < 1e-12);
    }

    #[test]
    fn a_scaling_is_one_text() {
        assert_eq!(PUBLISHED.to_string(), "llama3:8,1,4,8192");
        assert_eq!("llama3:8,1,4,8192".parse(), Ok(PUBLISHED));
        for text in ["", "llama3", "8,1,4,8192", "llama3:8,1,4", "llama3:8,4,1,8192", "llama3:0,1,4,8", "yarn:8,1,4,8"]
        {
            assert!(text.parse::<RopeScaling>().unwrap_err().contains("llama3:8,1,4,8192"), "{text:?}");
        }
    }
}

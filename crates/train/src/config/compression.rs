//! How gradients are made smaller before ranks exchange them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How the gradients of lanes are made smaller before they are summed. What a message leaves out is kept and sent later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Compression {
    /// Not.
    #[default]
    None,
    /// This share of the numbers, the largest of every 1024.
    TopK(f64),
    /// The numbers of at least this size.
    Threshold(f64),
    /// 8 bits a number, in blocks of 256 with a scale each.
    Bits8,
    /// 4 bits a number, in blocks of 64 with a scale each.
    Bits4,
    /// Matrices of this rank in place of the weights' (PowerSGD), whose vectors have 4 bits a number.
    PowerSgd(usize),
}

impl Compression {
    /// The share of `top-k`, and the rank of `power-sgd`, where none is said.
    pub const USUAL_SHARE: f64 = 0.01;
    /// See above.
    pub const USUAL_RANK: usize = 12;

    /// Whether it does anything.
    pub fn is_some(self) -> bool {
        self != Compression::None
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::None => write!(f, "none"),
            Compression::TopK(share) => write!(f, "top-k:{share}"),
            Compression::Threshold(size) => write!(f, "threshold:{size}"),
            Compression::Bits8 => write!(f, "8bit"),
            Compression::Bits4 => write!(f, "4bit"),
            Compression::PowerSgd(rank) => write!(f, "power-sgd:{rank}"),
        }
    }
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        let advice = || {
            "give none, 8bit, 4bit, top-k or top-k:SHARE (up to 0.5), threshold:SIZE (above 0), power-sgd or \
             power-sgd:RANK (1 to 128)"
                .to_string()
        };
        let size = |text: &str| text.parse::<f64>().ok().filter(|size| *size > 0.0 && *size <= 1e30).ok_or_else(advice);
        match text.split_once(':') {
            None => match text {
                "none" => Ok(Compression::None),
                "8bit" => Ok(Compression::Bits8),
                "4bit" => Ok(Compression::Bits4),
                "top-k" => Ok(Compression::TopK(Compression::USUAL_SHARE)),
                "power-sgd" => Ok(Compression::PowerSgd(Compression::USUAL_RANK)),
                _ => Err(advice()),
            },
            Some(("top-k", share)) => match size(share)? {
                share if share <= 0.5 => Ok(Compression::TopK(share)),
                _ => Err(advice()),
            },
            Some(("threshold", threshold)) => size(threshold).map(Compression::Threshold),
            Some(("power-sgd", rank)) => {
                let rank = rank.parse().ok().filter(|rank| (1..=128).contains(rank));
                rank.map(Compression::PowerSgd).ok_or_else(advice)
            }
            Some(_) => Err(advice()),
        }
    }
}

/// Steps that each lane takes by itself, with weights of its own, before lanes meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LocalSteps {
    /// So many.
    pub every: u64,
    /// Of the outer step: the share of the lanes' mean movement that is taken.
    pub learning_rate: f64,
    /// Of the outer step, Nesterov's.
    pub momentum: f64,
}

impl LocalSteps {
    /// The outer step's usual learning rate, and momentum.
    pub const USUAL_RATE: f64 = 0.7;
    /// See above.
    pub const USUAL_MOMENTUM: f64 = 0.9;

    /// If they are any.
    pub fn of(every: u64, learning_rate: f64, momentum: f64) -> Option<LocalSteps> {
        (every > 0).then_some(LocalSteps { every, learning_rate, momentum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_reads_back() {
        for text in ["none", "8bit", "4bit", "top-k:0.01", "threshold:0.0001", "power-sgd:2"] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), text);
        }
        assert_eq!("top-k".parse(), Ok(Compression::TopK(0.01)));
        assert_eq!("power-sgd".parse(), Ok(Compression::PowerSgd(12)));
    }

    #[test]
    fn what_is_no_choice_is_refused_with_what_to_give() {
        let refused = [
            "",
            "2bit",
            "top-k:0",
            "top-k:0.6",
            "top-k:nan",
            "threshold",
            "threshold:-1",
            "threshold:inf",
            "power-sgd:0",
            "8bit:2",
        ];
        for text in refused {
            assert!(text.parse::<Compression>().unwrap_err().contains("power-sgd:RANK"), "{text:?}");
        }
    }
}

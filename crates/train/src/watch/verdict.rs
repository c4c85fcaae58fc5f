//! What is found of a run, in a word, and why.

use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// How a run is doing. What is worse comes later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing is wrong that can be seen.
    #[default]
    Healthy,
    /// The loss no longer falls.
    Plateau,
    /// The loss on held-out data rises while that of training falls.
    Overfitting,
    /// Units whose gradient is zero whatever they are shown.
    DeadUnits,
    /// A layer through which little of the signal passes.
    BottleneckLayer,
    /// Gradients so small beside others that their weights do not learn.
    Vanishing,
    /// The loss rose suddenly, and stayed up.
    LossSpike,
    /// Weights, gradients or updates so large that training cannot go on so.
    Exploding,
}

impl Verdict {
    /// All of them, from the best to the worst.
    pub const ALL: [Verdict; 8] = [
        Verdict::Healthy,
        Verdict::Plateau,
        Verdict::Overfitting,
        Verdict::DeadUnits,
        Verdict::BottleneckLayer,
        Verdict::Vanishing,
        Verdict::LossSpike,
        Verdict::Exploding,
    ];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Healthy => "healthy",
            Verdict::Plateau => "plateau",
            Verdict::Overfitting => "overfitting",
            Verdict::DeadUnits => "dead units",
            Verdict::BottleneckLayer => "bottleneck layer",
            Verdict::Vanishing => "vanishing",
            Verdict::LossSpike => "loss spike",
            Verdict::Exploding => "exploding",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Something that went wrong: what, where, why it is thought so and what to try. Written as one line of text.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// What it is.
    pub verdict: Verdict,
    /// The weight or layer it was found at, where it is one.
    pub place: Option<String>,
    /// The figures that show it.
    pub reason: String,
    /// What to try.
    pub advice: String,
}

impl fmt::Display for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alert { verdict, place, reason, advice } = self;
        match place {
            Some(place) => write!(f, "{verdict} at {place}: {reason}; try {advice}"),
            None => write!(f, "{verdict}: {reason}; try {advice}"),
        }
    }
}

impl Serialize for Alert {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

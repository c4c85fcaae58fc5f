//! The account of a run: what was predicted and what was measured, by kind, and what neither explains.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::{Index, IndexMut};

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Kind {
    Weights,
    Gradients,
    /// Written as it always was.
    #[serde(rename = "optimiser")]
    Optimizer,
    Activations,
    Scratch,
    /// Batches, and the tokenizer.
    Data,
    /// The program, its libraries, its heap and its stacks.
    Runtime,
}

impl Kind {
    /// All kinds, in the order in which they are told.
    pub const ALL: [Kind; 7] =
        [Kind::Weights, Kind::Gradients, Kind::Optimizer, Kind::Activations, Kind::Scratch, Kind::Data, Kind::Runtime];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::Gradients => "gradients",
            // The key that tools read.
            Kind::Optimizer => "optimiser",
            Kind::Activations => "activations",
            Kind::Scratch => "scratch",
            Kind::Data => "data",
            Kind::Runtime => "runtime",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KindBytes {
    /// What was predicted before anything was allocated.
    pub predicted: u64,
    /// What was resident.
    pub measured: u64,
}

/// Bytes by kind. Whoever plans the arena fills in its kinds; the others come from [`super::Outside`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    weights: KindBytes,
    gradients: KindBytes,
    optimizer: KindBytes,
    activations: KindBytes,
    scratch: KindBytes,
    data: KindBytes,
    runtime: KindBytes,
    /// The most that was resident at any time, as the system counted it.
    pub peak: u64,
}

impl Account {
    /// What is predicted in all.
    pub fn predicted(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self[*kind].predicted).sum()
    }

    /// What the kinds hold in all, as measured.
    pub fn measured(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self[*kind].measured).sum()
    }

    /// What was resident at the peak beyond what is measured of the kinds; negative if that is more than the peak.
    pub fn unexplained(&self) -> i64 {
        self.peak as i64 - self.measured() as i64
    }
}

/// The kinds, and the sums over them.
impl Serialize for Account {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for kind in Kind::ALL {
            map.serialize_entry(kind.name(), &self[kind])?;
        }
        map.serialize_entry("predicted", &self.predicted())?;
        map.serialize_entry("measured", &self.measured())?;
        map.serialize_entry("unexplained", &self.unexplained())?;
        map.serialize_entry("peak", &self.peak)?;
        map.end()
    }
}

impl Index<Kind> for Account {
    type Output = KindBytes;

    fn index(&self, kind: Kind) -> &KindBytes {
        match kind {
            Kind::Weights => &self.weights,
            Kind::Gradients => &self.gradients,
            Kind::Optimizer => &self.optimizer,
            Kind::Activations => &self.activations,
            Kind::Scratch => &self.scratch,
            Kind::Data => &self.data,
            Kind::Runtime => &self.runtime,
        }
    }
}

impl IndexMut<Kind> for Account {
    fn index_mut(&mut self, kind: Kind) -> &mut KindBytes {
        match kind {
            Kind::Weights => &mut self.weights,
            Kind::Gradients => &mut self.gradients,
            Kind::Optimizer => &mut self.optimizer,
            Kind::Activations => &mut self.activations,
            Kind::Scratch => &mut self.scratch,
            Kind::Data => &mut self.data,
            Kind::Runtime => &mut self.runtime,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_add_up_and_the_rest_is_unexplained() {
        let mut account = Account { peak: 1000, ..Account::default() };
        for (index, kind) in (1..).zip(Kind::ALL) {
            account[kind] = KindBytes { predicted: 10 * index, measured: 11 * index };
        }
        assert_eq!((account.predicted(), account.measured(), account.unexplained()), (280, 308, 692));
        let written = serde_json::to_value(account).unwrap();
        assert_eq!(written["peak"], 1000);
        for kind in Kind::ALL {
            assert_eq!(written[kind.name()]["predicted"], account[kind].predicted, "{kind}");
        }
    }
}

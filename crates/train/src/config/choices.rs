//! How many sequences make a step, and what is computed again: choices that may be left to the planner. And what weights
//! are stored in, and where events go.

use gradus_engine::DType;
use gradus_engine::plan::Recompute;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The folder of a run where its events go unless another one is given.
pub(crate) const OWN_EVENTS: &str = "tensorboard";

/// Where event files for TensorBoard go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EventFolder {
    /// Into the run's own folder, or nowhere.
    Own(bool),
    /// Into this folder.
    At(PathBuf),
}

impl Default for EventFolder {
    /// Nowhere.
    fn default() -> EventFolder {
        EventFolder::Own(false)
    }
}

impl EventFolder {
    /// The folder, of a run in this one.
    pub fn folder(&self, run: &Path) -> Option<PathBuf> {
        match self {
            EventFolder::Own(false) => None,
            EventFolder::Own(true) => Some(run.join(OWN_EVENTS)),
            EventFolder::At(folder) => Some(folder.clone()),
        }
    }
}

impl FromStr for EventFolder {
    type Err = String;

    fn from_str(text: &str) -> Result<EventFolder, String> {
        match text {
            "" => Err("give a folder, true or false".into()),
            "true" => Ok(EventFolder::Own(true)),
            "false" => Ok(EventFolder::Own(false)),
            folder => Ok(EventFolder::At(folder.into())),
        }
    }
}

/// Element type of the weights in a model folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum ExportDtype {
    F32,
    Bf16,
    F16,
}

impl ExportDtype {
    /// The engine's name of it.
    pub fn dtype(self) -> DType {
        match self {
            ExportDtype::F32 => DType::F32,
            ExportDtype::Bf16 => DType::Bf16,
            ExportDtype::F16 => DType::F16,
        }
    }

    /// Its name in a model's `config.json`.
    pub fn published_name(self) -> &'static str {
        match self {
            ExportDtype::F32 => "float32",
            ExportDtype::Bf16 => "bfloat16",
            ExportDtype::F16 => "float16",
        }
    }
}

/// What each of several ranks has only a part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharding {
    /// Nothing: each has all of it.
    #[default]
    None,
    /// What the optimizer remembers; each updates its part of the weights.
    Optimizer,
    /// That, and the sums of gradients, where a rank has one lane whose examples are computed at once: what is computed is given away as
    /// soon as it is there. Elsewhere as [`Sharding::Optimizer`].
    Gradients,
}

impl Sharding {
    /// Whether each rank updates a part of the weights.
    pub fn is_of_updates(self) -> bool {
        self != Sharding::None
    }
}

impl fmt::Display for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Sharding::None => "none",
            Sharding::Optimizer => "optimizer",
            Sharding::Gradients => "gradients",
        })
    }
}

/// What a run is computed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DeviceChoice {
    /// The first CUDA device, if there is one that can be used; else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The CUDA device of this number.
    Cuda(usize),
}

impl DeviceChoice {
    /// The CPU.
    pub(super) fn cpu() -> DeviceChoice {
        DeviceChoice::Cpu
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => write!(f, "auto"),
            DeviceChoice::Cpu => write!(f, "cpu"),
            DeviceChoice::Cuda(0) => write!(f, "cuda"),
            DeviceChoice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceChoice, String> {
        let unknown = || "give cpu, cuda, cuda:N with the number of a device, or auto".to_string();
        match (text, text.strip_prefix("cuda:")) {
            ("auto", _) => Ok(DeviceChoice::Auto),
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda", _) => Ok(DeviceChoice::Cuda(0)),
            (_, Some(ordinal)) => ordinal.parse().map(DeviceChoice::Cuda).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

/// Sequences a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "BatchValue", try_from = "BatchValue")]
pub enum BatchSize {
    /// So many.
    Fixed(usize),
    /// As many as can be computed at once in the memory there is; chosen before the run begins.
    Auto,
    /// So many, of which more or fewer are computed at once as the run's memory allows.
    Adaptive(usize),
}

impl BatchSize {
    /// Sequences a step; 0 as long as they are not chosen.
    pub fn size(self) -> usize {
        match self {
            BatchSize::Fixed(size) | BatchSize::Adaptive(size) => size,
            BatchSize::Auto => 0,
        }
    }
}

impl fmt::Display for BatchSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchSize::Fixed(size) => write!(f, "{size}"),
            BatchSize::Auto => write!(f, "auto"),
            BatchSize::Adaptive(size) => write!(f, "adaptive:{size}"),
        }
    }
}

impl BatchSize {
    /// Sequences of a step where only `adaptive` is said.
    pub const USUAL: usize = 16;
}

impl FromStr for BatchSize {
    type Err = String;

    fn from_str(text: &str) -> Result<BatchSize, String> {
        let count = |text: &str| {
            let count = text.parse::<usize>().ok().filter(|count| *count > 0);
            count.ok_or_else(|| "give a number of sequences above 0, auto, adaptive or adaptive:N".to_string())
        };
        match (text, text.strip_prefix("adaptive:")) {
            ("auto", _) => Ok(BatchSize::Auto),
            ("adaptive", _) => Ok(BatchSize::Adaptive(BatchSize::USUAL)),
            (_, Some(size)) => count(size).map(BatchSize::Adaptive),
            _ => count(text).map(BatchSize::Fixed),
        }
    }
}

/// A batch in a file: a number where it is one.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum BatchValue {
    Number(usize),
    Text(String),
}

impl From<BatchSize> for BatchValue {
    fn from(batch: BatchSize) -> BatchValue {
        match batch {
            BatchSize::Fixed(size) => BatchValue::Number(size),
            other => BatchValue::Text(other.to_string()),
        }
    }
}

impl TryFrom<BatchValue> for BatchSize {
    type Error = String;

    fn try_from(value: BatchValue) -> Result<BatchSize, String> {
        match value {
            BatchValue::Number(size) => size.to_string().parse(),
            BatchValue::Text(text) => text.parse(),
        }
    }
}

/// What of the forward pass is computed again for the gradient, rather than kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Recomputation {
    /// Nothing.
    None,
    /// All that is inside of a layer.
    All,
    /// All between every so many layers.
    Every(usize),
    /// What takes at most so many operations a byte.
    Selective(u64),
    /// As little as the memory allows.
    #[default]
    Auto,
}

impl Recomputation {
    /// The planner's policy.
    pub fn policy(self) -> Recompute {
        match self {
            Recomputation::None => Recompute::None,
            Recomputation::All => Recompute::Block { every: 1 },
            Recomputation::Every(every) => Recompute::Block { every },
            Recomputation::Selective(operations_per_byte) => Recompute::Selective { operations_per_byte },
            Recomputation::Auto => Recompute::Auto,
        }
    }
}

impl fmt::Display for Recomputation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Recomputation::None => write!(f, "none"),
            Recomputation::All => write!(f, "all"),
            Recomputation::Every(layers) => write!(f, "every:{layers}"),
            Recomputation::Selective(operations) => write!(f, "selective:{operations}"),
            Recomputation::Auto => write!(f, "auto"),
        }
    }
}

impl FromStr for Recomputation {
    type Err = String;

    fn from_str(text: &str) -> Result<Recomputation, String> {
        let advice = || "give none, all, every:N (layers), selective:N (operations a byte) or auto".to_string();
        match text.split_once(':') {
            None => match text {
                "none" => Ok(Recomputation::None),
                "all" => Ok(Recomputation::All),
                "auto" => Ok(Recomputation::Auto),
                _ => Err(advice()),
            },
            Some(("every", layers)) => {
                let layers = layers.parse().ok().filter(|layers| *layers > 0);
                layers.map(Recomputation::Every).ok_or_else(advice)
            }
            Some(("selective", operations)) => operations.parse().map(Recomputation::Selective).map_err(|_| advice()),
            Some(_) => Err(advice()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_reads_back() {
        for text in ["12", "auto", "adaptive:8"] {
            assert_eq!(text.parse::<BatchSize>().unwrap().to_string(), text);
        }
        assert_eq!("adaptive".parse(), Ok(BatchSize::Adaptive(BatchSize::USUAL)));
        for text in ["none", "all", "every:3", "selective:20", "auto"] {
            assert_eq!(text.parse::<Recomputation>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_choice_is_refused_with_what_to_give() {
        for text in ["0", "", "-1", "many", "adaptive:0", "adaptive:"] {
            assert!(text.parse::<BatchSize>().unwrap_err().contains("adaptive:N"), "{text:?}");
        }
        for text in ["", "some", "every:0", "every", "selective:x", "every:2:3"] {
            assert!(text.parse::<Recomputation>().unwrap_err().contains("every:N"), "{text:?}");
        }
    }
}

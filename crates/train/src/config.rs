//! Everything that states a training run, resolved: each choice made, nothing left to guess.

mod choices;
mod compression;
pub(crate) mod limits;
mod speeds;

pub(crate) use choices::OWN_EVENTS;
pub use choices::{BatchSize, DeviceChoice, EventFolder, ExportDtype, Recomputation, Sharding};
pub use compression::{Compression, LocalSteps};
pub(crate) use limits::{within, written_as_text};
pub use speeds::MeasuredSpeeds;

use crate::lanes::Place;
use crate::loss_scale::LossScale;
use crate::memory::Budget;
use crate::models::ModelConfig;
pub use crate::optimizers::OptimizerKind;
pub use crate::watch::HealthInterval;
use crate::{Error, Result};
use gradus_engine::DType;
use gradus_engine::backend::Backend;
use gradus_engine::ops::ProductTypes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use toml::{Table, Value};

/// The file of a run's folder that holds its configuration.
pub const CONFIG_FILE: &str = "config.toml";
/// Its first line, by which it is known for ours.
const CONFIG_MARK: &str = "# A run of gradus: every choice, resolved.";

/// A training run, as saved in its `config.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TrainConfig {
    /// Files, folders or globs of text; none: the built-in stories.
    pub corpus: Vec<PathBuf>,
    /// The field of a JSON or Parquet record that holds the text; guessed if not given.
    pub text_field: Option<String>,
    /// The run's folder.
    pub out: PathBuf,
    /// A model folder to start from.
    pub init: Option<PathBuf>,
    /// The preset that sizes were taken from, for the record: the sizes themselves are in `model`.
    pub preset: Option<String>,
    /// The model. Its vocabulary is 0 until the tokenizer is known.
    pub model: ModelConfig,
    /// Tokens of a training sequence; at most the model's context.
    pub sequence: usize,
    /// The tokenizer: byte, char, bpe, or a file.
    pub tokenizer: TokenizerKind,
    /// Tokens of the vocabulary that bpe trains; with another tokenizer the room for its tokens, 0: as many as it has.
    pub vocab_size: usize,
    /// What is held out: a fraction of the corpus, or another file.
    pub validation: Validation,
    /// Sequences a step.
    pub batch: BatchSize,
    /// Sequences computed at once; must divide a lane's part of the batch. 0 until chosen to fit the memory.
    pub micro_batch: usize,
    /// Parts of the batch, a power of two, whose sums are added by a tree: what a rank computes whole. Runs of before
    /// there were any have one.
    #[serde(default = "one")]
    pub lanes: usize,
    /// What each of several ranks has only a part of.
    #[serde(default)]
    pub shard: Sharding,
    /// Whether ranks exchange gradients and weights while they compute.
    #[serde(default = "yes")]
    pub overlap: bool,
    /// How the gradients of lanes are made smaller before ranks exchange them.
    #[serde(default)]
    pub compress: Compression,
    /// Steps before they are.
    #[serde(default)]
    pub compress_warmup: u64,
    /// Steps that each lane takes by itself, with weights of its own, before lanes meet; 0: none.
    #[serde(default)]
    pub local_steps: u64,
    /// The learning rate and the momentum of the outer step with which they meet.
    #[serde(default = "usual_rate")]
    pub outer_learning_rate: f64,
    #[serde(default = "usual_momentum")]
    #[allow(missing_docs)]
    pub outer_momentum: f64,
    /// Neighbouring ranks that share out the model's blocks: no more part of what is saved than how many ranks there are.
    #[serde(default = "one")]
    pub stages: usize,
    /// Memory to stay within.
    pub memory: Option<Budget>,
    /// What of the forward pass is computed again, rather than kept.
    pub recompute: Recomputation,
    /// Speeds that plans go by, if not those of a usual machine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub speeds: Option<MeasuredSpeeds>,
    /// Steps of the whole run, whatever it was stated in.
    pub steps: Option<u64>,
    /// Passes over the corpus, if the run is stated so.
    pub epochs: Option<f64>,
    /// Seconds of training, if the run is stated so.
    #[serde(rename = "time")]
    pub time_seconds: Option<f64>,
    /// The highest learning rate.
    pub learning_rate: f64,
    /// The lowest learning rate, as a share of the highest.
    #[serde(rename = "min-learning-rate-share")]
    pub final_learning_rate_share: f64,
    /// Steps over which the learning rate rises.
    pub warmup_steps: u64,
    /// How the learning rate falls.
    pub schedule: ScheduleKind,
    /// The step at which it has fallen, if that is not stated in time. With neither: as when the run began, and that is
    /// the end of the run.
    pub decay_steps: Option<u64>,
    /// Seconds of training after which it has fallen, if stated so.
    pub decay_time: Option<f64>,
    /// The optimizer.
    pub optimizer: OptimizerKind,
    /// Decay of matrices, decoupled: times the learning rate, besides what the gradient does.
    pub weight_decay: f64,
    /// First moment's share kept; the momentum of SGD. Of no use to Adafactor.
    pub beta1: f64,
    /// Second moment's share kept. Of no use to SGD and Adafactor.
    pub beta2: f64,
    /// How gradients are clipped.
    pub clip: Clip,
    /// Share of activations dropped.
    pub dropout: f64,
    /// Element type of the computation.
    pub precision: Precision,
    /// What it is computed on. Runs of before there was a choice were on the CPU.
    #[serde(default = "DeviceChoice::cpu")]
    pub device: DeviceChoice,
    /// Threads, the main one included.
    pub threads: usize,
    /// Seed of everything random.
    pub seed: u32,
    /// Steps between validations; 0: only at the end.
    pub eval_every: u64,
    /// Steps between samples; 0: only at the end.
    pub sample_every: u64,
    /// Steps between checkpoints; 0: only at the end.
    pub save_every: u64,
    /// Checkpoints kept.
    pub keep: usize,
    /// Steps between measurements of the gradients' health.
    #[serde(default)]
    pub health: HealthInterval,
    /// Steps between measurements of the loss's curvature, its sharpness; 0: none.
    #[serde(default)]
    pub watch_curvature: u64,
    /// Element type of the exported weights; none: that of the weights to start from, else f32.
    pub export_dtype: Option<ExportDtype>,
    /// Where event files for TensorBoard go.
    #[serde(default)]
    pub tensorboard: EventFolder,
    /// Bytes that whoever watches the run may come to hold in its process: part of a budget, and of nothing that is saved.
    #[serde(skip)]
    pub observer_bytes: u64,
    /// Which of how many ranks this process is: as little part of what is saved.
    #[serde(skip)]
    pub place: Place,
}

impl TrainConfig {
    /// The configuration saved in a run's folder.
    pub fn read(run_folder: &Path) -> Result<TrainConfig> {
        let path = run_folder.join(CONFIG_FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| broken(&path, error.message()))?;
        table.insert("out".into(), Value::String(String::new()));
        let read = TrainConfig::from_table(table).map_err(|problem| broken(&path, &problem))?;
        Ok(TrainConfig { out: run_folder.to_path_buf(), ..read })
    }

    /// The text of `config.toml`: one key for each option of the command line, so that it can be used as such again.
    pub fn to_toml(&self) -> String {
        format!("{CONFIG_MARK}\n{}", self.to_table())
    }

    /// Whether the `config.toml` of a folder was written by a run.
    pub fn is_in(folder: &Path) -> bool {
        let line = format!("{CONFIG_MARK}\n");
        std::fs::read(folder.join(CONFIG_FILE)).is_ok_and(|text| text.starts_with(line.as_bytes()))
    }

    /// As a table with one key for each option of the command line, but for the folder of the run: that is where the
    /// file lies, wherever it is moved.
    pub fn to_table(&self) -> Table {
        // The folder may have been moved to a path that is no text.
        let unplaced = TrainConfig { out: PathBuf::new(), ..self.clone() };
        let mut table = Table::try_from(unplaced).expect("a configuration has names and plain values");
        table.remove("out");
        table.remove("stages");
        let Some(Value::Table(mut model)) = table.remove("model") else { unreachable!("the model is a table") };
        // The vocabulary is the tokenizer's, which is a file of its own.
        model.remove("vocabulary");
        let family = model.remove("family").expect("a model has a family");
        model.insert("model".into(), family);
        for (_, value) in model.iter_mut() {
            shorten(value);
        }
        table.extend(model);
        table
    }

    /// Whether gradients are measured: if that is not stated, only where a rank has all of them.
    pub fn measures_health(&self) -> bool {
        match self.health {
            HealthInterval::Off => false,
            // Nor where each lane has gradients of its own, or each stage those of its blocks.
            HealthInterval::Auto => {
                let has_all = self.shard == Sharding::None || self.place.ranks == 1;
                has_all && self.stages == 1 && self.local_steps == 0
            }
            HealthInterval::Steps(_) => true,
        }
    }

    fn from_table(mut table: Table) -> Result<TrainConfig, String> {
        let mut model = Table::from_iter([("vocabulary".to_string(), Value::Integer(0))]);
        for (key, option) in MODEL_KEYS {
            let value = table.remove(option).ok_or_else(|| format!("the key `{option}` is missing"))?;
            model.insert(key.into(), value);
        }
        for key in MODEL_CHOICES {
            model.extend(table.remove(key).map(|value| (key.to_string(), value)));
        }
        table.insert("model".into(), Value::Table(model));
        table.try_into().map_err(|error: toml::de::Error| error.message().to_string())
    }
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

fn usual_rate() -> f64 {
    LocalSteps::USUAL_RATE
}

fn usual_momentum() -> f64 {
    LocalSteps::USUAL_MOMENTUM
}

/// The keys of a model's sizes and the options that state them.
const MODEL_KEYS: [(&str, &str); 10] = [
    ("family", "model"),
    ("width", "width"),
    ("layers", "layers"),
    ("heads", "heads"),
    ("kv-heads", "kv-heads"),
    ("feed-forward", "feed-forward"),
    ("context", "context"),
    ("tie-embeddings", "tie-embeddings"),
    ("norm-epsilon", "norm-epsilon"),
    ("rope-theta", "rope-theta"),
];

/// The keys, and options, of choices that most models do without.
const MODEL_CHOICES: [&str; 6] = ["head-size", "rope-scaling", "window", "full-layers", "attention-bias", "mlp-bias"];

/// A model's fractions have single precision: their shortest text is what a person would write.
fn shorten(value: &mut Value) {
    if let Value::Float(number) = value {
        *number = (*number as f32).to_string().parse().expect("a number's own text");
    }
}

fn broken(path: &Path, problem: &str) -> Error {
    let problem = problem.replace('\n', " ");
    Error::checkpoint(
        path,
        format!("not a configuration of a run ({problem}); start a new run with another `settings.out`"),
    )
}

/// How text becomes tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum TokenizerKind {
    /// Each byte a token.
    Byte,
    /// Each character of the corpus a token.
    Char,
    /// Byte-pair encoding, trained on the corpus.
    Bpe,
    /// An existing `tokenizer.json`, or a folder with one.
    File(PathBuf),
}

/// What is held out of training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Validation {
    /// The last share of the corpus.
    Fraction(f64),
    /// Another file.
    File(PathBuf),
}

/// How the learning rate falls after its rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// Along half a cosine.
    Cosine,
    /// Along a line.
    Linear,
    /// Not at all.
    Constant,
    /// Not until the last fifth of the run, then along a line.
    Wsd,
}

/// How gradients are clipped.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Clip {
    /// Not.
    None,
    /// To a global norm.
    Norm(f64),
    /// Each number to a range around zero.
    Value(f64),
    /// To the running mean of the norm plus two standard deviations.
    Adaptive,
}

/// Element type of the computation. With f16 the loss is scaled ([`LossScale`]). TF32 is f32 but for products, whose operands
/// tensor cores round to 10 bits after the point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Precision {
    F32,
    Bf16,
    F16,
    Tf32,
}

impl Precision {
    /// The element type of what products read.
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
            Precision::F16 => DType::F16,
        }
    }

    /// The types of a product whose result is stored in this one.
    pub fn product_types(self, stored: DType) -> ProductTypes {
        ProductTypes { computed: self.dtype(), stored, allow_tf32: self == Precision::Tf32 }
    }

    /// Refuses what a machine does not compute in.
    pub(crate) fn check(self, machine: &dyn Backend) -> Result<()> {
        if self != Precision::Tf32 || machine.multiplies_tf32() {
            return Ok(());
        }
        Err(Error::Config(format!(
            "`settings.precision` tf32 is what tensor cores compute in, and the {} has none; choose f32, or `settings.device` cuda",
            machine.name()
        )))
    }

    /// How the loss is scaled, if it is: as stated, else as usual. bf16 has the range of f32, f16 has not.
    pub fn loss_scale(self, stated: Option<LossScale>) -> Option<LossScale> {
        stated.or((self == Precision::F16).then(LossScale::default))
    }
}

impl fmt::Display for TokenizerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenizerKind::Byte => write!(f, "byte"),
            TokenizerKind::Char => write!(f, "char"),
            TokenizerKind::Bpe => write!(f, "bpe"),
            TokenizerKind::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for TokenizerKind {
    type Err = String;

    fn from_str(text: &str) -> Result<TokenizerKind, String> {
        Ok(match text {
            "" => return Err("give byte, char, bpe or the path of a tokenizer.json".into()),
            "byte" => TokenizerKind::Byte,
            "char" => TokenizerKind::Char,
            "bpe" => TokenizerKind::Bpe,
            path => TokenizerKind::File(path.into()),
        })
    }
}

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Validation::Fraction(share) => write!(f, "{share}"),
            Validation::File(path) => write!(f, "{}", path.display()),
        }
    }
}

impl FromStr for Validation {
    type Err = String;

    fn from_str(text: &str) -> Result<Validation, String> {
        match text.parse::<f64>() {
            Ok(share) if (0.0..1.0).contains(&share) => Ok(Validation::Fraction(share)),
            Ok(_) => Err("a fraction is at least 0 and below 1, as in 0.1".into()),
            Err(_) if text.is_empty() => Err("give a fraction such as 0.1, or the path of a text".into()),
            Err(_) => Ok(Validation::File(text.into())),
        }
    }
}

impl fmt::Display for Clip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Clip::None => write!(f, "none"),
            Clip::Norm(norm) => write!(f, "{norm}"),
            Clip::Value(limit) => write!(f, "value:{limit}"),
            Clip::Adaptive => write!(f, "adaptive"),
        }
    }
}

impl FromStr for Clip {
    type Err = String;

    fn from_str(text: &str) -> Result<Clip, String> {
        let positive = |number: &str| {
            let parsed = number.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
            parsed.ok_or_else(|| "give a norm above 0 such as 1.0, value:0.5, adaptive or none".to_string())
        };
        match text {
            "none" => Ok(Clip::None),
            "adaptive" => Ok(Clip::Adaptive),
            _ => match text.strip_prefix("value:") {
                Some(limit) => positive(limit).map(Clip::Value),
                None => positive(text).map(Clip::Norm),
            },
        }
    }
}

/// Values that are one text in files and on the command line.
macro_rules! as_text {
    ($($name:ty),*) => {$(
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> Result<$name, String> {
                text.parse()
            }
        }
    )*};
}

as_text!(
    Compression,
    TokenizerKind,
    Validation,
    Clip,
    DeviceChoice,
    Recomputation,
    MeasuredSpeeds,
    Budget,
    HealthInterval
);

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn config() -> TrainConfig {
        TrainConfig {
            corpus: vec!["text.txt".into()],
            text_field: None,
            out: "runs/text-1".into(),
            init: None,
            preset: Some("tiny".into()),
            model: ModelConfig { vocabulary: 0, ..ModelConfig::gpt2(0, 32, 2, 4, 16) },
            sequence: 16,
            tokenizer: TokenizerKind::File("tokenizer.json".into()),
            vocab_size: 0,
            validation: Validation::Fraction(0.1),
            batch: BatchSize::Adaptive(4),
            micro_batch: 2,
            memory: Some(Budget::Share(0.8)),
            recompute: Recomputation::Selective(16),
            speeds: Some("matmul=1.25,others=0.5".parse().unwrap()),
            steps: None,
            epochs: None,
            time_seconds: Some(90.0),
            learning_rate: 1e-3,
            final_learning_rate_share: 0.1,
            warmup_steps: 10,
            schedule: ScheduleKind::Wsd,
            decay_steps: None,
            decay_time: Some(80.0),
            optimizer: OptimizerKind::Adamw,
            weight_decay: 0.1,
            beta1: 0.9,
            beta2: 0.95,
            clip: Clip::Value(0.5),
            dropout: 0.0,
            precision: Precision::F32,
            device: DeviceChoice::Cpu,
            threads: 2,
            seed: 1,
            eval_every: 10,
            sample_every: 10,
            save_every: 10,
            keep: 2,
            health: HealthInterval::Steps(5),
            watch_curvature: 0,
            export_dtype: None,
            tensorboard: EventFolder::default(),
            lanes: 1,
            shard: Sharding::None,
            overlap: true,
            compress: Compression::TopK(0.01),
            compress_warmup: 3,
            local_steps: 0,
            outer_learning_rate: LocalSteps::USUAL_RATE,
            outer_momentum: LocalSteps::USUAL_MOMENTUM,
            stages: 1,
            observer_bytes: 0,
            place: Place::default(),
        }
    }

    #[test]
    fn a_saved_configuration_reads_back_the_same() {
        let folder = std::env::temp_dir().join(format!("gradus-config-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(CONFIG_FILE), config().to_toml()).unwrap();
        assert!(TrainConfig::is_in(&folder));
        let here = TrainConfig { out: folder.clone(), ..config() };
        assert_eq!(TrainConfig::read(&folder).unwrap(), here, "in its folder, wherever that is");
        // As older versions wrote it: with its place, and without the length of the fall.
        let mut older = config().to_table();
        older.insert("out".into(), Value::String("runs/text-1".into()));
        older.remove("decay-time");
        std::fs::write(folder.join(CONFIG_FILE), older.to_string()).unwrap();
        assert!(!TrainConfig::is_in(&folder));
        assert_eq!(TrainConfig::read(&folder).unwrap(), TrainConfig { decay_time: None, ..here });
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_keys_are_those_of_the_command_line() {
        let table = config().to_table();
        assert_eq!(table["model"].as_str(), Some("gpt2"));
        assert_eq!(table["time"].as_float(), Some(90.0));
        assert_eq!(table["clip"].as_str(), Some("value:0.5"));
        assert_eq!(table["norm-epsilon"].as_float(), Some(1e-5));
        assert!(!table.contains_key("vocabulary"));
    }

    #[test]
    fn what_is_no_configuration_is_refused_with_the_file() {
        let mut table = config().to_table();
        table.remove("width");
        assert_eq!(TrainConfig::from_table(table).unwrap_err(), "the key `width` is missing");
        let mut table = config().to_table();
        table.insert("clip".into(), Value::String("much".into()));
        assert!(TrainConfig::from_table(table).unwrap_err().contains("adaptive"));
    }
}

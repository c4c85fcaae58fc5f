//! What a run takes besides its arena, before anything is allocated.
//!
//! The figures were measured on x86-64 Linux, with the settings of [`super::heap`].

use crate::config::{TokenizerKind, TrainConfig};
use crate::data::Batches;

/// Code and constants of the program and its libraries that a step, a sample or a checkpoint touches. Measured with a
/// program that was just copied: the system then has all of its file in memory, and maps neighbours of what is touched
/// too, 1.7 MB more than of a file that it had dropped the rest of.
const PROGRAM_BYTES: u64 = 7_600_000;
/// Those that the stages before training touch.
const STAGE_PROGRAM_BYTES: u64 = 10_100_000;
/// The heap without what is counted below: options, tables of characters, texts of files.
const HEAP_BYTES: u64 = 1_900_000;
/// What a layer of the model takes as steps of a plan and as jobs: up to 150 steps of about 2,600 bytes.
const LAYER_BYTES: u64 = 400_000;
/// What a thread touches of its stack.
const STACK_BYTES: u64 = 40_000;
/// A token of a tokenizer: its text twice, its merge, and its lines in `tokenizer.json`.
const TOKEN_BYTES: u64 = 330;
/// Pieces of text being read, cut and made into tokens.
const TEXT_BYTES: u64 = 8_000_000;
/// The least that words may take while they are counted or remembered.
const WORD_BYTES_MIN: u64 = 4_000_000;

/// Bytes of a run besides its arena, while it trains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outside {
    /// Batches that are read ahead, and the tokenizer.
    pub data: u64,
    /// The program, its heap and its stacks.
    pub runtime: u64,
}

impl Outside {
    /// What a run will take. Its batch and its model's vocabulary must be known.
    pub fn predict(config: &TrainConfig) -> Outside {
        let data = data_bytes(config);
        let threads = config.threads as u64 + 1;
        let runtime = PROGRAM_BYTES + HEAP_BYTES + config.model.layers as u64 * LAYER_BYTES + threads * STACK_BYTES;
        Outside { data, runtime }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.data + self.runtime
    }
}

fn data_bytes(config: &TrainConfig) -> u64 {
    Batches::bytes(config.batch.size(), config.sequence) + config.model.vocabulary as u64 * TOKEN_BYTES
}

/// The memory of the stages before training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// The least that the process needs for them.
    pub smallest: u64,
    /// What they may take for words, where a budget is stated.
    pub words: Option<u64>,
}

impl Stages {
    /// Those of a run whose process may hold so many bytes in all.
    pub fn within(limit: Option<u64>, config: &TrainConfig) -> Stages {
        let vocabulary = config.vocab_size.max(config.model.vocabulary) as u64;
        let words_min = if config.tokenizer == TokenizerKind::Byte { 0 } else { WORD_BYTES_MIN };
        let fixed = STAGE_PROGRAM_BYTES + HEAP_BYTES + TEXT_BYTES + 2 * vocabulary * TOKEN_BYTES;
        Stages { smallest: fixed + words_min, words: limit.map(|limit| limit.saturating_sub(fixed)) }
    }
}

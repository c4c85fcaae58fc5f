//! What a process takes besides its arena: what it holds when it begins, measured, and what comes to that, predicted.

use super::{ProcessMemory, heap};
use crate::Result;
use crate::config::{OptimizerKind, TokenizerKind, TrainConfig};
use crate::data::PIECE_BYTES;
use crate::lanes::{Lanes, Place, SQUARES_TOGETHER};
use crate::language::LanguageModel;
use crate::models::{CausalModel, Parameter};
use crate::optimizers::is_hidden_matrix;
use crate::pipeline::{Cut, Stage, Transfer};
use crate::ranks::{Exchanged, compressed_bytes, exchange_bytes, may_give};
use crate::tokenizer::LEARNING_BYTES_MIN;
use crate::trainer::Batches;
use gradus_comm::messages_bytes;
use gradus_engine::Shape;

/// The heap beyond what is counted below: texts of files, a checkpoint being written, gaps between what is allocated.
const HEAP_BYTES: u64 = 800_000;
/// A step of a plan, with its jobs.
pub const STEP_BYTES: u64 = 2_800;
/// What a layer of a model takes while it is trained: up to 150 steps, and 125 more where its health is measured.
const LAYER_BYTES: u64 = 150 * STEP_BYTES;
const LAYER_HEALTH_BYTES: u64 = 125 * STEP_BYTES;
/// And where a stage of a pipeline takes micro-batches through it before it has their gradients.
const LAYER_FORWARD_BYTES: u64 = 40 * STEP_BYTES;
/// What a thread touches of its stack.
const STACK_BYTES: u64 = 40_000;
/// A token of a tokenizer: its text twice, its merge, and its lines in `tokenizer.json`.
const TOKEN_BYTES: u64 = 450;
/// What words that were encoded before may take at least to be remembered.
pub const WORD_BYTES_MIN: u64 = 1_000_000;
/// Code beyond what a small program of the same kind needs, by how much more of its file the system maps in some minutes.
const CODE_BYTES_MORE: u64 = 800_000;
/// Code and heap of what the first of several ranks does alone: 1.4 to 1.9 MB more than others were seen.
const FIRST_BYTES: u64 = 1_900_000;
/// Code of a step that is given back before a checkpoint is saved, and not needed for that: 6.3 MB were seen. Only Linux takes it back.
const STEP_CODE_BYTES: u64 = if cfg!(target_os = "linux") { 4_500_000 } else { 0 };
/// Heap and code beyond what a small program needs, where products with the Hessian are traced and planned: of two layers of width 32, 2.0 MB
/// more than predicted were held without it, and now and then up to 3.4; of 4, 8 and 16 layers of width 64, 1.4, 4.0 and 9.3 MB.
const CURVATURE_BYTES: u64 = 3_500_000;
const LAYER_CURVATURE_BYTES: u64 = 300 * STEP_BYTES;
/// Steps of a rule for a weight beyond those of AdamW's, by how much more was held of models of 2, 8 and 24 layers of GPT-2 and Llama.
const ADAFACTOR_MATRIX_STEPS: u64 = 26;
const ADAFACTOR_VECTOR_STEPS: u64 = 8;
const MUON_STEPS: u64 = 7;
/// Code and heap of lanes that are compressed or meet.
const KEPT_LANES_BYTES: u64 = 500_000;
/// Steps of local steps for a weight: what it moved by, the sum over lanes, the outer step.
const MEETING_STEPS: u64 = 6;
/// For a side of a matrix that SOAP turns.
const SOAP_SIDE_STEPS: u64 = 56;
/// What is left free at least, for the guard to see the limit before it is passed.
const FREE_BYTES: u64 = 2_000_000;
/// What a process holds when it begins, and what code its work needs, where the system does not say: as on x86-64 Linux.
const ELSEWHERE: Held = Held { start: 1_100_000, code: 7_000_000 };

/// What a process holds besides what is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// What was resident at the start and is not code.
    start: u64,
    /// The code that its work needs at a time, with the constants between it.
    code: u64,
}

impl Held {
    /// Measures: `rehearsal` does what the process will do, only small, and says `begin` when all is ready for it. Code
    /// that was resident before is none of the work's. Before a limit is guarded: near one, code is given back.
    pub fn measure(rehearsal: impl FnOnce(&dyn Fn()) -> Result<()>) -> Result<Held> {
        let start = ProcessMemory::read().anonymous;
        heap::give_back_code();
        rehearsal(&heap::give_back_code)?;
        let ProcessMemory { now, anonymous, .. } = ProcessMemory::read();
        heap::give_back();
        heap::give_back_code();
        Ok(if now == 0 { ELSEWHERE } else { Held { start, code: now.saturating_sub(anonymous) + CODE_BYTES_MORE } })
    }

    /// What a process of any kind holds now, with the code that training needs at least.
    pub fn now_resident() -> Held {
        let ProcessMemory { now, anonymous, .. } = ProcessMemory::read();
        let code = now.saturating_sub(anonymous).max(ELSEWHERE.code) + CODE_BYTES_MORE;
        Held { start: anonymous, code }
    }

    /// The same, of a process that is yet to join others, by which it comes to hold so much more.
    pub fn joining(self, bytes: u64) -> Held {
        Held { start: self.start + bytes, ..self }
    }

    /// The same, of a process that by now holds more.
    pub fn now(self) -> Held {
        Held { start: ProcessMemory::read().anonymous.max(self.start), ..self }
    }

    /// What a process holds that works on so many threads, without what is made for the work.
    pub fn with_threads(&self, threads: usize) -> u64 {
        self.start + self.code + FREE_BYTES + HEAP_BYTES + (threads as u64 + 1) * STACK_BYTES
    }
}

/// In how many routines a run computes products with the Hessian of its loss.
fn routines_of_curvature(config: &TrainConfig) -> u64 {
    let refresh = config.optimizer.grouped(config.optimizer.usual()).refresh();
    u64::from(config.watch_curvature > 0) + u64::from(refresh.is_some_and(|refresh| refresh.by_curvature))
}

/// What the optimizer's rule takes of a plan beyond what AdamW's does.
fn rule_bytes(optimizer: OptimizerKind, weights: &[Parameter]) -> u64 {
    let rules = optimizer.grouped(optimizer.usual());
    let steps = |weight: &Parameter| match optimizer {
        OptimizerKind::Adamw | OptimizerKind::Sgd | OptimizerKind::Lion | OptimizerKind::Sophia => 0,
        OptimizerKind::Adafactor if weight.shape.rank() < 2 => ADAFACTOR_VECTOR_STEPS,
        OptimizerKind::Adafactor => ADAFACTOR_MATRIX_STEPS,
        OptimizerKind::Muon => MUON_STEPS * u64::from(is_hidden_matrix(&weight.name, &weight.shape)),
        OptimizerKind::Soap => {
            // Besides Adam's two, a side has its moments and its basis.
            let sides = (rules.states_of(&weight.name, &weight.shape).len() - 2) / 2;
            SOAP_SIDE_STEPS * sides as u64
        }
    };
    weights.iter().map(steps).sum::<u64>() * STEP_BYTES
}

/// What the plan takes of lanes that train by themselves: steps that load and store a lane's weights and states, those that give it the
/// weights of a meeting, and those of meetings.
fn local_bytes(config: &TrainConfig, weights: &[Parameter], lanes: &Lanes) -> u64 {
    if config.local_steps == 0 {
        return 0;
    }
    let rules = config.optimizer.grouped(config.optimizer.usual());
    let steps = |weight: &Parameter| {
        let passing = 1 + rules.states_of(&weight.name, &weight.shape).len() as u64;
        lanes.hosted().len() as u64 * 2 * (passing + 1) + MEETING_STEPS
    };
    weights.iter().map(steps).sum::<u64>() * STEP_BYTES
}

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
    pub fn predict(config: &TrainConfig, held: Held) -> Outside {
        // Tokens and targets; batches of the training text, and one of the held-out text.
        let of_sequences = |sequences: usize| 2 * sequences * config.sequence * size_of::<i32>();
        let (stage, pipeline) = Stage::of(config.place, config.stages);
        let lanes = Lanes::at(config.lanes, pipeline);
        let cut = cut(config);
        let batch = of_sequences(config.batch.size());
        let batches =
            Batches::bytes(of_sequences(lanes.rows(config.batch.size()).len()), Batches::AHEAD) + batch as u64;
        let data =
            batches + ranks_bytes(config, (stage, cut.as_ref()), &lanes) + config.model.vocabulary as u64 * TOKEN_BYTES;
        let health = if config.measures_health() { LAYER_HEALTH_BYTES } else { 0 };
        let plan = match cut.as_ref().map(|cut| cut.blocks[stage.index].len() as u64) {
            None => config.model.layers as u64 * (LAYER_BYTES + health),
            Some(blocks) => blocks * (LAYER_BYTES + LAYER_FORWARD_BYTES),
        };
        let curvature =
            routines_of_curvature(config) * (CURVATURE_BYTES + config.model.layers as u64 * LAYER_CURVATURE_BYTES);
        let rule = match cut.as_ref() {
            None => rule_bytes(config.optimizer, &config.model.parameters()),
            Some(cut) => rule_bytes(config.optimizer, &cut.weights[stage.index]),
        };
        let local = local_bytes(config, &config.model.parameters(), &lanes);
        let kept = if config.compress.is_some() || config.local_steps > 0 { KEPT_LANES_BYTES } else { 0 };
        let plan = plan + rule + local + kept + curvature;
        let runtime = held.with_threads(config.threads) + plan + rank_bytes(config.place) + config.observer_bytes;
        Outside { data, runtime }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.data + self.runtime
    }
}

/// What it takes of a process to be one of several ranks, besides what it holds once it has joined them: what MPI comes to hold, and what
/// the first does alone.
pub fn rank_bytes(place: Place) -> u64 {
    match place {
        Place { ranks: 1, .. } => 0,
        Place { rank: 0, .. } => messages_bytes() + FIRST_BYTES,
        Place { .. } => messages_bytes(),
    }
}

/// What the first of several ranks holds of a model of which each has parts while it saves, a tensor at a time, in place of a step's code.
fn saving_bytes(place: Place, largest: usize) -> u64 {
    let is_first = place.ranks > 1 && place.rank == 0;
    if is_first { ((size_of::<f32>() * largest) as u64).saturating_sub(STEP_CODE_BYTES) } else { 0 }
}

/// The model cut into stages, if it is.
fn cut(config: &TrainConfig) -> Option<Cut> {
    // What cannot be cut is refused when it is planned.
    (config.stages > 1).then(|| Cut::of(&LanguageModel::of(config), config.stages).ok()).flatten()
}

/// What it takes to have other ranks: what is exchanged with them, what a stage gives and gets, and where each has a part, what the
/// first holds of that while it saves a checkpoint, a tensor at a time.
fn ranks_bytes(config: &TrainConfig, (stage, cut): (Stage, Option<&Cut>), lanes: &Lanes) -> u64 {
    let parameters = config.model.parameters();
    if config.compress.is_some() || config.local_steps > 0 {
        return kept_bytes(config, &parameters, lanes);
    }
    if config.place.ranks == 1 {
        return 0;
    }
    let numbers = |weights: &[Parameter]| -> Vec<usize> {
        weights.iter().map(|parameter| parameter.shape.elements()).chain([1]).collect()
    };
    let all = numbers(&parameters);
    let saves_parts = config.shard.is_of_updates() || cut.is_some();
    let largest = if saves_parts { all.iter().max().copied() } else { None };
    let saving = saving_bytes(config.place, largest.unwrap_or(0));
    let Some(cut) = cut else {
        let exchanged = if may_give(config.shard, lanes) { Exchanged::Given } else { Exchanged::Sums };
        return all_exchanged(config, lanes, exchanged) + saving;
    };
    let of_lane = config.batch.size() / config.lanes;
    let micro_batch = if config.micro_batch > 0 { config.micro_batch } else { of_lane };
    let transfer = Transfer {
        between: micro_batch * config.sequence * config.model.width,
        squares: all.iter().map(|numbers| numbers.div_ceil(SQUARES_TOGETHER)).sum(),
        is_tied: config.model.tie_embeddings && (stage.is_first() || stage.is_last()),
    };
    let passes = of_lane / micro_batch.max(1) * lanes.hosted().len();
    let own = &cut.weights[stage.index];
    exchange_bytes(lanes, numbers(own), own.len(), 1, Exchanged::Sums) + transfer.bytes(stage, passes) + saving
}

/// What is exchanged of a model that is not cut.
fn all_exchanged(config: &TrainConfig, lanes: &Lanes, exchanged: Exchanged) -> u64 {
    let parameters = config.model.parameters();
    // Tied embeddings have a sum for each of their uses; the loss is a number.
    let most_sums = if config.model.tie_embeddings { 2 } else { 1 };
    let numbers = parameters.iter().map(|parameter| parameter.shape.elements()).chain([1]).collect();
    exchange_bytes(lanes, numbers, parameters.len(), most_sums, exchanged)
}

/// What comes to a device from others, besides what is planned.
pub fn exchanged_on_device(config: &TrainConfig) -> u64 {
    all_exchanged(config, &Lanes::at(config.lanes, config.place), Exchanged::OnDevices)
}

/// The same where lanes are kept apart until they are summed.
fn kept_bytes(config: &TrainConfig, parameters: &[Parameter], lanes: &Lanes) -> u64 {
    let shapes: Vec<Shape> = parameters.iter().map(|parameter| parameter.shape.clone()).collect();
    let largest = shapes.iter().map(|shape| shape.elements()).max().unwrap_or(0);
    compressed_bytes(config.compress, lanes, &shapes, 1) + saving_bytes(config.place, largest)
}

/// What it takes to encode a piece of a corpus, as far as the tokenizer is known before it is there.
fn encoding_bytes(config: &TrainConfig) -> u64 {
    let ids = (PIECE_BYTES * size_of::<u32>()) as u64;
    // A vector that grows is there twice, the second time up to twice as large.
    match config.tokenizer {
        TokenizerKind::Byte | TokenizerKind::Char => ids,
        TokenizerKind::Bpe | TokenizerKind::File(_) => 3 * ids,
    }
}

/// The memory of the stages before training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    /// What they take without words.
    fixed: u64,
    /// The least that the process needs for them.
    pub smallest: u64,
}

impl Stages {
    /// Those of a run: to read its corpus takes `reading` bytes, to plan it `planning`.
    pub fn predict(config: &TrainConfig, held: Held, reading: u64, planning: u64) -> Stages {
        let vocabulary = config.vocab_size.max(config.model.vocabulary) as u64;
        let encoding = encoding_bytes(config);
        let words_min = match config.tokenizer {
            TokenizerKind::Byte | TokenizerKind::Char => 0,
            // Words are counted before any are encoded.
            TokenizerKind::Bpe => LEARNING_BYTES_MIN.saturating_sub(encoding).max(WORD_BYTES_MIN),
            TokenizerKind::File(_) => WORD_BYTES_MIN,
        };
        let process = held.with_threads(config.threads) + config.observer_bytes;
        let fixed = process + reading.saturating_add(encoding) + 2 * vocabulary * TOKEN_BYTES;
        let planning = process + vocabulary * TOKEN_BYTES + planning;
        Stages { fixed, smallest: planning.max(fixed + words_min) }
    }

    /// What words may take where the process may hold so many bytes in all.
    pub fn words(&self, limit: u64) -> u64 {
        limit.saturating_sub(self.fixed)
    }
}

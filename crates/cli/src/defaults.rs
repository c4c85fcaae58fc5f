//! What is chosen where the user says nothing, to suit the size.

use crate::args::TrainArgs;
use crate::ranks;
use gradus_train::config::{BatchSize, Compression, OptimizerKind, Sharding};
use gradus_train::models::ModelConfig;

/// Steps of the run on the built-in stories: about 100 seconds on two cores.
const STORIES_STEPS: u64 = 900;
/// Tokens of a sequence of the built-in stories: most stories fit.
const STORIES_SEQUENCE: usize = 128;
/// Steps of a run on the user's text.
const STEPS: u64 = 2000;

/// Fewest steps between validations that are not asked for.
const SHORTEST_EVAL: u64 = 50;

/// The preset of a run that names none.
pub fn preset(args: &TrainArgs) -> &'static str {
    if args.corpus.is_empty() { "tiny" } else { "small" }
}

/// Tokens of a training sequence.
pub fn sequence(args: &TrainArgs, preset: &ModelConfig) -> usize {
    let stories = args.corpus.is_empty() && args.preset.is_none();
    args.context.unwrap_or(if stories { STORIES_SEQUENCE } else { preset.context })
}

/// Steps of the run, unless its length is stated otherwise.
pub fn steps(args: &TrainArgs) -> Option<u64> {
    let usual = if args.corpus.is_empty() { STORIES_STEPS } else { STEPS };
    let stated_otherwise = args.epochs.is_some() || args.time.is_some();
    args.steps.or((!stated_otherwise).then_some(usual))
}

/// Tokens that bpe trains: larger models can use more.
pub fn vocab_size(preset: &ModelConfig, model: &ModelConfig) -> usize {
    match (preset.vocabulary, model.width) {
        (0, ..=128) => 512,
        (0, ..=512) => 4096,
        (0, _) => 32_000,
        (published, _) => published,
    }
}

/// The highest learning rate: wide models take smaller steps. Lion moves every weight by as much as AdamW moves those
/// with steady gradients, so it takes a third, and so does Sophia; SGD moves by the gradient itself, which is small. Muon's and SOAP's
/// directions stand more (`bench/curvature.md`; searched for at widths of 128 and 256).
pub fn learning_rate(model: &ModelConfig, optimizer: OptimizerKind) -> f64 {
    let [adamw, lion, sgd] = match model.width {
        ..=512 => [1e-3, 3e-4, 0.3],
        513..=1000 => [6e-4, 2e-4, 0.2],
        1001..=1500 => [3e-4, 1e-4, 0.1],
        _ => [2e-4, 6e-5, 0.06],
    };
    match optimizer {
        OptimizerKind::Adamw | OptimizerKind::Adafactor => adamw,
        OptimizerKind::Muon => 8.0 * adamw,
        OptimizerKind::Soap => 4.0 * adamw,
        OptimizerKind::Lion | OptimizerKind::Sophia => lion,
        OptimizerKind::Sgd => sgd,
    }
}

/// By how much the learning rate is lower for weights that are trained already: more would undo what they have learned.
const FINE_TUNING_PART: f64 = 10.0;

/// The part of the usual learning rate that suits the weights which the run starts from.
pub fn fine_tuned(learning_rate: f64, args: &TrainArgs) -> f64 {
    if args.init.is_some() { learning_rate / FINE_TUNING_PART } else { learning_rate }
}

/// What is worth saying of a learning rate that was chosen here.
pub fn fine_tuning_note(learning_rate: f64, args: &TrainArgs) -> Option<String> {
    let is_chosen = args.init.is_some() && args.learning_rate.is_none();
    is_chosen.then(|| {
        format!(
            "fine-tuning: the learning rate is {learning_rate}, a tenth of that for new weights; \
             --learning-rate sets another"
        )
    })
}

/// Steps over which the learning rate rises.
pub fn warmup_steps(steps: Option<u64>) -> u64 {
    steps.map_or(100, |steps| (steps / 20).min(100))
}

/// Steps between events that should occur so many times in a run.
pub fn every(steps: Option<u64>, times: u64) -> u64 {
    // A run whose steps are not known beforehand has them at the pace of a middling one.
    steps.map_or(STEPS / times, |steps| steps.div_ceil(times))
}

/// Steps between validations: a tenth of the run, but one takes as long as several steps.
pub fn eval_every(steps: Option<u64>) -> u64 {
    every(steps, 10).max(SHORTEST_EVAL)
}

/// Lanes of a run that asks for ranks: so many that it can go on with other numbers of them, if its batch has as many parts.
pub fn lanes(args: &TrainArgs) -> usize {
    const USUAL: usize = 8;
    let Some(ranks) = args.ranks.or_else(ranks::started) else { return 1 };
    let batch = args.batch.unwrap_or(BatchSize::Fixed(BatchSize::USUAL)).size();
    let needed = ranks.next_power_of_two();
    // Every lane has a message, or weights, of its own; or is all that a rank computes.
    let apart = args.compress.is_some_and(Compression::is_some)
        || args.local_steps.is_some_and(|steps| steps > 0)
        || gives_gradients(args);
    let mut lanes = if apart { needed } else { needed.max(USUAL) };
    while lanes > needed && !batch.is_multiple_of(lanes) {
        lanes /= 2;
    }
    lanes
}

fn gives_gradients(args: &TrainArgs) -> bool {
    args.shard.map(Sharding::from) == Some(Sharding::Gradients)
}

/// Sequences computed at once: as suits; but where gradients are shared out, which takes that, a whole lane, if no memory is stated.
pub fn micro_batch(args: &TrainArgs) -> usize {
    let lanes = args.lanes.unwrap_or_else(|| lanes(args)).max(1);
    match args.batch.unwrap_or(BatchSize::Fixed(BatchSize::USUAL)) {
        BatchSize::Fixed(batch) if gives_gradients(args) && lanes > 1 && args.memory.is_none() => batch / lanes,
        _ => 0,
    }
}

/// One thread for each core that the system gives, shared with the other ranks here.
pub fn threads() -> usize {
    ranks::share_of(std::thread::available_parallelism().map_or(1, |count| count.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_occur_about_as_often_as_wished() {
        assert_eq!(every(Some(1000), 10), 100);
        assert_eq!(every(Some(3), 10), 1);
        assert_eq!(every(None, 10), 200);
        assert_eq!((eval_every(Some(20)), eval_every(Some(1000))), (50, 100));
        assert_eq!((warmup_steps(Some(10)), warmup_steps(Some(100_000)), warmup_steps(None)), (0, 100, 100));
    }
}

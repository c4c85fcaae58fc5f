//! What a run can be: every number within limits that keep all that is reckoned with them from overflowing, and every
//! two that must fit together fitting. Checked before anything is computed, whoever states the run.

use super::LocalSteps;
use super::{BatchSize, Clip, EventFolder, HealthInterval, Recomputation, TokenizerKind, TrainConfig, Validation};
use crate::lanes;
use crate::models::MOST_LAYERS;
use crate::{Error, Result};
use gradus_engine::backend::Cpu;
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::path::Path;

/// Steps: more than a step a microsecond for a week.
const MOST_STEPS: u64 = 1_000_000_000_000;
/// Passes over a corpus.
const EPOCHS: RangeInclusive<f64> = 1e-12..=1e6;
/// Seconds of a run, up to a hundred years.
const TIME: RangeInclusive<f64> = 1e-12..=3.2e9;
/// Sequences of a step.
const LARGEST_BATCH: usize = 1 << 20;
/// Tokens of a vocabulary, as for a model.
const LARGEST_VOCABULARY: usize = 1 << 24;
/// Checkpoints.
const MOST_KEPT: usize = 1_000_000;
/// Every byte and the end of a text.
const SMALLEST_BYTEWISE: usize = 257;
/// Learning rates and decays that single precision can multiply without leaving its range.
const RATES: RangeInclusive<f64> = 1e-30..=1e4;

impl TrainConfig {
    /// Says which choice is impossible, and what to do.
    pub fn validate(&self) -> Result<()> {
        self.model.validate_without_vocabulary()?;
        self.validate_data()?;
        self.validate_length()?;
        self.validate_batch()?;
        self.validate_update()?;
        self.validate_paths()?;
        check_watching(self.threads, self.keep, self.health, self.recompute)
    }

    fn validate_data(&self) -> Result<()> {
        if self.sequence == 0 || self.sequence > self.model.context {
            return refused(format!(
                "`settings.sequence` {} is longer than the model's context of {}, or nothing; lower it, or raise `settings.context`",
                self.sequence, self.model.context
            ));
        }
        within("vocab-size", self.vocab_size, 0..=LARGEST_VOCABULARY)?;
        if let Validation::Fraction(share) = self.validation {
            within("validation", share, 0.0..=BELOW_ONE)?;
        }
        let bytewise = matches!(self.tokenizer, TokenizerKind::Byte | TokenizerKind::Bpe);
        if bytewise && (1..SMALLEST_BYTEWISE).contains(&self.vocab_size) {
            return refused(format!(
                "`settings.vocab_size` {} is too small for `settings.tokenizer` {}, which has {SMALLEST_BYTEWISE} tokens at least; raise it, or use char",
                self.vocab_size, self.tokenizer
            ));
        }
        Ok(())
    }

    fn validate_length(&self) -> Result<()> {
        let events =
            [("eval-every", self.eval_every), ("sample-every", self.sample_every), ("save-every", self.save_every)];
        check_steps(self.steps, self.warmup_steps, &events)?;
        self.decay_steps.map_or(Ok(()), |steps| within("decay-steps", steps, 1..=MOST_STEPS))?;
        self.decay_time.map_or(Ok(()), |time| within("decay-time", time, TIME))?;
        self.epochs.map_or(Ok(()), |epochs| within("epochs", epochs, EPOCHS))?;
        self.time_seconds.map_or(Ok(()), |time| within("time", time, TIME))
    }

    fn validate_batch(&self) -> Result<()> {
        let (batch, micro_batch) = (self.batch, self.micro_batch);
        lanes::check_count(self.lanes)?;
        if batch == BatchSize::Auto {
            return match micro_batch {
                0 => Ok(()),
                _ => refused(
                    "`settings.batch` auto computes all its sequences at once; leave `settings.micro_batch` out, or state the batch",
                ),
            };
        }
        check_batch(batch.size(), micro_batch)?;
        lanes::check_batch(self.lanes, batch.size(), micro_batch)?;
        self.model.validate_work(batch.size(), self.sequence)
    }

    fn validate_update(&self) -> Result<()> {
        check_rates(self.learning_rate, self.weight_decay, self.clip)?;
        within("min-learning-rate-share", self.final_learning_rate_share, 0.0..=1.0)?;
        for (name, share) in [("beta1", self.beta1), ("beta2", self.beta2), ("dropout", self.dropout)] {
            within(name, share, 0.0..=BELOW_ONE)?;
        }
        within("compress-warmup", self.compress_warmup, 0..=1 << 53)?;
        if let Some(local) = LocalSteps::of(self.local_steps, self.outer_learning_rate, self.outer_momentum) {
            local.check(self.steps)?;
        }
        Ok(())
    }

    /// `config.toml` is text, so what it names must be.
    fn validate_paths(&self) -> Result<()> {
        let mut named: Vec<(&str, &Path)> = vec![("`settings.out`", &self.out)];
        named.extend(self.corpus.iter().map(|path| ("the corpus", path.as_path())));
        named.extend(self.init.iter().map(|path| ("`settings.init`", path.as_path())));
        if let TokenizerKind::File(path) = &self.tokenizer {
            named.push(("`settings.tokenizer`", path));
        }
        if let Validation::File(path) = &self.validation {
            named.push(("`settings.validation`", path));
        }
        if let EventFolder::At(path) = &self.tensorboard {
            named.push(("`settings.tensorboard`", path));
        }
        written_as_text(&named)
    }
}

/// Refuses steps of a run, of its rise or between events that are out of range, and a rise beyond the run.
pub(crate) fn check_steps(steps: Option<u64>, warmup_steps: u64, events: &[(&str, u64)]) -> Result<()> {
    steps.map_or(Ok(()), |steps| within("steps", steps, 1..=MOST_STEPS))?;
    for (name, steps) in [("warmup-steps", warmup_steps)].iter().chain(events) {
        within(name, *steps, 0..=MOST_STEPS)?;
    }
    match steps {
        Some(steps) if warmup_steps > steps => refused(format!(
            "`settings.warmup_steps` {warmup_steps} is longer than the run of {steps} steps; lower it or raise `settings.steps`"
        )),
        _ => Ok(()),
    }
}

/// Refuses a batch that is out of range, or that micro-batches do not divide; 0 of those are chosen later.
pub(crate) fn check_batch(batch: usize, micro_batch: usize) -> Result<()> {
    within("batch", batch, 1..=LARGEST_BATCH)?;
    if micro_batch > 0 && !batch.is_multiple_of(micro_batch) {
        return refused(format!(
            "`settings.batch` {batch} is not divisible by `settings.micro_batch` {micro_batch}; choose a divisor, or leave `settings.micro_batch` out"
        ));
    }
    Ok(())
}

/// Refuses rates that single precision cannot reckon with.
pub(crate) fn check_rates(learning_rate: f64, weight_decay: f64, clip: Clip) -> Result<()> {
    within("learning-rate", learning_rate, RATES)?;
    within("weight-decay", weight_decay, 0.0..=*RATES.end())?;
    match clip {
        Clip::Norm(limit) | Clip::Value(limit) => within("clip", limit, RATES),
        Clip::None | Clip::Adaptive => Ok(()),
    }
}

/// Refuses threads, checkpoints, measurements and recomputation out of range.
pub(crate) fn check_watching(
    threads: usize,
    keep: usize,
    health: HealthInterval,
    recompute: Recomputation,
) -> Result<()> {
    within("threads", threads, 1..=Cpu::MOST_THREADS)?;
    within("keep", keep, 1..=MOST_KEPT)?;
    if let HealthInterval::Steps(steps) = health {
        within("health", steps, 1..=MOST_STEPS)?;
    }
    match recompute {
        Recomputation::Every(layers) => within("recompute every", layers, 1..=MOST_LAYERS),
        _ => Ok(()),
    }
}

/// Refuses paths that a `config.toml` cannot hold.
pub(crate) fn written_as_text(named: &[(&str, &Path)]) -> Result<()> {
    match named.iter().find(|(_, path)| path.to_str().is_none()) {
        None => Ok(()),
        Some((what, path)) => refused(format!(
            "{what} {} is not UTF-8, and a run writes its paths down as text; rename it, or name a link to it",
            path.display()
        )),
    }
}

/// The largest share in single precision that is not the whole.
const BELOW_ONE: f64 = 1.0 - f32::EPSILON as f64 / 2.0;

/// Refuses a number outside of its range; NaN is outside of every one.
pub(crate) fn within<N: PartialOrd + Debug>(name: &str, number: N, range: RangeInclusive<N>) -> Result<()> {
    if range.contains(&number) {
        return Ok(());
    }
    let (least, most) = range.into_inner();
    let name = name.replace('-', "_");
    refused(format!("`settings.{name}` {number:?} is out of range; give a number from {least:?} to {most:?}"))
}

fn refused<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::Config(problem.into()))
}

impl LocalSteps {
    /// Refuses steps that are no local steps, and a run that would end between two meetings: what lanes did since the last
    /// one would be lost.
    pub(crate) fn check(&self, steps: Option<u64>) -> Result<()> {
        within("local-steps", self.every, 1..=1 << 32)?;
        within("outer-learning-rate", self.learning_rate, RATES)?;
        within("outer-momentum", self.momentum, 0.0..=BELOW_ONE)?;
        match steps.filter(|steps| !steps.is_multiple_of(self.every)) {
            None => Ok(()),
            Some(steps) => refused(format!(
                "`settings.steps` {steps} end between two meetings of lanes (`settings.local_steps` {}), and what lanes did \
                 since the last would be lost; choose a multiple",
                self.every
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use crate::models::ModelConfig;
    use std::path::PathBuf;

    /// The one line that refuses a configuration changed so.
    fn problem(change: impl Fn(&mut TrainConfig)) -> String {
        let mut changed = config();
        change(&mut changed);
        let text = changed.validate().expect_err("refused").to_string();
        assert!(!text.contains('\n'), "one line: {text}");
        text
    }

    #[test]
    fn what_can_be_is_taken_and_can_be_written_down() {
        let largest = TrainConfig {
            steps: Some(MOST_STEPS),
            time_seconds: None,
            warmup_steps: MOST_STEPS,
            eval_every: MOST_STEPS,
            sample_every: MOST_STEPS,
            save_every: MOST_STEPS,
            keep: MOST_KEPT,
            batch: BatchSize::Fixed(LARGEST_BATCH),
            micro_batch: 1,
            threads: Cpu::MOST_THREADS,
            vocab_size: LARGEST_VOCABULARY,
            learning_rate: *RATES.end(),
            seed: u32::MAX,
            ..config()
        };
        for config in [config(), largest] {
            config.validate().unwrap();
            assert!(config.to_toml().contains("threads = "));
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        type Change = fn(&mut TrainConfig);
        let cases: [(Change, &str); 26] = [
            (
                |c| (c.batch, c.micro_batch) = (BatchSize::Fixed(4), 5),
                "`settings.batch` 4 is not divisible by `settings.micro_batch` 5",
            ),
            (|c| (c.batch, c.micro_batch) = (BatchSize::Auto, 2), "leave `settings.micro_batch` out"),
            (
                |c| (c.batch, c.micro_batch) = (BatchSize::Fixed(1 << 60), 1),
                "`settings.batch` 1152921504606846976 is out of range",
            ),
            (|c| c.lanes = 6, "`settings.lanes` 6 is not a power of two"),
            (
                |c| (c.batch, c.micro_batch, c.lanes) = (BatchSize::Fixed(12), 4, 2),
                "`settings.micro_batch` 4 does not divide the 6",
            ),
            (|c| c.batch = BatchSize::Fixed(0), "`settings.batch` 0 is out of range"),
            (|c| c.steps = Some(u64::MAX), "`settings.steps` 18446744073709551615 is out of range"),
            (|c| c.steps = Some(0), "`settings.steps` 0"),
            (|c| (c.steps, c.warmup_steps) = (Some(5), 6), "`settings.warmup_steps` 6 is longer"),
            (|c| c.warmup_steps = u64::MAX, "`settings.warmup_steps` 18446744073709551615"),
            (|c| c.save_every = u64::MAX, "`settings.save_every`"),
            (|c| c.eval_every = u64::MAX, "`settings.eval_every`"),
            (|c| c.sample_every = u64::MAX, "`settings.sample_every`"),
            (|c| c.keep = usize::MAX, "`settings.keep`"),
            (
                |c| c.threads = usize::MAX / 2,
                "`settings.threads` 9223372036854775807 is out of range; give a number from 1 to 1024",
            ),
            (|c| c.model.width = usize::MAX / 2, "width is 9223372036854775807"),
            (|c| c.sequence = 17, "`settings.sequence` 17 is longer than the model's context of 16"),
            (|c| c.epochs = Some(1e308), "`settings.epochs`"),
            (|c| c.time_seconds = Some(f64::NAN), "`settings.time` NaN"),
            (|c| c.learning_rate = 1e308, "`settings.learning_rate`"),
            (|c| c.learning_rate = 1e-320, "`settings.learning_rate`"),
            (|c| c.weight_decay = f64::INFINITY, "`settings.weight_decay` inf"),
            // One in single precision.
            (|c| c.beta2 = 0.99999999999, "`settings.beta2`"),
            (|c| c.dropout = 1.0, "`settings.dropout` 1.0 is out of range"),
            (|c| c.clip = Clip::Value(1e-320), "`settings.clip`"),
            (|c| (c.tokenizer, c.vocab_size) = (TokenizerKind::Byte, 100), "`settings.vocab_size` 100 is too small"),
        ];
        for (change, part) in cases {
            let text = problem(change);
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn sizes_that_fit_alone_are_refused_where_they_cannot_be_reckoned_with_together() {
        let model = ModelConfig { feed_forward: 1 << 24, ..ModelConfig::gpt2(0, 1 << 24, 4096, 1, 16) };
        assert!(problem(|c| c.model = model.clone()).contains("beyond any machine"));
        let long = ModelConfig::gpt2(0, 32, 2, 2, 1 << 24);
        let text = problem(|c| {
            (c.model, c.sequence, c.batch, c.micro_batch) = (long.clone(), 1 << 24, BatchSize::Fixed(1 << 20), 1)
        });
        assert!(text.contains("beyond any machine"), "{text}");
    }

    #[cfg(unix)]
    #[test]
    fn a_path_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let path = || PathBuf::from(std::ffi::OsString::from_vec(vec![b'a', 0xff]));
        for (change, part) in [
            ((|c, path| c.corpus = vec![path]) as fn(&mut TrainConfig, PathBuf), "the corpus a"),
            (|c, path| c.out = path, "`settings.out` a"),
            (|c, path| c.init = Some(path), "`settings.init` a"),
            (|c, path| c.tokenizer = TokenizerKind::File(path), "`settings.tokenizer` a"),
            (|c, path| c.validation = Validation::File(path), "`settings.validation` a"),
        ] {
            let text = problem(|config| change(config, path()));
            assert!(text.contains(part) && text.contains("is not UTF-8"), "{text}");
        }
    }
}

//! What a run was resolved to, in a few lines at its start.

use crate::numbers::{count, duration};
use gradus_train::config::{Clip, ScheduleKind, TokenizerKind, TrainConfig, Validation};

/// The lines, set off from the one they follow.
pub fn lines(config: &TrainConfig) -> String {
    let lines = [
        ("model", model(config)),
        ("data", data(config)),
        ("step", step(config)),
        ("optimizer", optimizer(config)),
        ("run", run(config)),
    ];
    lines.map(|(name, text)| format!("  {name:10} {text}")).join("\n")
}

fn model(config: &TrainConfig) -> String {
    let model = &config.model;
    let family = model.family.name();
    let grouped = if model.kv_heads < model.heads { format!(" ({} of keys)", model.kv_heads) } else { String::new() };
    let window = model.window.map_or(String::new(), |window| format!(", window {}", count(window as u64)));
    let start = config.init.as_ref().map_or(String::new(), |folder| format!(", from {}", folder.display()));
    format!(
        "{family}, {} of width {}, {}{grouped}, {} tokens, context {}{window}{start}",
        several(model.layers, "layer"),
        model.width,
        several(model.heads, "head"),
        count(model.vocabulary as u64),
        count(model.context as u64)
    )
}

/// So many of something.
fn several(number: usize, name: &str) -> String {
    format!("{number} {name}{}", if number == 1 { "" } else { "s" })
}

fn data(config: &TrainConfig) -> String {
    let corpus = match &config.corpus[..] {
        [] => "built-in stories".to_string(),
        [one] => one.display().to_string(),
        [first, others @ ..] => format!("{} and {} more", first.display(), others.len()),
    };
    let tokens = match &config.tokenizer {
        TokenizerKind::Byte => "bytes".to_string(),
        TokenizerKind::Char => "characters".to_string(),
        TokenizerKind::Bpe => "bpe".to_string(),
        TokenizerKind::File(path) => path.display().to_string(),
    };
    let held_out = match &config.validation {
        Validation::Fraction(0.0) => "nothing".to_string(),
        Validation::Fraction(share) => format!("the last {} %", (share * 1000.0).round() / 10.0),
        Validation::File(path) => path.display().to_string(),
    };
    format!("{corpus}; tokens: {tokens}; held out: {held_out}")
}

fn step(config: &TrainConfig) -> String {
    let (batch, threads) = (config.batch.size(), config.threads);
    let lanes = if config.lanes > 1 { format!(" in {} lanes", config.lanes) } else { String::new() };
    let lanes = match config.local_steps {
        0 => lanes,
        steps => format!("{lanes} that meet every {steps} steps"),
    };
    let lanes = if config.compress.is_some() { format!("{lanes} ({})", config.compress) } else { lanes };
    let at_once = if config.micro_batch < batch { format!(", {} at once", config.micro_batch) } else { String::new() };
    let precision = format!("{:?}", config.precision).to_lowercase();
    let ranks = match config.place.ranks {
        1 => String::new(),
        ranks if config.stages > 1 => format!("{ranks} ranks in pipelines of {}, each of ", config.stages),
        ranks => format!("{ranks} ranks of "),
    };
    let threads = several(threads, "thread");
    format!("{batch} x {} tokens{lanes}{at_once}, {precision}, {ranks}{threads}", count(config.sequence as u64))
}

fn optimizer(config: &TrainConfig) -> String {
    let rate = config.learning_rate;
    let name = |choice: String| choice.to_lowercase();
    let lowest = (rate * config.final_learning_rate_share * 1e12).round() / 1e12;
    let falls = match config.schedule {
        ScheduleKind::Constant => "constant".to_string(),
        kind => format!("{} to {lowest}", name(format!("{kind:?}"))),
    };
    let clip = if config.clip == Clip::None { String::new() } else { format!(", clip {}", config.clip) };
    format!(
        "{}, rate {rate} ({falls}), warmup {}, decay {}{clip}",
        name(format!("{:?}", config.optimizer)),
        count(config.warmup_steps),
        config.weight_decay
    )
}

fn run(config: &TrainConfig) -> String {
    let length = match (config.steps, config.epochs, config.time_seconds) {
        (Some(1), _, _) => "1 step".to_string(),
        (Some(steps), _, _) => format!("{} steps", count(steps)),
        (_, Some(epochs), _) => format!("{epochs} passes over the text"),
        (_, _, Some(seconds)) => duration(seconds),
        _ => "no end".to_string(),
    };
    format!("{length}, in {}", config.out.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_in_a_few_lines() {
        let mut config = crate::resolve::resolve(&crate::layers::nothing_given()).unwrap().config;
        (config.model.vocabulary, config.micro_batch, config.threads) = (512, 4, 2);
        let expected = [
            "  model      gpt2, 4 layers of width 128, 4 heads, 512 tokens, context 128",
            "  data       built-in stories; tokens: bpe; held out: the last 10 %",
            "  step       16 x 128 tokens, 4 at once, f32, 2 threads",
            "  optimizer  adamw, rate 0.001 (cosine to 0.0001), warmup 45, decay 0.1, clip 1",
            "  run        900 steps, in runs/stories-1",
        ];
        assert_eq!(lines(&config).lines().collect::<Vec<_>>(), expected);
    }
}

//! Whole runs: what they leave behind, and that an interrupted one resumes to the same bits.

mod support;

use gradus_engine::backend::Cpu;
use gradus_train::config::TrainConfig;
use gradus_train::data::Corpus;
use gradus_train::evaluate::{Window, evaluate};
use gradus_train::training::train;
use support::{Folder, Watcher, tiny};

fn run(config: &TrainConfig, resume: bool, stop_at: Option<u64>) -> Watcher {
    let mut watcher = Watcher { stop_at, ..Watcher::default() };
    let summary = train(config, resume, &mut watcher).unwrap();
    assert_eq!(summary.interrupted, stop_at.is_some());
    watcher
}

fn weights(config: &TrainConfig) -> Vec<u8> {
    std::fs::read(config.out.join("model/model.safetensors")).unwrap()
}

#[test]
fn a_run_leaves_everything_it_should() {
    let folder = Folder::new("run");
    let config = TrainConfig { eval_every: 10, sample_every: 20, save_every: 15, ..tiny(folder.path(), "run") };
    let watcher = run(&config, false, None);
    let (first, last) = (watcher.losses[0].1, watcher.losses[39].1);
    assert!(last < 0.8 * first, "it learns: {first} to {last}");
    assert_eq!(watcher.validations.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [10, 20, 30, 40]);
    assert_eq!(watcher.samples.len(), 2);
    for file in ["config.toml", "tokenizer.json", "samples/step-00000020.txt", "samples/step-00000040.txt"] {
        assert!(config.out.join(file).exists(), "{file}");
    }
    for file in ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"] {
        assert!(config.out.join("model").join(file).exists(), "model/{file}");
    }
    let checkpoints: Vec<_> = std::fs::read_dir(config.out.join("checkpoints")).unwrap().collect();
    assert_eq!(checkpoints.len(), 2, "as many as are kept");
    let metrics = std::fs::read_to_string(config.out.join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 40);
    let keys = ["step", "tokens", "loss", "gradient_norm", "learning_rate", "tokens_per_second", "step_ms"];
    for key in keys.into_iter().chain(["peak_memory_bytes", "memory_bytes"]) {
        assert!(lines.iter().all(|line| line[key].is_number()), "{key}");
    }
    assert_eq!(lines.iter().filter(|line| line.get("validation_loss").is_some()).count(), 4);
    assert_eq!(lines[39]["tokens"], 40 * 4 * 16);

    let corpus = Corpus::open(&config.corpus, None).unwrap();
    let window = Window { batch: 3, sequence: None, memory: None };
    let evaluation =
        evaluate(&config.out.join("model"), &corpus, &Cpu::new(1).unwrap(), window, &mut |_, _| {}).unwrap();
    assert!((evaluation.loss - last as f64).abs() < 0.5, "{evaluation:?}");
    assert_eq!(evaluation.tokens + 1, evaluation.bytes, "characters are bytes here, and all but the first count");
}

#[test]
fn a_model_with_room_for_more_tokens_than_there_are_samples_only_those() {
    let folder = Folder::new("room");
    let config =
        TrainConfig { vocab_size: 400, steps: Some(2), warmup_steps: 1, sample_every: 1, ..tiny(folder.path(), "run") };
    assert_eq!(run(&config, false, None).samples.len(), 2);
}

#[test]
fn a_run_that_has_ended_can_be_resumed_and_ends_the_same() {
    let folder = Folder::new("ended");
    let config = TrainConfig { steps: Some(4), ..tiny(folder.path(), "run") };
    let first = train(&config, false, &mut Watcher::default()).unwrap();
    let before = weights(&config);
    let again = train(&config, true, &mut Watcher::default()).unwrap();
    assert_eq!((first.steps, first.loss, first.validation_loss), (again.steps, again.loss, again.validation_loss));
    assert_eq!(before, weights(&config));
}

#[test]
fn an_interrupted_run_resumes_to_the_same_bits() {
    let folder = Folder::new("resume");
    let whole = tiny(folder.path(), "whole");
    let expected = run(&whole, false, None);
    let pieces = TrainConfig { save_every: 5, ..tiny(folder.path(), "pieces") };
    let mut losses = run(&pieces, false, Some(13)).losses;
    for stop_at in [Some(17), Some(29), None] {
        let part = run(&pieces, true, stop_at);
        assert_eq!(part.resumed_at, Some(losses.len() as u64));
        losses.extend(part.losses);
    }
    assert_eq!(losses, expected.losses);
    assert!(weights(&whole) == weights(&pieces), "the weights have other bits");
    let metrics = std::fs::read_to_string(pieces.out.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 40, "each step once");
    // On another number of threads too.
    let threads = TrainConfig { threads: 3, ..tiny(folder.path(), "threads") };
    run(&threads, false, Some(7));
    run(&TrainConfig { threads: 1, ..threads.clone() }, true, None);
    assert!(weights(&whole) == weights(&threads), "the weights have other bits on other threads");
}

#[test]
fn a_run_starts_from_existing_weights() {
    let folder = Folder::new("init");
    let first = tiny(folder.path(), "first");
    let before = run(&first, false, None);
    let second = TrainConfig {
        init: Some(first.out.join("model")),
        steps: Some(3),
        warmup_steps: 1,
        learning_rate: 1e-4,
        ..tiny(folder.path(), "second")
    };
    let after = run(&second, false, None);
    assert!((after.losses[0].1 - before.losses[39].1).abs() < 0.5, "{:?} {:?}", after.losses, before.losses[39]);
}

#[test]
fn a_run_in_use_and_a_run_of_another_text_are_refused() {
    let folder = Folder::new("refused");
    let config = tiny(folder.path(), "run");
    run(&config, false, Some(3));
    let other = folder.path().join("other.txt");
    std::fs::write(&other, "0123456789 and make.\n".repeat(400)).unwrap();
    let changed = TrainConfig { corpus: vec![other], ..config.clone() };
    let error = train(&changed, true, &mut Watcher::default()).unwrap_err().to_string();
    assert!(error.contains("`settings.corpus` cannot change"), "{error}");
    // Without its own tokens the run looks at the corpus, which must be the same.
    std::fs::remove_dir_all(config.out.join("data")).unwrap();
    std::fs::write(&config.corpus[0], "0123456789 and make.\n".repeat(400)).unwrap();
    let error = train(&config, true, &mut Watcher::default()).unwrap_err().to_string();
    assert!(error.contains("other text"), "{error}");
}

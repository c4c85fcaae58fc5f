//! Resolution: what wins over what, what is chosen, what is refused.

use super::*;
use crate::layers::train_options;
use gradus_train::models::PRESETS;
use std::fs;

/// A folder for a test, removed at the end of it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("gradus-resolve-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }

    /// Writes a file and gives its path.
    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// The folder of a run as it would be after its first moments.
    fn run(&self, name: &str, arguments: &[&str]) -> String {
        let folder = self.0.join(name);
        let all = [arguments, &["--out", folder.to_str().unwrap()]].concat();
        self.file(&format!("{name}/{CONFIG_FILE}"), &resolved(&all).config.to_toml());
        folder.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn try_resolve(arguments: &[&str]) -> Result<Resolved> {
    resolve(&train_options().try_get_matches_from(arguments).unwrap())
}

fn resolved(arguments: &[&str]) -> Resolved {
    try_resolve(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// The one line that refuses these arguments.
fn problem(arguments: &[&str]) -> String {
    let text = try_resolve(arguments).err().unwrap_or_else(|| panic!("{arguments:?} is refused"));
    let text = crate::in_options::in_options(&text.to_string());
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

#[test]
fn without_options_a_small_model_learns_stories() {
    let Resolved { config, resume, quiet, json, dashboard, notes } = resolved(&[]);
    assert!(!resume && !quiet && !json && dashboard.is_none() && notes.is_empty());
    assert_eq!((config.model.family, config.model.width, config.sequence), (Family::Gpt2, 128, 128));
    assert_eq!((config.tokenizer, config.vocab_size), (TokenizerKind::Bpe, 512));
    assert_eq!((config.steps, config.warmup_steps, config.eval_every), (Some(900), 45, 90));
    assert_eq!(config.out, Path::new("runs/stories-1"));
    assert!(config.corpus.is_empty() && config.model.vocabulary == 0);
}

#[test]
fn the_command_line_wins_over_the_file() {
    let scratch = Scratch::new("precedence");
    let file = scratch.file("options.toml", "width = 64\nheads = 8\nsteps = 7\nclip = 'adaptive'\n");
    let config = resolved(&["--config", &file, "--width", "96", "--epochs", "1.5"]).config;
    assert_eq!((config.model.width, config.model.heads), (96, 8));
    assert_eq!((config.steps, config.epochs, config.clip), (None, Some(1.5), Clip::Adaptive));
}

#[test]
fn a_mistake_in_the_file_is_named_with_its_line() {
    let scratch = Scratch::new("mistake");
    let file = scratch.file("options.toml", "width = 64\nhaeds = 8\n");
    let text = problem(&["--config", &file]);
    assert!(text.ends_with("options.toml, line 2: `haeds` is not an option; did you mean `heads`?"), "{text}");
    assert!(problem(&["--config", "no-such.toml"]).starts_with("cannot read no-such.toml"));
}

#[test]
fn sizes_follow_from_each_other() {
    let model = |arguments: &[&str]| resolved(arguments).config.model;
    for preset in PRESETS {
        assert_eq!(model(&["--preset", preset.name]), ModelConfig { vocabulary: 0, ..preset.config() });
    }
    let narrower = model(&["--preset", "qwen3-0.6b", "--width", "512"]);
    assert_eq!((narrower.head_size(), narrower.feed_forward, narrower.tie_embeddings), (32, 1368, true));
    let stated = model(&["--model", "qwen3", "--width", "64", "--heads", "2", "--head-size", "24", "--window", "9"]);
    assert_eq!((stated.head_size, stated.window, stated.full_layers), (Some(24), Some(9), 0));
    assert_eq!(model(&["--model", "mistral", "--width", "64", "--heads", "2", "--head-size", "32"]).head_size, None);
    assert_eq!(model(&["--width", "64"]).feed_forward, 256);
    let llama = model(&["--model", "llama", "--width", "48", "--heads", "4", "--kv-heads", "2"]);
    assert_eq!(
        (llama.family, llama.feed_forward, llama.kv_heads, llama.tie_embeddings),
        (Family::Llama, 128, 2, false)
    );
    assert!(model(&["--model", "llama", "--tie-embeddings", "true"]).tie_embeddings);
    assert_eq!(model(&["--sequence", "32", "--context", "64"]).context, 64);
    assert_eq!(resolved(&["--preset", "gpt2"]).config.vocab_size, 50_257);
    assert_eq!(resolved(&["--tokenizer", "char"]).config.vocab_size, 0);
    assert_eq!(model(&["--tokenizer", "char", "--vocab-size", "100"]).vocabulary, 100);
}

#[test]
fn the_published_recipe_is_as_published() {
    let scratch = Scratch::new("recipe");
    let corpus = scratch.file("shakespeare.txt", "To be, or not to be");
    let recipe = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes/shakespeare-char.toml");
    let config = resolved(&[&corpus, "--config", recipe]).config;
    let model = &config.model;
    assert_eq!((model.layers, model.heads, model.width, model.context, config.sequence), (4, 4, 128, 64, 64));
    assert_eq!((config.batch.size(), config.micro_batch, config.steps, config.warmup_steps), (12, 0, Some(2000), 100));
    assert_eq!((config.learning_rate, config.final_learning_rate_share), (1e-3, 0.1));
    assert_eq!((config.beta1, config.beta2, config.dropout), (0.9, 0.99, 0.0));
    assert_eq!((config.tokenizer, config.validation), (TokenizerKind::Char, Validation::Fraction(0.1)));
}

#[test]
fn each_impossible_combination_is_one_line() {
    let scratch = Scratch::new("impossible");
    let file = scratch.file("a.txt", "text");
    for (arguments, part) in [
        (&["--width", "100", "--heads", "3"][..], "width 100 is not divisible by heads 3"),
        (&["--model", "llama", "--heads", "4", "--kv-heads", "3"], "heads 4 is not divisible by kv-heads 3"),
        (&["--kv-heads", "2"], "kv-heads"),
        (&["--batch", "auto", "--micro-batch", "4"], "leave --micro-batch out"),
        (&["--batch", "10", "--micro-batch", "4"], "--batch 10 is not divisible by --micro-batch 4"),
        (&["--sequence", "64", "--context", "32"], "--sequence 64 is longer"),
        (&["--warmup-steps", "50", "--steps", "10"], "--warmup-steps 50 is longer"),
        (&["--vocab-size", "100"], "--vocab-size 100 is too small for --tokenizer bpe"),
        (&["--vocab-size", "100", "--tokenizer", "byte"], "--tokenizer byte"),
        (&["--tokenizer", "no/tokenizer.json"], "tokenizer no/tokenizer.json: no such file"),
        (&["no/such.txt"], "no/such.txt: no such file or folder"),
        (&["--validation", "no/such.txt"], "no/such.txt: no such file or folder"),
        (&["--text-field", "body"], "--text-field"),
        (&["--resume"], "--resume needs the folder"),
        (&["--resume", "no/run"], "no/run: not the folder of a run"),
        (&["--resume", "a", "--out", "b"], "two folders"),
        (&["--init", "no/model"], "no/model: no such folder"),
        (&["--init", "model", "--width", "8"], "--width and --init"),
        (&["--init", "model", "--preset", "tiny"], "--preset and --init"),
        (&["--out", &file], "not a folder"),
        (&["--out", scratch.0.to_str().unwrap()], "holds other files"),
    ] {
        let text = problem(arguments);
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
}

#[test]
fn a_run_is_resumed_as_it_was() {
    let scratch = Scratch::new("resume");
    let corpus = scratch.file("a.txt", "text");
    let stated = [&corpus[..], "--preset", "llama-tiny", "--time", "90s", "--clip", "value:0.5", "--tokenizer", "char"];
    let run = scratch.run("run", &stated);
    let first = TrainConfig::read(Path::new(&run)).unwrap();
    assert_eq!(first.model.vocabulary, 0, "the tokenizer's");
    let again = resolved(&["--resume", &run]);
    assert!(again.resume);
    assert_eq!(again.config, first);
    // The same command again, and the folder by the other option.
    assert_eq!(resolved(&[&stated[..], &["--out", &run, "--resume"]].concat()).config, first);
}

#[test]
fn a_resumed_run_may_be_longer_but_not_another() {
    let scratch = Scratch::new("change");
    let run = scratch.run("run", &["--steps", "10"]);
    let config = resolved(&["--resume", &run, "--steps", "20", "--threads", "3", "--eval-every", "2"]).config;
    assert_eq!((config.steps, config.threads, config.eval_every), (Some(20), 3, 2));
    let config = resolved(&["--resume", &run, "--time", "1h"]).config;
    assert_eq!((config.steps, config.time_seconds), (None, Some(3600.0)));
    let config = resolved(&["--resume", &run, "--decay-time", "1h"]).config;
    assert_eq!((config.decay_steps, config.decay_time), (None, Some(3600.0)));
    for change in [["--width", "64"], ["--preset", "gpt2"], ["--seed", "9"], ["--optimizer", "sgd"], ["--beta2", "0.5"]]
    {
        let text = problem(&["--resume", &run, change[0], change[1]]);
        assert!(text.starts_with(change[0]) && text.contains("cannot change"), "{text}");
    }
    assert_eq!(resolved(&["--out", &run]).config.out, Path::new(&run), "it took no step");
    scratch.file("run/metrics.jsonl", "{\"step\":1}\n");
    assert!(problem(&["--out", &run]).contains("holds a run already"));
}

#[test]
fn a_run_goes_on_without_what_it_was_made_from() {
    let scratch = Scratch::new("gone");
    let (corpus, held_out) = (scratch.file("a.txt", "text"), scratch.file("b.txt", "text"));
    let tokenizer = scratch.file("tokenizer.json", "{}");
    let run = scratch.run("run", &[&corpus, "--validation", &held_out, "--tokenizer", &tokenizer]);
    let moved = scratch.0.join("moved");
    fs::rename(&run, &moved).unwrap();
    [corpus, held_out, tokenizer].iter().for_each(|path| fs::remove_file(path).unwrap());
    assert_eq!(resolved(&["--resume", moved.to_str().unwrap()]).config.out, moved);
}

#[test]
fn resolving_writes_nothing() {
    let scratch = Scratch::new("nothing");
    let out = scratch.0.join("runs/new");
    assert_eq!(resolved(&["--out", out.to_str().unwrap()]).config.out, out);
    assert!(fs::read_dir(&scratch.0).unwrap().next().is_none());
}

#[test]
fn trained_weights_take_a_tenth_of_the_learning_rate() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama_folder");
    let init = folder.to_str().unwrap();
    let scratch = resolved(&["--width", "16", "--heads", "4"]).config.learning_rate;
    let Resolved { config, notes, .. } = resolved(&["--init", init]);
    assert!((config.learning_rate - scratch / 10.0).abs() < 1e-12, "{} and {scratch}", config.learning_rate);
    assert!(notes.len() == 1 && notes[0].contains("learning rate is 0.0001, a tenth"), "{notes:?}");
    let Resolved { config, notes, .. } = resolved(&["--init", init, "--learning-rate", "0.01"]);
    assert!(config.learning_rate == 0.01 && notes.is_empty(), "a stated one stands");
}

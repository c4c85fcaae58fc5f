//! Configurations: any bytes as a run's `config.toml`, a model folder's `config.json`, or a file of options.

use crate::folder::Folder;
use crate::is_one_line;
use crate::memory::{limit, within};
use gradus_train::config::TrainConfig;
use gradus_train::export::read_model_config;
use gradus_train::models::CausalModel;
use std::path::Path;

/// The definition of the options, several times, and the names of a model's weights.
const CONSTANT_BYTES: usize = 24 << 20;
const BYTES_PER_BYTE: usize = 128;

/// Reads the rest of the input as the file that its first byte chooses.
pub fn run(input: &[u8]) {
    let Some((&choice, content)) = input.split_first() else { return };
    let folder = Folder::new();
    let read = match choice % 3 {
        0 => saved,
        1 => model,
        _ => stated,
    };
    within(limit(CONSTANT_BYTES, BYTES_PER_BYTE, content), || read(&folder, content));
}

/// A run's configuration that can be read is written and read back the same.
fn saved(folder: &Folder, content: &[u8]) {
    folder.write("config.toml", content);
    match TrainConfig::read(folder.path()) {
        Ok(config) => reads_back(folder, &config),
        Err(error) => is_one_line(&error),
    }
}

fn reads_back(folder: &Folder, config: &TrainConfig) {
    let text = config.to_toml();
    folder.write("config.toml", text.as_bytes());
    let again = TrainConfig::read(folder.path()).unwrap_or_else(|error| panic!("{error}, in our own\n{text}"));
    assert_eq!(again.to_toml(), text, "another configuration after saving");
}

/// A model that can be opened has sizes that are possible, so that its weights can be counted.
fn model(folder: &Folder, content: &[u8]) {
    folder.write("config.json", content);
    match read_model_config(folder.path()) {
        Ok(config) => {
            config.validate().expect("what is given is possible");
            assert!(config.parameter_count() > 0);
        }
        Err(error) => is_one_line(&error),
    }
}

/// What options state can be saved, and states the same again.
fn stated(folder: &Folder, content: &[u8]) {
    let config = match planned(&folder.write("options.toml", content)) {
        Ok(config) => config,
        Err(error) => return is_one_line(&error),
    };
    config.model.validate().expect("what is planned is possible");
    reads_back(folder, &config);
    let again = planned(&folder.path().join("config.toml")).expect("what was saved can be planned");
    assert_eq!(again.to_toml(), config.to_toml(), "another run after saving");
}

fn planned(path: &Path) -> gradus_train::Result<TrainConfig> {
    gradus_cli::planned(&["--config", path.to_str().expect("a path of ours")])
}

/// Each kind, with every key that it knows.
pub fn seeds() -> Vec<Vec<u8>> {
    let options = "preset = 'nano'\nwidth = 64\nheads = 4\nbatch = 'adaptive:8'\nclip = 'value:0.5'\ntime = '1h30m'\n\
        recompute = 'every:2'\nmemory = '80%'\ntokenizer = 'byte'\nvalidation = 0.1\nschedule = 'wsd'\nseed = 3\n";
    let folder = Folder::new();
    let config = planned(&folder.write("options.toml", options.as_bytes())).expect("options that fit");
    let gpt2 = r#"{"model_type": "gpt2", "n_embd": 6, "n_layer": 2, "n_head": 3, "n_positions": 7, "n_inner": null,
        "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "vocab_size": 13, "tie_word_embeddings": true}"#;
    let llama = r#"{"model_type": "llama", "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3,
        "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 18, "max_position_embeddings": 7, "vocab_size": 13,
        "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "hidden_act": "silu", "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": false}"#;
    let text = config.to_toml();
    [(0, &text[..]), (1, gpt2), (1, llama), (2, options), (2, &text[..])]
        .map(|(choice, text)| [&[choice], text.as_bytes()].concat())
        .to_vec()
}

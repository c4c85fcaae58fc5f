use super::*;
use crate::files::testing::{Folder, Given};
use gradus_engine::{DType, TensorType};
use gradus_kernels::{bf16, f16};
use std::collections::BTreeMap;

/// Tensors as a file holds them, by name.
type Stored = BTreeMap<String, (TensorType, Vec<u8>)>;

fn gpt2() -> ModelConfig {
    ModelConfig { feed_forward: 20, norm_epsilon: 3e-6, ..ModelConfig::gpt2(13, 6, 2, 3, 7) }
}

fn llama() -> ModelConfig {
    let sizes = ModelConfig::llama(13, 12, 2, 3, 7);
    ModelConfig { kv_heads: 1, feed_forward: 18, norm_epsilon: 1e-6, rope_theta: 500_000.0, ..sizes }
}

/// Numbers that every stored type can hold, by name and place.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    (0..count).map(|index| ((index * 7 + name.len()) % 29) as f32 / 8.0 - 1.5).collect()
}

fn as_bytes<T: bytemuck::Pod>(numbers: &[f32], convert: impl Fn(f32) -> T) -> Vec<u8> {
    bytemuck::cast_slice(&numbers.iter().map(|&x| convert(x)).collect::<Vec<T>>()).to_vec()
}

fn entries(config: &ModelConfig) -> Vec<Entry> {
    Entry::of_parameters(&config.parameters())
}

fn weights(config: &ModelConfig) -> Given {
    let bytes = |entry: &Entry| as_bytes(&numbers(&entry.name, entry.ty.shape.elements()), |x| x);
    entries(config).iter().map(|entry| (entry.name.clone(), bytes(entry))).collect()
}

/// Writes tensors of any name and type, in place of those that are there.
fn write_weights(path: &Path, tensors: &Stored) {
    let _ = fs::remove_file(path);
    let entry = |(name, (ty, _)): (&String, &(TensorType, Vec<u8>))| Entry { name: name.clone(), ty: ty.clone() };
    let entries: Vec<Entry> = tensors.iter().map(entry).collect();
    let given: Given = tensors.iter().map(|(name, (_, bytes))| (name.clone(), bytes.clone())).collect();
    tensors::write(path, &entries, &given).unwrap();
}

/// The model's tensors under names and in a type that others may have chosen.
fn stored(config: &ModelConfig, dtype: DType, rename: impl Fn(&str) -> String) -> Stored {
    let one = |entry: Entry| {
        let numbers = numbers(&entry.name, entry.ty.shape.elements());
        let bytes = match dtype {
            DType::F16 => as_bytes(&numbers, f16::from_f32),
            DType::Bf16 => as_bytes(&numbers, bf16::from_f32),
            _ => as_bytes(&numbers, |x| x),
        };
        (rename(&entry.name), (TensorType::new(dtype, &entry.ty.shape), bytes))
    };
    entries(config).into_iter().map(one).collect()
}

#[track_caller]
fn holds(folder: &Path, config: &ModelConfig) {
    let mut found = Given::new();
    read_model_weights(folder, config, &mut found).unwrap();
    assert_eq!(found, weights(config));
}

#[track_caller]
fn refused(result: Result<impl Sized>, words: &[&str]) {
    let error = result.err().expect("an error").to_string();
    for word in words {
        assert!(error.contains(word), "{error:?} should say {word:?}");
    }
    assert!(!error.contains('\n'), "{error:?} is one line");
}

#[test]
fn an_exported_model_comes_back_and_is_replaced_whole() {
    let folder = Folder::new("export-whole");
    let model = folder.path().join("model");
    let save_tokenizer = |path: &Path| {
        let text = r#"{"added_tokens": [{"id": 12, "content": "<|endoftext|>"}]}"#;
        atomic::write_file(path, text.as_bytes())
    };
    let untied = |config: ModelConfig| ModelConfig { tie_embeddings: false, ..config };
    for config in [llama(), gpt2(), untied(gpt2())] {
        let weights = weights(&config);
        let export =
            Export { config: &config, weights: &weights, save_tokenizer: &save_tokenizer, end_of_text: Some(12) };
        export.write(&model).unwrap();
        assert_eq!(read_model_config(&model).unwrap(), config);
        holds(&model, &config);
    }
    let read = |name: &str| serde_json::from_str::<Value>(&fs::read_to_string(model.join(name)).unwrap()).unwrap();
    assert_eq!(read("config.json")["layer_norm_epsilon"].to_string(), "3e-6");
    assert_eq!(read("generation_config.json")["eos_token_id"], 12);
    assert_eq!(read("tokenizer_config.json")["eos_token"], "<|endoftext|>");
    assert_eq!(fs::read_dir(&model).unwrap().count(), 5);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn both_families_keep_their_sizes_in_config_json() {
    let folder = Folder::new("export-config");
    for config in [gpt2(), llama(), ModelConfig { tie_embeddings: true, ..llama() }] {
        write_json(&folder.path().join(CONFIG), &config::to_json(&config, None)).unwrap();
        assert_eq!(read_model_config(folder.path()).unwrap(), config);
    }
}

#[test]
fn missing_keys_have_the_published_values() {
    let folder = Folder::new("export-defaults");
    let read = |text: &str| {
        fs::write(folder.path().join(CONFIG), text).unwrap();
        read_model_config(folder.path()).unwrap()
    };
    let gpt2 = read(r#"{"model_type": "gpt2", "n_inner": null}"#);
    assert_eq!(gpt2, ModelConfig::gpt2(50_257, 768, 12, 12, 1024));
    let llama = read(r#"{"model_type": "llama", "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}"#);
    assert_eq!((llama.width, llama.kv_heads, llama.feed_forward, llama.context), (4096, 32, 11_008, 2048));
    assert_eq!((llama.norm_epsilon, llama.rope_theta, llama.tie_embeddings), (1e-6, 5e5, false));
}

#[test]
fn what_cannot_be_computed_is_refused() {
    let folder = Folder::new("export-refused");
    let refuses = |text: &str, words: &[&str]| {
        fs::write(folder.path().join(CONFIG), text).unwrap();
        refused(read_model_config(folder.path()), &[words, &["config.json"]].concat());
    };
    refused(read_model_config(folder.path()), &["holds no config.json"]);
    refuses("{", &["broken JSON"]);
    refuses("[1]", &["not a model's configuration"]);
    refuses("{}", &["\"\" are not known", "gpt2 and llama"]);
    refuses(r#"{"model_type": "mamba"}"#, &["\"mamba\""]);
    refuses(r#"{"model_type": "gpt2", "activation_function": "relu"}"#, &["\"relu\"", "\"gelu_new\""]);
    refuses(r#"{"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}"#, &["layer_idx true"]);
    refuses(r#"{"model_type": "gpt2", "n_embd": "wide"}"#, &["n_embd is \"wide\"", "whole number"]);
    refuses(r#"{"model_type": "gpt2", "quantization_config": {}}"#, &["quantization_config"]);
    refuses(r#"{"model_type": "llama", "attention_bias": true}"#, &["attention_bias true"]);
    refuses(r#"{"model_type": "llama", "rope_scaling": {"factor": 8}}"#, &["rope_scaling"]);
    refuses(r#"{"model_type": "llama", "rope_parameters": {"rope_type": "llama3"}}"#, &["\"llama3\""]);
    refuses(r#"{"model_type": "llama", "sliding_window": 4096}"#, &["sliding_window"]);
    refuses(r#"{"model_type": "llama", "head_dim": 64}"#, &["head_dim 64", "128"]);
    refuses(r#"{"model_type": "llama", "num_attention_heads": 0}"#, &["heads"]);
    refuses(r#"{"model_type": "gpt2", "n_embd": 770}"#, &["770", "12"]);
}

#[test]
fn weights_are_read_as_others_store_them() {
    let folder = Folder::new("export-stored");
    let path = folder.path().join(WEIGHTS);
    let config = gpt2();
    let same = |name: &str| name.to_string();
    let bare = |name: &str| name.replace("transformer.", "");
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        write_weights(&path, &stored(&config, dtype, same));
        holds(folder.path(), &config);
    }
    // Without the prefix, with a mask, and with the tied projection stored again.
    let mut tensors = stored(&config, DType::F32, bare);
    tensors.insert("h.0.attn.bias".to_string(), (TensorType::new(DType::U32, [7]), vec![1; 28]));
    tensors.insert("lm_head.weight".to_string(), (TensorType::new(DType::F32, [13, 6]), vec![0; 13 * 6 * 4]));
    write_weights(&path, &tensors);
    holds(folder.path(), &config);

    // In several files.
    fs::remove_file(&path).unwrap();
    let mut second = stored(&config, DType::F32, same);
    let first: BTreeMap<_, _> = (0..4).map(|_| second.pop_last().unwrap()).collect();
    let mut map = serde_json::Map::new();
    for (name, part) in [("model-1.safetensors", &first), ("model-2.safetensors", &second)] {
        write_weights(&folder.path().join(name), part);
        map.extend(part.keys().map(|key| (key.clone(), json!(name))));
    }
    let index = folder.path().join("model.safetensors.index.json");
    write_json(&index, &json!({ "weight_map": map })).unwrap();
    holds(folder.path(), &config);

    let read = || read_model_weights(folder.path(), &config, &mut Given::new());
    for text in ["{}", "text", r#"{"weight_map": {"a": "../elsewhere"}}"#, r#"{"weight_map": {"a": 1}}"#] {
        fs::write(&index, text).unwrap();
        refused(read(), &["not an index of weight files"]);
    }
}

#[test]
fn weights_that_do_not_fit_are_named() {
    let folder = Folder::new("export-unfit");
    let config = gpt2();
    let read = || read_model_weights(folder.path(), &config, &mut Given::new());
    refused(read(), &["holds neither model.safetensors", "save_pretrained"]);
    let whole = stored(&config, DType::F32, |name| name.to_string());
    let refuses = |change: &dyn Fn(&mut Stored), words: &[&str]| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        write_weights(&folder.path().join(WEIGHTS), &tensors);
        refused(read(), &[words, &["of another model"]].concat());
    };
    let other = |dtype: DType| (TensorType::new(dtype, [3]), vec![0; 3 * dtype.size()]);
    refuses(&|all| drop(all.remove("transformer.ln_f.bias")), &["\"transformer.ln_f.bias\" is missing"]);
    refuses(&|all| drop(all.insert("spare".into(), other(DType::F32))), &["\"spare\" is f32[3] and not in the model"]);
    refuses(
        &|all| drop(all.insert("transformer.ln_f.bias".into(), other(DType::F32))),
        &["\"transformer.ln_f.bias\" is f32[3] instead of", "[6]"],
    );
    refuses(&|all| all.get_mut("transformer.ln_f.bias").unwrap().0.dtype = DType::I32, &["is i32[6] instead of"]);
    refuses(
        &|all| drop(all.insert("ln_f.bias".into(), all["transformer.ln_f.bias"].clone())),
        &["\"transformer.ln_f.bias\" is there twice"],
    );
}

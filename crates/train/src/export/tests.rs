use super::*;
use crate::files::testing::{Folder, Given};
use crate::models::{Family, RopeScaling};
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

/// Models with every choice that some family has.
fn chosen() -> Vec<ModelConfig> {
    let model = |family: Family| ModelConfig { kv_heads: 1, ..ModelConfig::new(family, 13, 12, 3, 3, 7) };
    let scaling = RopeScaling { factor: 8.0, low_freq_factor: 1.5, high_freq_factor: 4.0, original_context: 5 };
    vec![
        ModelConfig { rope_scaling: Some(scaling), attention_bias: true, ..model(Family::Llama).with_head_size(6) },
        ModelConfig { mlp_bias: true, rope_theta: 77.0, ..model(Family::Llama) },
        ModelConfig { window: Some(3), ..model(Family::Mistral).with_head_size(10) },
        ModelConfig { rope_scaling: Some(scaling), tie_embeddings: true, ..model(Family::Mistral) },
        ModelConfig { window: Some(3), full_layers: 2, ..model(Family::Qwen2) },
        ModelConfig { norm_epsilon: 1e-6, ..model(Family::Qwen2) },
        ModelConfig { window: Some(3), attention_bias: true, ..model(Family::Qwen3).with_head_size(2) },
        ModelConfig { tie_embeddings: true, ..model(Family::Qwen3) },
    ]
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

/// A folder in f32 of a model that came from nowhere.
fn export<'a>(config: &'a ModelConfig, weights: &'a Given, tokenizer: &'a Tokenizer) -> Export<'a> {
    Export { config, weights, dtype: ExportDtype::F32, tokenizer, origin: None }
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
    let tokenizer = Tokenizer::bytes();
    let untied = |config: ModelConfig| ModelConfig { tie_embeddings: false, ..config };
    for config in chosen().into_iter().chain([llama(), gpt2(), untied(gpt2())]) {
        let weights = weights(&config);
        export(&config, &weights, &tokenizer).write(&model).unwrap();
        assert_eq!(read_model_config(&model).unwrap(), config);
        holds(&model, &config);
    }
    let read = |name: &str| serde_json::from_str::<Value>(&fs::read_to_string(model.join(name)).unwrap()).unwrap();
    assert_eq!(read("config.json")["layer_norm_epsilon"].to_string(), "3e-6");
    assert_eq!(read("generation_config.json")["eos_token_id"], 256);
    assert_eq!(read("tokenizer_config.json")["eos_token"], "<|endoftext|>");
    assert_eq!(fs::read_dir(&model).unwrap().count(), 5);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn every_family_keeps_its_sizes_in_config_json() {
    let folder = Folder::new("export-config");
    for config in chosen().into_iter().chain([gpt2(), llama(), ModelConfig { tie_embeddings: true, ..llama() }]) {
        write_json(&folder.path().join(CONFIG), &Value::Object(config::sizes_json(&config))).unwrap();
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
    refuses("[1]", &["not a JSON object"]);
    refuses("{}", &["\"\" are not known", "only gpt2, llama, mistral, qwen2, qwen3"]);
    refuses(r#"{"model_type": "mamba"}"#, &["\"mamba\""]);
    refuses(r#"{"model_type": "gpt2", "activation_function": "relu"}"#, &["\"relu\"", "\"gelu_new\""]);
    refuses(r#"{"model_type": "gpt2", "scale_attn_by_inverse_layer_idx": true}"#, &["layer_idx true", "only false"]);
    refuses(r#"{"model_type": "gpt2", "n_embd": "wide"}"#, &["n_embd is \"wide\"", "whole number"]);
    refuses(r#"{"model_type": "gpt2", "quantization_config": {}}"#, &["quantization_config"]);
    refuses(r#"{"model_type": "mistral", "attention_bias": true}"#, &["attention_bias is not understood"]);
    refuses(r#"{"model_type": "mistral", "layer_types": ["full_attention"]}"#, &["layer_types is not understood"]);
    refuses(r#"{"model_type": "mistral", "sliding_window": 0}"#, &["window is 0"]);
    refuses(r#"{"model_type": "qwen2", "mlp_bias": true}"#, &["mlp_bias is not understood"]);
    refuses(r#"{"model_type": "qwen2", "use_mrope": true}"#, &["use_mrope true"]);
    refuses(r#"{"model_type": "qwen3", "head_dim": null}"#, &["head_dim is null"]);
    refuses(r#"{"model_type": "qwen3", "head_dim": 33}"#, &["head-size is 33", "even"]);
    refuses(r#"{"model_type": "qwen3", "num_experts": 8}"#, &["num_experts is not understood"]);
    refuses(r#"{"model_type": "llama", "rope_scaling": {"factor": 8}}"#, &["rope_scaling.factor is not understood"]);
    refuses(r#"{"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}}"#, &["\"yarn\"", "only \"default\" and"]);
    refuses(r#"{"model_type": "llama", "sliding_window": 4096}"#, &["sliding_window"]);
    refuses(
        r#"{"model_type": "llama", "hidden_size": 100, "head_dim": 64}"#,
        &["width 100 is not divisible by heads 32"],
    );
    refuses(r#"{"model_type": "llama", "num_attention_heads": 0}"#, &["heads"]);
    refuses(r#"{"model_type": "gpt2", "n_embd": 770}"#, &["770", "12"]);
}

#[test]
fn every_family_goes_on_as_it_came() {
    let folder = Folder::new("export-families");
    let [came, run, went] = ["came", "run", "went"].map(|name| folder.path().join(name));
    let tokenizer = Tokenizer::bytes();
    for config in chosen() {
        let weights = weights(&config);
        export(&config, &weights, &tokenizer).write(&came).unwrap();
        fs::create_dir_all(&run).unwrap();
        keep_companions(&came, &run, &tokenizer).unwrap();
        let kept = run.join(COMPANIONS_FOLDER);
        Export { origin: Some(&kept), ..export(&config, &weights, &tokenizer) }.write(&went).unwrap();
        assert_eq!(read_json(&went.join(CONFIG)).unwrap(), read_json(&came.join(CONFIG)).unwrap());
        // What is trained otherwise after all is stated, and nothing of what was.
        let plain = ModelConfig { window: None, full_layers: 0, rope_scaling: None, ..config.clone() };
        Export { origin: Some(&kept), ..export(&plain, &weights, &tokenizer) }.write(&went).unwrap();
        assert_eq!(read_model_config(&went).unwrap(), plain);
        fs::remove_dir_all(&run).unwrap();
    }
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
    tensors.insert("lm_head.weight".to_string(), tensors["wte.weight"].clone());
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
    for text in ["{}", r#"{"weight_map": {"a": "../elsewhere"}}"#, r#"{"weight_map": {"a": 1}}"#] {
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

#[test]
fn rotary_positions_are_read_wherever_they_are_stated() {
    let folder = Folder::new("export-rotary");
    let read = |settings: &str| {
        fs::write(folder.path().join(CONFIG), format!(r#"{{"model_type": "llama", {settings}}}"#)).unwrap();
        read_model_config(folder.path())
    };
    for (settings, theta) in [
        (r#""use_cache": true"#, 1e4),
        (r#""rope_theta": 500"#, 500.0),
        (r#""rope_theta": 500.0, "rope_parameters": {"rope_type": "default"}"#, 500.0),
        (r#""rope_theta": 500.0, "rope_parameters": {}"#, 500.0),
        (r#""rope_theta": 500.0, "rope_parameters": null, "rope_scaling": null"#, 500.0),
        (r#""rope_theta": 500.0, "rope_parameters": {"rope_theta": 300.0}"#, 300.0),
        (r#""rope_theta": 500.0, "rope_scaling": {"rope_type": "default"}"#, 500.0),
        (r#""rope_theta": 500.0, "rope_scaling": {"type": "default"}"#, 500.0),
        (r#""rope_scaling": {"rope_theta": 300.0}, "rope_parameters": {"rope_theta": 700.0}"#, 300.0),
        (r#""rope_parameters": {"rope_theta": 300.0, "partial_rotary_factor": 1.0}"#, 300.0),
    ] {
        assert_eq!(read(settings).unwrap().rope_theta, theta, "{settings}");
    }
    for (settings, words) in [
        (
            r#""rope_parameters": {"type": "linear", "factor": 2}"#,
            "rope_parameters.rope_type \"linear\" is not supported",
        ),
        (r#""rope_parameters": {"type": "default", "factor": 2}"#, "rope_parameters.factor is not understood"),
        (r#""rope_scaling": {"rope_type": "llama3"}"#, "rope_scaling.factor is missing"),
        (r#""rope_scaling": {"type": "dynamic", "factor": 2.0}"#, "rope_scaling.rope_type \"dynamic\""),
        (
            r#""rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}"#,
            "rope-scaling is llama3:8,4,1,2048; its four numbers",
        ),
        (
            r#""rope_scaling": {"rope_type": "llama3", "factor": 8, "attention_factor": 2}"#,
            "rope_scaling.attention_factor is not understood",
        ),
        (r#""rope_scaling": "linear""#, "rope_scaling is \"linear\" and should be an object"),
        (r#""rope_parameters": {"full_attention": {}}"#, "rope_parameters.full_attention is not understood"),
        (r#""rope_parameters": {"partial_rotary_factor": 0.5}"#, "rope_parameters.partial_rotary_factor 0.5"),
        (r#""rope_theta": null"#, "rope_theta is null"),
        (r#""rope_parameters": {"rope_theta": null}"#, "rope_parameters.rope_theta is null"),
    ] {
        refused(read(settings), &[words]);
    }
}

#[test]
fn scaled_rotary_positions_are_read_wherever_they_are_stated() {
    let folder = Folder::new("export-scaling");
    let numbers = r#""factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0"#;
    for (settings, original_context, theta) in [
        (format!(r#""rope_theta": 5e5, "rope_scaling": {{"rope_type": "llama3", {numbers}}}"#), 64, 5e5),
        (
            format!(
                r#""rope_parameters": {{"rope_type": "llama3", "rope_theta": 300, {numbers}, "original_max_position_embeddings": 16}}"#
            ),
            16,
            300.0,
        ),
    ] {
        let text = format!(r#"{{"model_type": "llama", "max_position_embeddings": 64, {settings}}}"#);
        fs::write(folder.path().join(CONFIG), text).unwrap();
        let read = read_model_config(folder.path()).unwrap();
        let expected = RopeScaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context };
        assert_eq!((read.rope_scaling, read.rope_theta), (Some(expected), theta), "{settings}");
    }
}

#[test]
fn windows_are_read_as_they_are_meant() {
    let folder = Folder::new("export-window");
    let read = |settings: &str| {
        let text = format!(r#"{{"num_hidden_layers": 4, {settings}}}"#);
        fs::write(folder.path().join(CONFIG), text).unwrap();
        read_model_config(folder.path()).map(|model| (model.window, model.full_layers))
    };
    for (settings, expected) in [
        (r#""model_type": "mistral""#, (Some(4096), 0)),
        (r#""model_type": "mistral", "sliding_window": 9"#, (Some(9), 0)),
        (r#""model_type": "mistral", "sliding_window": null"#, (None, 0)),
        (r#""model_type": "qwen2""#, (None, 0)),
        (r#""model_type": "qwen2", "sliding_window": 9, "max_window_layers": 1"#, (None, 0)),
        (r#""model_type": "qwen2", "use_sliding_window": true, "max_window_layers": 1"#, (Some(4096), 1)),
        (r#""model_type": "qwen3", "use_sliding_window": true, "sliding_window": 9"#, (None, 0)),
        (
            r#""model_type": "qwen3", "use_sliding_window": true, "sliding_window": null, "max_window_layers": 0"#,
            (None, 0),
        ),
        (
            r#""model_type": "qwen3", "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 0,
               "layer_types": ["full_attention", "full_attention", "sliding_attention", "sliding_attention"]"#,
            (Some(9), 2),
        ),
        (
            r#""model_type": "qwen3", "sliding_window": 9,
               "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention"]"#,
            (None, 0),
        ),
    ] {
        assert_eq!(read(settings).unwrap(), expected, "{settings}");
    }
    for (types, words) in [
        (r#"["full_attention"]"#, "layer_types is not 4 times"),
        (
            r#"["chunked_attention", "full_attention", "full_attention", "full_attention"]"#,
            "layer_types is not 4 times",
        ),
        (
            r#"["sliding_attention", "full_attention", "full_attention", "sliding_attention"]"#,
            "layer_types has full_attention after",
        ),
    ] {
        refused(
            read(&format!(r#""model_type": "qwen2", "use_sliding_window": true, "layer_types": {types}"#)),
            &[words],
        );
    }
    let types = r#"["full_attention", "full_attention", "full_attention", "sliding_attention"]"#;
    refused(read(&format!(r#""model_type": "qwen2", "layer_types": {types}"#)), &["no window is used"]);
}

#[test]
fn a_key_that_is_not_understood_is_refused_by_its_name() {
    let folder = Folder::new("export-keys");
    let read = |text: &str| {
        fs::write(folder.path().join(CONFIG), text).unwrap();
        read_model_config(folder.path())
    };
    for (text, words) in [
        (r#"{"model_type": "llama", "logit_scale": 0.5}"#, "logit_scale is not understood"),
        (r#"{"model_type": "gpt2", "al\u001bibi": true}"#, r"al\u{1b}ibi is not understood"),
        (r#"{"model_type": "gpt2", "rope_theta": 500}"#, "rope_theta is not understood"),
        (r#"{"model_type": "llama", "n_embd": 64}"#, "n_embd is not understood"),
        (r#"{"model_type": "llama", "per_layer_config": {"0": {}}}"#, "per_layer_config"),
        (r#"{"model_type": "llama", "pruned_heads": {"0": [1]}}"#, "pruned_heads"),
        (r#"{"model_type": "gpt2", "scale_attn_weights": null}"#, "scale_attn_weights null is not supported"),
        (r#"{"model_type": "gpt2", "tie_word_embeddings": null}"#, "tie_word_embeddings is null"),
        (r#"{"model_type": "llama", "rms_norm_eps": null}"#, "rms_norm_eps is null"),
        (
            r#"{"model_type": "gpt2", "n_head": 12, "num_attention_heads": 6}"#,
            "num_attention_heads is 6 and n_head is 12",
        ),
    ] {
        refused(read(text), &[words, "config.json"]);
    }
    let harmless = r#"{"model_type": "gpt2", "hidden_size": 36, "n_head": 3, "n_ctx": 5, "temperature": 2, "pruned_heads": {},
        "num_attention_heads": 3, "reorder_and_upcast_attn": true, "eos_token_id": [1, 2], "quantization_config": null}"#;
    assert_eq!(read(harmless).unwrap(), ModelConfig::gpt2(50_257, 36, 12, 3, 1024));
}

#[test]
fn a_projection_that_is_stored_is_used_whatever_the_configuration_says() {
    let folder = Folder::new("export-head");
    let same = |name: &str| name.to_string();
    let untied = ModelConfig { tie_embeddings: false, ..gpt2() };
    write_json(&folder.path().join(CONFIG), &Value::Object(config::sizes_json(&gpt2()))).unwrap();
    write_weights(&folder.path().join(WEIGHTS), &stored(&untied, DType::Bf16, same));
    assert_eq!(read_model_config(folder.path()).unwrap(), untied);
    holds(folder.path(), &untied);
    refused(read_model_weights(folder.path(), &gpt2(), &mut Given::new()), &["lm_head.weight differs"]);
    // The same numbers, stored in another type.
    let mut tensors = stored(&gpt2(), DType::Bf16, same);
    let table = stored(&gpt2(), DType::F32, same).remove("transformer.wte.weight").unwrap();
    tensors.insert("lm_head.weight".to_string(), table);
    write_weights(&folder.path().join(WEIGHTS), &tensors);
    assert_eq!(read_model_config(folder.path()).unwrap(), gpt2());
    holds(folder.path(), &gpt2());
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let folder = Folder::new("export-nan");
    let name = "transformer.h.1.mlp.c_fc.bias";
    for (number, told) in [(f32::NAN, "holds NaN at place 3"), (f32::NEG_INFINITY, "holds -inf at place 3")] {
        let mut tensors = stored(&gpt2(), DType::F32, |name| name.to_string());
        tensors.get_mut(name).unwrap().1[12..16].copy_from_slice(&number.to_le_bytes());
        write_weights(&folder.path().join(WEIGHTS), &tensors);
        refused(read_model_weights(folder.path(), &gpt2(), &mut Given::new()), &[name, told]);
    }
}

#[test]
fn weights_are_stored_in_the_type_that_is_asked_for() {
    let folder = Folder::new("export-dtype");
    let (config, tokenizer) = (llama(), Tokenizer::bytes());
    let weights = weights(&config);
    for (dtype, stored, name) in [
        (ExportDtype::Bf16, DType::Bf16, "bfloat16"),
        (ExportDtype::F16, DType::F16, "float16"),
        (ExportDtype::F32, DType::F32, "float32"),
    ] {
        let model = folder.path().join(name);
        Export { dtype, ..export(&config, &weights, &tokenizer) }.write(&model).unwrap();
        holds(&model, &config);
        assert_eq!(stored_dtype(&model, &config).unwrap(), dtype);
        let file = tensors::TensorFile::open(&model.join(WEIGHTS)).unwrap();
        assert!(file.names().iter().all(|name| file.ty(name).unwrap().dtype == stored));
        assert_eq!(read_json(&model.join(CONFIG)).unwrap()["torch_dtype"], name);
    }
}

#[test]
fn a_weight_that_a_type_has_no_room_for_is_not_stored_as_infinite() {
    let folder = Folder::new("export-room");
    let (config, tokenizer) = (llama(), Tokenizer::bytes());
    let mut weights = weights(&config);
    weights.get_mut("model.norm.weight").unwrap()[..4].copy_from_slice(&70_000f32.to_le_bytes());
    let model = folder.path().join("model");
    let export = |dtype| Export { dtype, ..export(&config, &weights, &tokenizer) }.write(&model);
    refused(export(ExportDtype::F16), &["model.norm.weight", "holds 70000, which f16 has no room for"]);
    assert!(!model.exists());
    export(ExportDtype::Bf16).unwrap();
}

#[test]
fn a_model_goes_on_with_what_it_came_with() {
    let folder = Folder::new("export-origin");
    let [came, run, went] = ["came", "run", "went"].map(|name| folder.path().join(name));
    let (config, tokenizer) = (llama(), Tokenizer::bytes());
    let weights = weights(&config);
    export(&config, &weights, &tokenizer).write(&came).unwrap();
    // Stated as tied, but with a projection of its own.
    let mut settings = read_json(&came.join(CONFIG)).unwrap();
    settings.extend([("tie_word_embeddings".into(), json!(true)), ("pad_token_id".into(), json!(7))]);
    write_json(&came.join(CONFIG), &Value::Object(settings.clone())).unwrap();
    write_json(&came.join(GENERATION), &json!({ "top_p": 0.5 })).unwrap();
    fs::write(came.join("chat_template.jinja"), "{{ messages }}").unwrap();
    fs::create_dir(&run).unwrap();
    keep_companions(&came, &run, &tokenizer).unwrap();
    let kept = run.join(COMPANIONS_FOLDER);
    assert_eq!(read_model_config(&kept).unwrap(), config, "what is kept needs no weights to be read rightly");
    Export { origin: Some(&kept), ..export(&config, &weights, &tokenizer) }.write(&went).unwrap();
    settings.insert("tie_word_embeddings".into(), json!(false));
    assert_eq!(read_json(&went.join(CONFIG)).unwrap(), settings);
    assert_eq!(read_json(&went.join(GENERATION)).unwrap()["top_p"], 0.5);
    assert_eq!(fs::read_to_string(went.join("chat_template.jinja")).unwrap(), "{{ messages }}");
    // Sizes that changed after all are those of the weights.
    let longer = ModelConfig { context: 9, rope_theta: 3.0, ..config };
    Export { origin: Some(&kept), ..export(&longer, &weights, &tokenizer) }.write(&went).unwrap();
    assert_eq!(read_model_config(&went).unwrap(), longer);
    assert_eq!(read_json(&went.join(CONFIG)).unwrap()["pad_token_id"], 7);
    // Another tokenizer must have the same tokens.
    let other = Tokenizer::characters([Ok("abc")]).unwrap();
    fs::remove_dir_all(&kept).unwrap();
    refused(keep_companions(&came, &run, &other), &["token 0 is \"a\"", "leave `settings.tokenizer` out"]);
    assert!(!kept.exists());
}

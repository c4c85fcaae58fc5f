//! A model folder from outside, made by `tests/parity/make_folder.py`: what is computed with it is what `transformers`
//! computes, and a run that starts from it keeps all that it came with.

mod support;

use safetensors::SafeTensors;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::Place;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama_folder")
}

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))).unwrap()
}

fn expected() -> Value {
    json_of(&fixture().join("expected.json"))
}

/// A place with a copy of the folder as `model`.
fn place(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir(place.0.join("model")).unwrap();
    for entry in fs::read_dir(fixture()).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, place.0.join("model").join(path.file_name().unwrap())).unwrap();
    }
    place
}

impl Place {
    fn write_text(&self) {
        fs::write(self.0.join("text.txt"), "once upon a time there was a cat .\n".repeat(40)).unwrap();
    }

    /// Changes keys of a JSON file of the model; null takes a key out.
    fn change(&self, file: &str, changes: Value) {
        let path = self.0.join("model").join(file);
        let mut settings = json_of(&path);
        for (key, value) in changes.as_object().unwrap() {
            match value {
                Value::Null => drop(settings.as_object_mut().unwrap().remove(key)),
                value => settings[key] = value.clone(),
            }
        }
        fs::write(path, settings.to_string()).unwrap();
    }

    /// The likeliest continuation.
    fn greedy(&self, prompt: &str, more: &[&str]) -> String {
        let arguments = ["generate", "model", "--temperature", "0", "--max-tokens", "40", "--prompt", prompt];
        self.printed(&[&arguments, more].concat())
    }

    /// Trains so little that no stored weight changes.
    fn fine_tune(&self, more: &[&str]) {
        self.write_text();
        let arguments = ["train", "text.txt", "--init", "model", "--out", "run", "--steps", "1", "--sequence", "16"];
        let more = [&["--learning-rate", "1e-12", "--batch", "2", "--quiet"], more].concat();
        self.printed(&[&arguments[..], &more].concat());
    }
}

#[test]
fn text_is_written_in_every_precision() {
    let (place, expected) = (place("models-precision"), expected());
    let [prompt, text] = ["prompt", "text"].map(|key| expected["texts"][0][key].as_str().unwrap());
    for precision in ["f32", "bf16", "f16"] {
        assert_eq!(place.greedy(prompt, &["--precision", precision]), format!("{prompt}{text}\n"), "{precision}");
    }
}

#[test]
fn greedy_text_and_loss_are_those_of_transformers() {
    let (place, expected) = (place("models-greedy"), expected());
    for text in expected["texts"].as_array().unwrap() {
        let prompt = text["prompt"].as_str().unwrap();
        assert_eq!(place.greedy(prompt, &[]), format!("{prompt}{}\n", text["text"].as_str().unwrap()));
    }
    fs::write(place.0.join("text.txt"), expected["text"].as_str().unwrap()).unwrap();
    let evaluation: Value = serde_json::from_str(&place.printed(&["eval", "model", "text.txt", "--json"])).unwrap();
    assert_eq!(evaluation["tokens"], expected["predicted"]);
    let [loss, theirs] = [&evaluation, &expected].map(|of| of["loss"].as_f64().unwrap());
    assert!((loss - theirs).abs() < 1e-5 * theirs, "{loss}, transformers {theirs}");
}

/// `tests/fixtures/curvature_folder.py` found the same by PyTorch's double backward in f64, with an exact trace.
#[test]
fn curvature_is_that_of_pytorch() {
    let place = place("models-curvature");
    let known = json_of(&fixture().join("../curvature_folder.json"));
    let number = |of: &Value, name: &str| of[name].as_f64().unwrap_or_else(|| panic!("{name} in {of}"));
    fs::write(place.0.join("text.txt"), known["text"].as_str().unwrap()).unwrap();
    let arguments = ["curvature", "model", "text.txt", "--sequences", "3", "--sequence", "16", "--steps", "40"];
    let json = |more: &[&str]| place.printed(&[&arguments[..], &["--json", "--samples", "256"], more].concat());
    let printed = json(&["--threads", "1"]);
    let found: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(found["parameters"], known["parameters"]);
    for (name, tolerance) in [("loss", 1e-5), ("largest_eigenvalue", 1e-4), ("smallest_eigenvalue", 1e-3)] {
        let (found, known) = (number(&found, name), number(&known, name));
        assert!((found - known).abs() < tolerance * known.abs(), "{name}: {found} not {known}");
    }
    let (error, off) = (number(&found, "trace_error"), number(&found, "trace") - number(&known, "trace"));
    // An estimate that says nothing would be any number from any other.
    assert!(
        off.abs() < 4.0 * error && error < 0.25 * number(&known, "trace").abs(),
        "off by {off}, said to be {error}"
    );
    let parts = found["parts"].as_array().unwrap();
    let names: Vec<&str> = parts.iter().filter_map(|part| part["name"].as_str()).collect();
    assert!(names.contains(&"layer 0") && names.contains(&"layer 1") && names.contains(&"lm_head.weight"), "{names:?}");
    assert!(
        parts.iter().all(|part| number(part, "largest_eigenvalue") <= number(&found, "largest_eigenvalue") * 1.001)
    );
    assert_eq!(json(&["--threads", "2"]), printed, "the same on any number of threads");
    assert_eq!(json(&["--threads", "2", "--memory", "60MB"]), printed, "and within a budget");
    let shown = place.gradus(&[&arguments[..], &["--out", "page.html"]].concat());
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.status.success() && text.contains("sharpness") && text.contains("learning rate        below"),
        "{text}"
    );
    let page = fs::read_to_string(place.0.join("page.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"), "{page}");
    // A page that cannot be written is refused before anything is computed.
    for out in ["missing/page.html", "model"] {
        let told = place.refused(&[&arguments[..], &["--out", out]].concat());
        assert!(told.contains(out.trim_end_matches("/page.html")), "{told}");
    }
}

#[test]
fn curvature_that_is_no_number_is_told() {
    let place = place("models-curvature-diverged");
    fs::write(place.0.join("text.txt"), "a few words and a few more").unwrap();
    let path = place.0.join("model/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let (first, length) = {
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let head = tensors.tensor("lm_head.weight").unwrap();
        assert_eq!(head.dtype(), safetensors::Dtype::BF16);
        (head.data().as_ptr() as usize - bytes.as_ptr() as usize, head.data().len())
    };
    // The upper half of 3e38 in f32.
    bytes[first..first + length]
        .chunks_exact_mut(2)
        .for_each(|number| number.copy_from_slice(&0x7f61_u16.to_le_bytes()));
    fs::write(&path, bytes).unwrap();
    let output = place.gradus(&["curvature", "model", "text.txt", "--sequences", "1", "--sequence", "4", "--json"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("grow beyond f32") && !said.contains(".rs"), "{said}");
}

#[test]
fn curvature_names_what_it_cannot_do() {
    let place = place("models-curvature-refused");
    fs::write(place.0.join("text.txt"), "a few words").unwrap();
    for (arguments, problem) in [
        (&["--sequences", "3", "--sequence", "16"][..], "tokens, and 49 are asked for; give fewer sequences"),
        (&["--sequence", "65"], "longer than the model's context of 64"),
        (&["--sequences", "0"], "--sequences"),
        (&["--samples", "1"], "--samples"),
        (&["--steps", "0"], "--steps"),
        (&["--sequences", "1", "--sequence", "2", "--memory", "1MB"], "at least"),
    ] {
        let refused = place.refused(&[&["curvature", "model", "text.txt"], arguments].concat());
        assert!(refused.contains(problem), "{arguments:?}: {refused}");
    }
    let missing = place.refused(&["curvature", "nothing", "text.txt"]);
    assert!(missing.contains("nothing"), "{missing}");
    assert!(place.refused(&["curvature", "model", "missing.txt"]).contains("missing.txt"));
}

#[test]
fn a_text_ends_where_the_settings_of_the_model_say() {
    let (place, expected) = (place("models-stops"), expected());
    let prompt = expected["texts"][0]["prompt"].as_str().unwrap();
    let stopped = place.greedy(prompt, &[]);
    let stop = &expected["stop"];
    place.change("generation_config.json", json!({ "eos_token_id": 2 }));
    let longer = place.greedy(prompt, &[]);
    assert!(longer.len() > stopped.len() && longer.starts_with(stopped.trim_end()), "{longer} goes on");
    // Without generation settings, those of the model's configuration count: a number or a list.
    fs::remove_file(place.0.join("model/generation_config.json")).unwrap();
    for stated in [stop.clone(), json!([2, stop])] {
        place.change("config.json", json!({ "eos_token_id": stated }));
        assert_eq!(place.greedy(prompt, &[]), stopped);
    }
    // Without those, the tokenizer's.
    place.change("config.json", json!({ "eos_token_id": null }));
    assert_eq!(place.greedy(prompt, &[]), longer);
}

#[test]
fn text_streams_in_order_and_a_prompt_comes_from_standard_input() {
    let place = place("models-stream");
    let prompt = "once upon a time";
    let one = place.greedy(prompt, &[]);
    let three = place.greedy(prompt, &["--count", "3"]);
    let parts = [1, 2, 3].map(|number| format!("--- {number} of 3 ---\n{one}"));
    assert_eq!(three, parts.join("\n"));
    for arguments in [&["--prompt", "-"][..], &[]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        command.args(["generate", "model", "--temperature", "0", "--max-tokens", "40"]).args(arguments);
        let mut child = command.current_dir(&place.0).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{prompt}\n").as_bytes()).unwrap();
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(text, one, "{arguments:?}");
    }
}

#[test]
fn text_is_there_before_the_last_token_is() {
    let place = place("models-live");
    place.change("generation_config.json", json!({ "eos_token_id": 307 }));
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
    command.args(["generate", "model", "--prompt", "once", "--max-tokens", "100000000", "--threads", "1"]);
    let mut child = command.current_dir(&place.0).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 40];
    let read = child.stdout.take().unwrap().read_exact(&mut first);
    child.kill().unwrap();
    child.wait().unwrap();
    read.unwrap();
    assert!(first.starts_with(b"once"), "{}", String::from_utf8_lossy(&first));
}

#[test]
fn bytes_that_are_no_text_are_shown() {
    let place = place("models-bytes");
    let text = place.greedy("the cat", &[]);
    assert_eq!(text.matches('\u{fffd}').count(), 2, "{text}");
    // The text ends within a character.
    let [short] = ["9", "10", "11"]
        .map(|count| place.greedy("the cat", &["--max-tokens", count]))
        .into_iter()
        .filter(|text| text.ends_with("\u{fffd}\n"))
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert!(text.starts_with(short.trim_end()), "{short}");
}

#[test]
fn what_a_model_cannot_be_used_for_is_named() {
    let place = place("models-refused");
    fs::write(place.0.join("text.txt"), "once upon a time ".repeat(400)).unwrap();
    let commands = [
        &["eval", "model", "text.txt"][..],
        &["generate", "model"],
        &["train", "text.txt", "--init", "model", "--out", "run", "--quiet"],
    ];
    // Weights that are not numbers.
    let weights = place.0.join("model/model.safetensors");
    let whole = fs::read(&weights).unwrap();
    let mut broken = whole.clone();
    let length = broken.len();
    broken[length - 2..].copy_from_slice(&0x7fc0u16.to_le_bytes());
    fs::write(&weights, broken).unwrap();
    for command in commands {
        let told = place.refused(command);
        assert!(told.contains("tensor \"model.norm.weight\" holds NaN"), "{told}");
    }
    fs::write(&weights, whole).unwrap();
    // A tokenizer of another model.
    let told = place.refused(&[commands[2], &["--tokenizer", "byte"]].concat());
    assert!(
        told.contains("token 0 is") && told.contains("\"<unk>\"") && told.contains("leave --tokenizer out"),
        "{told}"
    );
    assert!(!place.0.join("run").exists());
    // A tokenizer with more tokens than the model has room for.
    let tokenizer = place.0.join("model/tokenizer.json");
    let mut larger = json_of(&tokenizer);
    let added = json!({ "id": 308, "content": "<|more|>", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false });
    larger["added_tokens"].as_array_mut().unwrap().push(added);
    larger["model"]["vocab"]["<|more|>"] = json!(308);
    fs::write(&tokenizer, larger.to_string()).unwrap();
    for command in commands {
        let told = place.refused(command);
        assert!(told.contains("309 tokens and the model has room for 308"), "{told}");
    }
}

#[test]
fn a_fine_tuned_model_keeps_all_that_it_came_with() {
    let place = place("models-kept");
    place.fine_tune(&[]);
    let [came, went] = ["model", "run/model"].map(|folder| place.0.join(folder));
    for file in fs::read_dir(&came).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        match &file[..] {
            "expected.json" => assert!(!went.join(file).exists(), "only what belongs to a model"),
            "config.json" | "generation_config.json" => {
                assert_eq!(json_of(&came.join(&file)), json_of(&went.join(&file)), "{file}");
            }
            "model.safetensors" => {
                let [came, went] = [&came, &went].map(|folder| fs::read(folder.join(&file)).unwrap());
                let [came, went] = [&came, &went].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
                assert_eq!(came.len(), went.len());
                for (name, tensor) in came.tensors() {
                    assert!(tensor == went.tensor(&name).unwrap(), "{name}");
                }
            }
            _ => assert!(fs::read(came.join(&file)).unwrap() == fs::read(went.join(&file)).unwrap(), "{file}"),
        }
    }
    // What it was trained on begins and ends as the model's documents do.
    let tokens = fs::read(place.0.join("run/data/train.tokens")).unwrap();
    assert_eq!(tokens[64..66], 1u16.to_le_bytes(), "the first token is <s>");
    // Neither the model nor the tokenizer is needed any more to have this.
    fs::remove_dir_all(&came).unwrap();
    assert!(place.0.join("run/init/chat_template.jinja").exists());
}

#[test]
fn the_learning_rate_of_fine_tuning_is_said_when_the_run_begins() {
    let place = place("models-rate");
    place.write_text();
    let arguments = ["train", "text.txt", "--init", "model", "--out", "run", "--steps", "1", "--sequence", "16"];
    let output = place.gradus(&arguments);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.contains("the learning rate is 0.0001, a tenth of"), "{told}");
    let metrics = fs::read_to_string(place.0.join("run/metrics.jsonl")).unwrap();
    let rate = serde_json::from_str::<Value>(&metrics).unwrap()["learning_rate"].as_f64().unwrap();
    assert!(rate > 0.0 && rate < 1.01e-4, "{rate}");
}

#[test]
fn weights_are_stored_as_asked() {
    let place = place("models-dtype");
    place.fine_tune(&["--export-dtype", "f32"]);
    let model = place.0.join("run/model");
    assert_eq!(json_of(&model.join("config.json"))["dtype"], "float32");
    let sizes =
        [place.0.join("model"), model].map(|folder| fs::metadata(folder.join("model.safetensors")).unwrap().len());
    assert!(sizes[1] > sizes[0] * 18 / 10, "{sizes:?}");
    // From there on it is f32 unless asked otherwise.
    let arguments = ["train", "text.txt", "--init", "run", "--out", "second", "--steps", "1", "--sequence", "16"];
    place.printed(&[&arguments[..], &["--learning-rate", "1e-12", "--quiet", "--export-dtype", "f16"]].concat());
    assert_eq!(json_of(&place.0.join("second/model/config.json"))["dtype"], "float16");
    let config = fs::read_to_string(place.0.join("second/config.toml")).unwrap();
    assert!(config.contains("export-dtype = \"f16\""), "{config}");
}

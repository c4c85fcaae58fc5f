//! What the process has resident, as the system counts it: the stages before training, loading, and a stated budget.
#![cfg(target_os = "linux")]

#[path = "support/measured.rs"]
mod measured;

use measured::Ended;
use std::env;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder with a text, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    /// A text of about so many bytes, of words of which there are ever more, as in one that people write.
    fn new(name: &str, bytes: usize) -> Place {
        let folder = env::temp_dir().join(format!("gradus-memory-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut text = BufWriter::new(File::create(folder.join("text.txt")).unwrap());
        let (mut written, mut state) = (0, 1u64);
        while written < bytes {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (state >> 33) as f64 / (1u64 << 31) as f64;
            let end = if state.is_multiple_of(11) { '\n' } else { ' ' };
            let word = format!("w{:x}{end}", (number.powi(8) * 200_000.0) as u64);
            text.write_all(word.as_bytes()).unwrap();
            written += word.len();
        }
        text.flush().unwrap();
        Place(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs the command, which must succeed, and gives the most bytes that it had resident.
    fn peak(&self, arguments: &str) -> u64 {
        let Ended { code, peak, said } = measured::run(&self.0, arguments, Stdio::null());
        assert_eq!(code, 0, "{arguments}: {said}");
        peak
    }

    /// Has a command refused for too little memory, writing nothing, and then done with what it says is enough.
    fn keeps_what_it_says_is_enough(&self, command: &str, written: &str) {
        let said = self.refusal(&format!("{command} --memory 3MB"));
        assert!(said.contains("at least, so give --memory") && said.lines().count() == 1, "{command}: {said}");
        assert!(!self.path(written).exists(), "{command}");
        let smallest = said.split("so give --memory ").nth(1).unwrap().split("MB").next().unwrap();
        let limit: f64 = 1e6 * smallest.parse::<f64>().unwrap();
        let peak = self.peak(&format!("{command} --memory {smallest}MB"));
        assert!(peak as f64 <= limit, "{command}: {peak} bytes where {smallest} MB are said to be enough");
    }

    /// Runs the command, which must be refused, and gives what it says.
    fn refusal(&self, arguments: &str) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        let output = command.current_dir(&self.0).args(arguments.split_whitespace()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TINY: &str = "--width 16 --layers 1 --heads 2 --sequence 32 --batch 4 --steps 3 --quiet --threads 2";
/// A model whose weights are 13 MB.
const SMALL: &str = "--tokenizer byte --width 256 --layers 4 --heads 4 --sequence 32 --batch 2 --quiet --threads 2";

#[test]
fn a_large_text_takes_little_memory() {
    let place = Place::new("stages", 24_000_000);
    let peak = place.peak(&format!("train text.txt --out run --vocab-size 700 {TINY}"));
    assert!(peak < 60_000_000, "{peak} bytes to learn the tokens of 24 MB of text, and to make them");
    assert!(size(&place.path("run/data/train.tokens")) > 10_000_000);

    let peak = place.peak(&format!("train text.txt --out tight --vocab-size 700 --memory 45MB {TINY}"));
    assert!(peak < 45_000_000, "{peak} bytes where 45 MB are stated");
    assert!(same(&place.path("run/tokenizer.json"), &place.path("tight/tokenizer.json")));
    assert!(same(&place.path("run/data/train.tokens"), &place.path("tight/data/train.tokens")));
    assert!(same(&place.path("run/model/model.safetensors"), &place.path("tight/model/model.safetensors")));
}

#[test]
fn weights_are_held_once() {
    let place = Place::new("weights", 40_000);
    let whole = place.peak(&format!("train text.txt --out run --steps 3 {SMALL}"));
    let weights = size(&place.path("run/model/model.safetensors"));
    assert!(weights > 12_000_000, "{weights}");
    // To read the checkpoint through a map would take three times the weights more.
    let resumed = place.peak(&format!("train --resume run --steps 4 {SMALL}"));
    assert!(resumed < whole + weights / 2, "{resumed} bytes to resume, {whole} to train");
    let begun = place.peak("train text.txt --out other --init run/model --steps 1 --batch 2 --sequence 32 --quiet");
    assert!(begun < whole + weights / 2, "{begun} bytes to start from weights, {whole} to train");
    let written = place.peak("generate run/model --prompt w1 --max-tokens 8");
    assert!(written < weights + 30_000_000, "{written} bytes to write with weights of {weights}");
    let measured = place.peak("eval run/model text.txt --batch 1");
    assert!(measured < weights + 40_000_000, "{measured} bytes to evaluate weights of {weights}");
}

/// What it takes to encode is gone before the weights are read: a tokenizer of 12,000 tokens takes 10 MB.
#[test]
fn writing_holds_no_more_of_a_large_tokenizer_than_of_a_small_one() {
    let place = Place::new("tokenizer", 1_500_000);
    let besides_weights = |run: &str, model: &str| {
        place.peak(&format!(
            "train text.txt --out {run} {model} --layers 1 --heads 4 --sequence 16 --batch 1 --steps 1 --quiet"
        ));
        let weights = size(&place.path(run).join("model/model.safetensors"));
        assert!(
            weights > 35_000_000,
            "{run}: {weights}, where to open the tokenizer takes up to 20 MB more than it holds"
        );
        place.peak(&format!("generate {run}/model --prompt w1 --max-tokens 8 --threads 2")) - weights
    };
    let small = besides_weights("small", "--tokenizer byte --width 1024");
    let large = besides_weights("large", "--vocab-size 12000 --width 768");
    let vocabulary = fs::read_to_string(place.path("large/model/tokenizer.json")).unwrap().matches("\": ").count();
    assert!(vocabulary > 12_000, "{vocabulary} lines with a token or a setting");
    assert!(large < small + 4_000_000, "{large} bytes besides the weights with many tokens, {small} with few");
}

#[test]
fn a_budget_that_cannot_be_kept_is_refused_before_anything_is_written() {
    let place = Place::new("refused", 100_000);
    for (run, tokenizer) in [("bpe", "--vocab-size 300"), ("byte", "--tokenizer byte"), ("char", "--tokenizer char")] {
        place.keeps_what_it_says_is_enough(&format!("train text.txt --out {run} {tokenizer} {TINY}"), run);
    }
    place.peak(&format!("train text.txt --out beyond --tokenizer byte --memory 9000GB {TINY}"));
    place.keeps_what_it_says_is_enough("eval byte/model text.txt", "nothing");
    place.keeps_what_it_says_is_enough("generate byte/model --prompt w --max-tokens 8", "nothing");
}

/// The figure does not depend on how far from it the budget is that is refused.
#[test]
fn what_is_said_to_be_enough_for_images_is() {
    let place = Place::new("images", 0);
    let train = "train-images --model resnet-tiny --batch 4 --steps 2 --quiet --threads 2";
    place.keeps_what_it_says_is_enough(&format!("{train} --out run"), "run");
    place.keeps_what_it_says_is_enough(&format!("{train} --out soap --optimizer soap"), "soap");
}

#[test]
fn gradients_are_measured_where_there_is_room_and_else_not() {
    let place = Place::new("health", 20_000);
    let train = |out: &str, health: &str, memory: &str| {
        let model = "--tokenizer byte --width 512 --layers 1 --heads 2 --sequence 16 --batch 1 --steps 2 --quiet";
        format!("train text.txt {model} --threads 1 --out {out} --health {health} --memory {memory}")
    };
    let needed = |health: &str| -> f64 {
        let said = place.refusal(&train("refused", health, "10MB"));
        said.split("so give --memory ").nth(1).unwrap().split("MB").next().unwrap().parse().unwrap()
    };
    // A new weight is held aside while its update is measured, the largest of 4.2 MB, in part where nothing else is.
    let (asked, left_out) = (needed("1"), needed("auto"));
    assert!(asked > left_out + 1.0, "{asked} MB with, {left_out} MB without");
    let between = format!("{}MB", (asked + left_out) / 2.0);
    assert!(place.refusal(&train("refused", "1", &between)).contains("MB at least"));
    for (out, memory, is_measured) in [("between", &between[..], false), ("roomy", "200MB", true)] {
        place.peak(&train(out, "auto", memory));
        let metrics = fs::read_to_string(place.path(out).join("metrics.jsonl")).unwrap();
        assert_eq!(metrics.contains("\"health\""), is_measured, "{memory}: {metrics}");
        let config = fs::read_to_string(place.path(out).join("config.toml")).unwrap();
        assert_eq!(config.contains("health = \"off\""), !is_measured, "{config}");
    }
}

/// Two vectors as large as the weights, and the program that multiplies with the Hessian, are within the budget too.
#[test]
fn watching_the_curvature_is_planned() {
    let place = Place::new("curvature", 20_000);
    let train = format!("train text.txt --steps 2 {SMALL}");
    place.keeps_what_it_says_is_enough(&format!("{train} --out watched --watch-curvature 1"), "watched");
    place.keeps_what_it_says_is_enough(&format!("{train} --out plain"), "plain");
    assert!(same(&place.path("watched/model/model.safetensors"), &place.path("plain/model/model.safetensors")));
    // Of a model that is nothing beside its program, where two routines multiply with the Hessian.
    let nano = "--preset nano --model llama --tokenizer byte --sequence 32 --batch 4 --steps 3 --quiet --threads 2";
    for (out, options) in [
        ("both", "--optimizer sophia --watch-curvature 1"),
        ("one", "--watch-curvature 1"),
        ("adafactor", "--optimizer adafactor"),
    ] {
        place.keeps_what_it_says_is_enough(&format!("train text.txt --out {out} {nano} {options}"), out);
    }
    for model in ["plain", "one"] {
        let look = format!("curvature {model}/model text.txt --sequences 2 --steps 2 --samples 2 --threads 2 --json");
        place.keeps_what_it_says_is_enough(&look, "nothing");
    }
}

#[test]
fn as_many_sequences_are_taken_as_fit() {
    let place = Place::new("auto", 200_000);
    let options = TINY.replace("--batch 4", "--batch auto");
    let peak = place.peak(&format!("train text.txt --out run --tokenizer byte --memory 50MB {options}"));
    assert!((35_000_000..=50_000_000).contains(&peak), "{peak}");
    let config = fs::read_to_string(place.path("run/config.toml")).unwrap();
    let batch = config.lines().find_map(|line| line.strip_prefix("batch = ")).unwrap();
    assert!(batch.parse::<usize>().unwrap() > 64, "{batch}");
    let resumed = place.peak("train --resume run --steps 4 --quiet");
    assert!(resumed <= 50_000_000, "{resumed}");
}

#[test]
fn an_adaptive_run_computes_more_at_once_where_there_is_room_and_trains_the_same() {
    let place = Place::new("adaptive", 200_000);
    let options = TINY.replace("--batch 4 --steps 3 --quiet", "--steps 24 --tokenizer byte --json");
    let adaptive = format!("train text.txt --out a --batch adaptive:32 --micro-batch 2 --memory 60MB {options}");
    let output = Command::new(env!("CARGO_BIN_EXE_gradus"))
        .current_dir(&place.0)
        .args(adaptive.split_whitespace())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && told.contains("\"micro_batch\":32"), "{told}");
    place.peak(&format!("train text.txt --out b --batch 32 {options}"));
    assert!(same(&place.path("a/model/model.safetensors"), &place.path("b/model/model.safetensors")));
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn same(one: &Path, other: &Path) -> bool {
    let [one, other] = [one, other].map(|path| BufReader::new(File::open(path).unwrap()).bytes());
    one.map(Result::unwrap).eq(other.map(Result::unwrap))
}

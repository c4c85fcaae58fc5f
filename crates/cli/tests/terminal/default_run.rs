//! A run on the built-in stories: what is shown, what it leaves, and what can be done with that.

use crate::place::{Place, SMALL};
use crate::pseudo_terminal::OnTerminal;
use serde_json::Value;
use std::collections::BTreeSet;

/// The default run, made so small that it takes seconds without optimization.
const SHORT: &str = "train --steps 20 --width 32 --layers 2 --heads 2 --sequence 64 --batch 8 --vocab-size 300";

#[test]
fn a_run_shows_its_progress_on_a_terminal_and_leaves_a_model() {
    let place = Place::new("default");
    let (status, shown) = OnTerminal::start(place.command(SHORT)).end();
    assert_eq!(status.code(), Some(0), "{shown}");
    let parts = [
        "█",
        "parameters on",
        "step 20/20  loss ",
        " tokens/s  ",
        " MB of ",
        "s left",
        "step 4: sample\r\n    ",
        "\nloss    ",
    ];
    for part in parts {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
    for part in
        ["step 20: validation loss", "step 20: saved runs/stories-1/checkpoints/step-00000020", "trained: 20 steps"]
    {
        assert!(shown.contains(part), "{part:?} in {shown}");
    }
    leaves_every_file(&place);
    let sample = printed_command(&shown, "sample from it:");
    let output = place.shell(&sample);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("Once upon a time"), "{sample}: {text}");
    can_be_used(&place);
}

fn leaves_every_file(place: &Place) {
    for file in "config.toml metrics.jsonl samples/step-00000004.txt samples/step-00000020.txt \
                 checkpoints/step-00000020/weights.safetensors model/config.json model/model.safetensors \
                 model/tokenizer.json model/generation_config.json"
        .split_whitespace()
    {
        assert!(!place.read(&format!("runs/stories-1/{file}")).is_empty(), "{file}");
    }
    assert!(place.read_text("runs/stories-1/config.toml").contains("width = 32"));
    let lines = objects(&place.read_text("runs/stories-1/metrics.jsonl"));
    assert_eq!(lines.len(), 20);
    assert!(lines[19]["validation_loss"].is_number(), "the last step is validated: {}", lines[19]);
}

/// The other commands take the folder of a run.
fn can_be_used(place: &Place) {
    place.write("text.txt", "Once upon a time there was a small bear.\n".repeat(20));
    let run = "runs/stories-1";
    let (texts, _) = place.printed(&format!("generate {run} --prompt Once --count 2 --max-tokens 5 --temperature 0"));
    assert!(texts.starts_with("--- 1 of 2 ---\nOnce") && texts.contains("--- 2 of 2 ---\nOnce"), "{texts}");
    let (measured, _) = place.printed(&format!("eval {run} text.txt"));
    assert!(["loss ", "perplexity ", "bits per byte "].iter().all(|part| measured.contains(part)), "{measured}");
    let (object, _) = place.printed(&format!("eval {run} text.txt --json"));
    assert!(objects(&object)[0]["bits_per_byte"].is_number(), "{object}");
    for folder in ["", "/model", "/checkpoints/step-00000020"] {
        let (about, _) = place.printed(&format!("inspect {run}{folder}"));
        assert!(about.contains("parameters") && about.contains("blocks 0 to 1"), "{folder}: {about}");
    }
    let (report, _) = place.printed(&format!("tokenize text.txt --tokenizer {run}/model/tokenizer.json --json"));
    assert_eq!((&objects(&report)[0]["vocabulary"], &objects(&report)[0]["bytes"]), (&300.into(), &820.into()));
}

#[test]
fn a_narrow_terminal_keeps_the_time_left() {
    let place = Place::new("narrow");
    let command = place.command(&format!("train {SMALL} --steps 30 --sample-every 0 --out run"));
    let (status, shown) = OnTerminal::start_within(40, command).end();
    assert_eq!(status.code(), Some(0), "{shown}");
    let last =
        shown.split(['\r', '\n']).rfind(|line| line.contains("step 30/30  ")).unwrap_or_else(|| panic!("{shown}"));
    assert!(last.contains("  loss ") && last.contains("s left") && !last.contains("tokens/s"), "{last:?}");
    let start = "  optimizer  adamw, rate 0.001 (cosine to 0.0001), warmup 1, decay 0.1, clip 1";
    assert!(shown.contains(start), "{shown}");
}

#[test]
fn lines_are_plain_where_there_is_no_terminal() {
    let place = Place::new("plain");
    let (out, err) = place.printed(&format!("train {SMALL} --steps 5 --out run"));
    assert!(!err.contains(['\r', '\u{1b}']), "{err}");
    assert!(err.starts_with("training ") && err.contains("\nstep 5/5  loss "), "{err}");
    assert!(
        out.starts_with("trained: 5 steps") && out.contains("\nsample from it:  gradus generate run/model"),
        "{out}"
    );
    let (out, err) = place.printed(&format!("train {SMALL} --steps 5 --quiet --out quiet"));
    assert!(err.is_empty() && out.lines().count() == 1 && out.starts_with("trained: 5 steps"), "{out}{err}");
}

#[test]
fn programs_read_the_keys_of_the_metrics() {
    let place = Place::new("json");
    let (out, err) = place.printed(&format!("train {SMALL} --steps 5 --eval-every 2 --json --out run"));
    assert!(err.is_empty(), "{err}");
    let (told, saved) = (objects(&out), objects(&place.read_text("run/metrics.jsonl")));
    let steps: Vec<&Value> = told.iter().filter(|object| object["step_ms"].is_number()).collect();
    assert_eq!(steps.len(), 5);
    assert!(steps.into_iter().eq(&saved), "the steps are those of metrics.jsonl");
    let keys = "step tokens loss gradient_norm learning_rate tokens_per_second step_ms peak_memory_bytes memory_bytes \
                verdict";
    let named: BTreeSet<&str> = keys.split(' ').collect();
    let keys_of = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<BTreeSet<String>>();
    assert_eq!(keys_of(&saved[2]), named.iter().map(|key| key.to_string()).collect());
    // The first step is measured.
    let more: BTreeSet<String> = keys_of(&saved[0]).difference(&keys_of(&saved[2])).cloned().collect();
    assert_eq!(more, ["gradients", "health"].map(String::from).into());
    assert!(saved[1]["validation_loss"].is_number());
    for key in ["started", "finished"] {
        assert_eq!(told.iter().filter(|object| object[key].is_object()).count(), 1, "{key}");
    }
}

#[test]
fn a_reader_that_goes_away_does_not_end_the_training() {
    let place = Place::new("pipe");
    place.shell(&format!("gradus train {SMALL} --steps 300 --sample-every 10 --out run 2>&1 | head -1"));
    assert!(!place.read("run/model/model.safetensors").is_empty());
    let output = place.shell("gradus generate run --count 3000 --max-tokens 10 | head -1");
    assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"--- 1 of 3000 ---\n"[..], &b""[..]));
}

#[test]
#[ignore = "takes minutes without optimization; run it with --release"]
fn the_default_run_learns_to_tell_stories() {
    let place = Place::new("whole");
    let (out, _) = place.printed("train");
    let lines = objects(&place.read_text("runs/stories-1/metrics.jsonl"));
    let (first, last) = (lines[0]["loss"].as_f64().unwrap(), lines[lines.len() - 1]["loss"].as_f64().unwrap());
    assert!(last < first / 3.0, "{first} to {last}");
    let output = place.shell(&printed_command(&out, "sample from it:"));
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(story.starts_with("Once upon a time") && story.contains('.'), "{story}");
}

/// The command that is shown after a text, without its line end.
pub fn printed_command(shown: &str, after: &str) -> String {
    let (_, rest) = shown.rsplit_once(after).unwrap_or_else(|| panic!("{after:?} in {shown}"));
    rest.lines().next().unwrap().trim().to_string()
}

fn objects(lines: &str) -> Vec<Value> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

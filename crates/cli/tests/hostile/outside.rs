//! Text from outside: names and paths that are no text, and text that would steer a terminal.

use crate::support::Place;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Output};

const SMALL: &str = "--width 16 --layers 1 --heads 2 --sequence 16 --batch 4 --tokenizer byte --threads 1";
/// Clears the screen, rings, and colours by the one-byte form of an escape sequence.
const STEERING: &str = "a\u{1b}[2J\u{7}\u{9b}31mb";

fn gradus(place: &Place, line: &str, names: &[&OsStr]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
    command.current_dir(&place.0).args(line.split_whitespace()).args(names).output().unwrap()
}

/// What was printed, on both streams.
fn shown(output: &Output) -> String {
    String::from_utf8([&output.stdout[..], &output.stderr].concat()).unwrap()
}

#[test]
fn names_that_are_no_text_work_where_nothing_writes_them_down() {
    let place = Place::new("no-text");
    let name = |ending: &str| OsString::from_iter([OsStr::from_bytes(b"\xff\xfe"), OsStr::new(ending)]);
    let (text, run, page, options) = (name(".txt"), name(""), name(".html"), name(".toml"));
    std::fs::write(place.0.join(&text), "Some words, and then some more of them.\n".repeat(40)).unwrap();
    std::fs::write(place.0.join(&options), "width = 16\nheads = 2\nlayers = 1\n").unwrap();
    assert_eq!(gradus(&place, &format!("train {SMALL} --steps 1 --quiet --out run"), &[]).status.code(), Some(0));
    std::fs::rename(place.0.join("run"), place.0.join(&run)).unwrap();
    for (line, names) in [
        ("generate --max-tokens 3 --prompt a", &[&run[..]][..]),
        ("eval", &[&run, &text]),
        ("inspect", &[&run]),
        ("tokenize --vocab-size 300", &[&text]),
        ("plan --config", &[&options]),
        ("plan --width 16 --layers 1 --heads 2 --json --out", &[&page]),
    ] {
        let output = gradus(&place, line, names);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
    for (line, name) in [("train", &text), ("train --validation", &text), ("train --init", &run), ("train --out", &run)]
    {
        let output = gradus(&place, line, &[name]);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {told}");
        assert!(told.starts_with("error: ") && told.lines().count() == 1, "{line}: {told}");
    }
    let told = String::from_utf8(gradus(&place, "train", &[&text]).stderr).unwrap();
    assert!(told.contains("is not UTF-8, and a run writes its paths down as text; rename it"), "{told}");
}

#[test]
fn nothing_from_outside_steers_the_terminal() {
    let place = Place::new("steering");
    let named = |ending: &str| OsString::from(format!("{STEERING}{ending}"));
    let write = |name: &OsStr, text: &str| std::fs::write(place.0.join(name), text).unwrap();
    write(&named(".toml"), "width = = 3");
    write(OsStr::new("key.toml"), "\"wid\\u001b[2Jth\" = 3");
    write(OsStr::new("value.toml"), "optimizer = \"\\u001b[2J\"");
    write(&named(".txt"), "Some words, and then some more of them.\n");
    let model = place.0.join("model");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), "{\"model_type\": \"\\u001b[2J\", \"\\u001b[2J\": 1}").unwrap();
    let header = r#"{"\u001b[2J":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    std::fs::write(model.join("model.safetensors"), file).unwrap();
    let (options, text) = (named(".toml"), named(".txt"));
    for (line, names) in [
        ("train", &[&named(".none")[..]][..]),
        ("train --config", &[&options]),
        ("train --config key.toml", &[]),
        ("train --config value.toml", &[]),
        ("train --tokenizer", &[&named(".json")]),
        ("train --width", &[OsStr::new(STEERING)]),
        ("train --resume", &[&named("")]),
        ("generate", &[&named("")]),
        ("inspect", &[&named("")]),
        ("inspect model", &[]),
        ("eval model", &[&text]),
        ("tokenize --tokenizer byte", &[&text, OsStr::new("--out"), &named(".json")]),
        ("bench", &[OsStr::new(STEERING)]),
        (STEERING, &[]),
    ] {
        let shown = shown(&gradus(&place, line, names));
        // What options do not take is quoted without its escapes.
        let quoted = ["train --config value.toml", "train --width", STEERING].contains(&line) || line == "eval model";
        assert!(shown.contains("\\u{1b}[2J") || quoted, "{line:?} {names:?}: {shown:?}");
        let steers = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!shown.contains(steers), "{line:?} {names:?}: {shown:?}");
    }
}

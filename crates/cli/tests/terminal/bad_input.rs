//! Bad input: one line that says what, where and what to do; the status 2; nothing lost, nothing half-written.

use crate::place::{Place, SMALL, refusal};
use std::os::unix::fs::PermissionsExt;

const TEXT: &str = "The quick brown fox jumps over the lazy dog.\n";

/// A place with good text, and a run of six steps on it.
fn with_run(name: &str) -> Place {
    let place = Place::new(name);
    place.write("good.txt", TEXT.repeat(100));
    place.printed(&format!("train good.txt {SMALL} --steps 6 --quiet --out run"));
    place
}

/// Asserts that a command is refused with all these parts in its line.
fn refused(place: &Place, line: &str, parts: &[&str]) {
    let told = place.refused(line);
    for part in parts {
        assert!(told.contains(part), "{line}: {part:?} in {told}");
    }
}

#[test]
fn corpora_that_cannot_be_trained_on() {
    let place = Place::new("corpora");
    let latin_1 = [TEXT.repeat(3).as_bytes(), b"caf\xe9\n", TEXT.as_bytes()].concat();
    let record = format!("{{\"text\": \"{}\"}}\n", TEXT.trim());
    place.write("empty.txt", "");
    place.write("binary.txt", [TEXT.as_bytes(), &[0, 1, 2, 255]].concat());
    place.write("mixed.txt", latin_1);
    place.write("short.txt", "Too short.");
    place.write("broken.jsonl", record.repeat(4) + "{\"text\": \"no end\n" + &record);
    place.write("list.jsonl", format!("{record}[1, 2]\n"));
    place.write("numbers.jsonl", "{\"id\": 1}\n");
    place.write("cut.parquet", [b"PAR1", &[21; 200][..]].concat());
    place.write("cut.txt.gz", [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0x4b]);
    std::fs::create_dir(place.path("nothing")).unwrap();
    for (corpus, parts) in [
        ("missing.txt", &["missing.txt", "no such file", "check the path"][..]),
        ("missing-*.txt", &["missing-*.txt", "no file"]),
        ("nothing", &["nothing", "no file", ".jsonl"]),
        ("empty.txt", &["empty.txt", "no text", "not empty"]),
        ("binary.txt", &["binary.txt", "binary", "byte 45", "name a text file"]),
        ("mixed.txt", &["mixed.txt", "not UTF-8", "byte 138", "convert it"]),
        ("short.txt", &["short.txt", "tokens to train on", "needs 17", "--sequence"]),
        ("broken.jsonl", &["broken.jsonl", "line 5", "correct or remove the line"]),
        ("list.jsonl", &["list.jsonl", "line 2"]),
        ("numbers.jsonl", &["numbers.jsonl", "line 1", "--text-field"]),
        ("cut.parquet", &["cut.parquet", "not a whole Parquet file", "fetch it again"]),
        ("cut.txt.gz", &["cut.txt.gz", "not a whole gzip file"]),
    ] {
        refused(&place, &format!("train {SMALL} {corpus}"), parts);
    }
    refused(&place, &format!("train {SMALL} --validation empty.txt"), &["empty.txt", "no text"]);
    refused(&place, "tokenize empty.txt", &["empty.txt", "no text"]);
}

#[test]
fn sizes_values_and_keys_that_cannot_be() {
    let place = Place::new("options");
    place.write("good.txt", TEXT.repeat(100));
    place.write("options.toml", "width = 32\nlearning_rte = 0.1\n");
    place.write("values.toml", "width = 'wide'\n");
    place.write("torn.toml", "width = \n");
    place.write("not-a-tokenizer.json", "{}");
    for (line, parts) in [
        ("train --width 100 --heads 3", &["width", "100", "heads", "3", "not divisible"][..]),
        ("train --model llama --heads 4 --kv-heads 3", &["kv-heads", "3", "4"]),
        ("train --batch 8 --micro-batch 3", &["--batch 8", "--micro-batch 3", "divisor"]),
        ("train --steps 0", &["--steps", "0"]),
        ("train --steps many", &["--steps", "many"]),
        ("train --time soon", &["--time", "1h30m"]),
        ("train --epochs nan", &["--epochs", "above 0"]),
        ("train --learning-rate -1", &["--learning-rate", "above 0"]),
        ("train --optimizer adam", &["--optimizer", "adamw"]),
        (
            "train --precision tf32 --device cpu",
            &["--precision tf32", "the cpu has none", "choose f32", "--device cuda"],
        ),
        ("train --clip hard", &["--clip", "adaptive"]),
        ("train --layers 99999999", &["layers", "choose"]),
        ("train --vocab-size 100", &["--vocab-size 100", "257", "raise it"]),
        ("train --config options.toml", &["options.toml", "line 2", "`learning_rte`", "`learning-rate`"]),
        ("train --config values.toml", &["values.toml", "line 1", "wide"]),
        ("train --config torn.toml", &["torn.toml", "line 1"]),
        ("train --config missing.toml", &["missing.toml"]),
        ("train good.txt --tokenizer missing.json", &["missing.json", "no such file"]),
        ("train good.txt --tokenizer not-a-tokenizer.json", &["not-a-tokenizer.json", "states no tokenizer"]),
    ] {
        refused(&place, line, parts);
    }
}

#[test]
fn models_that_do_not_fit() {
    let place = with_run("models");
    // The model has room for the 257 tokens of bytes.
    let parts = ["bpe", "257", "leave --tokenizer out"];
    refused(&place, "train good.txt --init run --tokenizer bpe --steps 3", &parts);
    refused(&place, "train good.txt --init run --width 32", &["--width", "--init"]);
    refused(&place, "train good.txt --init missing", &["missing", "no such folder"]);
    refused(&place, "train --resume run --width 32", &["--width", "cannot change", "config.toml has 16", "new run"]);
    refused(&place, "train --resume", &["--resume needs the folder"]);
    refused(&place, "train --resume good.txt", &["good.txt", "not the folder of a run"]);
    refused(&place, "train good.txt --out run", &["run", "holds a run already", "--resume run"]);

    let config = place.read_text("run/config.toml");
    place.write("run/config.toml", config.replace("width = 16", "width = 32"));
    refused(
        &place,
        "train --resume run",
        &["step-00000006", "another model", "width is 16 here and 32 there", "new run"],
    );
    place.write("run/config.toml", config);
    place.write("run/model/model.safetensors", "torn");
    refused(&place, "generate run", &["model.safetensors"]);
    place.printed("train --resume run --steps 8 --quiet");
}

#[test]
fn folders_that_cannot_be_written_to() {
    let place = with_run("folders");
    refused(&place, "train good.txt --out good.txt", &["good.txt", "not a folder", "another --out"]);
    refused(&place, "train good.txt --out good.txt/run", &["good.txt/run", "a file is in the way"]);
    std::fs::create_dir(place.path("read-only")).unwrap();
    std::fs::set_permissions(place.path("read-only"), PermissionsExt::from_mode(0o555)).unwrap();
    // The system's administrator may write everywhere.
    if std::fs::write(place.path("read-only/probe"), "").is_err() {
        refused(&place, "train good.txt --out read-only/run", &["read-only/run", "that you may write to"]);
    }
    if cfg!(target_os = "linux") {
        refused(&place, "train good.txt --out /proc/nowhere/run", &["/proc/nowhere/run", "choose another"]);
    }
}

/// A limit on the size of files stands for a disk that is full: writing fails in the middle.
#[test]
fn a_disk_that_is_full_loses_nothing() {
    let place = with_run("full");
    let limited = |line: &str| format!("trap '' XFSZ; ulimit -f 8; exec gradus {line}");
    let told = refusal("a new run", place.shell(&limited(&format!("train good.txt {SMALL} --out new"))));
    assert!(told.contains("cannot write new/") && told.contains("choose another folder"), "{told}");
    assert!(!place.path("new").exists(), "nothing is left of a run that could not begin");

    let before = place.read("run/checkpoints/step-00000006/weights.safetensors");
    let line = "train --resume run --steps 12 --quiet";
    let output = place.shell(&limited(line));
    let told = String::from_utf8(output.stderr).unwrap();
    // Checkpoints along the way are tried again; without the last one the run has failed.
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("warning: step 8: not saved: ") && told.contains("again after step 9"), "{told}");
    let error = told.lines().last().unwrap();
    assert!(error.starts_with("error: cannot write run/checkpoints/step-00000012"), "{told}");
    assert!(error.contains("what was there before is intact"), "{told}");
    assert!(place.read("run/checkpoints/step-00000006/weights.safetensors") == before);
    let (out, _) = place.printed(line);
    assert!(out.starts_with("trained: 12 steps"), "{out}");
}

#[test]
fn a_log_that_cannot_be_written_does_not_end_a_run() {
    let place = Place::new("log");
    place.write("good.txt", TEXT.repeat(100));
    // Room for every file but the metrics.
    let line = format!("train good.txt {SMALL} --steps 1200 --quiet --out run");
    let output = place.shell(&format!("trap '' XFSZ; ulimit -f 200; exec gradus {line}"));
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), told.lines().count()), (Some(0), 1), "{told}");
    assert!(told.starts_with("warning: cannot write run/metrics.jsonl: "), "{told}");
    let metrics = place.read_text("run/metrics.jsonl");
    assert!(metrics.ends_with("}\n") && metrics.lines().count() > 100, "whole lines");
}

//! Event files as TensorBoard reads them, where Python has it: else this is said, and nothing is tested.
//! `GRADUS_TENSORBOARD` names another Python than `python3`; with it set, a missing TensorBoard is an error.

#[allow(dead_code)]
mod support;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::Place;

const SMALL: &str = "--width 16 --layers 1 --heads 2 --sequence 16 --batch 4 --tokenizer byte --threads 1 --quiet";

/// A Python that has TensorBoard.
fn python() -> Option<String> {
    let stated = std::env::var("GRADUS_TENSORBOARD").ok();
    let python = stated.clone().unwrap_or("python3".into());
    let works = Command::new(&python).args(["-c", "import tensorboard"]).output();
    if works.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    assert!(stated.is_none(), "{python} has no tensorboard");
    // Past what the test harness keeps to itself.
    let told = "SKIPPED: event files are not read by TensorBoard; install it with pip install tensorboard\n";
    std::io::stderr().write_all(told.as_bytes()).unwrap();
    None
}

fn train(place: &Place, options: &str) {
    let arguments: Vec<&str> = options.split_whitespace().chain(SMALL.split_whitespace()).collect();
    let output = place.gradus(&[&["train"], &arguments[..]].concat());
    assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
}

fn resume(place: &Place, options: &str) {
    let arguments: Vec<&str> = options.split_whitespace().collect();
    let output = place.gradus(&[&["train", "--quiet", "--resume"], &arguments[..]].concat());
    assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
}

/// What TensorBoard has is what the run wrote down.
fn is_the_same(place: &Place, python: &str, run: &str, events: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tensorboard/check.py");
    let output = Command::new(python).arg(script).args([place.0.join(run), place.0.join(events)]).output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{run}: {}{}", said(&output.stdout), said(&output.stderr));
}

fn event_files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn tensorboard_has_every_number_of_the_metrics() {
    let Some(python) = python() else { return };
    let place = Place::new("tensorboard");
    train(&place, "--steps 30 --eval-every 7 --sample-every 10 --save-every 12 --keep 9 --tensorboard --out run");
    is_the_same(&place, &python, "run", "run/tensorboard");
    train(&place, "--steps 5 --precision f16 --tensorboard logs/own --out scaled");
    is_the_same(&place, &python, "scaled", "logs/own");
    // Killed in the middle of a record, after its last checkpoint; goes on from step 12, twice.
    for _ in 0..2 {
        for step in ["step-00000024", "step-00000030"] {
            fs::remove_dir_all(place.0.join("run/checkpoints").join(step)).unwrap();
        }
        let newest = event_files(&place.0.join("run/tensorboard")).pop().unwrap();
        OpenOptions::new().append(true).open(newest).unwrap().write_all(&[9, 1, 0, 0, 0]).unwrap();
        resume(&place, "run");
        is_the_same(&place, &python, "run", "run/tensorboard");
    }
    assert_eq!(event_files(&place.0.join("run/tensorboard")).len(), 3);
    resume(&place, "run --steps 40");
    is_the_same(&place, &python, "run", "run/tensorboard");
    resume(&place, "run --steps 45 --tensorboard=false");
    assert_eq!(event_files(&place.0.join("run/tensorboard")).len(), 4, "no more of them");
}

#[test]
fn runs_are_not_mixed_and_a_corpus_is_not_taken_for_a_folder() {
    let place = Place::new("tensorboard-refused");
    train(&place, "--steps 2 --tensorboard logs --out run");
    let told = place.refused(&["train", "--steps", "2", "--tensorboard", "logs", "--out", "other"]);
    assert!(told.contains("logs: holds the events of another run") && told.contains("--tensorboard"), "{told}");
    assert!(!place.0.join("other").exists());
    fs::write(place.0.join("text.txt"), "text").unwrap();
    let told = place.refused(&["train", "--tensorboard", "text.txt"]);
    assert!(told.contains("text.txt is a file") && told.contains("a corpus stands before"), "{told}");
    // What is moved takes its own events along.
    train(&place, "--steps 2 --tensorboard --out moving");
    fs::rename(place.0.join("moving"), place.0.join("moved")).unwrap();
    resume(&place, "moved --steps 4");
    assert_eq!(event_files(&place.0.join("moved/tensorboard")).len(), 2);
    assert!(!place.0.join("moving").exists());
}

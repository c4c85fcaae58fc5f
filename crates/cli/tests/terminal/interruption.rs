//! Ctrl-C: once to stop and save, twice to end.

use crate::default_run::printed_command;
use crate::place::{Place, SMALL, refusal};
use crate::pseudo_terminal::OnTerminal;

#[test]
fn an_interrupted_run_is_saved_and_its_command_resumes_it_to_the_same_bits() {
    let place = Place::new("interrupted");
    let options = format!("train {SMALL} --steps 3000 --sample-every 0 --eval-every 0");
    let mut run = OnTerminal::start(place.command(&format!("{options} --out stopped")));
    run.wait_for("parameters on");
    run.interrupt();
    let (status, shown) = run.end();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert!(shown.contains("stopping after this step and saving; Ctrl-C again ends at once"), "{shown}");
    assert!(shown.contains("stopped and saved: ") && !shown.contains("stopped and saved: 3000 steps"), "{shown}");
    let checkpoints = std::fs::read_dir(place.path("stopped/checkpoints")).unwrap().count();
    assert!(checkpoints > 0, "a checkpoint is there");
    assert!(!place.read("stopped/model/model.safetensors").is_empty(), "what was stopped can be used");

    let resume = printed_command(&shown, "go on with:");
    assert_eq!(resume, "gradus train --resume stopped");
    let output = place.shell(&resume);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && told.starts_with("going on from step "), "{told}");
    place.printed(&format!("{options} --quiet --out whole"));
    let weights = |run| place.read(&format!("{run}/model/model.safetensors"));
    assert!(weights("stopped") == weights("whole"), "the weights have other bits");
    assert_eq!(place.read_text("stopped/metrics.jsonl").lines().count(), 3000, "each step once");
}

/// A step of this run takes minutes, so that whatever happens meanwhile happens within it.
#[test]
fn a_folder_in_use_is_kept_and_a_second_interrupt_ends_at_once() {
    let place = Place::new("in-use");
    let slow = SMALL.replace("--batch 4", "--batch 400000 --micro-batch 4");
    let mut run = OnTerminal::start(place.command(&format!("train {slow} --steps 5 --out run")));
    run.wait_for("parameters on");
    let line = "train --resume run";
    let told = refusal(line, place.command(line).output().unwrap());
    assert!(told.contains("another process is training in this folder") && told.contains("--out"), "{told}");
    let told = place.refused("train --out run");
    assert!(told.contains("holds a run already"), "{told}");

    run.interrupt();
    run.wait_for("Ctrl-C again ends at once");
    run.interrupt();
    let (status, shown) = run.end();
    assert_eq!(status.code(), Some(130), "{shown}");
}

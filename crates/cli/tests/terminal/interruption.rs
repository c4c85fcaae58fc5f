//! Being asked to end: once to stop and save, twice to end.

use crate::default_run::printed_command;
use crate::place::{Place, SMALL, refusal};
use crate::pseudo_terminal::{OnTerminal, closed_after};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

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
    assert!(told.contains("another run is training in this folder"), "{told}");
    let told = place.refused("train --out run");
    assert!(told.contains("another run is training in this folder"), "{told}");

    run.interrupt();
    run.wait_for("Ctrl-C again ends at once");
    run.interrupt();
    let (status, shown) = run.end();
    assert_eq!(status.code(), Some(130), "{shown}");
}

/// Starts a run and waits until it trains; what it prints from then on nobody reads.
fn training(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.into_iter().any(|line| line.contains("parameters on")));
    child.stdout.take();
    child
}

fn send(child: &Child, signal: i32) {
    // SAFETY: a signal to a process that this test started and has not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Whether a run was stopped before its end and has a checkpoint and a model.
fn is_stopped_and_saved(place: &Place, run: &str) {
    assert!(place.read_text(&format!("{run}/metrics.jsonl")).lines().count() < 100_000);
    assert!(std::fs::read_dir(place.path(&format!("{run}/checkpoints"))).unwrap().count() > 0);
    assert!(!place.read(&format!("{run}/model/model.safetensors")).is_empty());
}

#[test]
fn a_run_that_is_terminated_or_loses_its_terminal_is_saved() {
    let place = Place::new("signals");
    let line =
        |run: &str| format!("train {SMALL} --steps 100000 --save-every 0 --sample-every 0 --eval-every 0 --out {run}");
    for (run, signal) in [("terminated", libc::SIGTERM), ("hung-up", libc::SIGHUP)] {
        let mut child = training(&mut place.command(&line(run)));
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{run}");
        is_stopped_and_saved(&place, run);
    }
    let status = closed_after(place.command(&line("closed")), "parameters on");
    assert_eq!(status.code(), Some(0), "a closed terminal");
    is_stopped_and_saved(&place, "closed");
}

#[test]
fn signals_that_are_to_be_ignored_are() {
    let place = Place::new("nohup");
    let line = format!("train {SMALL} --steps 400 --sample-every 0 --eval-every 0 --out run");
    let mut command = place.through_shell(&format!("trap '' HUP; exec gradus {line}"));
    let mut child = training(&mut command);
    send(&child, libc::SIGHUP);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(place.read_text("run/metrics.jsonl").lines().count(), 400, "it goes on to its end");
}

/// Within a validation that takes long, too.
#[test]
fn ctrl_c_in_a_validation_is_quick() {
    let place = Place::new("validating");
    place.write("text.txt", "The quick brown fox jumps over the lazy dog.\n".repeat(4000));
    let slow = SMALL.replace("--batch 4", "--batch 64 --micro-batch 1").replace("--sequence 16", "--sequence 256");
    let mut run =
        OnTerminal::start(place.command(&format!("train text.txt {slow} --steps 1 --validation 0.9 --out run")));
    run.wait_for("validating");
    run.interrupt();
    let (status, shown) = run.end();
    assert_eq!(status.code(), Some(0), "{shown}");
    assert!(shown.contains("stopped and saved: 1 steps") && !shown.contains("validation loss"), "{shown}");
}

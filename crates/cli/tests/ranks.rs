//! Several processes, started by every MPI that is installed: the same bits as one, and faults that are named. Where there is no MPI,
//! the tests say so and test nothing.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const OPTIONS: &str = "train text.txt --device cpu --tokenizer char --width 16 --layers 1 --heads 2 --sequence 16 --batch 8 \
    --dropout 0.1 --threads 1 --lanes 8 --save-every 4 --eval-every 0 --sample-every 0 --quiet";

/// Marks the processes of a test, so that it finds its own and no others.
const MARK: &str = "GRADUS_TEST_MARK";

/// The launchers that are here.
fn launchers() -> Vec<&'static str> {
    let is_here = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    let found: Vec<&str> = ["mpirun.openmpi", "mpiexec.mpich"].into_iter().filter(is_here).collect();
    if found.is_empty() {
        eprintln!("skipped: there is no MPI; `apt install openmpi-bin mpich` to test ranks");
    }
    found
}

/// A folder with a text, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-ranks-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let words = ["the ", "a ", "cat ", "dog ", "sat ", "ran ", "on ", "mat ", "hill ", "and ", "then ", "it "];
        let text: String = (0..3000usize).map(|at| words[(at * at + at / 7) % words.len()]).collect();
        fs::write(folder.join("text.txt"), text).unwrap();
        Place(folder)
    }

    fn command(&self, launcher: &str, options: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        command.args(OPTIONS.split_whitespace()).args(options.split_whitespace()).current_dir(&self.0);
        command.env("GRADUS_MPIRUN", launcher).env(MARK, &self.0);
        command
    }

    /// A run that succeeds: the bits of its weights.
    fn weights(&self, launcher: &str, options: &str, out: &str) -> Vec<u8> {
        let output = self.command(launcher, options).args(["--out", out]).output().unwrap();
        assert!(output.status.success(), "{launcher} {options}: {}", said(&output));
        fs::read(self.0.join(out).join("model/model.safetensors")).unwrap()
    }

    fn start(&self, launcher: &str, options: &str, out: &str) -> Child {
        let mut command = self.command(launcher, options);
        command.args(["--out", out]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The process of a rank, once the run has taken so many steps.
    fn rank(&self, rank: usize, out: &str, steps: usize) -> i32 {
        let start = Instant::now();
        loop {
            let metrics = fs::read_to_string(self.0.join(out).join("metrics.jsonl")).unwrap_or_default();
            if metrics.lines().count() >= steps
                && let Some(pid) = process_of(&self.0, rank)
            {
                return pid;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "the run takes steps");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process of a rank of this test, which has a supervisor to report to.
fn process_of(mark: &Path, rank: usize) -> Option<i32> {
    let wanted = [
        vec!["GRADUS_REPORTS=".to_string()],
        vec![format!("{MARK}={}", mark.display())],
        vec![format!("OMPI_COMM_WORLD_RANK={rank}"), format!("PMI_RANK={rank}")],
    ];
    fs::read_dir("/proc").unwrap().flatten().find_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let environment = fs::read(process.path().join("environ")).ok()?;
        let variables: Vec<String> =
            environment.split(|byte| *byte == 0).map(|variable| String::from_utf8_lossy(variable).into()).collect();
        let has = |variable: &String| variables.iter().any(|known| known.starts_with(&variable[..]));
        wanted.iter().all(|any| any.iter().any(has)).then_some(pid)
    })
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into()
}

fn signal(pid: i32, signal: &str) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

#[test]
fn every_number_of_ranks_and_every_mpi_gives_the_same_bits() {
    let place = Place::new("bits");
    let alone = place.weights("", "--steps 12", "alone");
    for launcher in launchers() {
        for ranks in [2, 3] {
            let weights =
                place.weights(launcher, &format!("--steps 12 --ranks {ranks}"), &format!("{launcher}-{ranks}"));
            assert!(weights == alone, "{ranks} ranks by {launcher}");
        }
    }
}

#[test]
fn blocks_over_ranks_give_the_same_bits_by_every_mpi() {
    let place = Place::new("stages");
    let alone = place.weights("", "--steps 12 --layers 3", "alone");
    for launcher in launchers() {
        for (ranks, stages) in [(2, 2), (3, 3), (4, 2)] {
            let options = format!("--steps 12 --layers 3 --ranks {ranks} --stages {stages}");
            let weights = place.weights(launcher, &options, &format!("{launcher}-{ranks}-{stages}"));
            assert!(weights == alone, "{options} by {launcher}");
        }
    }
}

#[test]
fn a_killed_stage_is_named_and_the_run_goes_on_without_stages() {
    let place = Place::new("stage-killed");
    let whole = place.weights("", "--steps 200 --layers 2", "whole");
    for launcher in launchers() {
        let run = place.start(launcher, "--steps 200 --layers 2 --ranks 2 --stages 2 --restart 1", launcher);
        let pid = place.rank(1, launcher, 20);
        signal(pid, "-KILL");
        let output = run.wait_with_output().unwrap();
        let said = said(&output);
        assert!(output.status.success(), "{launcher}: {said}");
        assert!(said.contains(&format!("error: rank 1 (process {pid} on ")), "{said}");
        assert!(said.contains("going on with 1 rank from what was saved"), "{said}");
        let weights = fs::read(place.0.join(launcher).join("model/model.safetensors")).unwrap();
        assert!(weights == whole, "{launcher}");
    }
}

#[test]
fn a_killed_rank_is_named_and_the_run_goes_on_without_it_to_the_same_bits() {
    let place = Place::new("killed");
    let whole = place.weights("", "--steps 400", "whole");
    for launcher in launchers() {
        let run = place.start(launcher, "--steps 400 --ranks 3 --restart 1", launcher);
        let pid = place.rank(1, launcher, 20);
        signal(pid, "-KILL");
        let output = run.wait_with_output().unwrap();
        let said = said(&output);
        assert!(output.status.success(), "{launcher}: {said}");
        let fault =
            said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("{launcher}: {said}"));
        assert!(fault.contains(&format!("rank 1 (process {pid} on ")), "{fault}");
        assert!(fault.contains("was ended by signal 9 (SIGKILL") && fault.contains(" after step "), "{fault}");
        assert!(said.contains("going on with 2 ranks from what was saved"), "{said}");
        assert!(!said.contains("---") && !said.contains("==="), "one line says it all:\n{said}");
        let weights = fs::read(place.0.join(launcher).join("model/model.safetensors")).unwrap();
        assert!(weights == whole, "{launcher}");
    }
}

#[test]
fn a_rank_that_stands_still_is_named_and_all_end() {
    let place = Place::new("stalled");
    for launcher in launchers() {
        let run = place.start(launcher, "--steps 1000000 --ranks 2", launcher);
        let pid = place.rank(1, launcher, 5);
        signal(pid, "-STOP");
        let output = run.wait_with_output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("error: rank 1 (process {pid} on ")), "{said}");
        assert!(said.contains("has stood still for 4 seconds after step "), "{said}");
        assert!(place.0.join(launcher).join("checkpoints").is_dir(), "what was saved stays");
    }
}

#[test]
fn a_run_that_is_asked_to_stop_saves() {
    let place = Place::new("asked");
    for launcher in launchers() {
        let run = place.start(launcher, "--steps 1000000 --ranks 2", launcher);
        place.rank(0, launcher, 5);
        signal(run.id() as i32, "-INT");
        let output = run.wait_with_output().unwrap();
        assert!(
            output.status.success() && said(&output).contains("stopped and saved"),
            "{launcher}: {}",
            said(&output)
        );
    }
}

#[test]
fn what_cannot_be_started_is_told_once() {
    let place = Place::new("refused");
    let refused = |command: &mut Command, part: &str| {
        let output = command.output().unwrap();
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(part) && said.lines().count() == 1, "{part}:\n{said}");
    };
    let mut nowhere = place.command("", "--ranks 2");
    refused(
        nowhere.env_remove("GRADUS_MPIRUN").env("PATH", "/nowhere"),
        "there is no mpirun here; `apt install openmpi-bin`",
    );
    refused(&mut place.command("true", "--ranks 2"), "GRADUS_MPIRUN=true is no launcher");
    refused(&mut place.command("", "--ranks 0"), "invalid value '0' for '--ranks <N>'");
    refused(&mut place.command("", "--restart 1"), "--ranks <N>");
    for launcher in launchers() {
        refused(&mut place.command(launcher, "--ranks 2 --width 15"), "width");
        refused(&mut place.command(launcher, "--ranks 9 --out nine"), "9 ranks cannot share 8 lanes");
        refused(&mut place.command(launcher, "--ranks 3 --stages 2"), "3 ranks cannot be pipelines of --stages 2");
        refused(
            &mut place.command(launcher, "--ranks 2 --stages 2"),
            "--stages 2 is more than the 1 block of the model",
        );
    }
    refused(&mut place.command("", "--stages 2 --out two"), "1 rank cannot be pipelines of --stages 2");
    // A process that believes to be a rank, without the others.
    let mut misled = place.command("", "");
    misled.envs([("OMPI_COMM_WORLD_RANK", "5"), ("OMPI_COMM_WORLD_SIZE", "3")]);
    refused(&mut misled, "OMPI_COMM_WORLD_RANK=5 and OMPI_COMM_WORLD_SIZE=3 in the environment make no sense");
}

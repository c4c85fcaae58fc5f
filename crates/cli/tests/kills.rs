//! A run that is killed again and again, at any moment, and resumed ends with the same bits as one that never was.
//!
//! 8 kills, or as many as `GRADUS_KILLS` says: `GRADUS_KILLS=50 cargo test -p gradus-cli --test kills`.
#![cfg(unix)]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const STEPS: u64 = 60;

/// Everything that has a state of its own is on: dropout, adaptive clipping, micro-batches, a learning rate that
/// rises and falls.
const OPTIONS: &str = "train text.txt --json --tokenizer char --width 16 --layers 1 --heads 2 --sequence 16 --batch 4 \
    --micro-batch 2 --dropout 0.1 --clip adaptive --warmup-steps 10 --threads 2 --steps 60 --save-every 2 \
    --eval-every 5 --sample-every 7 --keep 2";

#[test]
fn a_killed_run_ends_with_the_same_bits() {
    let place = Place::new();
    let whole = place.0.join("whole");
    let pace = uninterrupted(&place, &whole);
    let run = place.0.join("killed");
    let (kills, mut random) = (wanted_kills(), Random(1));
    let (mut killed, mut sessions) = (0, 0);
    while killed < kills {
        sessions += 1;
        assert!(sessions <= 10 * kills, "only {killed} kills met a process that was there");
        let moment = Moment::random(killed as f64 / kills as f64, &pace, &mut random);
        if !session(&place, &run, Some(moment)).success() {
            killed += 1;
        }
    }
    assert!(session(&place, &run, None).success());
    same_run(&whole, &run);
}

fn wanted_kills() -> usize {
    std::env::var("GRADUS_KILLS").map_or(8, |kills| kills.parse().expect("GRADUS_KILLS is a number"))
}

/// A folder with a text, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-kills-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut random = Random(7);
        let words = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "hill", "and", "then", "it", "was", "very"];
        let mut word = || words[random.below(words.len() as u64) as usize];
        let text: Vec<&str> = (0..2000).map(|_| word()).collect();
        fs::write(folder.join("text.txt"), text.join(" ")).unwrap();
        Place(folder)
    }

    /// Starts the run of a folder by the same command as long as it has taken no step, and then goes on with it.
    fn start(&self, run: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        match fs::metadata(run.join("metrics.jsonl")).is_ok_and(|about| about.len() > 0) {
            true => command.args(["train", "--json", "--resume"]).arg(run),
            false => command.args(OPTIONS.split_whitespace()).arg("--out").arg(run),
        };
        command.current_dir(&self.0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How long the parts of a run take here, so that kills are spread over all of them. Nothing depends on it but that.
struct Pace {
    preparation: Duration,
    step: Duration,
    /// From the last checkpoint on.
    end: Duration,
}

/// Lets a run go to its end.
fn uninterrupted(place: &Place, run: &Path) -> Pace {
    let start = Instant::now();
    let mut child = place.start(run);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let started = lines.find(|line| line.starts_with("{\"started\"")).map(|_| start.elapsed());
    let saved = lines.find(|line| is_last_save(line)).map(|_| start.elapsed());
    lines.for_each(drop);
    let status = child.wait().unwrap();
    let (started, saved, ended) = (started.unwrap(), saved.unwrap(), start.elapsed());
    assert!(status.success());
    Pace { preparation: started, step: (saved - started) / STEPS as u32, end: ended - saved }
}

/// When a process is killed.
enum Moment {
    /// So long after its start.
    Preparing(Duration),
    /// So long after it told that this step was taken: while it samples, saves, or takes the next.
    Stepping(u64, Duration),
    /// So long after its last checkpoint: while it writes the model.
    Ending(Duration),
}

impl Moment {
    /// Any moment, those of a run's beginning being for the first kills and those of its end for the last.
    fn random(share: f64, pace: &Pace, random: &mut Random) -> Moment {
        if share < 0.2 || random.below(5) == 0 {
            return Moment::Preparing(random.up_to(pace.preparation));
        }
        if share < 0.8 {
            let step = 1 + ((share - 0.2) / 0.6 * (STEPS - 2) as f64) as u64;
            return Moment::Stepping(step, random.up_to(pace.step * 3));
        }
        Moment::Ending(random.up_to(pace.end))
    }

    /// Waits for it, or for the end of the process.
    fn wait(&self, lines: &mut impl Iterator<Item = String>) {
        let pause = match self {
            Moment::Preparing(pause) => pause,
            Moment::Stepping(wanted, pause) => {
                lines.find(|line| step_of(line).is_some_and(|step| step >= *wanted));
                pause
            }
            Moment::Ending(pause) => {
                lines.find(|line| is_last_save(line));
                pause
            }
        };
        std::thread::sleep(*pause);
    }
}

/// Starts or resumes a run and kills it, unless it has come to its end by then. What it refuses fails the test.
fn session(place: &Place, run: &Path, moment: Option<Moment>) -> ExitStatus {
    let mut child = place.start(run);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    if let Some(moment) = moment {
        moment.wait(&mut lines);
        child.kill().unwrap();
    }
    lines.for_each(drop);
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success() || status.code().is_none(), "{errors}");
    status
}

/// The step of a line about a step that was taken, and not about what was done after it.
fn step_of(line: &str) -> Option<u64> {
    let line: Value = serde_json::from_str(line).ok()?;
    line.get("loss").and_then(|_| line["step"].as_u64())
}

fn is_last_save(line: &str) -> bool {
    let line: Value = serde_json::from_str(line).unwrap_or_default();
    line.get("saved").is_some() && line["step"] == STEPS
}

/// Whether two runs left the same files with the same bytes, but for what tells times, memory and places.
fn same_run(one: &Path, other: &Path) {
    let (mut one, mut other) = (files_of(one), files_of(other));
    let names = |files: &BTreeMap<String, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&one), names(&other));
    assert_eq!(metrics(&one["metrics.jsonl"]), metrics(&other["metrics.jsonl"]));
    for files in [&mut one, &mut other] {
        files.retain(|name, _| !matches!(&name[..], "metrics.jsonl" | "config.toml") && !name.ends_with("state.json"));
    }
    for name in ["model/model.safetensors", "checkpoints/step-00000060/optimizer.safetensors"] {
        assert!(one.contains_key(name), "{name}");
    }
    for (name, bytes) in &one {
        assert!(*bytes == other[name], "{name} has other bytes");
    }
}

/// All files under a folder, by their paths in it.
fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_string();
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// The lines of the metrics without what no two runs have alike; each step must be there once.
fn metrics(text: &[u8]) -> Vec<Value> {
    let mut lines: Vec<Value> =
        text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let steps: Vec<u64> = lines.iter().map(|line| line["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>());
    for line in &mut lines {
        let line = line.as_object_mut().unwrap();
        line.retain(|key, _| {
            !matches!(&key[..], "tokens_per_second" | "step_ms" | "memory_bytes" | "peak_memory_bytes" | "account")
        });
    }
    assert!(lines[STEPS as usize - 1].get("validation_loss").is_some());
    lines
}

/// Numbers that are the same in every test run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.below(most.as_micros() as u64 + 1))
    }
}

//! What the process has resident, as the system counts it: the stages before training, loading, and a stated budget.
#![cfg(target_os = "linux")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A folder with a text, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    /// A text of about so many bytes, of words of which there are ever more, as in one that people write.
    fn new(name: &str, bytes: usize) -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-memory-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (mut text, mut state) = (String::with_capacity(bytes + 64), 1u64);
        while text.len() < bytes {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let number = (state >> 33) as f64 / (1u64 << 31) as f64;
            text.push_str(&format!("w{:x} ", (number.powi(8) * 200_000.0) as u64));
            if state.is_multiple_of(11) {
                text.push('\n');
            }
        }
        fs::write(folder.join("text.txt"), text).unwrap();
        Place(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Runs the command, which must succeed, and gives the most bytes that it had resident.
    // It is waited for, by the call that also says what it used.
    #[allow(clippy::zombie_processes)]
    fn peak(&self, arguments: &str) -> u64 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        command.current_dir(&self.0).args(arguments.split_whitespace()).stdout(Stdio::null());
        let child = command.spawn().unwrap();
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
        // SAFETY: the child is ours and nobody else waits for it; both places are there to be written.
        let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
        assert_eq!((waited, status), (child.id() as i32, 0), "{arguments}");
        // SAFETY: all zeros is a value of it, and the call has filled it in.
        1024 * unsafe { usage.assume_init() }.ru_maxrss as u64
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
    let before = fs::read(place.path("run/tokenizer.json")).unwrap();

    let peak = place.peak(&format!("train text.txt --out tight --vocab-size 700 --memory 45MB {TINY}"));
    assert!(peak < 45_000_000, "{peak} bytes where 45 MB are stated");
    assert!(fs::read(place.path("tight/tokenizer.json")).unwrap() == before, "the same tokens");
    assert!(same(&place.path("run/data/train.tokens"), &place.path("tight/data/train.tokens")));
    assert!(same(&place.path("run/model/model.safetensors"), &place.path("tight/model/model.safetensors")));
}

#[test]
fn weights_are_held_once() {
    let place = Place::new("weights", 200_000);
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

#[test]
fn a_budget_that_cannot_be_kept_is_refused_before_anything_is_written() {
    let place = Place::new("refused", 100_000);
    let said = place.refusal(&format!("train text.txt --out run --memory 5MB --vocab-size 300 {TINY}"));
    assert!(said.contains("at least, so give --memory") && said.lines().count() == 1, "{said}");
    assert!(!place.path("run").exists());
    let stated = said.split("so give --memory ").nth(1).unwrap().split("MB").next().unwrap();
    let smallest: f64 = stated.parse().unwrap();
    let peak = place.peak(&format!("train text.txt --out run --memory {smallest}MB --vocab-size 300 {TINY}"));
    assert!(peak as f64 <= smallest * 1e6, "{peak} bytes where {smallest} MB are said to be enough");
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn same(one: &Path, other: &Path) -> bool {
    fs::read(one).unwrap() == fs::read(other).unwrap()
}

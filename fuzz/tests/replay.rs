//! Every target on its seeds, on what was found earlier, and on random changes of both: the same on every machine.

use gradus_fuzz::{TARGETS, Target};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Changes of each input.
const CHANGES: u64 = 400;

/// Numbers by a fixed rule.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit.max(1)
    }
}

fn changed(input: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(3) {
        let place = random.below(bytes.len());
        match random.below(5) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, random.below(256) as u8),
            2 => drop(bytes.drain(place..(place + random.below(8)).min(bytes.len()))),
            3 => bytes.extend_from_within(place..),
            _ => bytes.iter_mut().skip(place).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
        }
    }
    bytes
}

/// What was found earlier, kept beside the targets.
fn regressions(target: &Target) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| (entry.path().display().to_string(), std::fs::read(entry.path()).unwrap())).collect()
}

fn replay(name: &str) {
    let target = TARGETS.into_iter().find(|target| target.name == name).expect("a target of this name");
    let seeds = (target.seeds)().into_iter().enumerate().map(|(index, seed)| (format!("seed {index}"), seed));
    for (what, input) in seeds.chain(regressions(&target)) {
        (target.run)(&input);
        for seed in 0..CHANGES {
            let changed = changed(&input, seed);
            let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(&changed)));
            assert!(outcome.is_ok(), "{name}, {what}, change {seed}: {:?}", String::from_utf8_lossy(&changed));
        }
    }
}

#[test]
fn corpora() {
    replay("corpus");
}

#[test]
fn checkpoints() {
    replay("checkpoint");
}

#[test]
fn tensor_files() {
    replay("tensors");
}

#[test]
fn tokenizers() {
    replay("tokenizer");
}

#[test]
fn configurations() {
    replay("config");
}

//! What is fuzzed: functions that take any bytes as a file, and say by a panic what must not happen.
//!
//! Each target has a function for one input and seeds that are valid. The binaries in `targets` feed them to libFuzzer;
//! `tests/replay.rs` runs the seeds, what was found earlier, and random changes of both, as an ordinary test.

pub mod checkpoint;
pub mod config;
pub mod corpus;
mod folder;
mod memory;
pub mod tensors;
pub mod tokenizer;

/// Something that reads files.
pub struct Target {
    /// Its name: that of its binary and of its folders.
    pub name: &'static str,
    /// Reads one input and panics if it is not read as promised.
    pub run: fn(&[u8]),
    /// Inputs that are read without an error, or nearly so.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Every target.
pub const TARGETS: [Target; 5] = [
    Target { name: "corpus", run: corpus::run, seeds: corpus::seeds },
    Target { name: "checkpoint", run: checkpoint::run, seeds: checkpoint::seeds },
    Target { name: "tensors", run: tensors::run, seeds: tensors::seeds },
    Target { name: "tokenizer", run: tokenizer::run, seeds: tokenizer::seeds },
    Target { name: "config", run: config::run, seeds: config::seeds },
];

/// Writes the seeds of a target into its folder in `seeds`, where its fuzzer begins and keeps what it learns.
pub fn write_seeds(name: &str) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(name);
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    for (index, seed) in (target.seeds)().iter().enumerate() {
        std::fs::write(folder.join(format!("seed-{index}")), seed).expect("a file can be written");
    }
}

/// Between the parts of an input that is made of several files.
const SEPARATOR: &[u8] = b"\n====\n";

/// The parts of an input.
fn parts(input: &[u8]) -> Vec<&[u8]> {
    let (mut parts, mut rest) = (vec![], input);
    while let Some(end) = rest.windows(SEPARATOR.len()).position(|window| window == SEPARATOR) {
        parts.push(&rest[..end]);
        rest = &rest[end + SEPARATOR.len()..];
    }
    parts.push(rest);
    parts
}

/// An error is one line of text.
fn is_one_line(error: &gradus_train::Error) {
    let text = error.to_string();
    assert!(!text.is_empty() && !text.contains('\n'), "an error is one line: {text:?}");
}

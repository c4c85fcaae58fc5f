//! Checkpoints: any bytes as the files of one, found, restored, and saved beside.

use crate::folder::Folder;
use crate::memory::{limit, within};
use crate::tensors::Given;
use crate::{SEPARATOR, is_one_line, parts};
use gradus_engine::{DType, TensorType};
use gradus_train::checkpoint::{Contents, Progress, Store, newest_whole};
use gradus_train::clipping::NormStatistics;
use gradus_train::files::tensors::Entry;
use gradus_train::models::ModelConfig;
use gradus_train::watch::Monitor;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The record in several forms, what is read ahead of a checksum, and tensors.
const CONSTANT_BYTES: usize = 6 << 20;
const BYTES_PER_BYTE: usize = 128;

const FILES: [&str; 3] = ["state.json", "weights.safetensors", "optimizer.safetensors"];
const STEP: u64 = 7;

/// Set in the first byte: the record's checksums are made right, whatever it says besides.
const RESEALED: u8 = 1;
/// Set in the first byte: the checkpoint that is saved is of an earlier step.
const EARLIER: u8 = 2;

/// Puts the input's files into a checkpoint, reads it, and saves another.
pub fn run(input: &[u8]) {
    let Some((&choice, content)) = input.split_first() else { return };
    let mut files: Vec<Vec<u8>> = parts(content).into_iter().map(<[u8]>::to_vec).collect();
    if choice & RESEALED != 0 {
        reseal(&mut files);
    }
    let folder = Folder::new();
    for (name, bytes) in FILES.iter().zip(&files) {
        folder.write(&format!("checkpoints/step-{STEP:08}/{name}"), bytes);
    }
    within(limit(CONSTANT_BYTES, BYTES_PER_BYTE, content), || {
        restore(folder.path());
        save(folder.path(), if choice & EARLIER != 0 { STEP - 2 } else { STEP + 2 });
    });
}

/// Gives the record the seals of the files and its own checksum.
fn reseal(files: &mut [Vec<u8>]) {
    let Some((record, others)) = files.split_first_mut() else { return };
    let Ok(Value::Object(mut values)) = serde_json::from_slice(record) else { return };
    let seal = |bytes: &Vec<u8>| json!({ "bytes": bytes.len(), "crc32": crc32fast::hash(bytes) });
    let seals: serde_json::Map<String, Value> =
        FILES[1..].iter().zip(others).map(|(name, bytes)| (name.to_string(), seal(bytes))).collect();
    values.insert("files".into(), Value::Object(seals));
    values.insert("checksum".into(), json!("00000000"));
    let text = Value::Object(values).to_string();
    *record = text.replacen("00000000", &format!("{:08x}", crc32fast::hash(text.as_bytes())), 1).into_bytes();
}

fn restore(run: &Path) {
    match newest_whole(run) {
        Ok(None) => {}
        Ok(Some(found)) => {
            assert_eq!(found.progress.step, STEP);
            let mut given = Given::default();
            match found.restore(&contents(), &mut given) {
                Ok(()) => assert_eq!(given.0.len(), 3),
                Err(error) => is_one_line(&error),
            }
        }
        Err(error) => is_one_line(&error),
    }
}

/// What is saved beside whatever is there is whole afterwards, and stays.
fn save(run: &Path, step: u64) {
    let mut store = Store::open(run).expect("nobody else is training here");
    let all = contents();
    let bytes = |entry: &Entry| (entry.name.clone(), vec![step as u8; entry.ty.bytes()]);
    let tensors = Given(all.weights.iter().chain(&all.states).map(bytes).collect());
    let folder = store.save(&all, &tensors, &progress(step), &|_| Ok(())).expect("a checkpoint can be saved");
    store.prune(step, 1).expect("older checkpoints can be removed");
    for name in FILES {
        assert!(folder.join(name).is_file(), "{name} of the checkpoint just saved is gone");
    }
    let found = newest_whole(run).expect("one is whole").expect("one is there");
    assert!(found.progress.step == step || found.progress.step == STEP, "a checkpoint of another step");
}

fn contents() -> Contents {
    let entry = |name: &str, shape: &[usize]| Entry { name: name.into(), ty: TensorType::new(DType::F32, shape) };
    Contents { weights: vec![entry("weight", &[3, 5])], states: vec![entry("moment", &[3, 5]), entry("count", &[])] }
}

fn progress(step: u64) -> Progress {
    Progress {
        step,
        tokens: step * 768,
        data_position: step * 12,
        data_fingerprint: u64::MAX - 3,
        seed: 7,
        seconds: 0.1,
        skipped_in_a_row: 0,
        clipping: NormStatistics::default(),
        monitor: Monitor::default(),
        decay: None,
        model: Some(ModelConfig::gpt2(97, 64, 2, 4, 40)),
        configuration: json!({ "learning-rate": 0.001 }),
    }
}

/// A whole checkpoint, in each way that it may be read.
pub fn seeds() -> Vec<Vec<u8>> {
    let folder = Folder::new();
    save(folder.path(), STEP);
    let read = |name| fs::read(folder.path().join(format!("checkpoints/step-{STEP:08}/{name}"))).expect("it is there");
    let files = FILES.map(read).join(SEPARATOR);
    (0..4).map(|choice| [&[choice], &files[..]].concat()).collect()
}

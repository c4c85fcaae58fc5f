//! Tensor files: any bytes as a safetensors file, read beside the format's own library.

use crate::folder::Folder;
use crate::is_one_line;
use crate::memory::{limit, within};
use gradus_engine::DType;
use gradus_train::files::tensors::{Entry, Fill, TensorFile, Tensors, TensorsMut};
use gradus_train::{Error, Result};
use safetensors::SafeTensors;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

/// A header and what it says, in several forms at a time.
const CONSTANT_BYTES: usize = 4 << 20;
const BYTES_PER_BYTE: usize = 128;

/// Set in the first byte: a line with the header comes next, and its size is put before it.
const HEADER_IN_A_LINE: u8 = 1;

/// Tensors in memory, by name.
#[derive(Default)]
pub struct Given(pub BTreeMap<String, Vec<u8>>);

impl Tensors for Given {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        Ok(Cow::Borrowed(&self.0[name]))
    }
}

impl TensorsMut for Given {
    fn fill(&mut self, entry: &Entry, fill: Fill<'_>) -> Result<()> {
        let mut bytes = vec![0; entry.ty.bytes()];
        fill(entry.ty.dtype, &mut bytes)?;
        self.0.insert(entry.name.clone(), bytes);
        Ok(())
    }
}

/// Reads the input as a file of tensors.
pub fn run(input: &[u8]) {
    let Some(bytes) = file(input) else { return };
    let folder = Folder::new();
    let path = folder.write("a.safetensors", &bytes);
    within(limit(CONSTANT_BYTES, BYTES_PER_BYTE, &bytes), || compare(&path, &bytes));
}

fn file(input: &[u8]) -> Option<Vec<u8>> {
    let (&choice, content) = input.split_first()?;
    if choice & HEADER_IN_A_LINE == 0 {
        return Some(content.to_vec());
    }
    let end = content.iter().position(|&byte| byte == b'\n').unwrap_or(content.len());
    let (header, rest) = content.split_at(end);
    let data = rest.get(1..).unwrap_or_default();
    Some([&(header.len() as u64).to_le_bytes()[..], header, data].concat())
}

/// What is read is what the library reads; what it refuses is refused.
fn compare(path: &Path, bytes: &[u8]) {
    let (ours, theirs) = (TensorFile::open(path), SafeTensors::deserialize(bytes));
    let (file, tensors) = match (ours, theirs) {
        (Ok(file), Ok(tensors)) => (file, tensors),
        (Err(error), _) => return is_one_line(&error),
        (Ok(_), Err(error)) => panic!("opened, though it is no such file: {error}"),
    };
    assert_eq!(sorted(file.names()), sorted(tensors.names().into_iter().map(str::to_string).collect()));
    let mut entries = vec![];
    for name in file.names() {
        let theirs = tensors.tensor(&name).expect("it has the name");
        let Some(ty) = file.ty(&name) else {
            assert!(!file.described(&name).contains('\n'));
            continue;
        };
        assert_eq!(ty.shape.to_vec(), theirs.shape());
        let mut numbers = vec![0; ty.shape.elements() * 4];
        match ty.dtype {
            DType::F32 => {
                file.read_numbers(&name, DType::F32, &mut numbers).expect("a tensor that is there is read");
                assert_eq!(numbers, theirs.data(), "{name}");
            }
            DType::F16 | DType::Bf16 => {
                file.read_numbers(&name, DType::F32, &mut numbers).expect("a tensor that is there is read")
            }
            _ => {}
        }
        entries.push(Entry { name, ty });
    }
    let mut given = Given::default();
    match file.read(&entries, &mut given) {
        Ok(()) => assert!(given.0.iter().all(|(name, bytes)| bytes == tensors.tensor(name).expect("a name").data())),
        Err(error) => assert!(entries.len() < file.names().len() && matches!(error, Error::Checkpoint { .. })),
    }
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

/// Files of a few tensors, and one header in a line.
pub fn seeds() -> Vec<Vec<u8>> {
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},"c":{"dtype":"I64","shape":[],"data_offsets":[14,22]}}"#;
    let line = [&[HEADER_IN_A_LINE], header.as_bytes(), b"\n", &[7; 22]].concat();
    let whole = file(&line).expect("an input");
    vec![[&[0], &whole[..]].concat(), line, [&[HEADER_IN_A_LINE], &b"{}\n"[..]].concat()]
}

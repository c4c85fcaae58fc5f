//! Files of tensors in the safetensors format: written from where the tensors lie, and read to there. Neither holds
//! a second copy of a tensor.

use super::atomic::failed;
use super::reading::{read_at, read_widened};
use crate::models::Parameter;
use crate::{Error, Result};
use gradus_engine::{DType, Program, TensorType};
use gradus_kernels::{Element, bf16, f16};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

// The format is little-endian, and tensors are written as they lie in memory.
const _: () = assert!(cfg!(target_endian = "little"), "tensor files are little-endian");

/// Bytes that are looked at or changed at a time.
const BLOCK_BYTES: usize = 1 << 16;

/// The longest header that is read. A tensor takes about a hundred bytes of it, and no model has so many.
const HEADER_BYTES_MAX: u64 = 16 << 20;

/// A tensor in a file: its name and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its element type and shape.
    pub ty: TensorType,
}

/// What has tensors to be written.
pub trait Tensors {
    /// The bytes of a tensor, borrowed where they can be.
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>>;
}

impl Tensors for Program {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        Ok(Program::bytes(self, name)?)
    }
}

/// What has room for tensors that are read.
pub trait TensorsMut {
    /// Gives `fill` the bytes of a tensor to be written, where they lie if they can be, and the type of its elements there.
    fn fill(&mut self, entry: &Entry, fill: Fill<'_>) -> Result<()>;

    /// The first number of a tensor that there is room for, of which there may be only for a part.
    fn first(&self, _: &Entry) -> usize {
        0
    }
}

/// Writes the bytes of elements of this type.
pub type Fill<'a> = &'a mut dyn FnMut(DType, &mut [u8]) -> Result<()>;

impl TensorsMut for Program {
    fn fill(&mut self, entry: &Entry, fill: Fill<'_>) -> Result<()> {
        let dtype = self.ty(&entry.name)?.dtype;
        Program::fill(self, &entry.name, |bytes| fill(dtype, bytes))
    }
}

/// Writes numbers to a state of a program, rounded to the type that it has.
pub fn write_numbers(program: &mut Program, name: &str, numbers: &[f32]) -> Result<()> {
    let dtype = program.ty(name)?.dtype;
    let Some(narrow) = narrowing(dtype) else { return Ok(program.write(name, numbers)?) };
    let mut bytes = Vec::with_capacity(2 * numbers.len());
    for &number in numbers {
        let no_room = || Error::Config(format!("weight {name:?} {}", no_room(number, dtype)));
        bytes.extend(narrow(number).ok_or_else(no_room)?);
    }
    Ok(program.write_bytes(name, &bytes)?)
}

/// The first number of elements of a type that is not finite, and its place.
pub fn first_not_finite(dtype: DType, bytes: &[u8]) -> Option<(usize, f32)> {
    fn first<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> Option<(usize, f32)> {
        let numbers = bytes.as_chunks().0.iter().map(|bytes| number(*bytes));
        numbers.enumerate().find(|(_, number)| !number.is_finite())
    }
    match dtype {
        DType::Bf16 => first(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        DType::F16 => first(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
        _ => first(bytes, f32::from_le_bytes),
    }
}

/// Rounds a number to an element of two bytes; gives nothing for one that there is no room for.
type Narrow = fn(f32) -> Option<[u8; 2]>;

/// What rounds to this type, if its elements are of two bytes.
fn narrowing(dtype: DType) -> Option<Narrow> {
    fn kept(number: f32, rounded: f32, bytes: [u8; 2]) -> Option<[u8; 2]> {
        (rounded.is_finite() || !number.is_finite()).then_some(bytes)
    }
    match dtype {
        DType::Bf16 => Some(|number| {
            let rounded: bf16 = Element::from_f32(number);
            kept(number, rounded.to_f32(), rounded.to_le_bytes())
        }),
        DType::F16 => Some(|number| {
            let rounded: f16 = Element::from_f32(number);
            kept(number, rounded.to_f32(), rounded.to_le_bytes())
        }),
        _ => None,
    }
}

fn no_room(number: f32, dtype: DType) -> String {
    format!("holds {number}, which {dtype} has no room for; choose another `settings.precision`")
}

/// The size and checksum by which a file is known to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// Its size.
    pub bytes: u64,
    /// Its checksum.
    pub crc32: u32,
}

impl Entry {
    /// A model's weights, which are stored as f32.
    pub fn of_parameters(parameters: &[Parameter]) -> Vec<Entry> {
        let entry = |parameter: &Parameter| Entry {
            name: parameter.name.clone(),
            ty: TensorType::new(DType::F32, &parameter.shape),
        };
        parameters.iter().map(entry).collect()
    }
}

/// Writes a new file of tensors, asking for one tensor's bytes at a time.
pub fn write(path: &Path, entries: &[Entry], tensors: &dyn Tensors) -> Result<Seal> {
    // Wide elements first, so that every tensor is aligned to its elements.
    let mut entries: Vec<&Entry> = entries.iter().collect();
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.ty.dtype.size()));
    let mut file = SealedWriter::create(path).map_err(failed("write", path))?;
    file.write(&header(&entries)).map_err(failed("write", path))?;
    for entry in entries {
        let bytes = tensors.bytes(&entry.name)?;
        assert_eq!(bytes.len(), entry.ty.bytes(), "bytes of {:?}, which is {}", entry.name, entry.ty);
        file.write(&bytes).map_err(failed("write", path))?;
    }
    file.finish().map_err(failed("write", path))
}

/// Writes a new file of tensors that `tensors` has in f32, as elements of another type. They are rounded a block at a
/// time, so that no second copy of a tensor is needed.
pub fn write_as(path: &Path, dtype: DType, entries: &[Entry], tensors: &dyn Tensors) -> Result<Seal> {
    let Some(narrow) = narrowing(dtype) else { return write(path, entries, tensors) };
    let stored = |entry: &Entry| Entry { name: entry.name.clone(), ty: TensorType::new(dtype, &entry.ty.shape) };
    let stored: Vec<Entry> = entries.iter().map(stored).collect();
    let mut file = SealedWriter::create(path).map_err(failed("write", path))?;
    file.write(&header(&stored.iter().collect::<Vec<_>>())).map_err(failed("write", path))?;
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    for entry in entries {
        let bytes = tensors.bytes(&entry.name)?;
        assert_eq!(bytes.len(), entry.ty.bytes(), "bytes of {:?}, which is {}", entry.name, entry.ty);
        for numbers in bytes.chunks(2 * BLOCK_BYTES) {
            block.clear();
            for number in numbers.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)) {
                let no_room = || {
                    let problem = format!("tensor {:?} holds {number}, which {dtype} has no room for", entry.name);
                    Error::checkpoint(path, format!("{problem}; choose another `settings.export_dtype`"))
                };
                block.extend(narrow(number).ok_or_else(no_room)?);
            }
            file.write(&block).map_err(failed("write", path))?;
        }
    }
    file.finish().map_err(failed("write", path))
}

/// The size of the header and the header itself, padded so that the tensors after it are aligned.
fn header(entries: &[&Entry]) -> Vec<u8> {
    let mut end = 0;
    let described = entries.iter().map(|entry| {
        let start = end;
        end += entry.ty.bytes();
        let (dtype, shape) = (stored_type(entry.ty.dtype), entry.ty.shape.to_vec());
        (entry.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    let metadata = Metadata::new(Some(format), described.collect()).expect("tensors follow one another");
    let mut text = serde_json::to_vec(&metadata).expect("names and numbers are valid JSON");
    text.resize(text.len().next_multiple_of(8), b' ');
    [&(text.len() as u64).to_le_bytes()[..], &text].concat()
}

/// A file whose size and checksum are taken as it is written.
struct SealedWriter {
    file: BufWriter<File>,
    hasher: crc32fast::Hasher,
    bytes: u64,
}

impl SealedWriter {
    fn create(path: &Path) -> io::Result<SealedWriter> {
        let file = BufWriter::with_capacity(1 << 18, File::create_new(path)?);
        Ok(SealedWriter { file, hasher: crc32fast::Hasher::new(), bytes: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn finish(mut self) -> io::Result<Seal> {
        self.file.flush()?;
        Ok(Seal { bytes: self.bytes, crc32: self.hasher.finalize() })
    }
}

impl Seal {
    /// The seal that a file now has.
    pub fn of_file(path: &Path) -> io::Result<Seal> {
        let mut file = File::open(path)?;
        let mut hasher = crc32fast::Hasher::new();
        let (mut buffer, mut bytes) = (vec![0; 1 << 18], 0);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Seal { bytes, crc32: hasher.finalize() }),
                count => {
                    hasher.update(&buffer[..count]);
                    bytes += count as u64;
                }
            }
        }
    }
}

/// A file of tensors, of which only what it says of them is held.
pub struct TensorFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Where the tensors begin.
    start: u64,
}

impl TensorFile {
    /// Opens a file and checks that it is whole.
    pub fn open(path: &Path) -> Result<TensorFile> {
        let file = File::open(path).map_err(Error::io("read", path))?;
        let (start, metadata) = read_metadata(&file).map_err(|problem| {
            let problem = format!("not a whole safetensors file ({problem}); copy or save it again");
            Error::checkpoint(path, problem.replace('\n', " "))
        })?;
        Ok(TensorFile { path: path.to_path_buf(), file, metadata, start })
    }

    /// The names of the tensors, in the order of the file.
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The element type and shape of a tensor, if it is there and the engine knows such elements.
    pub fn ty(&self, name: &str) -> Option<TensorType> {
        let info = self.metadata.info(name)?;
        Some(TensorType::new(known_type(info.dtype)?, &info.shape[..]))
    }

    /// Reads a tensor that is there, as it is stored, or as much of it from a number on as there is room for.
    fn read_tensor(&self, name: &str, first: usize, bytes: &mut [u8]) -> Result<()> {
        let before = first * self.ty(name).map_or(0, |ty| ty.dtype.size());
        read_at(&self.file, bytes, self.offset(name) + before as u64).map_err(Error::io("read", &self.path))
    }

    /// Reads a tensor that is there in f32, f16 or bf16, as the bytes of its numbers in one of these types. They are rounded a
    /// block at a time, so that no second copy of a tensor is needed.
    pub fn read_numbers(&self, name: &str, dtype: DType, bytes: &mut [u8]) -> Result<()> {
        let Some(narrow) = narrowing(dtype) else { return self.read_numbers_from(name, 0, bytes) };
        let mut block = vec![0; BLOCK_BYTES];
        for (index, to) in bytes.chunks_mut(BLOCK_BYTES / 2).enumerate() {
            let block = &mut block[..2 * to.len()];
            self.read_numbers_from(name, index * (BLOCK_BYTES / 4), block)?;
            for (number, to) in block.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
                let number = f32::from_le_bytes(*number);
                let no_room = || Error::checkpoint(&self.path, format!("tensor {name:?} {}", no_room(number, dtype)));
                *to = narrow(number).ok_or_else(no_room)?;
            }
        }
        Ok(())
    }

    /// Whether a tensor holds the same numbers as one of another file, both in f32, f16 or bf16. A block of them is
    /// compared at a time.
    pub fn has_same_numbers(&self, name: &str, other: &TensorFile, other_name: &str) -> Result<bool> {
        let shape = |file: &TensorFile, name: &str| file.ty(name).map(|ty| ty.shape);
        let Some(mine) = shape(self, name).filter(|mine| shape(other, other_name).as_ref() == Some(mine)) else {
            return Ok(false);
        };
        let mut blocks = [vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]];
        let (count, step) = (mine.elements(), BLOCK_BYTES / 4);
        for first in (0..count).step_by(step) {
            let bytes = 4 * step.min(count - first);
            let [a, b] = &mut blocks;
            self.read_numbers_from(name, first, &mut a[..bytes])?;
            other.read_numbers_from(other_name, first, &mut b[..bytes])?;
            // Zeros of either sign are the same number.
            let numbers = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect();
            let [a, b]: [Vec<f32>; 2] = [numbers(&a[..bytes]), numbers(&b[..bytes])];
            if a != b {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`TensorFile::read_numbers`] in f32, as many of them as `bytes` has room for, from one on.
    fn read_numbers_from(&self, name: &str, first: usize, bytes: &mut [u8]) -> Result<()> {
        let ty = self.ty(name);
        let size = ty.as_ref().map_or(0, |ty| ty.dtype.size());
        let (file, offset) = (&self.file, self.offset(name) + (first * size) as u64);
        let read = match ty.map(|ty| ty.dtype) {
            Some(DType::F16) => read_widened(file, bytes, offset, widened(f16::from_bits)),
            Some(DType::Bf16) => read_widened(file, bytes, offset, widened(bf16::from_bits)),
            _ => read_at(file, bytes, offset),
        };
        read.map_err(Error::io("read", &self.path))
    }

    /// Where a tensor that is there begins in the file.
    fn offset(&self, name: &str) -> u64 {
        self.start + self.metadata.info(name).map_or(0, |info| info.data_offsets.0) as u64
    }

    /// How a tensor's type is written in messages.
    pub fn described(&self, name: &str) -> String {
        match (self.ty(name), self.metadata.info(name)) {
            (Some(ty), _) => ty.to_string(),
            (None, Some(info)) => format!("{}{:?}", info.dtype, info.shape),
            (None, None) => "missing".to_string(),
        }
    }

    /// Reads the tensors that are expected, after checking that the file holds them and no others.
    pub fn read(&self, expected: &[Entry], tensors: &mut dyn TensorsMut) -> Result<()> {
        self.check(expected)?;
        expected.iter().try_for_each(|entry| {
            let first = tensors.first(entry);
            tensors.fill(entry, &mut |dtype, bytes| {
                assert_eq!(dtype, entry.ty.dtype, "elements of {:?}", entry.name);
                self.read_tensor(&entry.name, first, bytes)
            })
        })
    }

    fn check(&self, expected: &[Entry]) -> Result<()> {
        let other = |name: &str, problem: String| {
            let advice = "use the settings it was saved with, or start a new run in another folder";
            Error::checkpoint(&self.path, format!("of another model: tensor {name:?} {problem}; {advice}"))
        };
        for Entry { name, ty } in expected {
            if self.ty(name).as_ref() != Some(ty) {
                return Err(other(name, format!("is {} here and {ty} in the model", self.described(name))));
            }
        }
        let known: HashSet<&str> = expected.iter().map(|entry| &entry.name[..]).collect();
        match self.names().iter().find(|name| !known.contains(&name[..])) {
            Some(name) => Err(other(name, format!("is {} here and missing in the model", self.described(name)))),
            None => Ok(()),
        }
    }
}

/// Where the tensors of a file begin and what they are; or what is wrong with it.
fn read_metadata(file: &File) -> Result<(u64, Metadata), String> {
    let told = |error: io::Error| error.to_string();
    let file_bytes = file.metadata().map_err(told)?.len();
    let mut header_bytes = [0; 8];
    read_at(file, &mut header_bytes, 0).map_err(told)?;
    let header_bytes = u64::from_le_bytes(header_bytes);
    let start = header_bytes.checked_add(8).filter(|start| *start <= file_bytes);
    let start = start.ok_or("its header is longer than the file")?;
    if header_bytes > HEADER_BYTES_MAX {
        return Err(format!("its header is over {} MiB", HEADER_BYTES_MAX >> 20));
    }
    let mut header = vec![0; header_bytes as usize];
    read_at(file, &mut header, 8).map_err(told)?;
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|error| error.to_string())?;
    match start.checked_add(metadata.data_len() as u64) == Some(file_bytes) {
        true => Ok((start, metadata)),
        false => Err("its tensors are of another size than the file".to_string()),
    }
}

/// The bytes of a number in f32 from those of one of two bytes.
fn widened<T: Element>(from_bits: impl Fn(u16) -> T) -> impl Fn([u8; 2]) -> [u8; 4] {
    move |bytes| from_bits(u16::from_le_bytes(bytes)).to_f32().to_le_bytes()
}

fn stored_type(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::F64 => Dtype::F64,
        DType::I32 => Dtype::I32,
        DType::U32 => Dtype::U32,
    }
}

fn known_type(dtype: Dtype) -> Option<DType> {
    let known = [DType::F32, DType::Bf16, DType::F16, DType::F64, DType::I32, DType::U32];
    known.into_iter().find(|&known| stored_type(known) == dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::{Folder, Given};
    use gradus_engine::{Array, Shape};

    fn entry(name: &str, dtype: DType, shape: impl Into<Shape>) -> Entry {
        Entry { name: name.to_string(), ty: TensorType::new(dtype, shape) }
    }

    /// Bytes that depend on the name, with patterns of bits that are not numbers among them.
    fn tensors(entries: &[Entry]) -> Given {
        let bytes = |entry: &Entry| {
            let salt = entry.name.bytes().map(usize::from).sum::<usize>();
            (0..entry.ty.bytes()).map(|index| (index * 37 + salt) as u8).collect()
        };
        entries.iter().map(|entry| (entry.name.clone(), bytes(entry))).collect()
    }

    #[test]
    fn every_type_comes_back_bit_for_bit() {
        let folder = Folder::new("tensors-round");
        let path = folder.path().join("a.safetensors");
        let entries = [
            entry("halves", DType::F16, [3]),
            entry("brains", DType::Bf16, [5, 1]),
            entry("number", DType::F32, []),
            entry("wide", DType::F64, [2, 2]),
            entry("nothing", DType::F32, [0, 4]),
            entry("signed", DType::I32, [7]),
            entry("unsigned", DType::U32, [1]),
        ];
        let tensors = tensors(&entries);
        let seal = write(&path, &entries, &tensors).unwrap();
        assert_eq!(Seal::of_file(&path).unwrap(), seal);

        let file = TensorFile::open(&path).unwrap();
        let mut found = Given::new();
        file.read(&entries, &mut found).unwrap();
        assert_eq!(found, tensors);
        for entry in &entries {
            let offset = file.offset(&entry.name) as usize;
            assert_eq!(offset % entry.ty.dtype.size(), 0, "{} is aligned", entry.name);
        }
    }

    #[test]
    fn a_file_of_another_model_names_the_first_tensor_that_differs() {
        let folder = Folder::new("tensors-other");
        let path = folder.path().join("a.safetensors");
        let entries = [entry("a", DType::F32, [2]), entry("b", DType::F32, [3])];
        write(&path, &entries, &tensors(&entries)).unwrap();
        let file = TensorFile::open(&path).unwrap();
        let says = |expected: &[Entry], words: &[&str]| {
            let mut found = Given::new();
            let error = file.read(expected, &mut found).unwrap_err().to_string();
            assert!(found.is_empty(), "nothing is read");
            for word in words.iter().chain(&["another model", "settings"]) {
                assert!(error.contains(word), "{error:?} should say {word:?}");
            }
        };
        says(&[entry("a", DType::F32, [2]), entry("b", DType::F32, [4])], &["\"b\" is f32[3] here and f32[4]"]);
        says(&[entry("a", DType::Bf16, [2]), entry("c", DType::F32, [1])], &["\"a\" is f32[2] here and bf16[2]"]);
        says(&[entry("c", DType::F32, [1])], &["\"c\" is missing here"]);
        says(&[entry("a", DType::F32, [2])], &["\"b\" is f32[3] here and missing in the model"]);
    }

    #[test]
    fn numbers_are_read_as_what_is_wanted() {
        let folder = Folder::new("tensors-rounded");
        // More than a block of them.
        let numbers: Vec<f32> = (0..40_001).map(|index| (index as f32 - 20_000.0) * 0.37).collect();
        let given = Given::from([("a".to_string(), bytemuck::cast_slice(&numbers).to_vec())]);
        let entries = [entry("a", DType::F32, [numbers.len()])];
        let types = [DType::F32, DType::Bf16, DType::F16];
        let rounded =
            |numbers: &[f64], dtype: DType| Array::from_f64(TensorType::new(dtype, [40_001]), numbers).unwrap();
        for (stored, wanted) in types.into_iter().flat_map(|stored| types.map(|wanted| (stored, wanted))) {
            let path = folder.path().join(format!("{stored}-{wanted}"));
            write_as(&path, stored, &entries, &given).unwrap();
            let mut bytes = vec![0; numbers.len() * wanted.size()];
            TensorFile::open(&path).unwrap().read_numbers("a", wanted, &mut bytes).unwrap();
            let exact: Vec<f64> = numbers.iter().map(|number| *number as f64).collect();
            assert!(bytes == rounded(&rounded(&exact, stored).to_f64(), wanted).bytes(), "{stored} as {wanted}");
            assert_eq!(first_not_finite(wanted, &bytes), None);
        }
    }

    #[test]
    fn numbers_without_room_and_numbers_that_are_none_are_told_apart() {
        let folder = Folder::new("tensors-room");
        let path = folder.path().join("a.safetensors");
        let given = Given::from([("a".to_string(), bytemuck::cast_slice(&[1f32, -7e4, f32::NAN]).to_vec())]);
        write(&path, &[entry("a", DType::F32, [3])], &given).unwrap();
        let mut bytes = vec![0; 6];
        let file = TensorFile::open(&path).unwrap();
        let said = file.read_numbers("a", DType::F16, &mut bytes).unwrap_err().to_string();
        assert!(said.contains("tensor \"a\" holds -70000, which f16 has no room for"), "{said}");
        file.read_numbers("a", DType::Bf16, &mut bytes).unwrap();
        assert!(first_not_finite(DType::Bf16, &bytes).is_some_and(|(place, number)| place == 2 && number.is_nan()));
    }

    #[test]
    fn a_torn_or_foreign_file_is_an_error() {
        let folder = Folder::new("tensors-torn");
        let path = folder.path().join("a.safetensors");
        let entries = [entry("a", DType::F32, [200])];
        write(&path, &entries, &tensors(&entries)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for content in [&whole[..whole.len() - 1], &whole[..5], &[], b"some text that is no tensor file"] {
            std::fs::write(&path, content).unwrap();
            let error = TensorFile::open(&path).err().unwrap().to_string();
            assert!(error.contains("not a whole safetensors file") && !error.contains('\n'), "{error}");
        }
        let error = TensorFile::open(&folder.path().join("none")).err().unwrap().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }

    #[test]
    fn a_header_as_large_as_the_file_is_not_read() {
        let folder = Folder::new("tensors-header");
        let path = folder.path().join("a.safetensors");
        let file = File::create(&path).unwrap();
        (&file).write_all(&(HEADER_BYTES_MAX + 1).to_le_bytes()).unwrap();
        file.set_len(HEADER_BYTES_MAX + 9).unwrap();
        let error = TensorFile::open(&path).err().unwrap().to_string();
        assert!(error.contains("its header is over 16 MiB") && !error.contains('\n'), "{error}");
    }
}

//! A corpus that comes through standard input: it is read more than once, so it is put into a file while it is needed.

use super::decompress::{self, Compression};
use super::{Format, SourceFile};
use crate::files::atomic;
use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How it is named in messages.
pub const SHOWN: &str = "standard input";

/// Standard input, and the file that it is put into when it is first read. The file is removed in the end.
#[derive(Debug)]
pub struct StandardInput {
    folder: PathBuf,
    bytes_max: u64,
    file: OnceLock<SourceFile>,
}

impl StandardInput {
    /// Standard input that will be put into a file of this folder, and read within so many bytes of memory.
    pub fn new(folder: &Path, bytes_max: u64) -> StandardInput {
        StandardInput { folder: folder.to_path_buf(), bytes_max, file: OnceLock::new() }
    }

    /// Where its file will be.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Bytes of memory within which it is read.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// The file of what came, all of it.
    pub fn file(&self, text_field: Option<&str>) -> Result<&SourceFile> {
        if self.file.get().is_none() {
            let input = io::stdin();
            if input.is_terminal() {
                return Err(Error::corpus(Path::new(SHOWN), "it is a terminal: pipe text into it, or name files"));
            }
            let place = self.folder.join(format!("train.tokens.stdin-{}", std::process::id()));
            let file = put(input.lock(), &place, text_field, self.bytes_max)?;
            let _ = self.file.set(file);
        }
        Ok(self.file.get().expect("it was just set"))
    }
}

impl Drop for StandardInput {
    fn drop(&mut self) {
        if let Some(file) = self.file.get() {
            let _ = fs::remove_file(&file.place);
        }
    }
}

/// Puts what comes into a file and looks what it is: text, or objects of JSON if it begins with one or a field is named.
fn put(mut input: impl Read, place: &Path, text_field: Option<&str>, bytes_max: u64) -> Result<SourceFile> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(place);
    let mut file = file.map_err(atomic::failed("write", place))?;
    let put = io::copy(&mut input, &mut file).map_err(atomic::failed("write", place)).and_then(|bytes| {
        let compression = compression(&mut file).map_err(Error::io("read", place))?;
        let (path, place) = (PathBuf::from(SHOWN), place.to_path_buf());
        // Another text comes each time.
        let modified_nanoseconds =
            super::paths::modified_nanoseconds(&file.metadata().map_err(Error::io("read", &place))?);
        let mut file =
            SourceFile { path, place, format: Format::PlainText, compression, bytes, modified_nanoseconds, bytes_max };
        if text_field.is_some() || first_byte(&file)? == Some(b'{') {
            file.format = Format::JsonLines;
        }
        Ok(file)
    });
    put.inspect_err(|_| {
        let _ = fs::remove_file(place);
    })
}

/// The compression that the first bytes of a file tell of.
fn compression(file: &mut File) -> io::Result<Compression> {
    file.seek(SeekFrom::Start(0))?;
    let mut start = vec![];
    file.take(4).read_to_end(&mut start)?;
    Ok(match start[..] {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd] => Compression::Zstandard,
        _ => Compression::None,
    })
}

/// The first byte of a file's text that is not space.
fn first_byte(file: &SourceFile) -> Result<Option<u8>> {
    let mut start = vec![];
    let read = decompress::open(file)?.take(1 << 12).read_to_end(&mut start);
    read.map_err(|error| decompress::read_error(&file.path, file.compression, error))?;
    let text = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&start);
    Ok(text.trim_ascii_start().first().copied())
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::Folder;
    use super::super::tests::{gzip, zstandard};
    use super::*;

    #[test]
    fn what_comes_is_told_apart_by_its_first_bytes() {
        let folder = Folder::new("standard-input");
        let texts = |bytes: &[u8], field| -> Vec<String> {
            let place = folder.path().join("put");
            let file = put(bytes, &place, field, u64::MAX).unwrap();
            assert!(put(bytes, &place, field, u64::MAX).is_err(), "nothing is written over");
            let texts = file.documents(field).unwrap().map(|document| document.unwrap().text).collect();
            fs::remove_file(&place).unwrap();
            texts
        };
        let lines = b"\xef\xbb\xbf\n{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
        for packed in [lines.to_vec(), gzip(lines), zstandard(lines)] {
            assert_eq!(texts(&packed, None), ["one", "two"]);
        }
        for packed in [b"plain {text}".to_vec(), gzip(b"plain {text}"), zstandard(b"plain {text}")] {
            assert_eq!(texts(&packed, None), ["plain {text}"]);
        }
        assert_eq!(texts(b"", None), [""; 0]);
        let place = folder.path().join("put");
        let told = put(&gzip(lines)[..20], &place, None, u64::MAX).unwrap_err().to_string();
        assert!(told.starts_with("standard input: it is not a whole gzip file"), "{told}");
        assert!(!place.exists(), "nothing is left");
    }
}

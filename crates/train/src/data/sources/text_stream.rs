//! A file's text as it is read: checked to be UTF-8, one window of it at a time.

use super::SourceFile;
use super::decompress::{self, Compression, read_error};
use crate::{Error, Result};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a file that are held.
pub const WINDOW_BYTES: usize = 1 << 16;

/// The mark that some editors put before UTF-8 text.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Text from a file, of which one window is held.
pub struct TextStream {
    path: PathBuf,
    compression: Compression,
    reader: Box<dyn Read>,
    window: String,
    /// What of the window was consumed, and where that is in the file.
    consumed: usize,
    offset: u64,
    /// The first bytes of a character whose others come after the window.
    cut: Vec<u8>,
}

impl TextStream {
    /// The text of a file, after the mark that may begin it.
    pub fn open(file: &SourceFile) -> Result<TextStream> {
        let SourceFile { path, compression, .. } = file.clone();
        let (reader, window) = (decompress::open(file)?, String::with_capacity(WINDOW_BYTES));
        let mut stream = TextStream { path, compression, reader, window, consumed: 0, offset: 0, cut: vec![] };
        if stream.window()?.starts_with(BYTE_ORDER_MARK) {
            stream.consume(BYTE_ORDER_MARK.len_utf8());
        }
        Ok(stream)
    }

    /// What comes next, at least a character; nothing at the end.
    pub fn window(&mut self) -> Result<&str> {
        if self.consumed == self.window.len() {
            self.read_window()?;
        }
        Ok(&self.window[self.consumed..])
    }

    /// The next byte, if there is one.
    pub fn peek(&mut self) -> Result<Option<u8>> {
        if self.consumed == self.window.len() {
            self.read_window()?;
        }
        Ok(self.window.as_bytes().get(self.consumed).copied())
    }

    /// Goes on by so many bytes of the window, to where a character begins.
    pub fn consume(&mut self, bytes: usize) {
        self.consumed += bytes;
        self.offset += bytes as u64;
    }

    /// The place of what comes next, in bytes of the file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// What is wrong with the file.
    pub fn problem(&self, problem: impl Into<String>) -> Error {
        Error::corpus(&self.path, problem)
    }

    fn read_window(&mut self) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.window).into_bytes();
        bytes.clear();
        bytes.append(&mut self.cut);
        let missing = (WINDOW_BYTES - bytes.len()) as u64;
        let read = self.reader.by_ref().take(missing).read_to_end(&mut bytes);
        read.map_err(|error| read_error(&self.path, self.compression, error))?;
        self.consumed = 0;
        self.window = self.checked(bytes)?;
        Ok(())
    }

    /// The bytes as text. A character that the end of a full window cuts waits for the rest of it.
    fn checked(&mut self, bytes: Vec<u8>) -> Result<String> {
        if self.offset == 0 && (bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")) {
            return Err(self.problem("it is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"));
        }
        if let Some(index) = bytes.iter().position(|&byte| byte == 0) {
            return Err(not_text(&self.path, format!("there is a zero at byte {}", self.offset + index as u64)));
        }
        let is_full = bytes.len() == WINDOW_BYTES;
        let error = match String::from_utf8(bytes) {
            Ok(text) => return Ok(text),
            Err(error) => error,
        };
        let (index, is_cut) = (error.utf8_error().valid_up_to(), error.utf8_error().error_len().is_none());
        let mut bytes = error.into_bytes();
        if is_cut && is_full {
            self.cut = bytes.split_off(index);
            return Ok(String::from_utf8(bytes).expect("text up to here"));
        }
        let problem = format!("not UTF-8 at byte {} (0x{:02x})", self.offset + index as u64, bytes[index]);
        let advice = "convert it to UTF-8 (iconv -f LATIN1 -t UTF-8, if it is Latin-1)";
        Err(self.problem(format!("{problem}: {advice}")))
    }
}

/// A file that is named as text and is none.
pub fn not_text(path: &Path, reason: String) -> Error {
    Error::corpus(path, format!("it is not text but binary ({reason}): name a text file"))
}

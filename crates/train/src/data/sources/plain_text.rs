//! A text file: one document, in pieces when it is long.

use super::decompress::{self, Compression, read_error};
use super::{Document, SourceFile};
use crate::{Error, Result};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a piece: small beside memory, large beside a line.
const PIECE_BYTES: usize = 1 << 20;

/// The mark that some editors put before UTF-8 text.
pub const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The pieces of a text file.
pub struct Pieces {
    path: PathBuf,
    compression: Compression,
    reader: Box<dyn Read>,
    /// Bytes read and not given yet.
    pending: Vec<u8>,
    /// Where `pending` begins in the text.
    offset: u64,
}

impl Pieces {
    pub fn open(file: &SourceFile) -> Result<Pieces> {
        let SourceFile { path, compression, .. } = file.clone();
        let mut pieces = Pieces { path, compression, reader: decompress::open(file)?, pending: Vec::new(), offset: 0 };
        pieces.fill()?;
        if pieces.pending.starts_with(BYTE_ORDER_MARK) {
            pieces.remove(BYTE_ORDER_MARK.len());
        }
        Ok(pieces)
    }

    /// Reads until there is one byte more than a piece, which tells whether the document goes on.
    fn fill(&mut self) -> Result<()> {
        let missing = (PIECE_BYTES + 1).saturating_sub(self.pending.len()) as u64;
        let read = self.reader.by_ref().take(missing).read_to_end(&mut self.pending);
        read.map(drop).map_err(|error| read_error(&self.path, self.compression, error))
    }

    fn remove(&mut self, bytes: usize) -> Vec<u8> {
        let rest = self.pending.split_off(bytes);
        self.offset += bytes as u64;
        std::mem::replace(&mut self.pending, rest)
    }

    fn piece(&mut self) -> Result<Option<Document>> {
        self.fill()?;
        if self.pending.is_empty() {
            return Ok(None);
        }
        let continues = self.pending.len() > PIECE_BYTES;
        let offset = self.offset;
        let end = if continues { piece_end(&self.pending[..PIECE_BYTES]) } else { self.pending.len() };
        let bytes = self.remove(end);
        let text = checked_text(&self.path, bytes, offset)?;
        Ok(Some(Document { text, continues }))
    }
}

impl Iterator for Pieces {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        self.piece().transpose()
    }
}

/// Where a piece ends: after a line end with no other space beside it, where no tokenizer joins what is on both
/// sides; else after the last line end; else after the last whole character.
fn piece_end(bytes: &[u8]) -> usize {
    let is_space = |index: usize| bytes[index].is_ascii_whitespace();
    let line_ends = || (1..bytes.len()).rev().filter(|&end| bytes[end - 1] == b'\n');
    let alone = line_ends().find(|&end| !is_space(end) && end >= 2 && !is_space(end - 2));
    alone.or_else(|| line_ends().next()).unwrap_or_else(|| {
        let start = (0..bytes.len()).rev().find(|&index| !is_continuation(bytes[index]));
        start.filter(|&start| start > 0).unwrap_or(bytes.len())
    })
}

/// Whether the byte is a later one of a UTF-8 character.
fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

/// The bytes as text, which begin at `offset` of the file.
pub fn checked_text(path: &Path, bytes: Vec<u8>, offset: u64) -> Result<String> {
    if offset == 0 && (bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff")) {
        return Err(Error::corpus(path, "it is UTF-16: convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)"));
    }
    if let Some(index) = bytes.iter().position(|&byte| byte == 0) {
        return Err(not_text(path, format!("there is a zero at byte {}", offset + index as u64)));
    }
    let controls = bytes.iter().filter(|&&byte| byte < 32 && !byte.is_ascii_whitespace()).count();
    if controls * 8 > bytes.len() {
        return Err(not_text(path, format!("there are {controls} control characters from byte {offset} on")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let index = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[index];
        let problem = format!("not UTF-8 at byte {} (0x{byte:02x})", offset + index as u64);
        Error::corpus(path, format!("{problem}: convert it to UTF-8 (iconv -f LATIN1 -t UTF-8, if it is Latin-1)"))
    })
}

fn not_text(path: &Path, reason: String) -> Error {
    Error::corpus(path, format!("it is not text but binary ({reason}): name a text file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_where_no_token_is_cut() {
        let end = |text: &str| piece_end(text.as_bytes());
        assert_eq!(end("one\ntwo\n\nthree"), 4, "a line end alone");
        assert_eq!(end("one\n\n three"), 5, "a line end");
        assert_eq!(end("one twö"), 6, "a whole character");
        assert_eq!(end("é"), 2, "something, at any rate");
    }
}

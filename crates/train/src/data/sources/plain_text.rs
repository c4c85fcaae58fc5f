//! A text file: one document, in pieces when it is long.

use super::pieces::{PIECE_BYTES, cut_piece};
use super::text_stream::{TextStream, not_text};
use super::{Document, SourceFile};
use crate::Result;
use std::path::PathBuf;

/// The pieces of a text file.
pub struct Pieces {
    path: PathBuf,
    stream: TextStream,
    /// What was read and not given yet.
    pending: String,
}

impl Pieces {
    pub fn open(file: &SourceFile) -> Result<Pieces> {
        Ok(Pieces { path: file.path.clone(), stream: TextStream::open(file)?, pending: String::new() })
    }

    fn piece(&mut self) -> Result<Option<Document>> {
        let offset = self.stream.offset() - self.pending.len() as u64;
        // One byte more than a piece tells that the document goes on.
        while self.pending.len() <= PIECE_BYTES {
            let window = self.stream.window()?;
            let bytes = window.len();
            if bytes == 0 {
                break;
            }
            self.pending.push_str(window);
            self.stream.consume(bytes);
        }
        if self.pending.is_empty() {
            return Ok(None);
        }
        let piece = match self.pending.len() > PIECE_BYTES {
            true => cut_piece(&mut self.pending),
            false => Document::whole(std::mem::take(&mut self.pending)),
        };
        let controls = piece.text.bytes().filter(|&byte| byte < 32 && !byte.is_ascii_whitespace()).count();
        match controls * 8 > piece.text.len() {
            true => Err(not_text(&self.path, format!("there are {controls} control characters from byte {offset} on"))),
            false => Ok(Some(piece)),
        }
    }
}

impl Iterator for Pieces {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        self.piece().transpose()
    }
}

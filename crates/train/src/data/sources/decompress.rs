//! Reading a file as it was before it was compressed.

use super::{SourceFile, one_line};
use crate::memory::Size;
use crate::{Error, Result};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, DEFAULT_MAX_WINDOW_SIZE, FrameDecoder};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstandard,
}

/// Bytes asked of the system at a time.
pub const READ_BYTES: usize = 1 << 16;

/// A stream of the file's decompressed bytes.
pub fn open(file: &SourceFile) -> Result<Box<dyn Read>> {
    let opened = File::open(&file.place).map_err(Error::io("read", &file.path))?;
    let reader = BufReader::with_capacity(READ_BYTES, opened);
    Ok(match file.compression {
        Compression::None => Box::new(reader),
        Compression::Gzip => Box::new(MultiGzDecoder::new(reader)),
        Compression::Zstandard => {
            let mut decoder = FrameDecoder::new();
            decoder.set_max_window_size(file.bytes_max.min(DEFAULT_MAX_WINDOW_SIZE));
            Box::new(ZstandardFrames { source: reader, decoder, in_frame: false })
        }
    })
}

/// The most bytes that are held to decompress a file: what its text refers back to, which a zstd file states, in a
/// buffer whose size is a power of two, beside the buffers that there always are.
pub fn bytes_held(file: &SourceFile) -> Result<u64> {
    if file.compression != Compression::Zstandard {
        return Ok(0);
    }
    let opened = File::open(&file.place).map_err(Error::io("read", &file.path))?;
    let mut decoder = FrameDecoder::new();
    // No window is so small that it would be allocated.
    decoder.set_max_window_size(0);
    match decoder.init(opened) {
        Err(FrameDecoderError::WindowSizeTooBig { requested, .. }) => {
            Ok(requested.checked_next_power_of_two().unwrap_or(u64::MAX).saturating_add(1 << 20))
        }
        _ => Ok(0),
    }
}

/// The error for a read that failed: of the system, or of what is in the file.
pub fn read_error(path: &Path, compression: Compression, error: io::Error) -> Error {
    if let Some(FrameDecoderError::WindowSizeTooBig { requested, max }) = window_too_big(&error) {
        let (needed, left) = (Size(*requested), Size(*max));
        let advice = "pack it again with a smaller window (zstd --long sets it), or give more `settings.memory`";
        return Error::corpus(path, format!("it takes {needed} to be unpacked, and {left} may be taken: {advice}"));
    }
    let kind = match compression {
        Compression::None => return Error::io("read", path)(error),
        Compression::Gzip => "gzip",
        Compression::Zstandard => "zstd",
    };
    let problem = format!("it is not a whole {kind} file ({}): fetch or compress it again", one_line(&error));
    Error::corpus(path, problem)
}

fn window_too_big(error: &io::Error) -> Option<&FrameDecoderError> {
    error.get_ref().and_then(|source| source.downcast_ref())
}

/// Frame after frame, since a file may hold several, and some that are to be passed over.
struct ZstandardFrames<R: BufRead> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
}

impl<R: BufRead> Read for ZstandardFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame && !self.begin_frame()? {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one_block = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one_block).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.end_frame()?;
        }
    }
}

impl<R: BufRead> ZstandardFrames<R> {
    /// Begins the next frame; false at the end of the file.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.source) {
                Ok(()) => {
                    self.in_frame = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.source.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stated = self.decoder.get_checksum_from_data();
        match stated.is_some() && stated != self.decoder.get_calculated_checksum() {
            true => Err(io::Error::other("its checksum does not match")),
            false => Ok(()),
        }
    }
}

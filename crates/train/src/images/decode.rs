//! Image files: what their beginnings say, and their pixels.

use crate::{Error, Result};
use image::error::ImageError;
use image::{ColorType, ImageDecoder, ImageFormat, ImageReader};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// Endings of the files that are images.
const ENDINGS: [&str; 4] = ["png", "jpg", "jpeg", "webp"];
/// The most bytes of one image: what states more is taken for broken.
const MOST_BYTES: u64 = 1 << 31;
/// What a decoder holds besides the file and the pixels: its state, a window of compressed bytes, some lines.
const DECODER_BYTES: u64 = 1 << 20;

/// Whether a file's name is that of an image.
pub fn is_image(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default().to_ascii_lowercase();
    ENDINGS.contains(&&ending[..])
}

/// What the beginning of a file says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Height and width.
    pub size: [usize; 2],
    /// Bytes of its pixels, as they are decoded.
    pub bytes: u64,
    /// What its decoder holds besides those, at most.
    pub besides: u64,
}

/// Reads the beginning of a file.
pub fn header(path: &Path) -> Result<Header> {
    let file_bytes = std::fs::metadata(path).map_err(Error::io("read", path))?.len();
    with_decoder(path, |format, decoder| {
        let (width, height) = decoder.dimensions();
        let (bytes, pixels) = (decoder.total_bytes(), u64::from(width) * u64::from(height));
        if pixels == 0 || bytes > MOST_BYTES {
            return Err(broken(path, &format!("{width} x {height} pixels")));
        }
        // A JPEG may come in passes, with 16 bits a coefficient in between, and is read whole, as is a WebP file.
        let inside = match format {
            Some(ImageFormat::Jpeg) => file_bytes + 7 * pixels,
            Some(ImageFormat::WebP) => file_bytes + 9 * pixels,
            _ => 0,
        };
        Ok(Header { size: [height as usize, width as usize], bytes, besides: DECODER_BYTES + inside })
    })
}

/// The pixels of an image, as its file has them.
#[derive(Clone, Copy)]
pub struct Pixels<'a> {
    bytes: &'a [u8],
    /// Height and width.
    pub size: [usize; 2],
    kind: Kind,
}

/// The channels of a pixel: how many, of how many bytes each.
#[derive(Clone, Copy)]
struct Kind {
    channels: usize,
    bytes: usize,
}

impl Pixels<'_> {
    /// Red, green and blue of a place. Grey is all three; what lies behind a transparent place is shown.
    pub fn at(&self, row: usize, column: usize) -> [u8; 3] {
        let Kind { channels, bytes } = self.kind;
        let first = (row * self.size[1] + column) * channels * bytes;
        let channel = |number: usize| {
            let at = first + number * bytes;
            // Of two bytes, as they lie in memory, the higher one is enough.
            self.bytes[if bytes == 2 && cfg!(target_endian = "little") { at + 1 } else { at }]
        };
        if channels < 3 { [channel(0); 3] } else { [channel(0), channel(1), channel(2)] }
    }
}

/// Decodes a file into bytes that are kept from one to the next.
pub fn decode<'a>(path: &Path, room: &'a mut Vec<u8>) -> Result<Pixels<'a>> {
    let (size, kind) = with_decoder(path, |_, decoder| {
        let (width, height) = decoder.dimensions();
        let kind = match decoder.color_type() {
            ColorType::L8 => Kind { channels: 1, bytes: 1 },
            ColorType::La8 => Kind { channels: 2, bytes: 1 },
            ColorType::Rgb8 => Kind { channels: 3, bytes: 1 },
            ColorType::Rgba8 => Kind { channels: 4, bytes: 1 },
            ColorType::L16 => Kind { channels: 1, bytes: 2 },
            ColorType::La16 => Kind { channels: 2, bytes: 2 },
            ColorType::Rgb16 => Kind { channels: 3, bytes: 2 },
            ColorType::Rgba16 => Kind { channels: 4, bytes: 2 },
            other => return Err(broken(path, &format!("colours of type {other:?}"))),
        };
        if decoder.total_bytes() > MOST_BYTES {
            return Err(broken(path, &format!("{width} x {height} pixels")));
        }
        room.resize(decoder.total_bytes() as usize, 0);
        decoder.read_image(room).map_err(|error| unreadable(path, &error))?;
        Ok(([height as usize, width as usize], kind))
    })?;
    Ok(Pixels { bytes: room, size, kind })
}

fn with_decoder<T>(
    path: &Path,
    read: impl FnOnce(Option<ImageFormat>, Box<dyn ImageDecoder + '_>) -> Result<T>,
) -> Result<T> {
    // A pipe might never say anything.
    if !std::fs::metadata(path).map_err(Error::io("read", path))?.is_file() {
        return Err(broken(path, "it is no file"));
    }
    let file = File::open(path).map_err(Error::io("read", path))?;
    let reader = ImageReader::new(BufReader::new(file)).with_guessed_format().map_err(Error::io("read", path))?;
    let format = reader.format();
    let decoder = reader.into_decoder().map_err(|error| unreadable(path, &error))?;
    read(format, Box::new(decoder))
}

fn unreadable(path: &Path, error: &ImageError) -> Error {
    broken(path, &error.to_string().replace('\n', " "))
}

fn broken(path: &Path, problem: &str) -> Error {
    Error::corpus(
        path,
        format!("not an image that can be read ({problem}); remove it, or leave such out by `settings.skip_broken`"),
    )
}

//! How large the pages of a Parquet column are, from the headers before them: the library that reads a page unpacks it
//! whole.

use crate::files::reading::read_at;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};

/// Bytes that are read to find a header.
const HEADER_BYTES: usize = 1 << 9;
/// How deep structures may lie in one another in a page's header.
const DEPTH_MAX: usize = 16;
/// What a value of a dictionary takes beside its bytes in the page.
const DICTIONARY_VALUE_BYTES: u64 = 48;
/// The least that a value takes in a page: its length.
const VALUE_BYTES_MIN: u64 = 4;

/// The largest of what is read of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSizes {
    /// Bytes of the largest page as it lies in the file.
    pub packed: u64,
    /// Bytes of the largest page of values, unpacked.
    pub unpacked: u64,
    /// Bytes of the largest dictionary, unpacked, with a place for each of its values.
    pub dictionary: u64,
}

impl PageSizes {
    /// The largest of both.
    pub fn or(self, other: PageSizes) -> PageSizes {
        PageSizes {
            packed: self.packed.max(other.packed),
            unpacked: self.unpacked.max(other.unpacked),
            dictionary: self.dictionary.max(other.dictionary),
        }
    }

    /// The most bytes that are held while pages of these sizes are read: when a page is unpacked, the one before it is
    /// still there, and so is the dictionary. `is_copied`: whether they are unpacked through a buffer as large.
    pub fn bytes_held(&self, is_copied: bool) -> u64 {
        let copy = if is_copied { self.unpacked.max(self.dictionary) } else { 0 };
        self.packed + 2 * self.unpacked + self.dictionary + copy
    }
}

/// Finds the sizes of the pages from `start` on, in so many bytes. What the headers say is checked against these.
pub fn page_sizes(file: &File, start: u64, bytes: u64) -> io::Result<PageSizes> {
    let end = start.checked_add(bytes).filter(|end| file.metadata().is_ok_and(|about| *end <= about.len()));
    let end = end.ok_or_else(|| invalid("a column lies beyond the end of the file"))?;
    let mut reader = BufReader::with_capacity(HEADER_BYTES, file);
    reader.seek(SeekFrom::Start(start))?;
    let mut sizes = PageSizes::default();
    while reader.stream_position()? < end {
        let page = PageHeader::read(&mut reader)?;
        let left = end.saturating_sub(reader.stream_position()?);
        if page.packed > left || page.dictionary_values.unwrap_or(0) > page.unpacked / VALUE_BYTES_MIN {
            return Err(invalid("a page is said to be larger than its place"));
        }
        reader.seek_relative(page.packed as i64)?;
        let PageHeader { packed, unpacked, .. } = page;
        sizes = sizes.or(match page.dictionary_values {
            Some(values) => PageSizes { packed, unpacked: 0, dictionary: unpacked + DICTIONARY_VALUE_BYTES * values },
            None => PageSizes { packed, unpacked, dictionary: 0 },
        });
    }
    Ok(sizes)
}

/// Bytes of what a file says of itself at its end, if it ends as a Parquet file does.
pub fn footer_bytes(file: &File) -> io::Result<u64> {
    let file_bytes = file.metadata()?.len();
    let mut end = [0; 8];
    let place = file_bytes.checked_sub(8).ok_or_else(|| invalid("it is too short"))?;
    read_at(file, &mut end, place)?;
    let bytes = u32::from_le_bytes([end[0], end[1], end[2], end[3]]).into();
    match &end[4..] == b"PAR1" && bytes <= place {
        true => Ok(bytes),
        false => Err(invalid("its end is not that of a Parquet file")),
    }
}

/// Checks that what a file says of itself, in so many bytes at its end, is there: the library counts out a list of truths
/// of any stated length, though it takes no bytes.
pub fn check_footer(file: &File, footer_bytes: u64) -> io::Result<()> {
    let mut reader = BufReader::new(file);
    reader.seek(SeekFrom::End(-8 - footer_bytes as i64))?;
    skip(&mut reader, STRUCTURE, 0)
}

/// What is read of a page's header, which is in Thrift's compact form.
#[derive(Default)]
struct PageHeader {
    unpacked: u64,
    packed: u64,
    /// The number of values, if it is a dictionary.
    dictionary_values: Option<u64>,
}

impl PageHeader {
    fn read(reader: &mut (impl BufRead + Seek)) -> io::Result<PageHeader> {
        let mut header = PageHeader::default();
        let mut id = 0;
        while let Some(kind) = next_field(reader, &mut id)? {
            match (id, kind) {
                (2, INTEGER) => header.unpacked = size(reader)?,
                (3, INTEGER) => header.packed = size(reader)?,
                (7, STRUCTURE) => header.dictionary_values = Some(dictionary_values(reader)?),
                _ => skip(reader, kind, 0)?,
            }
        }
        Ok(header)
    }
}

/// The number of values that the header of a dictionary states.
fn dictionary_values(reader: &mut (impl BufRead + Seek)) -> io::Result<u64> {
    let (mut values, mut id) = (0, 0);
    while let Some(kind) = next_field(reader, &mut id)? {
        match (id, kind) {
            (1, INTEGER) => values = size(reader)?,
            _ => skip(reader, kind, 0)?,
        }
    }
    Ok(values)
}

const INTEGER: u8 = 5;
const STRUCTURE: u8 = 12;
const MAX: i64 = i32::MAX as i64;

/// The kind of a structure's next field, whose number is put into `id`; none at the end.
fn next_field(reader: &mut impl Read, id: &mut i64) -> io::Result<Option<u8>> {
    let head = byte(reader)?;
    if head == 0 {
        return Ok(None);
    }
    *id = match head >> 4 {
        0 => signed(reader)?,
        step => id.saturating_add(step.into()),
    };
    Ok(Some(head & 15))
}

/// Passes over a value.
fn skip(reader: &mut (impl BufRead + Seek), kind: u8, depth: usize) -> io::Result<()> {
    if depth == DEPTH_MAX {
        return Err(invalid("what it says of itself or of its pages cannot be read"));
    }
    match kind {
        // Both truths are said by the kind alone.
        1 | 2 => Ok(()),
        3 => byte(reader).map(drop),
        4..=6 => varint(reader).map(drop),
        7 => skip_bytes(reader, 8),
        8 => {
            let bytes = varint(reader)?;
            skip_bytes(reader, bytes)
        }
        9 | 10 => {
            let head = byte(reader)?;
            let count = if head >> 4 == 15 { varint(reader)? } else { (head >> 4).into() };
            (0..count).try_for_each(|_| skip_element(reader, head & 15, depth))
        }
        11 => {
            let count = varint(reader)?;
            let kinds = if count == 0 { 0 } else { byte(reader)? };
            (0..count).try_for_each(|_| {
                skip_element(reader, kinds >> 4, depth)?;
                skip_element(reader, kinds & 15, depth)
            })
        }
        STRUCTURE => {
            let mut id = 0;
            while let Some(kind) = next_field(reader, &mut id)? {
                skip(reader, kind, depth + 1)?;
            }
            Ok(())
        }
        _ => Err(invalid("what it says of itself or of its pages cannot be read")),
    }
}

/// Passes over an element of a list, where a truth takes a byte, so that no number of elements takes none.
fn skip_element(reader: &mut (impl BufRead + Seek), kind: u8, depth: usize) -> io::Result<()> {
    skip(reader, if matches!(kind, 1 | 2) { 3 } else { kind }, depth + 1)
}

fn skip_bytes(reader: &mut impl BufRead, bytes: u64) -> io::Result<()> {
    let skipped = io::copy(&mut reader.take(bytes), &mut io::sink())?;
    if skipped == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn byte(reader: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    reader.read_exact(&mut byte)?;
    Ok(byte[0])
}

/// A number in groups of seven bits, the lowest first.
fn varint(reader: &mut impl Read) -> io::Result<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = byte(reader)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(invalid("a number is too long"))
}

/// A number with a sign, which is its lowest bit.
fn signed(reader: &mut impl Read) -> io::Result<i64> {
    let number = varint(reader)?;
    Ok((number >> 1) as i64 ^ -((number & 1) as i64))
}

/// A size, which has 31 bits.
fn size(reader: &mut impl Read) -> io::Result<u64> {
    match signed(reader)? {
        size @ 0..=MAX => Ok(size as u64),
        _ => Err(invalid("a size is not one that there can be")),
    }
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}

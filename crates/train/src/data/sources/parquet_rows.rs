//! A Parquet file: one column of it, each row a document.

use super::decompress::{self, Compression, read_error};
use super::parquet_pages::{check_footer, footer_bytes, page_sizes};
use super::pieces::{PIECE_BYTES, piece_end};
use super::{Document, SourceFile, guess_field, one_line};
use crate::memory::Size;
use crate::{Error, Result};
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use std::cell::Cell;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a byte of the description at the end of a file becomes, about, when it is read.
const FOOTER_FACTOR: u64 = 8;
/// A packed file that unpacks to more than so many times its size, and more than these bytes, is no table of text.
const UNPACKED_FACTOR: u64 = 100;
const UNPACKED_BYTES: u64 = 1 << 28;

/// The text of each row.
pub struct Rows {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    column: usize,
    /// The row group that comes after the one being read.
    next_group: usize,
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    /// The value that is being given, and how many bytes of it were.
    value: ByteArray,
    given: usize,
}

impl Rows {
    pub fn open(file: &SourceFile, text_field: Option<&str>) -> Result<Rows> {
        let opened = match file.compression {
            Compression::None => File::open(&file.place).map_err(Error::io("read", &file.path))?,
            _ => unpack(file)?,
        };
        Table::open(file, opened, text_field)?.rows(file)
    }

    fn row(&mut self) -> Result<Option<Document>> {
        loop {
            if self.given < self.value.len() {
                return self.piece().map(Some);
            }
            match self.next_value().map_err(|error| broken(&self.path, error))? {
                Next::Value if self.value.is_empty() => return Ok(Some(Document::whole(String::new()))),
                Next::End => return Ok(None),
                _ => {}
            }
        }
    }

    /// More of the value.
    fn piece(&mut self) -> Result<Document> {
        let left = &self.value.data()[self.given..];
        let continues = left.len() > PIECE_BYTES;
        let bytes = if continues { &left[..piece_end(&left[..PIECE_BYTES])] } else { left };
        let text = str::from_utf8(bytes).map_err(|_| {
            Error::corpus(&self.path, "a row of its text column is not UTF-8: name another `settings.text_field`")
        })?;
        let piece = Document { text: text.to_string(), continues };
        self.given += piece.text.len();
        if !continues {
            // A value holds on to its page, which must be gone before the next one comes.
            (self.value, self.given) = (ByteArray::from(""), 0);
        }
        Ok(piece)
    }

    /// Reads one row more.
    fn next_value(&mut self) -> Result<Next, ParquetError> {
        let Some(group) = &mut self.group else { return self.next_row_group() };
        let (mut values, mut levels) = (Vec::with_capacity(1), Vec::with_capacity(1));
        let (records, ..) = guarded(|| group.read_records(1, Some(&mut levels), None, &mut values))?;
        if records == 0 {
            self.group = None;
        }
        Ok(match values.pop() {
            Some(value) => {
                (self.value, self.given) = (value, 0);
                Next::Value
            }
            None => Next::Nothing,
        })
    }

    fn next_row_group(&mut self) -> Result<Next, ParquetError> {
        if self.next_group == self.reader.num_row_groups() {
            return Ok(Next::End);
        }
        let column = guarded(|| self.reader.get_row_group(self.next_group)?.get_column_reader(self.column))?;
        self.next_group += 1;
        match column {
            ColumnReader::ByteArrayColumnReader(column) => self.group = Some(column),
            _ => return Err(ParquetError::General("the text column is not of bytes".to_string())),
        }
        Ok(Next::Nothing)
    }
}

/// Calls the library, which asserts of a file what a damaged one may break: then it is an error too. What it was using
/// is of no more use.
fn guarded<T>(call: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ParquetError> {
    thread_local!(static IS_QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |about| {
            if !IS_QUIET.get() {
                usual(about);
            }
        }));
    });
    IS_QUIET.set(true);
    let called = panic::catch_unwind(AssertUnwindSafe(call));
    IS_QUIET.set(false);
    called.unwrap_or_else(|_| Err(ParquetError::General("what it says of itself is not true".to_string())))
}

/// What came of reading on.
enum Next {
    Value,
    /// A null, or the end of a row group.
    Nothing,
    End,
}

/// A file whose description was read, and its column of text.
struct Table {
    file: File,
    reader: SerializedFileReader<File>,
    column: usize,
    footer_bytes: u64,
}

impl Table {
    fn open(source: &SourceFile, file: File, text_field: Option<&str>) -> Result<Table> {
        let path = &source.path;
        let footer_bytes = footer_bytes(&file).map_err(|error| broken(path, error))?;
        source.check_memory(FOOTER_FACTOR * footer_bytes, "its description at the end", FEWER_GROUPS)?;
        check_footer(&file, footer_bytes).map_err(|error| broken(path, error))?;
        let copy = file.try_clone().map_err(Error::io("read", path))?;
        let reader = guarded(|| SerializedFileReader::new(copy)).map_err(|error| broken(path, error))?;
        let column = choose_column(path, reader.metadata().file_metadata().schema_descr(), text_field)?;
        Ok(Table { file, reader, column, footer_bytes })
    }

    fn rows(self, source: &SourceFile) -> Result<Rows> {
        let held = self.bytes_held(&source.path)?;
        source.check_memory(held, "the largest pages of its text column", SMALLER_PAGES)?;
        let Table { reader, column, .. } = self;
        let (value, path) = (ByteArray::from(""), source.path.clone());
        Ok(Rows { path, reader, column, next_group: 0, group: None, value, given: 0 })
    }

    /// The most bytes that are held while the column is read.
    fn bytes_held(&self, path: &Path) -> Result<u64> {
        let mut held = 0;
        for group in self.reader.metadata().row_groups() {
            let chunk = group.column(self.column);
            let first = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
            // The library asserts what a damaged file may break.
            let (Ok(start), Ok(bytes)) = (u64::try_from(first), u64::try_from(chunk.compressed_size())) else {
                return Err(broken(path, "a column begins before the file"));
            };
            let sizes = page_sizes(&self.file, start, bytes).map_err(|error| broken(path, error))?;
            held = held.max(sizes.bytes_held(matches!(chunk.compression(), parquet::basic::Compression::BROTLI(_))));
        }
        Ok(held + FOOTER_FACTOR * self.footer_bytes)
    }
}

/// The most bytes that are held while a file is read, by what its pages say of themselves. Nothing, if it has to be
/// unpacked first: that is found when it is read.
pub fn bytes_held(file: &SourceFile, text_field: Option<&str>) -> Result<u64> {
    match file.compression {
        Compression::None => {
            let opened = File::open(&file.place).map_err(Error::io("read", &file.path))?;
            Table::open(file, opened, text_field)?.bytes_held(&file.path)
        }
        _ => Ok(0),
    }
}

const FEWER_GROUPS: &str = "write it with fewer row groups and columns";
const SMALLER_PAGES: &str = "write it with smaller pages and without a dictionary";

impl Iterator for Rows {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        self.row().transpose()
    }
}

/// The index of the column that holds the text: one value a row, of bytes.
fn choose_column(path: &Path, schema: &SchemaDescriptor, wanted: Option<&str>) -> Result<usize> {
    let columns = schema.columns().iter().enumerate();
    let texts: Vec<(usize, String)> = columns
        .filter(|(_, column)| column.physical_type() == Type::BYTE_ARRAY && column.max_rep_level() == 0)
        .map(|(index, column)| (index, column.path().string()))
        .collect();
    let names: Vec<&str> = texts.iter().map(|(_, name)| name.as_str()).collect();
    let chosen = match wanted {
        Some(wanted) => names.iter().copied().find(|name| *name == wanted),
        None => guess_field(&names),
    };
    let found = chosen.and_then(|chosen| texts.iter().find(|(_, name)| name == chosen));
    found.map(|(index, _)| *index).ok_or_else(|| {
        let problem = match wanted {
            Some(wanted) => format!("there is no text column {wanted:?}"),
            None => "no telling which column is the text".to_string(),
        };
        let names = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        Error::corpus(path, format!("{problem}: name it with `settings.text_field` (text columns are: {names})"))
    })
}

/// A Parquet file is read from its end, so a compressed one is unpacked into a file that has no name any more.
fn unpack(file: &SourceFile) -> Result<File> {
    static UNPACKED: AtomicU64 = AtomicU64::new(0);
    let number = UNPACKED.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("gradus-{}-{number}.parquet", std::process::id()));
    let bytes_max = UNPACKED_BYTES.max(UNPACKED_FACTOR.saturating_mul(file.bytes));
    let mut packed = decompress::open(file)?.take(bytes_max + 1);
    let unpacked = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let mut unpacked = unpacked.map_err(Error::io("write", &path))?;
    let _ = fs::remove_file(&path);
    let bytes = std::io::copy(&mut packed, &mut unpacked).map_err(|error| match error.kind() {
        ErrorKind::StorageFull => Error::io("write", &path)(error),
        _ => read_error(&file.path, file.compression, error),
    })?;
    match bytes > bytes_max {
        true => Err(Error::corpus(
            &file.path,
            format!(
                "it unpacks to more than {}, which is not done for a table of text: unpack it first",
                Size(bytes_max)
            ),
        )),
        false => Ok(unpacked),
    }
}

fn broken(path: &Path, error: impl std::fmt::Display) -> Error {
    let problem = format!("it is not a whole Parquet file ({}): it may be cut short, fetch it again", one_line(&error));
    Error::corpus(path, problem)
}

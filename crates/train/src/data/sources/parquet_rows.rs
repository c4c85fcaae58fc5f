//! A Parquet file: one column of it, each row a document.

use super::decompress::{self, Compression, read_error};
use super::{Document, SourceFile, guess_field, one_line};
use crate::{Error, Result};
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Rows asked of a column at a time.
const ROWS: usize = 64;

/// The text of each row.
pub struct Rows {
    path: PathBuf,
    reader: SerializedFileReader<File>,
    column: usize,
    /// The row group that comes after the one being read.
    next_group: usize,
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    values: std::vec::IntoIter<ByteArray>,
}

impl Rows {
    pub fn open(file: &SourceFile, text_field: Option<&str>) -> Result<Rows> {
        let path = file.path.clone();
        let opened = match file.compression {
            Compression::None => File::open(&path).map_err(Error::io("read", &path))?,
            _ => unpack(file)?,
        };
        let reader = SerializedFileReader::new(opened).map_err(|error| broken(&path, error))?;
        let column = choose_column(&path, reader.metadata().file_metadata().schema_descr(), text_field)?;
        Ok(Rows { path, reader, column, next_group: 0, group: None, values: Vec::new().into_iter() })
    }

    fn row(&mut self) -> Result<Option<Document>> {
        loop {
            if let Some(value) = self.values.next() {
                return text(&self.path, &value).map(|text| Some(Document::whole(text)));
            }
            let more = self.next_values().map_err(|error| broken(&self.path, error))?;
            if !more {
                return Ok(None);
            }
        }
    }

    /// Reads the next values that are not null, maybe none; false at the end of the file.
    fn next_values(&mut self) -> Result<bool, ParquetError> {
        let Some(group) = &mut self.group else { return self.next_row_group() };
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        let (records, ..) = group.read_records(ROWS, Some(&mut levels), None, &mut values)?;
        if records == 0 {
            self.group = None;
        }
        self.values = values.into_iter();
        Ok(true)
    }

    fn next_row_group(&mut self) -> Result<bool, ParquetError> {
        if self.next_group == self.reader.num_row_groups() {
            return Ok(false);
        }
        let group = self.reader.get_row_group(self.next_group)?;
        self.next_group += 1;
        let chunk = group.metadata().column(self.column);
        // The library asserts what a damaged file may break.
        if chunk.data_page_offset() < 0
            || chunk.dictionary_page_offset().is_some_and(|at| at < 0)
            || chunk.compressed_size() < 0
        {
            return Err(ParquetError::General("a column begins before the file".to_string()));
        }
        match group.get_column_reader(self.column)? {
            ColumnReader::ByteArrayColumnReader(column) => self.group = Some(column),
            _ => return Err(ParquetError::General("the text column is not of bytes".to_string())),
        }
        Ok(true)
    }
}

impl Iterator for Rows {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        self.row().transpose()
    }
}

fn text(path: &Path, value: &ByteArray) -> Result<String> {
    String::from_utf8(value.data().to_vec())
        .map_err(|_| Error::corpus(path, "a row of its text column is not UTF-8: name another --text-field"))
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
        Error::corpus(path, format!("{problem}: name it with --text-field (text columns are: {names})"))
    })
}

/// A Parquet file is read from its end, so a compressed one is unpacked into a file that has no name any more.
fn unpack(file: &SourceFile) -> Result<File> {
    static UNPACKED: AtomicU64 = AtomicU64::new(0);
    let number = UNPACKED.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("gradus-{}-{number}.parquet", std::process::id()));
    let mut packed = decompress::open(file)?;
    let unpacked = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let mut unpacked = unpacked.map_err(Error::io("write", &path))?;
    let _ = fs::remove_file(&path);
    std::io::copy(&mut packed, &mut unpacked).map_err(|error| match error.kind() {
        ErrorKind::StorageFull => Error::io("write", &path)(error),
        _ => read_error(&file.path, file.compression, error),
    })?;
    Ok(unpacked)
}

fn broken(path: &Path, error: ParquetError) -> Error {
    let problem = format!("it is not a whole Parquet file ({}): it may be cut short, fetch it again", one_line(&error));
    Error::corpus(path, problem)
}

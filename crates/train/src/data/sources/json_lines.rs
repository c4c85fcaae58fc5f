//! A file of JSON objects, one a line: each a document.

use super::decompress::{self, Compression, read_error};
use super::plain_text::{BYTE_ORDER_MARK, checked_text};
use super::{Document, SourceFile, guess_field, one_line};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

/// The longest line that is read: what is longer is not one record a line.
const LINE_BYTES: u64 = 1 << 28;

/// The text of each record.
pub struct Records {
    path: PathBuf,
    compression: Compression,
    reader: BufReader<Box<dyn Read>>,
    /// The field of the text, once it is known.
    field: Option<String>,
    line_number: u64,
    /// Where the next line begins.
    offset: u64,
}

impl Records {
    pub fn open(file: &SourceFile, text_field: Option<&str>) -> Result<Records> {
        Ok(Records {
            path: file.path.clone(),
            compression: file.compression,
            reader: BufReader::new(decompress::open(file)?),
            field: text_field.map(str::to_string),
            line_number: 0,
            offset: 0,
        })
    }

    /// The next line that is not blank.
    fn line(&mut self) -> Result<Option<String>> {
        loop {
            let mut bytes = Vec::new();
            let read = self.reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut bytes);
            let read = read.map_err(|error| read_error(&self.path, self.compression, error))? as u64;
            if read == 0 {
                return Ok(None);
            }
            self.line_number += 1;
            if read == LINE_BYTES {
                return Err(self.problem(format!("is over {} MiB: put one record on each line", LINE_BYTES >> 20)));
            }
            let offset = self.offset;
            self.offset += read;
            if offset == 0 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            let line = checked_text(&self.path, bytes, offset)?;
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
    }

    fn record(&mut self) -> Result<Option<Document>> {
        let Some(line) = self.line()? else { return Ok(None) };
        let mut record = self.parse(&line)?;
        let field = match self.field.take() {
            Some(field) => field,
            None => self.guess(&record)?,
        };
        let text = match record.remove(&field) {
            Some(Value::String(text)) => text,
            Some(Value::Null) => String::new(),
            Some(_) => return Err(self.problem(format!("the field {field:?} is not text: name another --text-field"))),
            None => return Err(self.no_field(&field, &record)),
        };
        self.field = Some(field);
        Ok(Some(Document::whole(text)))
    }

    fn parse(&self, line: &str) -> Result<Map<String, Value>> {
        if self.line_number == 1 && line.trim_start().starts_with('[') {
            return Err(self.problem("begins a list: put one object on each line (jq -c '.[]')"));
        }
        serde_json::from_str(line).map_err(|error| {
            let reason = one_line(&error);
            let reason = reason.split(" at line ").next().unwrap_or("");
            self.problem(format!(
                "column {} is not a JSON object ({reason}): correct or remove the line",
                error.column()
            ))
        })
    }

    fn guess(&self, record: &Map<String, Value>) -> Result<String> {
        let texts: Vec<&str> =
            record.iter().filter(|(_, value)| value.is_string()).map(|(name, _)| name.as_str()).collect();
        guess_field(&texts).map(str::to_string).ok_or_else(|| {
            let fields = field_names(record);
            self.problem(format!("no telling which field is the text: name it with --text-field (there are {fields})"))
        })
    }

    fn no_field(&self, field: &str, record: &Map<String, Value>) -> Error {
        let fields = field_names(record);
        self.problem(format!("there is no field {field:?}: name the text's with --text-field (there are {fields})"))
    }

    fn problem(&self, problem: impl std::fmt::Display) -> Error {
        Error::corpus(&self.path, format!("line {}: {problem}", self.line_number))
    }
}

impl Iterator for Records {
    type Item = Result<Document>;

    fn next(&mut self) -> Option<Result<Document>> {
        self.record().transpose()
    }
}

fn field_names(record: &Map<String, Value>) -> String {
    match record.is_empty() {
        true => "none".to_string(),
        false => record.keys().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", "),
    }
}

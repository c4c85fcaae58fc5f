//! A corpus: files, folders and globs of text, read as a stream of documents.

mod decompress;
mod json_lines;
mod parquet_rows;
mod paths;
mod plain_text;

use super::{Fingerprint, Stories};
use crate::{Error, Result};
use decompress::Compression;
use std::path::{Path, PathBuf};

/// What a corpus may be made of, for messages.
const TAKEN: &str = ".txt, .jsonl, .json (one object a line) and .parquet, each also as .gz or .zst";

/// Fields that hold the text of a record, the likeliest first.
const USUAL_FIELDS: [&str; 10] =
    ["text", "content", "body", "document", "story", "article", "passage", "sentence", "code", "message"];

/// A stretch of text that belongs together; a long one comes in pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The text, or a piece of it.
    pub text: String,
    /// Whether the next piece belongs to the same document.
    pub continues: bool,
}

/// Text to train on: files that were found to exist, or the built-in stories.
#[derive(Clone, Debug)]
pub struct Corpus {
    sources: Vec<Source>,
    text_field: Option<String>,
}

#[derive(Clone, Debug)]
enum Source {
    File(SourceFile),
    Stories { seed: u32, count: u64 },
}

/// One file of a corpus.
#[derive(Clone, Debug)]
struct SourceFile {
    path: PathBuf,
    format: Format,
    compression: Compression,
    bytes: u64,
    modified_nanoseconds: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    PlainText,
    JsonLines,
    Parquet,
}

type Documents = Box<dyn Iterator<Item = Result<Document>>>;

impl Corpus {
    /// Finds the files of `paths`: files, folders (all that is in them, sorted by path) and globs. The text of a
    /// record is in `text_field`, or in the field that looks like it.
    pub fn open(paths: &[PathBuf], text_field: Option<&str>) -> Result<Corpus> {
        let mut files = Vec::new();
        for path in paths {
            paths::find(path, &mut files)?;
        }
        let Some(first) = paths.first() else {
            return Err(Error::Config(format!("no corpus is given: name files, folders or globs of {TAKEN}")));
        };
        if files.iter().all(|file| file.bytes == 0) {
            return Err(no_text(first));
        }
        if text_field.is_some() && files.iter().all(|file| file.format == Format::PlainText) {
            let problem = "is plain text, and --text-field names a field of JSON or Parquet records; leave it out";
            return Err(Error::corpus(first, problem));
        }
        let sources = files.into_iter().map(Source::File).collect();
        Ok(Corpus { sources, text_field: text_field.map(str::to_string) })
    }

    /// So many of the built-in stories.
    pub fn stories(seed: u32, count: u64) -> Corpus {
        Corpus { sources: vec![Source::Stories { seed, count }], text_field: None }
    }

    /// The documents in order, as a stream. The first error is the last item of use.
    pub fn documents(&self) -> impl Iterator<Item = Result<Document>> + '_ {
        self.sources.iter().flat_map(move |source| match source {
            Source::Stories { seed, count } => {
                Box::new(Stories::new(*seed).documents(*count).map(|text| Ok(Document::whole(text))))
            }
            Source::File(file) => file.documents(self.text_field.as_deref()).unwrap_or_else(failed),
        })
    }

    /// Bytes of text in all, where they are known without reading: plain text files.
    pub fn text_bytes(&self) -> Option<u64> {
        self.sources
            .iter()
            .map(|source| match source {
                Source::File(SourceFile {
                    format: Format::PlainText, compression: Compression::None, bytes, ..
                }) => Some(*bytes),
                _ => None,
            })
            .sum()
    }

    /// A number that changes when a file is added, removed, renamed or modified.
    pub fn fingerprint(&self) -> Fingerprint {
        let start = Fingerprint::new().bytes(self.text_field.as_deref().unwrap_or("").as_bytes());
        self.sources.iter().fold(start, |print, source| match source {
            Source::Stories { seed, count } => print.number(Stories::new(*seed).fingerprint().value()).number(*count),
            Source::File(file) => print
                .bytes(file.path.as_os_str().as_encoded_bytes())
                .number(file.bytes)
                .number(file.modified_nanoseconds),
        })
    }

    /// The field of a record that was asked for.
    pub fn text_field(&self) -> Option<&str> {
        self.text_field.as_deref()
    }

    /// The first file, to name the corpus in a message.
    pub fn name(&self) -> &Path {
        match self.sources.first() {
            Some(Source::File(file)) => &file.path,
            _ => Path::new("the built-in stories"),
        }
    }
}

impl Document {
    fn whole(text: String) -> Document {
        Document { text, continues: false }
    }
}

impl SourceFile {
    fn documents(&self, text_field: Option<&str>) -> Result<Documents> {
        Ok(match self.format {
            Format::PlainText => Box::new(until_error(plain_text::Pieces::open(self)?)),
            Format::JsonLines => Box::new(until_error(json_lines::Records::open(self, text_field)?)),
            Format::Parquet => Box::new(until_error(parquet_rows::Rows::open(self, text_field)?)),
        })
    }
}

/// A corpus that holds nothing to train on.
pub(super) fn no_text(path: &Path) -> Error {
    Error::corpus(path, "there is no text in it: name a corpus that is not empty")
}

fn failed(error: Error) -> Documents {
    Box::new(std::iter::once(Err(error)))
}

/// Ends a stream after its first error, where the reader's state is of no more use.
fn until_error(documents: impl Iterator<Item = Result<Document>>) -> impl Iterator<Item = Result<Document>> {
    let mut documents = Some(documents);
    std::iter::from_fn(move || {
        let next = documents.as_mut()?.next();
        if !matches!(next, Some(Ok(_))) {
            documents = None;
        }
        next
    })
}

/// The usual field among `fields`, or the only one there is.
fn guess_field<'a>(fields: &[&'a str]) -> Option<&'a str> {
    let usual = USUAL_FIELDS.iter().find_map(|usual| fields.iter().find(|field| *field == usual));
    match (usual, fields) {
        (Some(field), _) => Some(field),
        (None, [only]) => Some(only),
        _ => None,
    }
}

/// What a library said, on one line.
fn one_line(message: &impl std::fmt::Display) -> String {
    message.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;

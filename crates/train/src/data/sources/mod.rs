//! A corpus: files, folders and globs of text, read as a stream of documents.

mod decompress;
mod json;
mod json_lines;
mod parquet_pages;
mod parquet_rows;
mod paths;
mod pieces;
mod plain_text;
mod standard_input;
mod text_stream;

pub(crate) use pieces::{PIECE_BYTES, piece_end};

use super::{Fingerprint, Stories};
use crate::memory::Size;
use crate::{Error, Result};
use decompress::Compression;
use standard_input::StandardInput;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a corpus may be made of, for messages.
const TAKEN: &str = ".txt, .jsonl, .json (one object a line) and .parquet, each also as .gz or .zst";

/// The most bytes that are held while text is read, whatever a file is like: buffers, and a piece that is gathered and
/// one that was given, in vectors that have grown to twice their content. What a file takes beyond them is found by
/// [`Corpus::bytes_held`].
pub const READING_BYTES: u64 =
    (2 * decompress::READ_BYTES + 2 * text_stream::WINDOW_BYTES + 5 * pieces::PIECE_BYTES) as u64;

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
    left_out: Vec<PathBuf>,
}

#[derive(Clone, Debug)]
enum Source {
    File(SourceFile),
    StandardInput(Arc<StandardInput>),
    Stories { seed: u32, count: u64 },
}

/// One file of a corpus.
#[derive(Clone, Debug)]
struct SourceFile {
    /// As it is named in messages, and where its bytes are.
    path: PathBuf,
    place: PathBuf,
    format: Format,
    compression: Compression,
    bytes: u64,
    modified_nanoseconds: u64,
    /// Bytes that may be held while it is read, beyond [`READING_BYTES`].
    bytes_max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    PlainText,
    JsonLines,
    Parquet,
}

type Documents = Box<dyn Iterator<Item = Result<Document>>>;

impl Corpus {
    /// What stands for standard input among paths.
    pub const STANDARD_INPUT: &str = "-";

    /// Finds the files of `paths`: files, folders (all that is in them, sorted by path) and globs, and `-`, standard
    /// input. The text of a record is in `text_field`, or in the field that looks like it. Folders of runs are left out
    /// unless they are named themselves.
    pub fn open(paths: &[PathBuf], text_field: Option<&str>) -> Result<Corpus> {
        let (mut sources, mut left_out) = (Vec::new(), Vec::new());
        for path in paths {
            if path.as_os_str() == Corpus::STANDARD_INPUT {
                let input = StandardInput::new(&std::env::temp_dir(), u64::MAX);
                sources.push(Source::StandardInput(Arc::new(input)));
                continue;
            }
            let mut files = Vec::new();
            paths::find(path, &mut files, &mut left_out)?;
            sources.extend(files.into_iter().map(Source::File));
        }
        let Some(first) = paths.first() else {
            return Err(Error::Config(format!("no corpus is given: name files, folders or globs of {TAKEN}")));
        };
        if sources.iter().all(|source| matches!(source, Source::File(file) if file.bytes == 0)) {
            return Err(no_text(first));
        }
        let is_plain = |source: &Source| matches!(source, Source::File(file) if file.format == Format::PlainText);
        if text_field.is_some() && sources.iter().all(is_plain) {
            let problem =
                "is plain text, and `settings.text_field` names a field of JSON or Parquet records; leave it out";
            return Err(Error::corpus(first, problem));
        }
        Ok(Corpus { sources, text_field: text_field.map(str::to_string), left_out })
    }

    /// From now on, standard input is put into a file of this folder when it is first read.
    pub fn keep_input_in(&mut self, folder: &Path) {
        for source in &mut self.sources {
            if let Source::StandardInput(input) = source {
                *input = Arc::new(StandardInput::new(folder, input.bytes_max()));
            }
        }
    }

    /// Folders of runs among what was named, which are not part of it.
    pub fn left_out(&self) -> &[PathBuf] {
        &self.left_out
    }

    /// So many of the built-in stories.
    pub fn stories(seed: u32, count: u64) -> Corpus {
        Corpus { sources: vec![Source::Stories { seed, count }], text_field: None, left_out: vec![] }
    }

    /// The documents in order, as a stream. The first error is the last item of use.
    pub fn documents(&self) -> impl Iterator<Item = Result<Document>> + '_ {
        self.sources.iter().flat_map(move |source| match source {
            Source::Stories { seed, count } => {
                Box::new(Stories::new(*seed).documents(*count).map(|text| Ok(Document::whole(text))))
            }
            Source::File(file) => file.documents(self.text_field.as_deref()).unwrap_or_else(failed),
            Source::StandardInput(input) => {
                let field = self.text_field.as_deref();
                input.file(field).and_then(|file| file.documents(field)).unwrap_or_else(failed)
            }
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

    /// The most bytes that are held while it is read: [`READING_BYTES`], and what its files make the libraries that
    /// unpack them hold, a page of a Parquet file above all. What that is, standard input and a Parquet file that is
    /// compressed itself show only when they are read.
    pub fn bytes_held(&self) -> Result<u64> {
        let files = self.sources.iter().filter_map(|source| match source {
            Source::File(file) => Some(file),
            _ => None,
        });
        let held = files.map(|file| file.bytes_held(self.text_field.as_deref()));
        let held: Vec<u64> = held.collect::<Result<_>>()?;
        Ok(READING_BYTES.saturating_add(held.into_iter().max().unwrap_or(0)))
    }

    /// From now on, before any of it is read, refuses a file that takes more than so many bytes to be read, before they are taken.
    pub fn limit_memory(&mut self, bytes: u64) {
        let bytes_max = bytes.saturating_sub(READING_BYTES);
        for source in &mut self.sources {
            match source {
                Source::File(file) => file.bytes_max = bytes_max,
                Source::StandardInput(input) => *input = Arc::new(StandardInput::new(input.folder(), bytes_max)),
                Source::Stories { .. } => {}
            }
        }
    }

    /// A number that changes when a file is added, removed, renamed or modified.
    pub fn fingerprint(&self) -> Fingerprint {
        let field = self.text_field.as_deref();
        let start = Fingerprint::new().bytes(field.unwrap_or("").as_bytes());
        self.sources.iter().fold(start, |print, source| match source {
            Source::Stories { seed, count } => print.number(Stories::new(*seed).fingerprint().value()).number(*count),
            Source::File(file) => file.fingerprint(print),
            // One that cannot be read is told of by whoever reads it.
            Source::StandardInput(input) => input.file(field).map_or(print, |file| file.fingerprint(print)),
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
            Some(Source::StandardInput(_)) => Path::new(standard_input::SHOWN),
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
    /// With what tells whether it is still what it was.
    fn fingerprint(&self, print: Fingerprint) -> Fingerprint {
        let path = self.path.as_os_str().as_encoded_bytes();
        print.bytes(path).number(self.bytes).number(self.modified_nanoseconds)
    }

    /// The most bytes that are held while it is read, beyond [`READING_BYTES`].
    fn bytes_held(&self, text_field: Option<&str>) -> Result<u64> {
        let unpacking = decompress::bytes_held(self)?;
        match self.format {
            Format::Parquet => Ok(unpacking.saturating_add(parquet_rows::bytes_held(self, text_field)?)),
            _ => Ok(unpacking),
        }
    }

    /// Refuses to read what takes more memory than may be taken.
    fn check_memory(&self, needed: u64, what: &str, advice: &str) -> Result<()> {
        match needed > self.bytes_max {
            true => {
                let missing = Size((needed - self.bytes_max).next_multiple_of(100_000));
                let (needed, left) = (Size(needed), Size(self.bytes_max));
                let problem = format!("{what} take {needed} to be read, and {left} are left");
                Err(Error::corpus(&self.path, format!("{problem}: {advice}, or give {missing} more `settings.memory`")))
            }
            false => Ok(()),
        }
    }

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
mod record_tests;
#[cfg(test)]
mod table_tests;
#[cfg(test)]
mod tests;

//! Tokens in a file: a header, the tokens, and where each document begins. Of the file nothing is held in memory.

use super::Fingerprint;
use crate::files::atomic;
use crate::files::reading::{read_at, read_widened};
use crate::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"gradtoks";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;

/// The largest vocabulary whose tokens fit two bytes.
const SHORT_VOCABULARY: u64 = 1 << 16;

/// What a token file says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Header {
    vocabulary: u64,
    tokens: u64,
    documents: u64,
    text_bytes: u64,
    fingerprint: u64,
}

impl Header {
    /// Bytes of a token.
    fn width(&self) -> usize {
        if self.vocabulary <= SHORT_VOCABULARY { 2 } else { 4 }
    }

    /// Where the starts of documents begin; nothing if the numbers cannot be true.
    fn starts_at(&self) -> Option<u64> {
        self.tokens.checked_mul(self.width() as u64)?.checked_add(HEADER_BYTES as u64)
    }

    fn file_bytes(&self) -> Option<u64> {
        self.documents.checked_mul(8)?.checked_add(self.starts_at()?)
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let fields = [self.vocabulary, self.tokens, self.documents, self.text_bytes, self.fingerprint];
        for (slot, field) in bytes[16..56].chunks_exact_mut(8).zip(fields) {
            slot.copy_from_slice(&field.to_le_bytes());
        }
        let checksum = crc32fast::hash(&bytes[..56]);
        bytes[56..60].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The header, if these bytes begin a file of this version.
    fn from_bytes(bytes: &[u8]) -> Option<Header> {
        let field = |index: usize| Some(u64::from_le_bytes(bytes.get(16 + index * 8..)?.get(..8)?.try_into().ok()?));
        let header = Header {
            vocabulary: field(0)?,
            tokens: field(1)?,
            documents: field(2)?,
            text_bytes: field(3)?,
            fingerprint: field(4)?,
        };
        (bytes.get(..HEADER_BYTES)? == header.to_bytes()).then_some(header)
    }
}

/// Tokens of a corpus, in a file.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    header: Header,
    file: File,
}

impl TokenFile {
    /// Opens a whole token file; one that is torn or of something else is an error.
    pub fn open(path: &Path) -> Result<TokenFile> {
        let file = File::open(path).map_err(Error::io("read", path))?;
        let file_bytes = file.metadata().map_err(Error::io("read", path))?.len();
        let mut bytes = [0; HEADER_BYTES];
        let header = read_at(&file, &mut bytes, 0).ok().and_then(|()| Header::from_bytes(&bytes));
        let header = header.filter(|header| header.file_bytes() == Some(file_bytes)).ok_or_else(|| damaged(path))?;
        Ok(TokenFile { path: path.to_path_buf(), header, file })
    }

    /// The number of tokens.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Bytes of the text that was tokenized.
    pub fn text_bytes(&self) -> u64 {
        self.header.text_bytes
    }

    /// The size of the vocabulary that the tokens are of.
    pub fn vocabulary(&self) -> u64 {
        self.header.vocabulary
    }

    /// What the tokens were made from.
    pub fn fingerprint(&self) -> u64 {
        self.header.fingerprint
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of documents.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// Where a document begins, in tokens.
    pub fn document_start(&self, document: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        let place = self.header.starts_at().and_then(|start| start.checked_add(document.checked_mul(8)?));
        let place = place.filter(|_| document < self.header.documents).ok_or_else(|| {
            let problem = format!("document {document} is asked for where there are {}", self.header.documents);
            Error::corpus(&self.path, problem)
        })?;
        read_at(&self.file, &mut bytes, place).map_err(Error::io("read", &self.path))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads the tokens from `start` on, as many as `out` holds. Nothing is allocated.
    pub fn read(&self, start: u64, out: &mut [i32]) -> Result<()> {
        if start.checked_add(out.len() as u64).is_none_or(|end| end > self.header.tokens) {
            let problem =
                format!("tokens {start} and {} on are read where there are {}", out.len(), self.header.tokens);
            return Err(Error::corpus(&self.path, problem));
        }
        let width = self.header.width();
        let (offset, bytes) = (HEADER_BYTES as u64 + start * width as u64, bytemuck::cast_slice_mut(out));
        let read = match width {
            2 => read_widened(&self.file, bytes, offset, |token| [token[0], token[1], 0, 0]),
            _ => read_at(&self.file, bytes, offset),
        };
        read.map_err(|error| Error::io("read", &self.path)(error))?;
        let is_known = |token: &i32| (*token as u32 as u64) < self.header.vocabulary;
        if out.iter().all(is_known) { Ok(()) } else { Err(damaged(&self.path)) }
    }
}

fn damaged(path: &Path) -> Error {
    Error::corpus(path, "it is not a whole file of tokens: remove it, and it is made again from the corpus")
}

/// Writes a token file: under another name, given its own when it is whole. Dropped before, it leaves nothing.
pub struct TokenWriter {
    path: PathBuf,
    header: Header,
    tokens: Partial,
    starts: Partial,
}

impl TokenWriter {
    /// Begins the file at `path`, of tokens below `vocabulary`, made from what has this fingerprint.
    pub fn create(path: &Path, vocabulary: usize, fingerprint: Fingerprint) -> Result<TokenWriter> {
        let header = Header { vocabulary: vocabulary as u64, fingerprint: fingerprint.value(), ..Header::default() };
        let mut tokens = Partial::create(path.with_added_extension("partial"))?;
        let starts = Partial::create(path.with_added_extension("documents.partial"))?;
        tokens.write(&[0; HEADER_BYTES])?;
        Ok(TokenWriter { path: path.to_path_buf(), header, tokens, starts })
    }

    /// Notes that a document begins with the next token.
    pub fn start_document(&mut self) -> Result<()> {
        self.header.documents += 1;
        self.starts.write(&self.header.tokens.to_le_bytes())
    }

    /// Adds tokens.
    pub fn push(&mut self, tokens: &[u32]) -> Result<()> {
        let width = self.header.width();
        for &token in tokens {
            if u64::from(token) >= self.header.vocabulary {
                return Err(self.outside(token));
            }
            self.tokens.write(&token.to_le_bytes()[..width])?;
        }
        self.header.tokens += tokens.len() as u64;
        Ok(())
    }

    /// The number of tokens so far.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Ends the file, which is of so many bytes of text, and opens it.
    pub fn finish(mut self, text_bytes: u64) -> Result<TokenFile> {
        self.header.text_bytes = text_bytes;
        self.tokens.append(&mut self.starts)?;
        self.tokens.replace_header(&self.header.to_bytes())?;
        // Before the rename: once the file has its name, nobody looks for what else is there.
        drop(self.starts);
        fs::rename(&self.tokens.path, &self.path).map_err(atomic::failed("write", &self.path))?;
        sync_folder(&self.path)?;
        TokenFile::open(&self.path)
    }

    fn outside(&self, token: u32) -> Error {
        let problem = format!(
            "it gives token {token} where its vocabulary has {}: check that its files belong together",
            self.header.vocabulary
        );
        Error::Tokenizer { name: "of the corpus".to_string(), problem }
    }
}

/// A file being written, removed if it is not renamed.
struct Partial {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Partial {
    fn create(path: PathBuf) -> Result<Partial> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let file = BufWriter::with_capacity(1 << 16, file.map_err(atomic::failed("write", &path))?);
        Ok(Partial { path, file })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(atomic::failed("write", &self.path))
    }

    fn append(&mut self, other: &mut Partial) -> Result<()> {
        other.file.seek(SeekFrom::Start(0)).map_err(atomic::failed("write", &other.path))?;
        io::copy(other.file.get_mut(), &mut self.file).map(drop).map_err(atomic::failed("write", &self.path))
    }

    fn replace_header(&mut self, header: &[u8]) -> Result<()> {
        let mut replace = || {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(header)?;
            self.file.flush()?;
            self.file.get_ref().sync_all()
        };
        replace().map_err(atomic::failed("write", &self.path))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Makes a rename last: on Unix it is the folder that holds the name.
fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| cfg!(unix) && !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), |folder| {
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(atomic::failed("write", path))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;

    fn write(path: &Path, vocabulary: usize, documents: &[&[u32]]) -> Result<TokenFile> {
        let mut writer = TokenWriter::create(path, vocabulary, Fingerprint::new().number(7))?;
        for document in documents {
            writer.start_document()?;
            writer.push(document)?;
        }
        writer.finish(99)
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = Folder::new("tokens");
        for vocabulary in [65536, 65537, 200_000] {
            let path = folder.path().join("a.tokens");
            let top = vocabulary as u32 - 1;
            let file = write(&path, vocabulary, &[&[1, 2, top], &[], &[4, 5]]).unwrap();
            assert_eq!((file.len(), file.text_bytes(), file.vocabulary()), (5, 99, vocabulary as u64));
            assert_eq!(file.documents(), 3);
            assert_eq!([0, 1, 2].map(|document| file.document_start(document).unwrap()), [0, 3, 3]);
            assert!(file.document_start(3).is_err());
            assert_eq!(file.fingerprint(), Fingerprint::new().number(7).value());
            let mut out = [0; 3];
            file.read(2, &mut out).unwrap();
            assert_eq!(out, [top as i32, 4, 5]);
            assert!(file.read(3, &mut out).is_err());
            assert!(file.read(u64::MAX, &mut out).is_err());
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn torn_and_foreign_files_are_found_out() {
        let folder = Folder::new("torn");
        let path = folder.path().join("a.tokens");
        drop(write(&path, 10, &[&[1, 2, 3]]).unwrap());
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            let torn = TokenFile::open(&folder.write("torn", &whole[..length]));
            assert!(torn.is_err(), "{length} of {} bytes", whole.len());
        }
        for index in 0..HEADER_BYTES {
            let mut changed = whole.clone();
            changed[index] ^= 1;
            assert!(TokenFile::open(&folder.write("changed", changed)).is_err(), "byte {index}");
        }
        let mut changed = whole.clone();
        changed[HEADER_BYTES + 1] = 255;
        let file = TokenFile::open(&folder.write("changed", changed)).unwrap();
        assert!(file.read(0, &mut [0; 3]).unwrap_err().to_string().contains("not a whole file"));
    }

    #[test]
    fn an_unfinished_file_leaves_the_old_one() {
        let folder = Folder::new("unfinished");
        let path = folder.path().join("a.tokens");
        write(&path, 10, &[&[1, 2, 3]]).unwrap();
        let problem = write(&path, 10, &[&[1, 10]]).unwrap_err().to_string();
        assert!(problem.contains("token 10"), "{problem}");
        assert_eq!(TokenFile::open(&path).unwrap().len(), 3);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

//! Tokens in a file that is mapped into memory: a header, the tokens, and where each document begins.

use super::Fingerprint;
use crate::files::atomic;
use crate::{Error, Result};
use memmap2::Mmap;
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

/// Tokens of a corpus, mapped from a file.
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    header: Header,
    map: Mmap,
}

impl TokenFile {
    /// Opens a whole token file; one that is torn or of something else is an error.
    pub fn open(path: &Path) -> Result<TokenFile> {
        let file = File::open(path).map_err(Error::io("read", path))?;
        // SAFETY: the file is written under another name and renamed when whole, and no part of this program changes
        // it afterwards. A map stays valid when the file is renamed over or removed.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?;
        let header = Header::from_bytes(&map).filter(|header| header.file_bytes() == Some(map.len() as u64));
        let header = header.ok_or_else(|| damaged(path))?;
        Ok(TokenFile { path: path.to_path_buf(), header, map })
    }

    /// The number of tokens.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.header.tokens
    }

    /// Bytes of the text that was tokenised.
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

    /// Where each document begins, in tokens.
    pub fn documents(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        let starts = &self.map[self.map.len() - self.header.documents as usize * 8..];
        starts.chunks_exact(8).map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes))
    }

    /// Reads the tokens from `start` on, as many as `out` holds. Nothing is allocated.
    pub fn read(&self, start: u64, out: &mut [i32]) -> Result<()> {
        let end = start.checked_add(out.len() as u64).filter(|&end| end <= self.header.tokens);
        let end = end.ok_or_else(|| {
            let problem =
                format!("tokens {start} and {} on are read where there are {}", out.len(), self.header.tokens);
            Error::corpus(&self.path, problem)
        })?;
        let width = self.header.width();
        let at = |token: u64| HEADER_BYTES + token as usize * width;
        let bytes = &self.map[at(start)..at(end)];
        let largest = match width {
            2 => copy_tokens(bytes, out, |bytes: [u8; 2]| u16::from_le_bytes(bytes).into()),
            _ => copy_tokens(bytes, out, u32::from_le_bytes),
        };
        match u64::from(largest) < self.header.vocabulary || out.is_empty() {
            true => Ok(()),
            false => Err(damaged(&self.path)),
        }
    }
}

/// Copies tokens of `WIDTH` bytes, and gives the largest.
fn copy_tokens<const WIDTH: usize>(bytes: &[u8], out: &mut [i32], token: impl Fn([u8; WIDTH]) -> u32) -> u32 {
    let (bytes, _) = bytes.as_chunks::<WIDTH>();
    let mut largest = 0;
    for (out, bytes) in out.iter_mut().zip(bytes) {
        let token = token(*bytes);
        largest = token.max(largest);
        *out = token as i32;
    }
    largest
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
            assert_eq!(file.documents().collect::<Vec<_>>(), [0, 3, 3]);
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

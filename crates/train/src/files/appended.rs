//! Files that grow by whole entries, without allocating. What cannot be written waits for the next time.

use super::atomic;
use crate::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Bytes of entries that wait for a file that cannot be written: some hundred steps.
const WAITING_MAX: usize = 256 << 10;
/// Room for an entry of the usual length.
const ENTRY_BYTES: usize = 4 << 10;

/// A file to which entries are added.
pub(crate) struct Appended {
    path: PathBuf,
    file: File,
    /// Bytes of the file's whole entries.
    written: u64,
    /// Entries that are not in the file yet.
    waiting: Vec<u8>,
    /// Entries for which there was no more room.
    lost: u64,
}

impl Appended {
    /// Opens a file, made if need be, to go on after the bytes that `kept` finds worth keeping. Also gives what it says of
    /// them.
    pub fn open<T>(path: PathBuf, kept: impl FnOnce(&File) -> io::Result<(u64, T)>) -> Result<(Appended, T)> {
        let opened = OpenOptions::new().read(true).append(true).create(true).open(&path);
        let file = opened.map_err(atomic::failed("write", &path))?;
        let (written, about) = kept(&file).map_err(Error::io("read", &path))?;
        file.set_len(written).map_err(atomic::failed("write", &path))?;
        Ok((Appended { path, file, written, waiting: Vec::with_capacity(ENTRY_BYTES), lost: 0 }, about))
    }

    /// Has room for entries that are so many bytes longer than usual, so that none is allocated when one comes.
    pub fn make_room(&mut self, bytes: usize) {
        self.waiting.reserve(bytes + ENTRY_BYTES);
    }

    /// Adds the entry that `write` puts behind what it is given. One that cannot be written comes with the next that can,
    /// unless too many wait.
    pub fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let before = self.waiting.len();
        write(&mut self.waiting);
        let written = self.flush();
        if written.is_err() && self.waiting.len() > WAITING_MAX {
            self.waiting.truncate(before);
            self.lost += 1;
        }
        written
    }

    /// Writes what waits, all of it or nothing.
    fn flush(&mut self) -> Result<()> {
        match self.file.write_all(&self.waiting) {
            Ok(()) => {
                self.written += self.waiting.len() as u64;
                self.waiting.clear();
                Ok(())
            }
            Err(error) => {
                // An entry in part would hide those that follow from whoever reads on.
                let _ = self.file.set_len(self.written);
                // The path is copied only if there is an error to report.
                Err(atomic::failed("write", &self.path)(error))
            }
        }
    }

    /// Entries that were given up because too many waited.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the entries so far last.
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| atomic::failed("write", &self.path)(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::Folder;

    /// A file that cannot be written stands for a full disk.
    #[test]
    fn entries_that_cannot_be_written_wait_and_come_in_order() {
        let folder = Folder::new("appended");
        let path = folder.path().join("entries");
        let (mut appended, ()) = Appended::open(path.clone(), |_| Ok((0, ()))).unwrap();
        let add = |appended: &mut Appended, entry: &str| appended.add(|out| out.extend_from_slice(entry.as_bytes()));
        add(&mut appended, "one ").unwrap();
        let good = std::mem::replace(&mut appended.file, File::open(&path).unwrap());
        for entry in ["two ", "three "] {
            assert!(add(&mut appended, entry).unwrap_err().to_string().contains("entries"));
        }
        appended.file = good;
        add(&mut appended, "four ").unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), appended.lost()), (b"one two three four ".to_vec(), 0));
        appended.file = File::open(&path).unwrap();
        let entry = "x".repeat(100);
        (0..4000).for_each(|_| assert!(add(&mut appended, &entry).is_err()));
        assert!(appended.lost() > 0 && appended.waiting.len() <= WAITING_MAX);
        assert_eq!(appended.waiting.len() % entry.len(), 0, "whole entries");
    }

    #[test]
    fn what_is_not_worth_keeping_is_cut_off() {
        let folder = Folder::new("appended-kept");
        let path = folder.path().join("entries");
        std::fs::write(&path, "whole entry, and a part").unwrap();
        let (mut appended, about) = Appended::open(path.clone(), |_| Ok((12, "about"))).unwrap();
        appended.add(|out| out.extend_from_slice(b" more")).unwrap();
        appended.sync().unwrap();
        assert_eq!((about, &std::fs::read(&path).unwrap()[..]), ("about", &b"whole entry, more"[..]));
    }
}

//! From files to batches: a corpus is read as documents, tokenized once into a file, cut into windows
//! in a computed order, and read into batches.

mod fingerprint;
mod prepare;
mod reader;
mod sources;
mod stories;
mod tokens;
mod windows;

pub use fingerprint::Fingerprint;
pub use prepare::{Encoding, Prepared, prepare, reuse};
pub use reader::WindowReader;
pub use sources::{Corpus, Document, READING_BYTES};
pub(crate) use sources::{PIECE_BYTES, piece_end};
pub use stories::Stories;
pub use tokens::{TokenFile, TokenWriter};
pub use windows::{Windows, validation_windows};

/// A well-mixed number from another: each bit of the result depends on each bit of the argument.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod testing {
    use std::path::{Path, PathBuf};

    /// A folder of a test's own, removed when the test ends.
    pub struct Folder(PathBuf);

    impl Folder {
        pub fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("gradus-data-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        pub fn path(&self) -> &Path {
            &self.0
        }

        pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            path
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

//! Files that keep what takes long to make: machine code, and algorithms that were timed. Keeping is a convenience: what
//! is not there, or not whole, is made again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What was made from a key, or will be.
pub(crate) struct Cached {
    key: String,
    /// None where there is no folder for such.
    file: Option<PathBuf>,
}

impl Cached {
    /// What is made from this. The name of its file ends with the kind.
    pub fn new(key: String, kind: &str) -> Cached {
        let file = folder().map(|folder| file(&folder, &key, kind));
        Cached { key, file }
    }

    /// A file begins with what it was made from, so that another of the same name is not taken for it.
    pub fn read(&self) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.file.as_ref()?).ok()?;
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
        let (known, rest) = rest.split_at_checked(length)?;
        let (check, content) = rest.split_first_chunk::<8>()?;
        (known == self.key.as_bytes() && u64::from_le_bytes(*check) == checksum(content)).then(|| content.to_vec())
    }

    /// Keeps it, if that is possible.
    pub fn write(&self, content: &[u8]) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Some(file) = &self.file else { return };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = file.with_extension(format!("{}-{number}", std::process::id()));
        let length = (self.key.len() as u64).to_le_bytes();
        let parts = [&length[..], self.key.as_bytes(), &checksum(content).to_le_bytes(), content];
        let written = file.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
            && std::fs::write(&unfinished, parts.concat()).is_ok()
            && std::fs::rename(&unfinished, file).is_ok();
        if !written {
            let _ = std::fs::remove_file(&unfinished);
        }
    }
}

fn folder() -> Option<PathBuf> {
    let caches = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let caches = caches.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(caches.join("gradus").join("kernels"))
}

fn file(folder: &Path, key: &str, kind: &str) -> PathBuf {
    folder.join(format!("{:016x}.{kind}", checksum(key.as_bytes())))
}

fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_kept_whole_for_this_key_is_read() {
        let folder = std::env::temp_dir().join(format!("gradus-cache-{}", std::process::id()));
        let cached = |key: &str| Cached { key: key.to_string(), file: Some(file(&folder, "one", "kind")) };
        assert_eq!(cached("one").read(), None);
        cached("one").write(b"content");
        assert_eq!(cached("one").read().as_deref(), Some(&b"content"[..]));
        assert_eq!(cached("two").read(), None, "another key of the same name");
        let path = file(&folder, "one", "kind");
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(cached("one").read(), None, "{length} bytes of {}", whole.len());
        }
        let mut changed = whole.clone();
        *changed.last_mut().unwrap() ^= 1;
        std::fs::write(&path, changed).unwrap();
        assert_eq!(cached("one").read(), None, "a bit was turned");
        std::fs::remove_dir_all(folder).unwrap();
    }
}

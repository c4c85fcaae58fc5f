//! Files that are written whole or not at all, files that grow by whole entries, and files of tensors.

pub(crate) mod appended;
pub mod atomic;
pub(crate) mod json;
pub(crate) mod reading;
pub mod tensors;

#[cfg(test)]
pub(crate) mod testing {
    //! What tests of files share.

    use super::tensors::{Entry, Fill, Tensors, TensorsMut};
    use crate::Result;
    use std::borrow::Cow;
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    /// The bytes of tensors, by name.
    pub type Given = BTreeMap<String, Vec<u8>>;

    impl Tensors for Given {
        fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
            Ok(Cow::Borrowed(&self[name]))
        }
    }

    impl TensorsMut for Given {
        fn fill(&mut self, entry: &Entry, fill: Fill<'_>) -> Result<()> {
            let mut bytes = vec![0; entry.ty.bytes()];
            fill(entry.ty.dtype, &mut bytes)?;
            self.insert(entry.name.clone(), bytes);
            Ok(())
        }
    }

    /// A folder of a test's own, removed at its end.
    pub struct Folder(PathBuf);

    impl Folder {
        pub fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("gradus-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        pub fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

//! A folder to run the real binary in.

use std::path::PathBuf;
use std::process::{Command, Output};

/// An empty folder to run in, removed at the end of the test.
pub struct Place(pub PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-command-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Place(folder)
    }

    pub fn gradus(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_gradus")).args(arguments).current_dir(&self.0).output().unwrap()
    }

    /// The one line on standard error with which the binary refuses.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.gradus(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.starts_with("error: ") && text.ends_with('\n'), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
        text
    }

    pub fn printed(&self, arguments: &[&str]) -> String {
        let output = self.gradus(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

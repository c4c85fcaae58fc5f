//! A folder to run the binary in.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A model that trains in no time.
pub const SMALL: &str = "--width 16 --layers 1 --heads 2 --sequence 16 --batch 4 --tokenizer byte --threads 1";

/// An empty folder, removed at the end of the test.
pub struct Place(PathBuf);

impl Place {
    pub fn new(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-terminal-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Place(folder)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub fn read_text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// A command line of words without spaces, run here.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        command.args(line.split_whitespace()).current_dir(&self.0).env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
        // Whoever runs the tests may want a signal ignored, as `nohup` does, and a command would go by that.
        // SAFETY: between fork and exec only system calls are made, none of which allocates or locks.
        unsafe { command.pre_exec(heed_signals) };
        command
    }

    /// What comes of a command line as a shell takes it, `gradus` being the binary.
    pub fn shell(&self, line: &str) -> Output {
        self.through_shell(line).output().unwrap()
    }

    pub fn through_shell(&self, line: &str) -> Command {
        let folder = Path::new(env!("CARGO_BIN_EXE_gradus")).parent().unwrap();
        let before = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([folder.to_path_buf()].into_iter().chain(std::env::split_paths(&before)));
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("PATH", path.unwrap()).current_dir(&self.0);
        command
    }

    /// What a command that works prints on standard output and on standard error.
    pub fn printed(&self, line: &str) -> (String, String) {
        let output = self.command(line).output().unwrap();
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(0), "{line}: {err}");
        (out, err)
    }

    /// The one line with which a command is refused, which must leave every file as it was.
    pub fn refused(&self, line: &str) -> String {
        let before = self.files();
        let told = refusal(line, self.command(line).output().unwrap());
        assert!(self.files() == before, "{line}: files were changed");
        told
    }

    /// Every file and folder here, files with what they hold.
    fn files(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let bytes = (!path.is_dir()).then(|| std::fs::read(&path).unwrap());
                if bytes.is_none() {
                    folders.push(path.clone());
                }
                found.insert(path, bytes);
            }
        }
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The one line on standard error with which the binary refused.
pub fn refusal(line: &str, output: Output) -> String {
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{line}: {told}");
    assert!(told.starts_with("error: ") && told.ends_with('\n'), "{line}: {told}");
    assert_eq!(told.lines().count(), 1, "{line}: {told}");
    assert!(output.stdout.is_empty(), "{line}: standard output");
    told
}

fn heed_signals() -> std::io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: a plain system call that runs no code of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    Ok(())
}

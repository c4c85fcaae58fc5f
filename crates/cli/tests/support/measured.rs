//! The most that the command has resident, as the system counts it.

use std::env;
use std::mem::MaybeUninit;
use std::path::Path;
use std::process::{Command, Stdio};

/// What became of the command.
pub struct Ended {
    pub code: i32,
    /// The most bytes that it had resident.
    pub peak: u64,
    /// On standard error.
    pub said: String,
}

/// Where `start` finds what it is to start.
const ARGUMENTS: &str = "GRADUS_TEST_ARGUMENTS";

/// Runs the command in a folder. What a process holds when it becomes another program counts as that one's, so a small process
/// starts it (`start`), and not this one with all that tests hold.
pub fn run(folder: &Path, arguments: &str, input: Stdio) -> Ended {
    let mut small = Command::new(env::current_exe().unwrap());
    small.args(["--ignored", "--exact", "measured::start", "--nocapture"]).env(ARGUMENTS, arguments);
    let output = small.current_dir(folder).stdin(input).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{arguments}: {said}");
    let told = String::from_utf8(output.stdout).unwrap();
    let figure =
        |name: &str| told.split(name).nth(1).unwrap().split_whitespace().next().unwrap().parse::<u64>().unwrap();
    Ended { code: figure("code ") as i32, peak: figure("peak "), said }
}

#[test]
#[ignore = "starts the command for the others"]
fn start() {
    let arguments = env::var(ARGUMENTS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
    // It is waited for, by the call that also says what it used.
    #[allow(clippy::zombie_processes)]
    let child = command.args(arguments.split_whitespace()).stdout(Stdio::null()).spawn().unwrap();
    let (mut status, mut usage) = (0, MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: the child is ours and nobody else waits for it; both places are there to be written.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, usage.as_mut_ptr()) };
    assert!(waited == child.id() as i32 && libc::WIFEXITED(status), "{arguments}: status {status}");
    // SAFETY: all zeros is a value of it, and the call has filled it in.
    let peak = 1024 * unsafe { usage.assume_init() }.ru_maxrss as u64;
    println!("code {} peak {peak}", libc::WEXITSTATUS(status));
}

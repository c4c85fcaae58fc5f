//! A terminal with nobody in front of it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Long enough on any machine for what is waited for; reached only by a failing test.
const PATIENCE: Duration = Duration::from_secs(120);

/// As terminals are where nobody says.
const USUAL_COLUMNS: u16 = 80;

/// A command that runs on a terminal of its own.
pub struct OnTerminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl OnTerminal {
    /// On a terminal of the usual width.
    pub fn start(command: Command) -> OnTerminal {
        OnTerminal::start_within(USUAL_COLUMNS, command)
    }

    /// On a terminal of so many columns.
    pub fn start_within(columns: u16, command: Command) -> OnTerminal {
        let (child, keyboard) = spawn(columns, command);
        let screen = Arc::new(Mutex::new(vec![]));
        let reader = std::thread::spawn({
            let (screen, mut terminal) = (screen.clone(), keyboard.try_clone().unwrap());
            move || collect(&mut terminal, &screen)
        });
        OnTerminal { child, keyboard, screen, reader: Some(reader) }
    }

    /// Everything that was shown so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until a text is shown.
    pub fn wait_for(&self, text: &str) {
        let start = Instant::now();
        while !self.shown().contains(text) {
            assert!(start.elapsed() < PATIENCE, "{text:?} does not come: {}", self.shown());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Presses Ctrl-C.
    pub fn interrupt(&mut self) {
        self.keyboard.write_all(b"\x03").unwrap();
    }

    /// Waits for the end; gives the status and everything that was shown.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        (status, self.shown())
    }
}

impl Drop for OnTerminal {
    /// A test that fails leaves no process behind.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a command on a terminal of its own, of which the person's end is given.
fn spawn(columns: u16, mut command: Command) -> (Child, File) {
    let (keyboard, line) = open(columns);
    command.stdin(line.try_clone().unwrap()).stdout(line.try_clone().unwrap()).stderr(line);
    // SAFETY: between fork and exec only two system calls are made, neither of which allocates or locks.
    unsafe { command.pre_exec(control_terminal) };
    let child = command.spawn().unwrap();
    // The terminal ends when the last who writes to it is gone, and this command would keep it open.
    drop(command);
    (child, keyboard)
}

/// The status of a command whose terminal is closed when it has shown a text.
pub fn closed_after(command: Command, text: &str) -> ExitStatus {
    let (mut child, mut terminal) = spawn(USUAL_COLUMNS, command);
    let (mut shown, mut buffer) = (vec![], [0; 4096]);
    while !String::from_utf8_lossy(&shown).contains(text) {
        let count = terminal.read(&mut buffer).unwrap();
        shown.extend_from_slice(&buffer[..count]);
    }
    drop(terminal);
    child.wait().unwrap()
}

/// The person's end of a new terminal, and the command's.
fn open(columns: u16) -> (File, OwnedFd) {
    let (mut person, mut command) = (-1, -1);
    let mut size = libc::winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let nothing = std::ptr::null_mut();
    // SAFETY: the pointers are to variables of this function or null, which stands for what is usual.
    let status = unsafe { libc::openpty(&mut person, &mut command, nothing, nothing.cast(), &raw mut size) };
    assert_eq!(status, 0, "no pseudo-terminal");
    // SAFETY: both were opened just now and belong to nobody else.
    let (person, command) = unsafe { (OwnedFd::from_raw_fd(person), OwnedFd::from_raw_fd(command)) };
    // Copies, unlike what they are copies of, are not passed on to the commands that are started.
    (person.try_clone().unwrap().into(), command.try_clone().unwrap())
}

/// Makes standard input the terminal from which Ctrl-C reaches this process.
fn control_terminal() -> std::io::Result<()> {
    // SAFETY: plain system calls on this process and its own standard input.
    let status = unsafe { if libc::setsid() < 0 { -1 } else { libc::ioctl(0, libc::TIOCSCTTY as _, 0) } };
    if status < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes what is shown until nobody is left who could show more.
fn collect(terminal: &mut File, screen: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = terminal.read(&mut buffer) {
        screen.lock().unwrap().extend_from_slice(&buffer[..count]);
    }
}

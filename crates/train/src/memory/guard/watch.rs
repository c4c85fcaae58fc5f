//! Looking at what is resident, and what follows from it, on Linux.

use super::super::heap;
use super::Doing;
use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};
use std::sync::{Mutex, OnceLock};

/// What a process that was refused ends with, as with every other refusal of the command.
const REFUSED: i32 = 2;
/// Bytes that a thread takes between two looks: the fewest and the most, and the share of the room that is left.
const LOOK_EVERY: std::ops::RangeInclusive<u64> = 4 << 10..=1 << 20;
const LOOKS_TO_THE_LIMIT: u64 = 128;
/// How far the system's count may be off, and what may come between two looks: code, most of all.
const SLACK: u64 = 768 << 10;
/// Code that comes back at once when all of it was given back.
const CODE_AT_A_TIME: u64 = 2 << 20;

/// The guard that is armed.
static ARMED: AtomicPtr<Guard> = AtomicPtr::new(null_mut());
/// The thread that ends the process.
static REFUSING: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes that this thread may take before it looks again.
    static UNTIL_LOOK: Cell<usize> = const { Cell::new(0) };
}

/// A limit that is guarded. It stays in memory for ever, since a thread may be looking at it when it is disarmed.
struct Guard {
    limit: u64,
    statm: &'static File,
    page_bytes: u64,
    code: heap::Code,
    refusal: String,
    /// What is to be given more of.
    setting: String,
    doing: AtomicUsize,
    /// The most that was resident when it was looked for work that allocates nothing.
    seen: AtomicU64,
    undo: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// Guards a limit; gives what it is disarmed by.
pub fn arm(limit: u64, refusal: &str, setting: &str) -> usize {
    // Open for as long as the process lasts, however often a limit is guarded.
    static STATM: OnceLock<Option<File>> = OnceLock::new();
    let Some(statm) = STATM.get_or_init(|| File::open("/proc/self/statm").ok()) else { return 0 };
    let guard = Guard {
        limit,
        statm,
        // SAFETY: the call only reads a number of the system.
        page_bytes: unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64,
        code: heap::Code::find(),
        refusal: refusal.to_string(),
        setting: setting.to_string(),
        doing: AtomicUsize::new(Doing::Beginning as usize),
        seen: AtomicU64::new(0),
        undo: Mutex::default(),
    };
    let guard: *mut Guard = Box::leak(Box::new(guard));
    ARMED.store(guard, Release);
    guard.addr()
}

/// Nothing if another limit is guarded by now.
pub fn disarm(guard: usize) {
    let armed = ARMED.load(Acquire);
    if armed.addr() == guard {
        let _ = ARMED.compare_exchange(armed, null_mut(), Release, Relaxed);
    }
}

pub fn doing(what: Doing) {
    if let Some(guard) = armed() {
        guard.doing.store(what as usize, Relaxed);
    }
}

pub fn on_refusal(undo: Box<dyn FnOnce() + Send>) {
    if let Some(guard) = armed() {
        *guard.undo.lock().expect("nothing panics with it") = Some(undo);
    }
}

pub fn relieve() {
    // Memory may have been touched that was not allocated here, so what was left is not.
    UNTIL_LOOK.set(0);
    if let Some(guard) = armed() {
        guard.relieve();
    }
}

/// To be called before the heap grows by so many bytes.
pub fn before_taking(bytes: usize) {
    let Some(guard) = armed() else { return };
    UNTIL_LOOK.with(|left| match left.get().checked_sub(bytes) {
        Some(rest) => left.set(rest),
        None => left.set(guard.look(bytes as u64) as usize),
    });
}

fn armed() -> Option<&'static Guard> {
    // SAFETY: what is stored there is leaked, so it is never gone.
    unsafe { ARMED.load(Acquire).as_ref() }
}

impl Guard {
    /// What ran before runs again and takes no more. Where more code came than ever, the work is of a new kind, of which more may come
    /// until the next look.
    fn relieve(&self) {
        let resident = self.resident();
        let slack = if resident > self.seen.fetch_max(resident, Relaxed) { CODE_AT_A_TIME } else { SLACK };
        if resident + slack > self.limit {
            self.code.give_back();
        }
    }

    /// Makes room for so many bytes, or ends the process. Gives the bytes to take before the next look.
    #[cold]
    fn look(&self, bytes: u64) -> u64 {
        let room = self.room(bytes + SLACK).unwrap_or_else(|| self.make_room(bytes));
        (room / LOOKS_TO_THE_LIMIT).clamp(*LOOK_EVERY.start(), *LOOK_EVERY.end())
    }

    /// What would be left with so many bytes more.
    fn room(&self, bytes: u64) -> Option<u64> {
        self.limit.checked_sub(self.resident().saturating_add(bytes))
    }

    fn make_room(&self, bytes: u64) -> u64 {
        self.code.give_back();
        let bytes = bytes.saturating_add(CODE_AT_A_TIME);
        let room = self.room(bytes).or_else(|| {
            heap::give_back();
            self.room(bytes)
        });
        room.unwrap_or_else(|| self.refuse())
    }

    /// What the system counts as resident. Allocates nothing.
    fn resident(&self) -> u64 {
        let mut text = [0u8; 64];
        let length = self.statm.read_at(&mut text, 0).unwrap_or(0);
        let pages = text[..length].split(|&byte| byte == b' ').nth(1).unwrap_or_default();
        pages.iter().fold(0, |number, digit| 10 * number + (digit - b'0') as u64) * self.page_bytes
    }

    /// Undoes what was begun, says why, and ends the process. There is no way back from within an allocator, and no
    /// lock that may be waited for: whoever holds it may be waiting here.
    fn refuse(&self) -> u64 {
        // SAFETY: the call gives this thread's number.
        let me = unsafe { libc::pthread_self() } as usize;
        match REFUSING.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => {}
            // What it takes to say so and to undo is taken.
            Err(other) if other == me => return u64::MAX,
            Err(_) => loop {
                // SAFETY: the call waits for a signal.
                unsafe { libc::pause() };
            },
        }
        if let Some(undo) = self.undo.try_lock().ok().and_then(|mut undo| undo.take()) {
            undo();
        }
        let doing = Doing::TOLD[self.doing.load(Relaxed)];
        let line = format!("error: {}: {doing} takes more than is left; give more {}\n", self.refusal, self.setting);
        // SAFETY: the bytes are those of the line; the second call does not come back.
        unsafe {
            libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len());
            libc::_exit(REFUSED)
        }
    }
}

//! Signals that ask a process to end which only passes that on.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often it was asked.
static ASKED: AtomicU32 = AtomicU32::new(0);

extern "C" fn asked(_: libc::c_int) {
    ASKED.fetch_add(1, Ordering::Relaxed);
}

/// From now on, being asked to end is counted and nothing else. `mpirun` passes SIGUSR1 on to the processes that it started, and
/// ends them by itself for any other.
pub fn listen() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        // SAFETY: the handler only adds to an atomic number, which may be done at any moment.
        unsafe { libc::signal(signal, asked as *const () as libc::sighandler_t) };
    }
}

/// How often this process was asked to end.
pub fn times_asked() -> u32 {
    ASKED.load(Ordering::Relaxed)
}

/// Sends a signal to a process, or with a negative number to a group; one that is gone needs none.
pub fn send(process: i32, signal: libc::c_int) {
    // SAFETY: a signal to processes of our own.
    unsafe { libc::kill(process, signal) };
}

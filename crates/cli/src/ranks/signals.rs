//! Signals that ask a process to end which only passes that on.

use std::sync::atomic::{AtomicU32, Ordering};

/// How often it was asked.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// How often it was told to end without more ado.
static TOLD: AtomicU32 = AtomicU32::new(0);

extern "C" fn asked(_: libc::c_int) {
    ASKED.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn told(_: libc::c_int) {
    TOLD.fetch_add(1, Ordering::Relaxed);
}

/// From now on, being asked to end is counted and nothing else. `mpirun` passes SIGUSR1 on to the processes that it started; by
/// SIGTERM it ends them, which counts as a question too where nobody else would ask one.
pub fn listen(terminated_by_mpirun: bool) {
    let handle = |signal, handler: extern "C" fn(libc::c_int)| {
        // SAFETY: the handlers only add to an atomic number, which may be done at any moment.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    };
    for signal in [libc::SIGINT, libc::SIGHUP, libc::SIGUSR1] {
        handle(signal, asked);
    }
    handle(libc::SIGTERM, if terminated_by_mpirun { told } else { asked });
}

/// How often this process was asked to end.
pub fn times_asked() -> u32 {
    ASKED.load(Ordering::Relaxed)
}

/// How often it was told to end at once.
pub fn times_told() -> u32 {
    TOLD.load(Ordering::Relaxed)
}

/// Sends a signal to a process, or with a negative number to a group; one that is gone needs none.
pub fn send(process: i32, signal: libc::c_int) {
    // SAFETY: a signal to processes of our own.
    unsafe { libc::kill(process, signal) };
}

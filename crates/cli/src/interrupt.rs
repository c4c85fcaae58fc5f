//! Being asked to end: by Ctrl-C, by whoever manages the machine (SIGTERM) or by a terminal that closes (SIGHUP). The
//! first time the run stops and saves, the second time it ends at once.

use crate::print;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
/// The status of a process ended by Ctrl-C, as shells have it.
pub const ENDED: u8 = 130;

/// From now on, being asked to end is a question first.
/// It is told what happens then, if there is anything to tell.
pub fn listen(then: Option<&'static str>) {
    let ignored = ignored::signals();
    let listening = ctrlc::set_handler(move || {
        if ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(ENDED.into());
        }
        if let Some(then) = then {
            print::note(format!("\n{then}; Ctrl-C again ends at once"));
        }
    });
    if let Err(error) = listening {
        print::note(format!("warning: Ctrl-C will end the run without saving: {error}"));
    }
    ignored::restore(&ignored);
}

/// Whether the run was asked to end.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Signals that whoever started this process wants ignored, as `nohup` does: they stay so.
#[cfg(unix)]
mod ignored {
    /// Those that are listened to and were to be ignored.
    pub fn signals() -> Vec<libc::c_int> {
        [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().filter(|signal| is_ignored(*signal)).collect()
    }

    fn is_ignored(signal: libc::c_int) -> bool {
        // SAFETY: all zeros are a value of this plain struct, and the call only writes to it.
        let (status, action) = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(signal, std::ptr::null(), &mut action), action)
        };
        status == 0 && action.sa_sigaction == libc::SIG_IGN
    }

    pub fn restore(signals: &[libc::c_int]) {
        for signal in signals {
            // SAFETY: to ignore a signal runs no code of ours.
            unsafe { libc::signal(*signal, libc::SIG_IGN) };
        }
    }
}

#[cfg(not(unix))]
mod ignored {
    pub fn signals() {}

    pub fn restore(_signals: &()) {}
}

//! Ctrl-C: the first asks the run to stop and save, the second ends it at once.

use crate::print;
use std::sync::atomic::{AtomicBool, Ordering};

static ASKED: AtomicBool = AtomicBool::new(false);
/// The status of a process ended by Ctrl-C, as shells have it.
const ENDED: i32 = 130;

/// From now on, Ctrl-C asks before it ends.
pub fn listen() {
    let listening = ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::Relaxed) {
            std::process::exit(ENDED);
        }
        print::note("\nstopping after this step and saving; Ctrl-C again ends at once");
    });
    if let Err(error) = listening {
        print::note(format!("warning: Ctrl-C will end the run without saving: {error}"));
    }
}

/// Whether Ctrl-C was pressed.
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

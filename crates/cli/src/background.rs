//! Threads that show a run: few, small, and last in line for a processor, so that what they do costs training nothing that
//! it could use.

use std::io;
use std::thread::{Builder, JoinHandle};

/// A thread's stack, of which a few pages are touched.
const STACK_BYTES: usize = 128 << 10;
/// As low as priorities go: about a hundredth of a processor that others want.
#[cfg(target_os = "linux")]
const LOWEST: libc::c_int = 19;

/// Does work in a thread of this name.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = Builder::new().name(name.into()).stack_size(STACK_BYTES);
    thread.spawn(move || {
        step_back();
        work();
    })
}

/// Lowers this thread's priority, where threads have their own. Where that is refused, it is as it was.
fn step_back() {
    #[cfg(target_os = "linux")]
    // SAFETY: a plain system call; on Linux, 0 is the calling thread alone.
    unsafe {
        libc::setpriority(libc::PRIO_PROCESS as _, 0, LOWEST);
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_in_the_background_steps_back_and_others_stay() {
        // SAFETY: a plain system call about the calling thread.
        let priority = || unsafe { libc::getpriority(libc::PRIO_PROCESS as _, 0) };
        let before = priority();
        spawn("background", move || assert_eq!(priority(), LOWEST)).unwrap().join().unwrap();
        assert_eq!(priority(), before);
    }
}

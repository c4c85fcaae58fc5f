//! A rank's reports to its supervisor: the step after each of them, and every half second that it lives.

use super::fault;
use gradus_train::run::{Event, Observer, Stop};
use gradus_train::{Error, Result};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::FromRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Left in the environment of a rank: the file descriptor to report to.
pub const REPORTS: &str = "GRADUS_REPORTS";

const INTERVAL: Duration = Duration::from_millis(500);
/// Before the first step.
const NO_STEP: u64 = u64::MAX;

/// A rank's side.
pub struct Heartbeat {
    reports: Arc<File>,
    step: Arc<AtomicU64>,
}

impl Heartbeat {
    /// Starts to report, if this process has a supervisor.
    pub fn of_supervised() -> Result<Option<Heartbeat>> {
        let Ok(text) = std::env::var(REPORTS) else { return Ok(None) };
        let descriptor = text.parse().ok().filter(|descriptor| *descriptor > 2);
        let descriptor =
            descriptor.ok_or(Error::Config(format!("{REPORTS}={text} is set by gradus alone; unset it")))?;
        // SAFETY: the supervisor left it open for this process, where nothing else knows of it.
        let reports = Arc::new(unsafe { File::from_raw_fd(descriptor) });
        let step = Arc::new(AtomicU64::new(NO_STEP));
        let (their_reports, their_step) = (Arc::clone(&reports), Arc::clone(&step));
        let beat = move || {
            while report(&their_reports, their_step.load(Ordering::Relaxed)) {
                std::thread::sleep(INTERVAL);
            }
            // Without a supervisor there is no launcher any more, and there are no other ranks.
            std::process::exit(fault::FAULTY.into());
        };
        let thread = std::thread::Builder::new().name("heartbeat".into()).stack_size(64 << 10).spawn(beat);
        thread.map_err(Error::io("start", std::path::Path::new("a thread")))?;
        Ok(Some(Heartbeat { reports, step }))
    }
}

/// Whether the supervisor is there to be told.
fn report(mut reports: &File, step: u64) -> bool {
    reports.write_all(&step.to_le_bytes()).is_ok()
}

impl Observer for Heartbeat {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Step(taken) = event {
            self.step.store(taken.step, Ordering::Relaxed);
            report(&self.reports, taken.step);
        }
    }

    fn should_stop(&self) -> Stop {
        Stop::No
    }
}

/// What a supervisor knows of its rank.
#[derive(Default)]
pub struct Pulse {
    reports: AtomicU64,
    /// One more than it, so that there is none at first.
    step: AtomicU64,
}

impl Pulse {
    /// Takes reports until there are no more.
    pub fn follow(&self, mut reports: impl Read) {
        let mut step = [0; size_of::<u64>()];
        loop {
            match reports.read_exact(&mut step) {
                Ok(()) => {
                    self.step.store(u64::from_le_bytes(step).wrapping_add(1), Ordering::Relaxed);
                    self.reports.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// How many there were.
    pub fn reports(&self) -> u64 {
        self.reports.load(Ordering::Relaxed)
    }

    /// The last step taken.
    pub fn step(&self) -> Option<u64> {
        self.step.load(Ordering::Relaxed).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_knows_the_last_step() {
        let pulse = Pulse::default();
        assert_eq!((pulse.reports(), pulse.step()), (0, None));
        pulse.follow(&NO_STEP.to_le_bytes()[..]);
        assert_eq!((pulse.reports(), pulse.step()), (1, None));
        let reports: Vec<u8> = [7u64, 8].iter().flat_map(|step| step.to_le_bytes()).collect();
        pulse.follow(&reports[..]);
        assert_eq!((pulse.reports(), pulse.step()), (3, Some(8)));
    }
}

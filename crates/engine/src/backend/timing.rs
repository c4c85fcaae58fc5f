//! What the steps of a replay take.

use crate::process::ProcessMemory;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The step that a timed replay of this process is at; the largest number if there is none.
static CURRENT: AtomicUsize = AtomicUsize::new(usize::MAX);

/// What the steps of a routine took, added up over replays. Made by [`crate::Program::timing`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timing {
    /// By step: the time from the end of the one before it to its own.
    pub steps: Vec<Duration>,
    /// By step, and within a step by worker: how long it computed. Nothing where a device does not tell its workers apart.
    pub busy: Vec<Duration>,
    /// By step: what the process held after it the last time, if that is asked for.
    pub resident: Option<Vec<u64>>,
}

impl Timing {
    /// Room for so many steps.
    pub fn new(steps: usize) -> Timing {
        Timing { steps: vec![Duration::ZERO; steps], ..Timing::default() }
    }

    /// Looks at the memory of the process after each step, which takes time of its own.
    pub fn with_memory(mut self) -> Timing {
        self.resident = Some(vec![0; self.steps.len()]);
        self
    }

    /// Begins anew, in the same room.
    pub fn clear(&mut self) {
        self.steps.fill(Duration::ZERO);
        self.busy.fill(Duration::ZERO);
    }

    /// How many workers are told apart.
    pub fn workers(&self) -> usize {
        self.busy.len().checked_div(self.steps.len()).unwrap_or(0)
    }

    /// The time of all steps.
    pub fn total(&self) -> Duration {
        self.steps.iter().sum()
    }

    /// The step that a timed replay of this process is at, if there is one: for whoever is called from within it, as an
    /// allocator is.
    pub fn current_step() -> Option<usize> {
        Some(CURRENT.load(Ordering::Relaxed)).filter(|&step| step != usize::MAX)
    }

    /// Adds the time since it was last told of a step to that step's; `busy` adds what the workers did of it.
    pub(crate) fn stopwatch(&mut self, mut busy: impl FnMut(&mut [Duration])) -> impl FnMut(usize) {
        let workers = self.workers();
        let count = self.steps.len();
        CURRENT.store(0, Ordering::Relaxed);
        let mut last = Instant::now();
        move |step| {
            let now = Instant::now();
            self.steps[step] += now - last;
            CURRENT.store(if step + 1 < count { step + 1 } else { usize::MAX }, Ordering::Relaxed);
            busy(&mut self.busy[step * workers..][..workers]);
            last = now;
            if let Some(resident) = &mut self.resident {
                resident[step] = ProcessMemory::read().now;
                // Looking is no part of a step.
                last = Instant::now();
            }
        }
    }
}

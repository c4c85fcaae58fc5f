//! How a kernel reports what only its data can show: an index out of range, a value that is not finite.

use std::sync::atomic::{AtomicU64, Ordering};

const NONE: u64 = u64::MAX;

/// Holds the first fault of a replay: the earliest step, and the smallest detail within it, so that the report
/// does not depend on the number of threads.
#[derive(Debug)]
pub struct FaultCell(AtomicU64);

impl Default for FaultCell {
    fn default() -> Self {
        FaultCell(AtomicU64::new(NONE))
    }
}

impl FaultCell {
    /// Takes the fault out, if one was raised: the step's number and the detail it gave.
    pub fn take(&self) -> Option<(u32, u32)> {
        if self.0.load(Ordering::Relaxed) == NONE {
            return None;
        }
        let code = self.0.swap(NONE, Ordering::Relaxed);
        Some(((code >> 32) as u32, code as u32))
    }
}

/// A job's way to raise a fault in the cell of its program.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    cell: *const FaultCell,
    step: u32,
}

// SAFETY: the cell is an atomic; the pointer is only followed in `raise`, whose caller promises it is alive.
unsafe impl Send for Fault {}
// SAFETY: as above.
unsafe impl Sync for Fault {}

impl Fault {
    /// Faults of this step go to this cell.
    pub fn new(cell: *const FaultCell, step: u32) -> Self {
        Fault { cell, step }
    }

    /// Raises a fault.
    ///
    /// # Safety
    /// The cell must be alive.
    pub unsafe fn raise(&self, detail: u32) {
        let code = (self.step as u64) << 32 | detail as u64;
        // SAFETY: the cell is alive, by the caller's promise.
        unsafe { &*self.cell }.0.fetch_min(code, Ordering::Relaxed);
    }
}

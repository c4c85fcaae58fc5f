//! Memory that reading an input takes: counted, and bounded.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Nothing here may come near to this; an allocation beyond it fails, before the machine suffers.
const MOST: usize = 2 << 30;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: all memory is the system's; only sizes are noted besides, and a null pointer says that there is none.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        if live > MOST {
            LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Bytes that reading may take: so many for each byte of the input, and a constant.
pub fn limit(constant: usize, per_byte: usize, input: &[u8]) -> usize {
    constant + per_byte * input.len()
}

/// What the work gives, which must not take more than so many bytes at any time.
pub fn within<T>(bytes: usize, work: impl FnOnce() -> T) -> T {
    // Inputs that are read at the same time would be counted together.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = work();
    let taken = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    assert!(taken <= bytes, "{taken} bytes were taken where {bytes} are enough");
    result
}

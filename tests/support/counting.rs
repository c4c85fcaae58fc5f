//! An allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts calls while told to, from every thread.
pub struct Counting;

static COUNTED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static FREES: AtomicUsize = AtomicUsize::new(0);

/// Whether calls count from now on.
pub fn count(counts: bool) {
    COUNTED.store(counts, Ordering::SeqCst);
}

/// How many allocations and frees were counted; none counts from now on.
pub fn counted() -> (usize, usize) {
    count(false);
    (ALLOCATIONS.swap(0, Ordering::SeqCst), FREES.swap(0, Ordering::SeqCst))
}

fn note(calls: &AtomicUsize) {
    if COUNTED.load(Ordering::Relaxed) {
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(&ALLOCATIONS);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(&ALLOCATIONS);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(&FREES);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

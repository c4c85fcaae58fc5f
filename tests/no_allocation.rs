//! A training step allocates nothing and frees nothing after the first, on any number of threads.
//!
//! A program of its own, not one of the test harness: the harness has a thread that tells of tests that take long, and
//! whatever it allocates would be counted.

mod support;

use gradus::backend::Cpu;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use support::training;

/// Counts calls while told to, from every thread.
struct Counting;

static COUNTED: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static FREES: AtomicUsize = AtomicUsize::new(0);

fn count(calls: &AtomicUsize) {
    if COUNTED.load(Ordering::Relaxed) {
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(&ALLOCATIONS);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(&ALLOCATIONS);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(&FREES);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counter itself must count, or the test below could not fail.
fn the_counter_counts() {
    COUNTED.store(true, Ordering::SeqCst);
    drop(std::hint::black_box(vec![0u8; 100]));
    COUNTED.store(false, Ordering::SeqCst);
    assert!(ALLOCATIONS.swap(0, Ordering::SeqCst) > 0 && FREES.swap(0, Ordering::SeqCst) > 0);
}

fn steps_after_the_first_neither_allocate_nor_free() {
    for threads in [1, 2, 4] {
        let mut program = training::compile(&Cpu::new(threads).unwrap());
        let mut losses = [0.0f32; 100];
        for (step, loss) in losses.iter_mut().enumerate() {
            COUNTED.store(step > 0, Ordering::SeqCst);
            training::write_batch(&mut program, step);
            program.run("step").unwrap();
            *loss = program.scalar("loss").unwrap();
        }
        COUNTED.store(false, Ordering::SeqCst);
        let (allocations, frees) = (ALLOCATIONS.swap(0, Ordering::SeqCst), FREES.swap(0, Ordering::SeqCst));
        assert_eq!((allocations, frees), (0, 0), "calls in steps 2..=100 on {threads} threads");
        assert!(losses[99] < 0.8 * losses[0], "it learns: {} to {}", losses[0], losses[99]);
    }
}

fn main() {
    the_counter_counts();
    steps_after_the_first_neither_allocate_nor_free();
}

//! The last line of a budget: an allocator that ends the command before the process holds more than it may.
//!
//! What can be predicted is refused before it is begun, with the smallest budget that works. What cannot (a library that
//! takes more than it should of a file that nobody has seen) meets this allocator. While a budget is armed it asks the
//! system now and then how much is resident. Near the limit it first gives back what can be had again: code, which comes
//! back from its file when it runs, and what was freed. If that is not enough, it says so in one line and ends the
//! process. It works on Linux; elsewhere it only passes requests on.

use super::Limit;
use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, guarded. To be the global allocator of a program that keeps budgets.
pub struct Guarded;

// SAFETY: every request is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        watch::before_taking(layout.size());
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        watch::before_taking(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        watch::before_taking(new_size.saturating_sub(layout.size()));
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// A limit is guarded until this is dropped, or another is.
#[derive(Debug)]
#[must_use]
pub struct Armed {
    number: usize,
    budget: Option<u64>,
}

impl Armed {
    /// The bytes that the process is to stay within, if that was stated.
    pub fn budget(&self) -> Option<u64> {
        self.budget
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        watch::disarm(self.number);
    }
}

/// How the command's user states the limit.
pub const OPTION: &str = "--memory";

/// Guards a limit from now on, which was stated by this setting: there is nobody to translate what the guard says.
pub fn arm(limit: &Limit, setting: &str) -> Armed {
    let refusal = limit.not_enough().replace("`settings.memory`", setting);
    let number = watch::arm(limit.bytes.max(limit.least), &refusal, setting);
    Armed { number, budget: limit.is_stated().then_some(limit.bytes) }
}

/// Says what the process does from now on, for the refusal.
pub fn doing(what: Doing) {
    watch::doing(what);
}

/// What is done last if the process is ended; it takes the place of what was to be done before.
pub fn on_refusal(undo: impl FnOnce() + Send + 'static) {
    watch::on_refusal(Box::new(undo));
}

/// Gives code back if the process is near its limit. For work that allocates nothing.
pub fn relieve() {
    watch::relieve();
}

/// What takes memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Doing {
    #[default]
    Beginning,
    OpeningTokenizer,
    LearningVocabulary,
    Tokenizing,
    Planning,
    Training,
    Evaluating,
    Generating,
}

impl Doing {
    /// As it is told, in the order in which they are declared.
    #[cfg(target_os = "linux")]
    const TOLD: [&str; 8] = [
        "beginning",
        "opening the tokenizer",
        "learning the vocabulary",
        "making tokens of the text",
        "planning",
        "training",
        "evaluating",
        "generating",
    ];
}

#[cfg(target_os = "linux")]
mod watch;

/// Elsewhere the system is not asked.
#[cfg(not(target_os = "linux"))]
mod watch {
    use super::Doing;

    pub fn arm(_limit: u64, _refusal: &str, _setting: &str) -> usize {
        0
    }

    pub fn disarm(_guard: usize) {}

    pub fn doing(_what: Doing) {}

    pub fn on_refusal(_undo: Box<dyn FnOnce() + Send>) {}

    pub fn before_taking(_bytes: usize) {}

    pub fn relieve() {}
}

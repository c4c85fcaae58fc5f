//! Allocations, counted by an allocator that a program installs, with the call stacks of those that should not be.
//!
//! While nobody watches, it costs the read of a flag for each allocation. What the profiler allocates itself is left out.

use gradus_engine::backend::Timing;
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Stacks that are kept of each phase: enough to see who allocates, and few enough to be read.
const STACKS: usize = 48;

/// An allocator that counts what another one is asked for. To be the global allocator of a program that is profiled:
///
/// ```
/// use gradus_train::profiler::Counting;
/// use std::alloc::System;
///
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting(System);
/// ```
pub struct Counting<A = System>(pub A);

// SAFETY: every request is passed on to the other allocator as it came.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: the caller's promises are those of the other allocator.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        taken(layout.size());
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        given_back(layout.size());
        // SAFETY: as above.
        unsafe { self.0.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        given_back(layout.size());
        taken(new_size);
        // SAFETY: as above.
        unsafe { self.0.realloc(pointer, layout, new_size) }
    }
}

/// What a program does while it allocates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Nothing that the profiler knows of.
    Elsewhere,
    /// Filling batches, on a thread of its own.
    Data,
    /// Computing a training step.
    Step,
    /// What a training loop does around its steps: schedule, metrics, whoever watches.
    Loop,
}

impl Phase {
    /// Every phase.
    pub const ALL: [Phase; 4] = [Phase::Elsewhere, Phase::Data, Phase::Step, Phase::Loop];

    /// As it is told.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Elsewhere => "elsewhere",
            Phase::Data => "filling batches",
            Phase::Step => "computing the step",
            Phase::Loop => "the loop around it",
        }
    }

    /// From now on the program does this, but for threads that have a phase of their own.
    pub(crate) fn begin(self) {
        PHASE.store(self as u8, Relaxed);
    }

    /// Does some work of this phase on this thread, whatever the others do.
    pub(crate) fn of_thread<T>(self, work: impl FnOnce() -> T) -> T {
        let before = OWN_PHASE.replace(Some(self));
        let done = work();
        OWN_PHASE.set(before);
        done
    }

    fn now() -> Phase {
        OWN_PHASE.get().unwrap_or_else(|| Phase::ALL[PHASE.load(Relaxed) as usize])
    }
}

/// How much was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// Calls that took memory.
    pub calls: u64,
    /// Bytes that they took.
    pub bytes: u64,
}

/// A place that allocates.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Offender {
    /// What the program did.
    pub phase: Phase,
    /// The routine of the plan and its step that was computed, if one was.
    #[serde(skip)]
    pub step: Option<(usize, usize)>,
    /// The call stack, the innermost first, without the allocator's own and the runtime's frames.
    pub stack: Vec<String>,
    /// What it took, of the calls that were looked at.
    pub seen: Count,
}

/// What was allocated while it was watched.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Allocations {
    /// By phase, those without calls left out.
    pub by_phase: Vec<(Phase, Count)>,
    /// Who it was, those with most calls first; of each phase, the first calls alone are looked at.
    pub offenders: Vec<Offender>,
}

impl Allocations {
    /// What a phase took.
    pub fn of(&self, phase: Phase) -> Count {
        self.by_phase.iter().find(|(known, _)| *known == phase).map_or(Count::default(), |(_, count)| *count)
    }

    /// What all phases took.
    pub fn total(&self) -> Count {
        let add = |sum: Count, (_, count): &(Phase, Count)| Count {
            calls: sum.calls + count.calls,
            bytes: sum.bytes + count.bytes,
        };
        self.by_phase.iter().fold(Count::default(), add)
    }
}

/// How many ask that the heap is counted.
static COUNTERS: AtomicUsize = AtomicUsize::new(0);
/// Whether the program's allocator counts, which one that was made to find out has told.
static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
/// Whether stacks are kept.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// Bytes taken and not given back, since counting began.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PHASE: AtomicU8 = AtomicU8::new(0);
/// The routine that is replayed.
static ROUTINE: AtomicUsize = AtomicUsize::new(0);
static CALLS: [AtomicU64; Phase::ALL.len()] = [const { AtomicU64::new(0) }; Phase::ALL.len()];
static BYTES: [AtomicU64; Phase::ALL.len()] = [const { AtomicU64::new(0) }; Phase::ALL.len()];
static SEEN: Mutex<Vec<Seen>> = Mutex::new(vec![]);

thread_local! {
    /// Whether what this thread allocates is the profiler's.
    static OWN: Cell<bool> = const { Cell::new(false) };
    static OWN_PHASE: Cell<Option<Phase>> = const { Cell::new(None) };
}

/// A call that was looked at. Its stack is put into words when nobody is watched any more.
struct Seen {
    phase: Phase,
    step: Option<(usize, usize)>,
    bytes: usize,
    stack: Backtrace,
}

fn taken(bytes: usize) {
    if COUNTERS.load(Relaxed) > 0 && !OWN.get() {
        note(bytes);
    }
}

fn given_back(bytes: usize) {
    if COUNTERS.load(Relaxed) > 0 && !OWN.get() {
        LIVE.fetch_sub(bytes as i64, Relaxed);
    }
}

#[cold]
fn note(bytes: usize) {
    LIVE.fetch_add(bytes as i64, Relaxed);
    let phase = Phase::now();
    let before = CALLS[phase as usize].fetch_add(1, Relaxed);
    BYTES[phase as usize].fetch_add(bytes as u64, Relaxed);
    // A thread that panics holds the lock that taking a stack waits for.
    if WATCHED.load(Acquire) && before < STACKS as u64 && !std::thread::panicking() {
        own(|| {
            let computing = phase == Phase::Step;
            let step = Timing::current_step().filter(|_| computing).map(|step| (ROUTINE.load(Relaxed), step));
            let stack = Backtrace::force_capture();
            seen().push(Seen { phase, step, bytes, stack });
        });
    }
}

fn seen() -> MutexGuard<'static, Vec<Seen>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does some work of the profiler's own, whose allocations do not count.
pub(super) fn own<T>(work: impl FnOnce() -> T) -> T {
    let before = OWN.replace(true);
    let done = work();
    OWN.set(before);
    done
}

/// Says which routine of a plan is replayed from now on.
pub(crate) fn replays(routine: usize) {
    ROUTINE.store(routine, Relaxed);
}

/// The heap is counted while there is one of these.
#[derive(Debug)]
pub(super) struct Counted(());

impl Counted {
    pub fn begin() -> Counted {
        COUNTERS.fetch_add(1, Relaxed);
        IS_INSTALLED.get_or_init(|| {
            let calls = || CALLS.iter().map(|calls| calls.load(Relaxed)).sum::<u64>();
            let before = calls();
            drop(std::hint::black_box(Box::new(0u8)));
            calls() > before
        });
        Counted(())
    }

    /// Bytes that are on the heap now beyond those when counting began, if the program's allocator counts.
    pub fn live(&self) -> Option<i64> {
        (IS_INSTALLED.get() == Some(&true)).then(|| LIVE.load(Relaxed))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNTERS.fetch_sub(1, Relaxed);
    }
}

/// Watches allocations, with stacks, until it is ended. One at a time: another one begins anew.
///
/// Code that takes stacks itself ([`Backtrace`]) must not be watched: taking one waits for the lock that it holds.
#[derive(Debug)]
#[must_use]
pub struct Watch(Counted);

impl Watch {
    /// From now on.
    pub fn begin() -> Watch {
        let counted = Counted::begin();
        own(|| seen().reserve(STACKS * Phase::ALL.len()));
        seen().clear();
        CALLS.iter().chain(&BYTES).for_each(|count| count.store(0, Relaxed));
        WATCHED.store(true, Release);
        Watch(counted)
    }

    /// Bytes on the heap beyond those when counting began, if the program's allocator counts.
    pub(crate) fn live(&self) -> Option<i64> {
        self.0.live()
    }

    /// Until now.
    pub fn end(self) -> Allocations {
        WATCHED.store(false, Release);
        own(|| {
            let count = |phase: Phase| Count {
                calls: CALLS[phase as usize].load(Relaxed),
                bytes: BYTES[phase as usize].load(Relaxed),
            };
            let by_phase = Phase::ALL.map(|phase| (phase, count(phase)));
            let by_phase = by_phase.into_iter().filter(|(_, count)| count.calls > 0).collect();
            let seen = std::mem::take(&mut *seen());
            Allocations { by_phase, offenders: grouped(&seen) }
        })
    }
}

/// The same stack once.
fn grouped(seen: &[Seen]) -> Vec<Offender> {
    let mut offenders: Vec<Offender> = vec![];
    for call in seen {
        let stack = frames(&call.stack.to_string());
        let known = offenders.iter().position(|known| known.phase == call.phase && known.stack == stack);
        let index = known.unwrap_or_else(|| {
            offenders.push(Offender { phase: call.phase, step: None, stack, seen: Count::default() });
            offenders.len() - 1
        });
        let offender = &mut offenders[index];
        // Only replays that are timed know their step.
        offender.step = offender.step.or(call.step);
        offender.seen.calls += 1;
        offender.seen.bytes += call.bytes as u64;
    }
    offenders.sort_by_key(|offender| std::cmp::Reverse(offender.seen.calls));
    offenders
}

/// Frames of a stack as it is printed, each `function at file:line`, without those that are in every stack: the allocator's own
/// at the top, the runtime's at the bottom.
fn frames(printed: &str) -> Vec<String> {
    let mut frames: Vec<String> = vec![];
    for line in printed.lines().map(str::trim) {
        match (line.strip_prefix("at "), line.split_once(": ")) {
            (Some(place), _) => {
                if let Some(last) = frames.last_mut() {
                    *last = format!("{last} at {place}");
                }
            }
            (None, Some((number, function))) if number.parse::<usize>().is_ok() => frames.push(function.to_string()),
            _ => {}
        }
    }
    // Names may be short, where a program has no more than tables of lines: then places tell.
    let is_above = |frame: &String| {
        let parts = [
            "profiler/allocations.rs",
            "profiler::allocations::",
            "/rustc/",
            "/rustlib/src/",
            "backtrace",
            "__rust_",
            "__rustc::",
        ];
        parts.iter().any(|part| frame.contains(part)) || frame.starts_with("alloc::") || frame.starts_with("<alloc::")
    };
    // A frame that is inlined may have no place of its own.
    let is_placed = |frame: &String| frame.contains(" at ") && !is_above(frame);
    let begin = frames.iter().position(is_placed).or_else(|| frames.iter().position(|frame| !is_above(frame)));
    let begin = begin.unwrap_or(0);
    let runtime = |frame: &String| {
        let parts = ["__rust_begin_short_backtrace", "std::rt::", "std::sys::", "__libc_start"];
        parts.iter().any(|part| frame.contains(part))
    };
    let end = frames.iter().skip(begin).position(runtime).map_or(frames.len(), |length| begin + length);
    frames[begin..end.max(begin)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_cut_to_the_frames_that_tell_something() {
        let printed = "   0: std::backtrace_rs::backtrace::libunwind::trace\n             at /rustc/x/mod.rs:116:5\n   \
            1: gradus_train::profiler::allocations::note\n   2: __rustc::__rust_alloc\n   3: finish_grow\n   3: to_vec<f32>\n             \
            at /rustc/x/library/alloc/src/slice.rs:88:9\n   4: own::Twice::run\n             at ./src/own.rs:12:9\n   5: own::main\n   \
            6: std::sys::backtrace::__rust_begin_short_backtrace\n   7: main\n";
        assert_eq!(frames(printed), ["own::Twice::run at ./src/own.rs:12:9", "own::main"]);
        assert!(frames("").is_empty());
    }

    #[test]
    fn without_the_allocator_nothing_is_said_to_be_counted() {
        let counted = Counted::begin();
        assert_eq!(counted.live(), None);
        assert_eq!(Watch::begin().end(), Allocations::default());
    }
}

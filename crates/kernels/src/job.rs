//! A unit of work that the pool can share out.

use std::ops::Range;

/// Work cut into parts. The cut depends on the problem alone, unless no cut changes a bit, and each part does the same
/// arithmetic in the same order whichever thread runs it: so the number of threads cannot change a bit of the result.
pub trait Job: Send + Sync {
    /// How many parts there are; zero when there is nothing to do.
    fn parts(&self) -> usize;

    /// Bytes of private scratch that a part needs while it runs.
    fn worker_scratch(&self) -> usize;

    /// Does one part.
    ///
    /// # Safety
    /// The operands the job was built with must be alive and laid out as it was told; while it runs, nothing
    /// but the other parts of the same job may touch the bytes it writes, and no part may run twice at once.
    /// `scratch` must hold at least [`Job::worker_scratch`] bytes, aligned to 64.
    unsafe fn run(&self, part: usize, scratch: &mut [u8]);
}

/// The number of parts when `total` units are cut into chunks of `size`.
pub fn parts_of(total: usize, size: usize) -> usize {
    total.div_ceil(size)
}

/// The units of part `part` when `total` units are cut into chunks of `size`.
#[inline(always)]
pub fn chunk(part: usize, size: usize, total: usize) -> Range<usize> {
    part * size..((part + 1) * size).min(total)
}

/// Runs a job on this thread, last part first, and checks that it keeps to its scratch.
#[cfg(test)]
pub(crate) fn run_alone(job: &dyn Job) {
    const GUARD: u8 = 0xa5;
    let bytes = job.worker_scratch();
    let mut memory = vec![GUARD; bytes + 128];
    let start = memory.as_ptr().align_offset(64);
    for part in (0..job.parts()).rev() {
        // SAFETY: a test gives the job operands that live in its own vectors.
        unsafe { job.run(part, &mut memory[start..start + bytes]) };
        assert!(memory[start + bytes..].iter().all(|&byte| byte == GUARD), "part {part} wrote past its scratch");
    }
}

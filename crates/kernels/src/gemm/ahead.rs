//! Asking memory for what will be packed next, a little at a time, while something else is multiplied.

use super::microkernel::Microkernel;

/// Bytes of a line of the cache.
pub(super) const CACHE_LINE: usize = 64;

/// Memory that will be packed next, a dense run after another.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// Where the run starts, how far apart runs lie, in bytes, and how many there are still.
    run: *const u8,
    stride: usize,
    runs_left: usize,
    /// Lines of the cache in a run, and the next one.
    lines: usize,
    line: usize,
    /// Lines to ask for at a time.
    portion: usize,
}

impl Ahead {
    pub const NOTHING: Ahead = Ahead { run: std::ptr::null(), stride: 0, runs_left: 0, lines: 0, line: 0, portion: 0 };

    /// Elements along two axes, given by size and stride, in so many portions.
    #[inline(always)]
    pub fn of<T>(first: *const T, x: (usize, usize), y: (usize, usize), portions: usize) -> Ahead {
        let ((length, _), (runs, stride)) = match (x.1, y.1) {
            (1, _) => (x, y),
            (_, 1) => (y, x),
            _ => return Ahead::NOTHING,
        };
        let lines = (length * size_of::<T>()).div_ceil(CACHE_LINE);
        if lines == 0 {
            return Ahead::NOTHING;
        }
        let portion = (runs * lines).div_ceil(portions);
        Ahead { run: first.cast(), stride: stride * size_of::<T>(), runs_left: runs, lines, line: 0, portion }
    }

    /// Asks for the next portion.
    #[inline(always)]
    pub fn ask<L: Microkernel>(&mut self) {
        for _ in 0..self.portion {
            if self.runs_left == 0 {
                return;
            }
            L::prefetch_far(self.run.wrapping_add(self.line * CACHE_LINE));
            self.line += 1;
            if self.line == self.lines {
                self.line = 0;
                self.run = self.run.wrapping_add(self.stride);
                self.runs_left -= 1;
            }
        }
    }
}

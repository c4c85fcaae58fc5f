//! Asking memory for what will be copied next, a little at a time, while something else is multiplied.

use super::slide::NextRows;
use crate::vectors::{CACHE_LINE, ask_far};

/// Runs of elements that will be copied next.
pub(super) struct Ahead<'a, T> {
    /// From the first of them on.
    elements: &'a [T],
    /// How far apart runs lie, how long they are, and how many there are still.
    apart: usize,
    length: usize,
    runs: usize,
    /// The next element of a run, and lines of the cache to ask for at a time.
    next: usize,
    portion: usize,
}

impl<'a, T> Ahead<'a, T> {
    /// Elements of a line of the cache.
    const LINE: usize = CACHE_LINE / size_of::<T>();

    /// So many runs of that length, so far apart, in so many portions.
    #[inline(always)]
    pub fn new(elements: &'a [T], [runs, length, apart]: [usize; 3], portions: usize) -> Ahead<'a, T> {
        let runs = if length == 0 { 0 } else { runs };
        let portion = (runs * length.div_ceil(Self::LINE)).div_ceil(portions.max(1));
        Ahead { elements, apart, length, runs, next: 0, portion }
    }

    /// Rows of so many elements from the first run on, for who asks row by row.
    #[inline(always)]
    pub fn rows(&self, columns: usize) -> NextRows {
        NextRows::of(if self.runs == 0 { &[] } else { self.elements }, columns)
    }

    /// Asks for the next portion.
    #[inline(always)]
    pub fn ask(&mut self) {
        for _ in 0..self.portion {
            if self.runs == 0 {
                return;
            }
            ask_far(self.elements.as_ptr().wrapping_add(self.next));
            self.next += Self::LINE;
            if self.next >= self.length {
                self.elements = self.elements.get(self.apart..).unwrap_or_default();
                self.runs -= 1;
                self.next = 0;
            }
        }
    }
}

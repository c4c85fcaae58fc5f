//! Where a job's operands lie: pointers into the arena that many threads may hold.

use std::ops::Range;

/// Elements that a job reads. Building one is safe; borrowing from it is not.
#[derive(Debug)]
pub struct In<T> {
    pointer: *const T,
    length: usize,
}

/// Elements that a job writes. Building one is safe; borrowing from it is not.
#[derive(Debug)]
pub struct Out<T> {
    pointer: *mut T,
    length: usize,
}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}
impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

// SAFETY: these are addresses; every use of them is an unsafe call whose caller promises exclusive or shared
// access to the elements, on whatever thread it runs.
unsafe impl<T: Send> Send for In<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for In<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Out<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Out<T> {}

impl<T> In<T> {
    /// `length` elements from `pointer` on.
    pub fn new(pointer: *const T, length: usize) -> Self {
        In { pointer, length }
    }

    /// The number of elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of the first element.
    #[inline(always)]
    pub fn as_ptr(&self) -> *const T {
        self.pointer
    }

    /// Whether some byte belongs to both.
    pub fn overlaps<U>(&self, other: &Out<U>) -> bool {
        let (a, b) = (self.pointer as usize, other.pointer as usize);
        a < b + other.length * size_of::<U>() && b < a + self.length * size_of::<T>()
    }

    /// Asks the cache for elements that are read soon, where the order in which they are is none that the machine foresees. They
    /// need not be there.
    #[inline(always)]
    pub(crate) fn ask_for(&self, range: Range<usize>) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            const CACHE_LINE: usize = 64;
            for element in range.step_by((CACHE_LINE / size_of::<T>().max(1)).max(1)) {
                // SAFETY: asking for an address that is not there does nothing; every x86-64 has the instruction.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(self.pointer.wrapping_add(element).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = range;
    }

    /// Borrows a range of the elements.
    ///
    /// # Safety
    /// The memory must be alive and hold initialized elements, and nothing may write to the range while the
    /// borrow is used. Where the output may lie in the same bytes, keep the borrow to the block at hand.
    #[inline(always)]
    pub unsafe fn slice<'a>(&self, range: Range<usize>) -> &'a [T] {
        debug_assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {}", self.length);
        // SAFETY: the range is inside the operand (checked above in debug builds, by the job's own sizes in
        // release builds); the rest is the caller's promise.
        // The length is a difference: that of a range would be zero where the end comes first, and the test for it
        // would stand in every inner loop.
        unsafe { std::slice::from_raw_parts(self.pointer.add(range.start), range.end - range.start) }
    }
}

impl<T> Out<T> {
    /// `length` elements from `pointer` on.
    pub fn new(pointer: *mut T, length: usize) -> Self {
        Out { pointer, length }
    }

    /// The number of elements.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of the first element.
    #[inline(always)]
    pub fn as_ptr(&self) -> *mut T {
        self.pointer
    }

    /// The same elements, to be read: what one job of a step wrote and the next one reads.
    pub fn as_in(&self) -> In<T> {
        In::new(self.pointer, self.length)
    }

    /// The elements from `start` on.
    pub fn offset(&self, start: usize) -> Out<T> {
        assert!(start <= self.length, "offset {start} of {}", self.length);
        Out::new(self.pointer.wrapping_add(start), self.length - start)
    }

    /// Borrows a range of the elements for writing.
    ///
    /// # Safety
    /// The memory must be alive, and nothing else may read or write the range while the borrow is used: the
    /// parts of a job must borrow disjoint ranges.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice<'a>(&self, range: Range<usize>) -> &'a mut [T] {
        debug_assert!(range.start <= range.end && range.end <= self.length, "{range:?} of {}", self.length);
        // SAFETY: as for `In::slice`, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(range.start), range.end - range.start) }
    }
}

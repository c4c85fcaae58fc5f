//! A count that does not pass its limit: connections, and answers that take memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// So many may be taken at a time.
#[derive(Clone, Debug)]
pub struct Seats {
    free: Arc<AtomicUsize>,
}

/// One of them, free again when it is dropped.
#[derive(Debug)]
pub struct Seat {
    free: Arc<AtomicUsize>,
}

impl Seats {
    /// So many.
    pub fn new(count: usize) -> Seats {
        Seats { free: Arc::new(AtomicUsize::new(count)) }
    }

    /// One, if there is one.
    pub fn take(&self) -> Option<Seat> {
        let one_less = |free: usize| free.checked_sub(1);
        let taken = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less);
        taken.is_ok().then(|| Seat { free: self.free.clone() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.free.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_taken_than_there_are() {
        let seats = Seats::new(2);
        let (one, two) = (seats.take(), seats.take());
        assert!(one.is_some() && two.is_some() && seats.take().is_none());
        drop(one);
        assert!(seats.take().is_some());
    }
}

//! The pool in every order that its threads' steps can be carried out in, up to a number of preemptions: no part is lost
//! or done twice, no thread reads what another is writing, and no worker is left behind. See `sync`.

use super::Pool;
use crate::Job;
use loom::cell::UnsafeCell;

/// A number for each part, which only that part may touch until the job is over. loom panics at a touch that is not
/// ordered after the last.
struct Counted {
    counts: Vec<UnsafeCell<u32>>,
}

// SAFETY: parts touch their own numbers alone; that they do is what is tested.
unsafe impl Sync for Counted {}

impl Job for Counted {
    fn parts(&self) -> usize {
        self.counts.len()
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        // SAFETY: a part is run by one thread.
        self.counts[part].with_mut(|count| unsafe { *count += 1 });
    }
}

fn run(pool: &Pool, parts: usize) {
    let job = Counted { counts: (0..parts).map(|_| UnsafeCell::new(0)).collect() };
    // SAFETY: the job touches its own numbers and needs no scratch.
    unsafe { pool.run(&job, std::ptr::NonNull::<u8>::dangling().as_ptr(), 0) };
    for count in &job.counts {
        // SAFETY: the job is over.
        assert_eq!(count.with(|count| unsafe { *count }), 1, "times that a part was done");
    }
}

fn in_every_order(preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(test);
}

#[test]
fn a_job_after_another() {
    in_every_order(2, || {
        let pool = Pool::new(2).unwrap();
        run(&pool, 2);
        run(&pool, 3);
    });
}

#[test]
fn two_workers() {
    in_every_order(1, || run(&Pool::new(3).unwrap(), 3));
}

#[test]
fn two_callers() {
    in_every_order(2, || {
        let pool = loom::sync::Arc::new(Pool::new(2).unwrap());
        let other = {
            let pool = pool.clone();
            loom::thread::spawn(move || run(&pool, 2))
        };
        run(&pool, 2);
        other.join().unwrap();
    });
}

#[test]
fn an_end_without_work() {
    in_every_order(3, || drop(Pool::new(3).unwrap()));
}

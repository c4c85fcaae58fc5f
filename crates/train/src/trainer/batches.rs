//! Batches, filled ahead by a thread of their own.

use crate::step::Batch;
use crate::{Error, Result};
use gradus_engine::Array;
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Of which only what is touched is ever resident.
const STACK_BYTES: usize = 2 << 20;

/// Where batches come from. A function of the step's number, from 0, and the batch to be filled is one that never ends.
pub trait BatchSource: Send {
    /// Fills the batch of a step, and says whether there is one. Steps come in order; the first is that which the run
    /// goes on from.
    fn fill(&mut self, step: u64, batch: &mut Batch) -> Result<bool>;

    /// Fills a batch with these rows alone of the batch of a step, which has so many, and says whether there is one. `None`:
    /// it can only fill whole batches, of which a rank then takes its rows.
    fn fill_rows(&mut self, _step: u64, _rows: Range<usize>, _of: usize, _batch: &mut Batch) -> Option<Result<bool>> {
        None
    }
}

impl<F: FnMut(u64, &mut Batch) -> Result<()> + Send> BatchSource for F {
    fn fill(&mut self, step: u64, batch: &mut Batch) -> Result<bool> {
        self(step, batch).map(|()| true)
    }
}

/// Batches of named arrays from an iterator, one a step; a run that goes on leaves out those that it has had.
pub struct Arrays<I> {
    iterator: I,
    taken: u64,
}

impl<I> Arrays<I> {
    /// The first is that of the first step, whether or not it was taken before.
    pub fn new(iterator: impl IntoIterator<IntoIter = I>) -> Arrays<I> {
        Arrays { iterator: iterator.into_iter(), taken: 0 }
    }
}

impl<B: AsRef<[(&'static str, Array)]>, I: Iterator<Item = B> + Send> BatchSource for Arrays<I> {
    fn fill(&mut self, step: u64, batch: &mut Batch) -> Result<bool> {
        while self.taken < step {
            self.taken += 1;
            if self.iterator.next().is_none() {
                return Ok(false);
            }
        }
        self.taken += 1;
        let Some(arrays) = self.iterator.next() else { return Ok(false) };
        for (name, array) in arrays.as_ref() {
            batch.write_array(name, array)?;
        }
        Ok(true)
    }
}

/// Fills batches ahead. The same buffers go round between the one who fills and the one who asks, so that nothing is
/// allocated after the first.
pub struct Batches {
    ring: Arc<Ring>,
    current: Batch,
    filler: Option<JoinHandle<()>>,
}

struct Ring {
    state: Mutex<State>,
    changed: Condvar,
}

/// Where the batches are. Both queues have room for all of them.
struct State {
    ready: VecDeque<Batch>,
    free: Vec<Batch>,
    failure: Option<Error>,
    stopped: bool,
}

impl Batches {
    /// Batches that are filled ahead, unless another number is stated.
    pub const AHEAD: usize = 4;

    /// Begins to fill batches like this one, the first of them for `first_step`.
    pub fn new(source: Box<dyn BatchSource>, room: Batch, first_step: u64) -> Result<Batches> {
        let all = 0..room.rows();
        Batches::of_rows(source, room, (all.clone(), all.len()), first_step, Batches::AHEAD)
    }

    /// Begins to fill so many batches ahead, with these rows of all those that a step has.
    pub(crate) fn of_rows(
        source: Box<dyn BatchSource>,
        room: Batch,
        (rows, of): (Range<usize>, usize),
        first_step: u64,
        ahead: usize,
    ) -> Result<Batches> {
        let mut free = Vec::with_capacity(ahead + 1);
        free.resize(ahead, room.clone());
        let state = State { ready: VecDeque::with_capacity(ahead + 1), free, failure: None, stopped: false };
        let ring = Arc::new(Ring { state: Mutex::new(state), changed: Condvar::new() });
        let filler = Filler { ring: ring.clone(), source, step: first_step, rows, of, whole: None };
        let thread = std::thread::Builder::new().name("data".to_string()).stack_size(STACK_BYTES);
        let thread =
            thread.spawn(move || filler.run()).map_err(Error::io("start a thread for", Path::new("batches")))?;
        Ok(Batches { ring, current: room, filler: Some(thread) })
    }

    /// Bytes that batches of so many bytes take: so many filled ahead and the one in use.
    pub fn bytes(batch: usize, ahead: usize) -> u64 {
        (ahead as u64 + 1).saturating_mul(batch as u64)
    }

    /// The next batch, waiting for it if it is not filled yet; none if there are no more.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<&Batch>> {
        let mut state = self.ring.wait_until(|state| !state.ready.is_empty() || state.stopped);
        match state.ready.pop_front() {
            Some(batch) => state.free.push(std::mem::replace(&mut self.current, batch)),
            None => return state.failure.take().map_or(Ok(None), Err),
        }
        drop(state);
        self.ring.changed.notify_one();
        Ok(Some(&self.current))
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.ring.lock().stopped = true;
        self.ring.changed.notify_one();
        if let Some(filler) = self.filler.take() {
            let _ = filler.join();
        }
    }
}

impl Ring {
    /// The state, also if a thread has panicked: each change of it is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, ready: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        self.changed.wait_while(self.lock(), |state| !ready(state)).unwrap_or_else(PoisonError::into_inner)
    }
}

struct Filler {
    ring: Arc<Ring>,
    source: Box<dyn BatchSource>,
    step: u64,
    /// The rows that are wanted, of how many.
    rows: Range<usize>,
    of: usize,
    /// Room for all of them, if the source can only fill that.
    whole: Option<Batch>,
}

impl Filler {
    fn run(mut self) {
        // Whoever waits for a batch that a panic left unfilled must hear of it.
        let _stopping = Stopping(self.ring.clone());
        while let Some(mut batch) = self.free_batch() {
            batch.begin();
            let filled = self.fill(&mut batch);
            let filled = filled.and_then(|more| if more { batch.check_whole().map(|()| true) } else { Ok(false) });
            self.step += 1;
            let mut state = self.ring.lock();
            match filled {
                Ok(true) => state.ready.push_back(batch),
                Ok(false) => state.stopped = true,
                Err(error) => {
                    state.failure = Some(error);
                    state.stopped = true;
                }
            }
            drop(state);
            self.ring.changed.notify_one();
        }
    }

    /// Fills the rows of the present step that are wanted.
    fn fill(&mut self, batch: &mut Batch) -> Result<bool> {
        if self.rows.len() == self.of {
            return self.source.fill(self.step, batch);
        }
        if let Some(filled) = self.source.fill_rows(self.step, self.rows.clone(), self.of, batch) {
            return filled;
        }
        let whole = self.whole.get_or_insert_with(|| batch.like(self.of));
        whole.begin();
        let filled = self.source.fill(self.step, whole)?;
        if filled {
            whole.check_whole()?;
            batch.take_rows(whole, self.rows.start);
        }
        Ok(filled)
    }

    /// A batch to fill; none when there is nothing more to do.
    fn free_batch(&self) -> Option<Batch> {
        let mut state = self.ring.wait_until(|state| !state.free.is_empty() || state.stopped);
        if state.stopped { None } else { state.free.pop() }
    }
}

/// Ends the filling, however it ends.
struct Stopping(Arc<Ring>);

impl Drop for Stopping {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if std::thread::panicking() {
            let problem = "what fills batches has panicked; its message is above".to_string();
            state.failure.get_or_insert(Error::Config(problem));
        }
        state.stopped = true;
        drop(state);
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Field;
    use gradus_engine::{DType, Shape};

    fn room() -> Batch {
        let field = Field { name: "x".to_string(), dtype: DType::I32, shape: Shape::new([2]) };
        Batch::new(&[field].into(), 3)
    }

    fn first(batches: &mut Batches) -> Option<i32> {
        batches.next().unwrap().map(|batch| batch.numbers::<i32>("x").unwrap()[0])
    }

    #[test]
    fn batches_come_in_order_from_the_first_step_on() {
        let source = |step: u64, batch: &mut Batch| {
            batch.numbers_mut::<i32>("x")?.fill(step as i32);
            Ok(())
        };
        let mut batches = Batches::new(Box::new(source), room(), 7).unwrap();
        for step in 7..200 {
            assert_eq!(first(&mut batches), Some(step));
        }
    }

    #[test]
    fn an_iterator_goes_on_after_what_was_taken_and_ends() {
        let arrays = (0..9i32).map(|number| [("x", Array::new([3, 2], &[number; 6]).unwrap())]);
        let mut batches = Batches::new(Box::new(Arrays::new(arrays)), room(), 5).unwrap();
        let found: Vec<i32> = std::iter::from_fn(|| first(&mut batches)).collect();
        assert_eq!(found, [5, 6, 7, 8]);
        assert_eq!(first(&mut batches), None);
        let mut none =
            Batches::new(Box::new(Arrays::new([[("x", Array::zeros(DType::I32, [3, 2]).unwrap())]])), room(), 4)
                .unwrap();
        assert_eq!(first(&mut none), None);
    }

    #[test]
    fn what_cannot_be_filled_is_told_and_batches_can_be_dropped_at_any_time() {
        let wrong = [[("x", Array::zeros(DType::F32, [3, 2]).unwrap())]];
        let mut batches = Batches::new(Box::new(Arrays::new(wrong)), room(), 0).unwrap();
        let error = batches.next().unwrap_err().to_string();
        assert!(error.contains("\"x\"") && error.contains("i32[3, 2]") && error.contains("f32[3, 2]"), "{error}");
        assert!(batches.next().unwrap().is_none());
        let panics = |_: u64, _: &mut Batch| -> Result<()> { panic!("on purpose") };
        let mut batches = Batches::new(Box::new(panics), room(), 0).unwrap();
        assert!(batches.next().unwrap_err().to_string().contains("panicked"));
        drop(Batches::new(Box::new(|_: u64, _: &mut Batch| Ok(())), room(), 0).unwrap());
        assert_eq!((Batches::bytes(10, 4), Batches::bytes(usize::MAX, 4)), (50, u64::MAX));
    }
}

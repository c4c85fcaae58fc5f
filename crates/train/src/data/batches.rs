//! Batches of training windows, read ahead by a thread of their own.

use super::{TokenFile, Windows};
use crate::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Batches that are read ahead.
const AHEAD: usize = 4;

/// The reader calls little, so little is enough.
const STACK_BYTES: usize = 128 << 10;

/// One batch: `batch * sequence` tokens, and for each the token that follows it.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// What the model sees.
    pub tokens: &'a [i32],
    /// What it is to say.
    pub targets: &'a [i32],
}

/// Reads batches ahead. The same buffers go round between the reader and the one who asks, so that nothing is
/// allocated after the first.
pub struct Batches {
    ring: Arc<Ring>,
    current: Buffers,
    position: u64,
    batch: u64,
    reader: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Buffers {
    tokens: Vec<i32>,
    targets: Vec<i32>,
}

struct Ring {
    state: Mutex<State>,
    changed: Condvar,
}

/// Where the buffers are. Both queues have room for all of them.
struct State {
    ready: VecDeque<Buffers>,
    free: Vec<Buffers>,
    failure: Option<Error>,
    stopped: bool,
}

impl Batches {
    /// Begins to read batches of `batch` windows, the first of them at `first_position`.
    pub fn new(file: Arc<TokenFile>, windows: Windows, batch: usize, first_position: u64) -> Result<Batches> {
        let size = batch * windows.sequence();
        let buffers = || Buffers { tokens: vec![0; size], targets: vec![0; size] };
        let mut free = Vec::with_capacity(AHEAD + 1);
        free.resize_with(AHEAD, buffers);
        let state = State { ready: VecDeque::with_capacity(AHEAD + 1), free, failure: None, stopped: false };
        let ring = Arc::new(Ring { state: Mutex::new(state), changed: Condvar::new() });
        let reader = Reader { ring: ring.clone(), file: file.clone(), windows, position: first_position };
        let thread = std::thread::Builder::new().name("data".to_string()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || reader.run()).map_err(Error::io("start a thread to read", file.path()))?;
        Ok(Batches { ring, current: buffers(), position: first_position, batch: batch as u64, reader: Some(thread) })
    }

    /// Bytes that batches of `batch` windows take: those read ahead and the one in use, tokens and targets.
    pub fn bytes(batch: usize, sequence: usize) -> u64 {
        (2 * (AHEAD + 1) * batch * sequence * size_of::<i32>()) as u64
    }

    /// The next batch, waiting for it if it is not read yet.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Batch<'_>> {
        let mut state = self.ring.wait_until(|state| !state.ready.is_empty() || state.stopped);
        match state.ready.pop_front() {
            Some(buffers) => state.free.push(std::mem::replace(&mut self.current, buffers)),
            None => return Err(state.failure.take().unwrap_or_else(ended)),
        }
        drop(state);
        self.ring.changed.notify_one();
        self.position += self.batch;
        Ok(Batch { tokens: &self.current.tokens, targets: &self.current.targets })
    }

    /// The position of the first window that was not given yet: all that a checkpoint needs to go on from here.
    pub fn position(&self) -> u64 {
        self.position
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.ring.lock().stopped = true;
        self.ring.changed.notify_one();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

fn ended() -> Error {
    Error::Config("no batch follows one that could not be read: start again with --resume".to_string())
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

struct Reader {
    ring: Arc<Ring>,
    file: Arc<TokenFile>,
    windows: Windows,
    position: u64,
}

impl Reader {
    fn run(mut self) {
        while let Some(mut buffers) = self.free_buffers() {
            let filled = self.fill(&mut buffers);
            let mut state = self.ring.lock();
            match filled {
                Ok(()) => state.ready.push_back(buffers),
                Err(error) => {
                    state.failure = Some(error);
                    state.stopped = true;
                }
            }
            drop(state);
            self.ring.changed.notify_one();
        }
    }

    /// Buffers to fill; none when there is nothing more to do.
    fn free_buffers(&self) -> Option<Buffers> {
        let mut state = self.ring.wait_until(|state| !state.free.is_empty() || state.stopped);
        if state.stopped { None } else { state.free.pop() }
    }

    fn fill(&mut self, buffers: &mut Buffers) -> Result<()> {
        let sequence = self.windows.sequence();
        let rows = buffers.tokens.chunks_exact_mut(sequence).zip(buffers.targets.chunks_exact_mut(sequence));
        for (tokens, targets) in rows {
            let start = self.windows.start(self.position);
            self.file.read(start, tokens)?;
            self.file.read(start + 1, targets)?;
            self.position += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::super::{Fingerprint, TokenWriter};
    use super::*;

    /// A file of the tokens 0, 1, 2 and so on.
    fn counting(folder: &Folder, tokens: u32) -> Arc<TokenFile> {
        let path = folder.path().join("counting.tokens");
        let mut writer = TokenWriter::create(&path, tokens as usize, Fingerprint::new()).unwrap();
        writer.push(&(0..tokens).collect::<Vec<_>>()).unwrap();
        Arc::new(writer.finish(0).unwrap())
    }

    #[test]
    fn batches_follow_the_windows() {
        let folder = Folder::new("batches");
        let windows = Windows::new(1000, 8, 5);
        let mut batches = Batches::new(counting(&folder, 1000), windows, 3, 2).unwrap();
        for step in 0..200 {
            assert_eq!(batches.position(), 2 + step * 3);
            let batch = batches.next().unwrap();
            for (row, tokens) in batch.tokens.chunks(8).enumerate() {
                let start = windows.start(2 + step * 3 + row as u64) as i32;
                assert_eq!(tokens, (start..start + 8).collect::<Vec<_>>());
            }
            let following: Vec<i32> = batch.tokens.iter().map(|token| token + 1).collect();
            assert_eq!(batch.targets, following);
        }
    }

    #[test]
    fn going_on_from_a_position_gives_the_same_batches() {
        let folder = Folder::new("position");
        let file = counting(&folder, 500);
        let windows = Windows::new(500, 4, 1);
        let mut whole = Batches::new(file.clone(), windows, 5, 0).unwrap();
        for _ in 0..30 {
            whole.next().unwrap();
        }
        let mut later = Batches::new(file, windows, 5, whole.position()).unwrap();
        for _ in 0..30 {
            assert_eq!(whole.next().unwrap().tokens, later.next().unwrap().tokens);
        }
    }

    #[test]
    fn a_read_that_fails_is_told_and_batches_can_be_dropped_at_any_time() {
        let folder = Folder::new("failing");
        let file = counting(&folder, 100);
        let mut batches = Batches::new(file.clone(), Windows::new(5000, 8, 1), 4, 0).unwrap();
        let failure = (0..100).find_map(|_| batches.next().err());
        assert!(failure.unwrap().to_string().contains("counting.tokens"));
        assert!(batches.next().is_err());
        drop(Batches::new(file, Windows::new(100, 8, 1), 4, 0).unwrap());
    }
}

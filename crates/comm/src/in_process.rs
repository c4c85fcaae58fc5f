//! Ranks that are threads of one process: a pipe of fixed size for each pair and way.
//!
//! A message is its length and its bytes. A rank fills and empties all its pipes in turn, and when none of them moves it sleeps
//! until another rank has touched one.

use crate::error::{Error, Peer, Result};
use crate::group::{Group, Incoming, Outgoing, Wire};
use crate::transport::{PATIENCE, Transport};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes that are under way between two ranks, at most.
const PIPE_BYTES: usize = 64 << 10;
/// Of a message's length, which goes before it.
const HEADER_BYTES: usize = size_of::<u64>();

/// Ranks that are threads of this process, each with its own end.
pub fn in_process(ranks: usize) -> Vec<impl Transport + use<>> {
    in_process_within(ranks, PATIENCE)
}

/// The same with a stated patience: how long a wait may be without a byte coming or going.
pub fn in_process_within(ranks: usize, patience: Duration) -> Vec<impl Transport + use<>> {
    let shared = Arc::new(Shared {
        pipes: (0..ranks * ranks).map(|pair| Mutex::new(Pipe::new(pair / ranks == pair % ranks))).collect(),
        bells: (0..ranks).map(|_| Bell::default()).collect(),
        left: (0..ranks).map(|_| Mutex::new(None)).collect(),
    });
    let end = |rank| End {
        rank,
        patience,
        shared: Arc::clone(&shared),
        blamed: None,
        sent: vec![0; ranks],
        received: vec![0; ranks],
    };
    (0..ranks).map(|rank| Group::new(end(rank))).collect()
}

/// What all ranks have.
struct Shared {
    /// From each rank to each, by sender.
    pipes: Vec<Mutex<Pipe>>,
    /// One a rank, rung when one of its pipes has changed.
    bells: Vec<Bell>,
    /// Of each rank that ended, the one to blame for it: itself, or the one that it failed by.
    left: Vec<Mutex<Option<usize>>>,
}

/// Bytes from one rank to another, in a ring.
struct Pipe {
    ring: Box<[u8]>,
    start: usize,
    length: usize,
}

impl Pipe {
    /// Nobody sends to itself.
    fn new(to_itself: bool) -> Pipe {
        let bytes = if to_itself { 0 } else { PIPE_BYTES };
        Pipe { ring: vec![0; bytes].into(), start: 0, length: 0 }
    }

    /// Takes as many of the bytes as there is room for, and says how many.
    fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.ring.len() - self.length);
        let at = (self.start + self.length) % self.ring.len();
        let until_end = taken.min(self.ring.len() - at);
        self.ring[at..at + until_end].copy_from_slice(&bytes[..until_end]);
        self.ring[..taken - until_end].copy_from_slice(&bytes[until_end..taken]);
        self.length += taken;
        taken
    }

    /// Gives as many bytes as there are, or as are wanted, and says how many.
    fn pull(&mut self, bytes: &mut [u8]) -> usize {
        let given = bytes.len().min(self.length);
        let until_end = given.min(self.ring.len() - self.start);
        bytes[..until_end].copy_from_slice(&self.ring[self.start..self.start + until_end]);
        bytes[until_end..given].copy_from_slice(&self.ring[..given - until_end]);
        self.start = (self.start + given) % self.ring.len();
        self.length -= given;
        given
    }
}

/// Wakes the one rank that it belongs to.
#[derive(Default)]
struct Bell {
    rung: Mutex<u64>,
    waiting: Condvar,
}

impl Bell {
    fn ring(&self) {
        *lock(&self.rung) += 1;
        self.waiting.notify_one();
    }

    fn count(&self) -> u64 {
        *lock(&self.rung)
    }

    /// Sleeps until it is rung again, or too long.
    fn wait(&self, heard: u64, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.waiting.wait_timeout_while(lock(&self.rung), left, |rung| *rung == heard);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// What is locked is whole whatever happens to whoever holds it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One rank's end.
struct End {
    rank: usize,
    patience: Duration,
    shared: Arc<Shared>,
    /// The rank that this one failed by.
    blamed: Option<usize>,
    /// Of each message under way, bytes with its header.
    sent: Vec<usize>,
    received: Vec<usize>,
}

impl End {
    fn pipe(&self, from: usize, to: usize) -> MutexGuard<'_, Pipe> {
        lock(&self.shared.pipes[from * self.shared.bells.len() + to])
    }

    /// Sends what there is room for, and says whether that was anything.
    fn push(&mut self, to: usize, message: &[u8]) -> bool {
        let header = (message.len() as u64).to_le_bytes();
        let (mut pipe, mut sent) = (self.pipe(self.rank, to), self.sent[to]);
        if sent < HEADER_BYTES {
            sent += pipe.push(&header[sent..]);
        }
        if sent >= HEADER_BYTES {
            sent += pipe.push(&message[sent - HEADER_BYTES..]);
        }
        drop(pipe);
        self.note(to, sent, |end| &mut end.sent)
    }

    /// Receives what is there, and says whether that was anything.
    fn pull(&mut self, from: usize, message: &mut [u8]) -> Result<bool> {
        let mut header = [0; HEADER_BYTES];
        let (mut pipe, mut received) = (self.pipe(from, self.rank), self.received[from]);
        if received == 0 && pipe.length >= HEADER_BYTES {
            received += pipe.pull(&mut header);
            let came = u64::from_le_bytes(header) as usize;
            if came != message.len() {
                return Err(Error::Unlike { peer: Peer::unknown(from), expected: message.len(), came });
            }
        }
        if received >= HEADER_BYTES {
            received += pipe.pull(&mut message[received - HEADER_BYTES..]);
        }
        drop(pipe);
        Ok(self.note(from, received, |end| &mut end.received))
    }

    /// Keeps how far a message has come, and wakes the other side if it has moved.
    fn note(&mut self, peer: usize, now: usize, counts: impl Fn(&mut End) -> &mut Vec<usize>) -> bool {
        let before = std::mem::replace(&mut counts(self)[peer], now);
        if now != before {
            self.shared.bells[peer].ring();
        }
        now != before
    }

    /// Moves what can be moved: whether anything did, and a rank that is still awaited.
    fn advance(&mut self, outgoing: &Outgoing<'_>, incoming: &mut Incoming<'_>) -> Result<(bool, Option<usize>)> {
        let (mut moved, mut awaited) = (false, None);
        for peer in 0..self.ranks() {
            // Asked before the pipes are looked at: what it sent before it left is in them.
            let left = *lock(&self.shared.left[peer]);
            let mut waits = false;
            if let Some(message) = outgoing.to(peer) {
                moved |= self.push(peer, message);
                waits |= self.sent[peer] < message.len() + HEADER_BYTES;
            }
            if let Some(message) = incoming.from(peer) {
                let whole = message.len() + HEADER_BYTES;
                moved |= self.pull(peer, message)?;
                waits |= self.received[peer] < whole;
            }
            match left {
                Some(blamed) if waits => return Err(Error::Gone { peer: Peer::unknown(blamed) }),
                _ if waits => awaited = awaited.or(Some(peer)),
                _ => {}
            }
        }
        Ok((moved, awaited))
    }

    fn run(&mut self, outgoing: &Outgoing<'_>, incoming: &mut Incoming<'_>) -> Result<()> {
        self.sent.fill(0);
        self.received.fill(0);
        let mut until = Instant::now() + self.patience;
        loop {
            let heard = self.shared.bells[self.rank].count();
            let (moved, awaited) = self.advance(outgoing, incoming)?;
            let Some(awaited) = awaited else { return Ok(()) };
            if moved {
                until = Instant::now() + self.patience;
            } else if Instant::now() >= until {
                return Err(Error::Silent { peer: Peer::unknown(awaited), waited: self.patience });
            } else {
                self.shared.bells[self.rank].wait(heard, until);
            }
        }
    }
}

impl Wire for End {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shared.bells.len()
    }

    fn peer(&self, rank: usize) -> Peer {
        Peer::unknown(rank)
    }

    fn exchange(&mut self, outgoing: Outgoing<'_>, mut incoming: Incoming<'_>) -> Result<()> {
        // A failed exchange leaves messages half sent: there is no going on after it.
        if let Some(blamed) = self.blamed {
            return Err(Error::Gone { peer: Peer::unknown(blamed) });
        }
        self.run(&outgoing, &mut incoming).inspect_err(|error| self.blamed = error.rank())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        *lock(&self.shared.left[self.rank]) = Some(self.blamed.unwrap_or(self.rank));
        self.shared.bells.iter().for_each(Bell::ring);
    }
}

#[cfg(test)]
#[path = "in_process_tests.rs"]
mod tests;

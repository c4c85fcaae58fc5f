//! Collectives as messages between pairs: all that a transport brings is one exchange of at most one message a pair and way.
//!
//! Every part goes straight from the rank that has it to those that need it, so a rank sends and receives as many bytes as in
//! a ring, in one round instead of one a rank.

use crate::error::{Error, Peer, Result};
use crate::transport::Transport;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What carries messages between pairs of ranks.
pub(crate) trait Wire: Send {
    fn rank(&self) -> usize;

    fn ranks(&self) -> usize;

    fn peer(&self, rank: usize) -> Peer;

    /// Sends to each rank, and receives from each, the message that is listed for it, all of them at once.
    /// Lists have an entry a rank, and none for this one.
    fn exchange(&mut self, outgoing: Outgoing<'_>, incoming: Incoming<'_>) -> Result<()>;
}

/// Messages to others.
pub(crate) struct Outgoing<'a> {
    pub bytes: &'a [u8],
    pub places: &'a [Option<Range<usize>>],
}

impl Outgoing<'_> {
    /// The message to a rank, if there is one.
    pub fn to(&self, rank: usize) -> Option<&[u8]> {
        self.places[rank].clone().map(|place| &self.bytes[place])
    }
}

/// Room for messages from others: one slice, or one with a hole in it that is being sent.
pub(crate) struct Incoming<'a> {
    pub before: &'a mut [u8],
    pub hole: usize,
    pub after: &'a mut [u8],
    pub places: &'a [Option<Range<usize>>],
}

impl Incoming<'_> {
    /// The room for the message from a rank, if there is one.
    pub fn from(&mut self, rank: usize) -> Option<&mut [u8]> {
        let place = self.places[rank].clone()?;
        match place.end <= self.before.len() {
            true => Some(&mut self.before[place]),
            false => {
                let start = self.before.len() + self.hole;
                Some(&mut self.after[place.start - start..place.end - start])
            }
        }
    }
}

/// What is told to all by its root alone if it is less: shares would cost more in waiting than they save.
const SHARED_BYTES: usize = 64 << 10;

/// A transport over a wire, which other groups may have too.
pub(crate) struct Group<W> {
    wire: Arc<Mutex<W>>,
    /// The ranks of the wire that are in the group, and which of these this is.
    members: Vec<usize>,
    own: usize,
    /// Lists of messages that are filled for each call, by rank of the wire.
    outgoing: Vec<Option<Range<usize>>>,
    incoming: Vec<Option<Range<usize>>>,
    bytes_sent: Arc<AtomicU64>,
}

impl<W: Wire + 'static> Group<W> {
    /// All ranks of a wire.
    pub fn new(wire: W) -> Group<W> {
        let (own, members) = (wire.rank(), (0..wire.ranks()).collect());
        Group::of(Arc::new(Mutex::new(wire)), members, own, Arc::default())
    }

    fn of(wire: Arc<Mutex<W>>, members: Vec<usize>, own: usize, bytes_sent: Arc<AtomicU64>) -> Group<W> {
        let none = vec![None; lock(&wire).ranks()];
        Group { wire, members, own, outgoing: none.clone(), incoming: none, bytes_sent }
    }

    pub fn wire_mut(&mut self) -> MutexGuard<'_, W> {
        lock(&self.wire)
    }

    /// States which messages there are, but for the ones to oneself.
    fn list(
        &mut self,
        outgoing: impl Fn(usize) -> Option<Range<usize>>,
        incoming: impl Fn(usize) -> Option<Range<usize>>,
    ) {
        for (rank, &member) in self.members.iter().enumerate() {
            self.outgoing[member] = if rank == self.own { None } else { outgoing(rank) };
            self.incoming[member] = if rank == self.own { None } else { incoming(rank) };
        }
        let bytes: usize = self.outgoing.iter().flatten().map(Range::len).sum();
        self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn exchange(&mut self, sent: &[u8], received: &mut [u8]) -> Result<()> {
        let incoming = Incoming { before: received, hole: 0, after: &mut [], places: &self.incoming };
        lock(&self.wire).exchange(Outgoing { bytes: sent, places: &self.outgoing }, incoming)
    }

    /// Every rank's own part, at every rank.
    fn gather(&mut self, all: &mut [u8], part: impl Fn(usize) -> Range<usize>) -> Result<()> {
        let own = part(self.own);
        self.list(|_| Some(0..own.len()), |rank| Some(part(rank)));
        let (before, rest) = all.split_at_mut(own.start);
        let (bytes, after) = rest.split_at_mut(own.len());
        let incoming = Incoming { before, hole: own.len(), after, places: &self.incoming };
        lock(&self.wire).exchange(Outgoing { bytes, places: &self.outgoing }, incoming)
    }

    fn check_other(&self, rank: usize) -> Result<()> {
        match rank < self.ranks() && rank != self.rank() {
            true => Ok(()),
            false => Err(Error::Misuse("a message goes to another rank of the group")),
        }
    }
}

/// A wire is whole whatever happens to whoever holds it: after a failure it says so itself.
fn lock<W>(wire: &Mutex<W>) -> MutexGuard<'_, W> {
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W: Wire + 'static> Transport for Group<W> {
    fn rank(&self) -> usize {
        self.own
    }

    fn ranks(&self) -> usize {
        self.members.len()
    }

    fn peer(&self, rank: usize) -> Peer {
        lock(&self.wire).peer(self.members[rank])
    }

    fn bytes_sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes_sent)
    }

    fn all_to_all(&mut self, sent: &[u8], sent_at: &[usize], received: &mut [u8], received_at: &[usize]) -> Result<()> {
        check_parts(sent_at, sent.len(), self.ranks())?;
        check_parts(received_at, received.len(), self.ranks())?;
        let (own_sent, own_received) = (part(sent_at, self.rank()), part(received_at, self.rank()));
        if own_sent.len() != own_received.len() {
            return Err(Error::Misuse("a rank's part for itself has one size"));
        }
        received[own_received].copy_from_slice(&sent[own_sent]);
        self.list(|rank| Some(part(sent_at, rank)), |rank| Some(part(received_at, rank)));
        self.exchange(sent, received)
    }

    fn all_gather(&mut self, all: &mut [u8], at: &[usize]) -> Result<()> {
        check_parts(at, all.len(), self.ranks())?;
        self.gather(all, |rank| part(at, rank))
    }

    fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        if root >= self.ranks() {
            return Err(Error::Misuse("the root of a broadcast is one of the ranks"));
        }
        let (own, whole) = (self.rank(), 0..bytes.len());
        if bytes.len() < SHARED_BYTES || self.ranks() == 2 {
            return match root == own {
                true => {
                    self.list(|_| Some(whole.clone()), |_| None);
                    self.exchange(bytes, &mut [])
                }
                false => {
                    self.list(|_| None, |rank| (rank == root).then(|| whole.clone()));
                    self.exchange(&[], bytes)
                }
            };
        }
        // The root gives each its share, and each gives its own to all: so nobody sends much more than the whole once.
        let bytes_each = bytes.len().div_ceil(self.ranks());
        let share = |rank: usize| (rank * bytes_each).min(whole.end)..((rank + 1) * bytes_each).min(whole.end);
        if root == own {
            self.list(|rank| Some(share(rank)), |_| None);
            self.exchange(bytes, &mut [])?;
        } else {
            self.list(|_| None, |rank| (rank == root).then(|| share(own)));
            self.exchange(&[], bytes)?;
        }
        self.gather(bytes, share)
    }

    fn send(&mut self, bytes: &[u8], to: usize) -> Result<()> {
        self.check_other(to)?;
        self.list(|rank| (rank == to).then_some(0..bytes.len()), |_| None);
        self.exchange(bytes, &mut [])
    }

    fn receive(&mut self, bytes: &mut [u8], from: usize) -> Result<()> {
        self.check_other(from)?;
        let whole = 0..bytes.len();
        self.list(|_| None, |rank| (rank == from).then(|| whole.clone()));
        self.exchange(&[], bytes)
    }

    fn swap(&mut self, sent: &[u8], received: &mut [u8], with: usize) -> Result<()> {
        self.check_other(with)?;
        let (out, back) = (0..sent.len(), 0..received.len());
        self.list(|rank| (rank == with).then(|| out.clone()), |rank| (rank == with).then(|| back.clone()));
        self.exchange(sent, received)
    }

    fn among(&self, ranks: &[usize]) -> Result<Box<dyn Transport>> {
        let is_one = |(place, rank): (usize, &usize)| *rank < self.ranks() && !ranks[..place].contains(rank);
        let own = ranks.iter().position(|rank| *rank == self.own).filter(|_| ranks.iter().enumerate().all(is_one));
        let own =
            own.ok_or(Error::Misuse("a group within one is of different ranks of it, and this is one of them"))?;
        let members = ranks.iter().map(|&rank| self.members[rank]).collect();
        Ok(Box::new(Group::of(Arc::clone(&self.wire), members, own, Arc::clone(&self.bytes_sent))))
    }

    fn barrier(&mut self) -> Result<()> {
        self.list(|_| Some(0..0), |_| Some(0..0));
        self.exchange(&[], &mut [])
    }
}

fn part(at: &[usize], rank: usize) -> Range<usize> {
    at[rank]..at[rank + 1]
}

/// Whether places are those of a part a rank, in order and within the bytes.
fn check_parts(at: &[usize], bytes: usize, ranks: usize) -> Result<()> {
    let right = at.len() == ranks + 1 && at.is_sorted() && at[ranks] <= bytes;
    right.then_some(()).ok_or(Error::Misuse("parts are one a rank, in order and within the bytes"))
}

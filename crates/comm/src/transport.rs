//! What a rank can do with the others.

use crate::error::{Error, Peer, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// How long a wait lasts without a byte coming or going before it is given up, unless it is stated: longer than one rank computes
/// while another is done already. A process that is killed or stopped is known to its supervisor long before.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// The environment variable that states it in seconds.
pub const PATIENCE_VARIABLE: &str = "GRADUS_PATIENCE";

/// How long a wait between ranks may last without a byte coming or going.
pub fn patience() -> Result<Duration> {
    let Ok(text) = std::env::var(PATIENCE_VARIABLE) else { return Ok(PATIENCE) };
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.001..1e9).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or(Error::Patience { variable: PATIENCE_VARIABLE, text })
}

/// One rank's end of a group of ranks. Every call is collective: all ranks make the same calls in the same order, except for
/// `send`, `receive` and `swap`, which two of them make. Nothing is allocated by a call. Every wait has an end: a peer that is gone
/// or silent is an error that names it, and the group is of no more use then.
pub trait Transport: Send {
    /// Which one this is.
    fn rank(&self) -> usize;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// Who a rank is, as far as that is known.
    fn peer(&self, rank: usize) -> Peer {
        Peer::unknown(rank)
    }

    /// Counts the bytes that this rank has sent to others, whoever of its threads sends them. One that does not count has
    /// a count of its own that stays.
    fn bytes_sent(&self) -> Arc<AtomicU64> {
        Arc::default()
    }

    /// Sends `sent[sent_at[r]..sent_at[r + 1]]` to each rank r; what rank r sent comes to
    /// `received[received_at[r]..received_at[r + 1]]`.
    fn all_to_all(&mut self, sent: &[u8], sent_at: &[usize], received: &mut [u8], received_at: &[usize]) -> Result<()>;

    /// Every rank's own part of `all` (`all[at[r]..at[r + 1]]`), at every rank.
    fn all_gather(&mut self, all: &mut [u8], at: &[usize]) -> Result<()>;

    /// The root's bytes, at every rank.
    fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()>;

    /// Bytes for one other rank, which receives as many. It may return before they are received.
    fn send(&mut self, bytes: &[u8], to: usize) -> Result<()>;

    /// Bytes from one other rank, which sends as many.
    fn receive(&mut self, bytes: &mut [u8], from: usize) -> Result<()>;

    /// Bytes for one other rank and bytes from it, at once: it makes the call that fits.
    fn swap(&mut self, _sent: &[u8], _received: &mut [u8], _with: usize) -> Result<()> {
        Err(Error::Misuse("this transport swaps nothing"))
    }

    /// The group of some of the ranks, in this order, of which this is one; each of them makes it. It goes by the same wire, so a
    /// rank makes the calls of both one after another.
    fn among(&self, _ranks: &[usize]) -> Result<Box<dyn Transport>> {
        Err(Error::Misuse("this transport has no groups within it"))
    }

    /// Nobody goes on before all are here.
    fn barrier(&mut self) -> Result<()>;
}

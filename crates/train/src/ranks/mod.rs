//! Ranks: processes that share out the lanes of a run.
//!
//! Every rank takes the same steps. It computes its lanes, adds their sums up to blocks, and then `Exchange` adds the
//! blocks of all ranks up by the tree that the lanes have: so a step has the same bits on any number of ranks. What a run
//! does besides, its files and what it tells, is the first rank's.

mod bare;
mod by_number;
mod carrier;
mod coded;
mod compressed;
mod device;
mod exchange;
mod given;
mod low_rank;
mod prediction;
mod rounds;
mod shards;
mod states;
mod tree;
mod units;

#[doc(hidden)]
pub use bare::BareExchange;
pub use compressed::bytes_of_step;
pub(crate) use compressed::{Compressed, compressed_bytes};
pub(crate) use exchange::Exchange;
pub use prediction::StepTime;
pub(crate) use rounds::{Exchanged, exchange_bytes, may_give};
pub(crate) use shards::Shards;
pub(crate) use units::Units;

use crate::checkpoint::{Found, Store};
use crate::lanes::Place;
use crate::{Error, Result};
use gradus_comm::patience;
pub use gradus_comm::{Link, Transport, in_process, join, leave};
use gradus_engine::backend::{Backend, Peers};
use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often the first rank says that it is at work while others wait for it: well before they lose patience.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

/// Collectives that are on their way at most: more than a step posts.
const POSTED: usize = 256;

/// What the first rank says to those that wait for it.
const AT_WORK: u8 = 0;
const DONE: u8 = 1;
const FAILED: u8 = 2;
const ASKS: u8 = 3;

/// The ranks of a run, as one of them sees them.
pub struct Ranks {
    transport: gradus_comm::Exchange,
    bytes_sent: Arc<AtomicU64>,
    /// By which groups within them are made, if there can be any.
    whole: Option<Box<dyn Transport>>,
    /// The devices of all, if they compute on such as exchange by themselves what no host sees.
    peers: Option<Box<dyn Peers>>,
    /// Room for a number of each rank, and where it stands.
    numbers: Vec<u64>,
    at: Vec<usize>,
}

impl Ranks {
    /// Those that a transport connects.
    pub fn new(transport: Box<dyn Transport>) -> Ranks {
        let (ranks, bytes_sent) = (transport.ranks(), transport.bytes_sent());
        let at = (0..=ranks).map(|rank| rank * size_of::<u64>()).collect();
        let whole = transport.among(&Vec::from_iter(0..ranks)).ok();
        let transport = gradus_comm::Exchange::start(transport, POSTED);
        Ranks { transport, bytes_sent, whole, peers: None, numbers: vec![0; ranks], at }
    }

    /// Connects the devices of all ranks, if it is not their hosts that compute. Before memory is planned: connections take some.
    pub(crate) fn connect(&mut self, backend: &dyn Backend) -> Result<()> {
        let Place { rank, ranks } = self.place();
        if ranks == 1 || backend.memory()?.is_none() {
            return Ok(());
        }
        let meeting_point = if self.is_first() { backend.meeting_point()? } else { vec![] };
        let meeting_point = self.bytes_of_first(meeting_point)?;
        let mut peers = backend.connect(rank, ranks, &meeting_point)?;
        peers.wait(patience()?)?;
        self.peers = Some(peers);
        Ok(())
    }

    /// The devices of all ranks, if they are connected, for whoever exchanges what they hold.
    pub(crate) fn take_peers(&mut self) -> Option<Box<dyn Peers>> {
        self.peers.take()
    }

    /// Which of them this one is.
    pub fn place(&self) -> Place {
        Place { rank: self.transport.rank(), ranks: self.transport.ranks() }
    }

    /// Whether this is the one that writes files and tells of the run.
    pub fn is_first(&self) -> bool {
        self.transport.rank() == 0
    }

    /// Bytes that this one has sent to others so far.
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }

    pub(crate) fn transport(&mut self) -> &mut dyn Transport {
        &mut self.transport
    }

    /// What carries out collectives beside what is computed.
    pub(crate) fn thread(&mut self) -> &mut gradus_comm::Exchange {
        &mut self.transport
    }

    /// The group of some of these ranks, of which this is one.
    pub(crate) fn among(&self, ranks: &[usize]) -> Result<Box<dyn Transport>> {
        let whole: &dyn Transport = self.whole.as_deref().unwrap_or(&self.transport);
        Ok(whole.among(ranks)?)
    }

    /// The number of every rank.
    pub(crate) fn numbers(&mut self, own: u64) -> Result<&[u64]> {
        let rank = self.transport.rank();
        self.numbers[rank] = own;
        self.transport.all_gather(bytemuck::cast_slice_mut(&mut self.numbers), &self.at)?;
        Ok(&self.numbers)
    }

    /// The first rank's number.
    pub(crate) fn first(&mut self, own: u64) -> Result<u64> {
        let mut bytes = own.to_le_bytes();
        self.transport.broadcast(&mut bytes, 0)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The first rank's bytes.
    pub(crate) fn bytes_of_first(&mut self, mut own: Vec<u8>) -> Result<Vec<u8>> {
        let length = self.first(own.len() as u64)?;
        own.resize(length as usize, 0);
        self.transport.broadcast(&mut own, 0)?;
        Ok(own)
    }

    /// What this rank did, if all could do theirs; else the error of the first that could not, with who that is.
    pub(crate) fn agreed<T>(&mut self, own: Result<T>) -> Result<T> {
        let failed = self.numbers(own.is_err().into())?.iter().position(|failed| *failed > 0);
        let Some(failed) = failed else { return own };
        let text = own.as_ref().err().map_or(String::new(), Error::to_string);
        let mut length = text.len().to_le_bytes();
        self.transport.broadcast(&mut length, failed)?;
        let mut text = text.into_bytes();
        text.resize(usize::from_le_bytes(length), 0);
        self.transport.broadcast(&mut text, failed)?;
        Err(Error::Config(format!("{}: {}", self.transport.peer(failed), String::from_utf8_lossy(&text))))
    }

    /// The least of the numbers of all ranks.
    pub(crate) fn least(&mut self, own: usize) -> Result<usize> {
        Ok(self.numbers(own as u64)?.iter().copied().min().map_or(own, |least| least as usize))
    }

    /// The numbers of so many parts that ranks had in turn, in order; none if a rank has not done all of its own.
    pub(crate) fn in_turn(&mut self, own: Vec<f32>, parts: usize) -> Result<Option<Vec<f32>>> {
        let Place { rank, ranks } = self.place();
        let of_rank = |rank: usize| parts.saturating_sub(rank).div_ceil(ranks);
        if self.least((own.len() == of_rank(rank)).into())? == 0 {
            return Ok(None);
        }
        let mut at = vec![0];
        (0..ranks).for_each(|rank| at.push(at[rank] + of_rank(rank)));
        let mut all = vec![0.0f32; parts];
        all[at[rank]..at[rank + 1]].copy_from_slice(&own);
        let bytes: Vec<usize> = at.iter().map(|at| at * size_of::<f32>()).collect();
        self.transport.all_gather(bytemuck::cast_slice_mut(&mut all), &bytes)?;
        Ok(Some((0..parts).map(|part| all[at[part % ranks] + part / ranks]).collect()))
    }

    /// Has the first rank open what a run has saved; the others get the same checkpoint, and nothing to write with.
    pub(crate) fn opened(
        &mut self,
        run_folder: &Path,
        open: impl FnOnce() -> Result<(Option<Found>, Store)>,
    ) -> Result<(Option<Found>, Option<Store>)> {
        let opened = self.first_by_itself(open)?.needed()?;
        let step = opened.as_ref().and_then(|(found, _)| found.as_ref()).map(|found| found.progress.step);
        // No run has so many steps.
        let step = self.first(step.unwrap_or(u64::MAX))?;
        match opened {
            Some((found, store)) => Ok((found, Some(store))),
            None if step == u64::MAX => Ok((None, None)),
            None => Ok((Some(Found::at(run_folder, step)?), None)),
        }
    }

    /// Has the first rank do something by itself that takes nothing of the others.
    pub(crate) fn first_by_itself<T>(&mut self, work: impl FnOnce() -> Result<T>) -> Result<Alone<T>> {
        self.first_alone(&mut (), |_, _| work(), |_, _| Ok(Cow::Borrowed(&[])))
    }

    /// Has the first rank do something by itself, however long that takes; the others wait, and give it what it asks for by a
    /// number. Whether it failed is known to all of them. Both work on the same, whatever that is.
    pub(crate) fn first_alone<C, T>(
        &mut self,
        on: &mut C,
        work: impl FnOnce(&mut C, &Asking<'_>) -> Result<T>,
        give: impl Fn(&C, u64) -> Result<Cow<'_, [u8]>>,
    ) -> Result<Alone<T>> {
        if !self.is_first() {
            return self.wait_for_first(&|number| give(on, number));
        }
        let (done, waits) = channel::<()>();
        let asking = Asking { transport: Mutex::new(&mut self.transport) };
        let (result, told) = thread::scope(|scope| {
            let asking = &asking;
            let telling = scope.spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = waits.recv_timeout(SIGN_OF_LIFE) {
                    asking.lock().broadcast(&mut [AT_WORK], 0)?;
                }
                Ok::<(), gradus_comm::Error>(())
            });
            let result = work(on, asking);
            drop(done);
            (result, telling.join().expect("it says that there is work, and nothing else"))
        });
        told?;
        self.transport.broadcast(&mut [if result.is_ok() { DONE } else { FAILED }], 0)?;
        result.map(Alone::Done)
    }

    fn wait_for_first<'g, T>(&mut self, give: &dyn Fn(u64) -> Result<Cow<'g, [u8]>>) -> Result<Alone<T>> {
        loop {
            let mut word = [AT_WORK];
            self.transport.broadcast(&mut word, 0)?;
            match word[0] {
                AT_WORK => {}
                ASKS => {
                    let number = self.first(0)?;
                    let given = give(number)?;
                    if !given.is_empty() {
                        self.transport.send(&given, 0)?;
                    }
                }
                DONE => return Ok(Alone::Elsewhere),
                _ => return Ok(Alone::Failed),
            }
        }
    }
}

/// By which the first rank asks those that wait for it.
pub(crate) struct Asking<'a> {
    transport: Mutex<&'a mut dyn Transport>,
}

impl<'a> Asking<'a> {
    /// Gets from each rank what it gives for a number, but for the first: it has its own part, and that of each rank ends
    /// where the next one's begins.
    pub fn ask(&self, number: u64, bytes: &mut [u8], at: &[usize]) -> Result<()> {
        let mut transport = self.lock();
        transport.broadcast(&mut [ASKS], 0)?;
        transport.broadcast(&mut number.to_le_bytes(), 0)?;
        for rank in (1..transport.ranks()).filter(|rank| at[*rank] < at[rank + 1]) {
            transport.receive(&mut bytes[at[rank]..at[rank + 1]], rank)?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, &'a mut dyn Transport> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What came of something that the first rank does by itself.
pub(crate) enum Alone<T> {
    /// This is the first rank, and it is done.
    Done(T),
    /// It is done, by the first rank.
    Elsewhere,
    /// The first rank could not do it, and says why.
    Failed,
}

impl<T> Alone<T> {
    /// On the first rank what was done, on the others nothing; an error if it could not be done.
    pub fn needed(self) -> Result<Option<T>> {
        match self {
            Alone::Done(done) => Ok(Some(done)),
            Alone::Elsewhere => Ok(None),
            Alone::Failed => Err(Error::Stopped("the first rank has ended, and says why".to_string())),
        }
    }
}

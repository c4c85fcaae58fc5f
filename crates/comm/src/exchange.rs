//! Collectives beside what is computed: they are posted, carried out by a thread of their own one after another, and awaited
//! when what they bring is needed.

use crate::error::{Error, Peer, Result};
use crate::transport::Transport;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Something to carry out, by the places of what it reads and writes. Offsets are as [`Transport`] has them.
#[derive(Clone, Copy, Debug)]
pub enum Collective {
    /// [`Transport::all_to_all`].
    AllToAll {
        /// What is sent.
        sent: *const [u8],
        /// Its parts.
        sent_at: *const [usize],
        /// What is received.
        received: *mut [u8],
        /// Its parts.
        received_at: *const [usize],
    },
    /// [`Transport::all_gather`].
    AllGather {
        /// Everybody's parts.
        all: *mut [u8],
        /// Where they are.
        at: *const [usize],
    },
    /// [`Transport::broadcast`].
    Broadcast {
        /// What is told.
        bytes: *mut [u8],
        /// By whom.
        root: usize,
    },
    /// [`Transport::send`].
    Send {
        /// What is sent.
        bytes: *const [u8],
        /// To whom.
        to: usize,
    },
    /// [`Transport::receive`].
    Receive {
        /// What is received.
        bytes: *mut [u8],
        /// From whom.
        from: usize,
    },
    /// [`Transport::barrier`].
    Barrier,
    /// Several of these, with what is done between them.
    Work(*mut dyn Work),
}

/// What is carried out as one: collectives, and what is packed before and added up after them.
pub trait Work: Send {
    /// Carries it out.
    fn carry_out(&mut self, transport: &mut dyn Transport) -> Result<()>;
}

// SAFETY: places are only followed by the communication thread, under what `Exchange::post` demands.
unsafe impl Send for Collective {}

impl Collective {
    /// # Safety
    /// As [`Exchange::post`] demands.
    unsafe fn carry_out(self, transport: &mut dyn Transport) -> Result<()> {
        // SAFETY: whoever posted it promised that all places are there, that nobody writes what is read, and that nobody
        // touches what is written, until it was awaited.
        unsafe {
            match self {
                Collective::AllToAll { sent, sent_at, received, received_at } => {
                    transport.all_to_all(&*sent, &*sent_at, &mut *received, &*received_at)
                }
                Collective::AllGather { all, at } => transport.all_gather(&mut *all, &*at),
                Collective::Broadcast { bytes, root } => transport.broadcast(&mut *bytes, root),
                Collective::Send { bytes, to } => transport.send(&*bytes, to),
                Collective::Receive { bytes, from } => transport.receive(&mut *bytes, from),
                Collective::Barrier => transport.barrier(),
                Collective::Work(work) => (*work).carry_out(transport),
            }
        }
    }
}

/// A collective that was posted: to be awaited. Those posted before it are done when it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[must_use]
pub struct Ticket(u64);

/// How long collectives took, and how much of that the caller waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Times {
    /// Carrying them out.
    pub under_way: Duration,
    /// Of the caller, in [`Exchange::wait`].
    pub awaited: Duration,
}

/// A group's end with a thread of its own that carries out what is posted, in order. It is a [`Transport`] too, for what is
/// needed at once.
pub struct Exchange {
    rank: usize,
    peers: Vec<Peer>,
    bytes_sent: Arc<AtomicU64>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    awaited: Duration,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Something was posted, or it is over.
    posted: Condvar,
    /// Something was carried out.
    done: Condvar,
}

/// Collectives by their number, which is modulo the size of the ring.
struct Queue {
    ring: Box<[Collective]>,
    posted: u64,
    done: u64,
    over: bool,
    failed: Option<Error>,
    under_way: Duration,
}

impl Shared {
    /// A thread that panics leaves the queue whole.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchange {
    /// Starts the thread. So many collectives can be posted and not done at a time; another one waits until there is room.
    pub fn start(mut transport: Box<dyn Transport>, most: usize) -> Exchange {
        let (rank, bytes_sent) = (transport.rank(), transport.bytes_sent());
        let peers = (0..transport.ranks()).map(|rank| transport.peer(rank)).collect();
        let ring = vec![Collective::Barrier; most.max(1)].into();
        let queue = Queue { ring, posted: 0, done: 0, over: false, failed: None, under_way: Duration::ZERO };
        let shared = Arc::new(Shared { queue: Mutex::new(queue), posted: Condvar::new(), done: Condvar::new() });
        let theirs = Arc::clone(&shared);
        let work = move || {
            // However the thread ends, nobody waits for it any longer.
            let _ending = Ending(&theirs);
            carry_out_all(&theirs, transport.as_mut());
        };
        let thread = thread::Builder::new().name("communication".into()).spawn(work).expect("a thread can be started");
        Exchange { rank, peers, bytes_sent, shared, thread: Some(thread), awaited: Duration::ZERO }
    }

    /// Gives a collective to the thread. After one has failed, all fail by its error when they are awaited.
    ///
    /// # Safety
    /// Until the ticket, or a later one, was awaited, or the exchange was dropped: what the collective names must be there,
    /// nobody may write what it reads, and nobody may touch what it writes.
    pub unsafe fn post(&mut self, collective: Collective) -> Ticket {
        let mut queue = self.shared.lock();
        while queue.posted.saturating_sub(queue.done) == queue.ring.len() as u64 {
            queue = self.shared.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let at = (queue.posted % queue.ring.len() as u64) as usize;
        queue.ring[at] = collective;
        queue.posted += 1;
        let ticket = Ticket(queue.posted);
        drop(queue);
        self.shared.posted.notify_one();
        ticket
    }

    /// Waits until a collective is done. All waits of the transport have an end, so this one has.
    pub fn wait(&mut self, ticket: Ticket) -> Result<()> {
        let start = Instant::now();
        let queue = self.shared.lock();
        let waited = self.shared.done.wait_while(queue, |queue| queue.done < ticket.0);
        let queue = waited.unwrap_or_else(PoisonError::into_inner);
        let failed = queue.failed.clone();
        drop(queue);
        self.awaited += start.elapsed();
        failed.map_or(Ok(()), Err)
    }

    /// Whether a collective is done, or failed.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        self.shared.lock().done >= ticket.0
    }

    /// How long collectives took so far.
    pub fn times(&self) -> Times {
        Times { under_way: self.shared.lock().under_way, awaited: self.awaited }
    }

    /// Posts one and waits for it.
    fn at_once(&mut self, collective: Collective) -> Result<()> {
        // SAFETY: the methods below borrow what the collective names until it is done: `wait` returns no earlier.
        let ticket = unsafe { self.post(collective) };
        self.wait(ticket)
    }
}

impl Transport for Exchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn peer(&self, rank: usize) -> Peer {
        self.peers[rank].clone()
    }

    fn bytes_sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes_sent)
    }

    fn all_to_all(&mut self, sent: &[u8], sent_at: &[usize], received: &mut [u8], received_at: &[usize]) -> Result<()> {
        self.at_once(Collective::AllToAll { sent, sent_at, received, received_at })
    }

    fn all_gather(&mut self, all: &mut [u8], at: &[usize]) -> Result<()> {
        self.at_once(Collective::AllGather { all, at })
    }

    fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        self.at_once(Collective::Broadcast { bytes, root })
    }

    fn send(&mut self, bytes: &[u8], to: usize) -> Result<()> {
        self.at_once(Collective::Send { bytes, to })
    }

    fn receive(&mut self, bytes: &mut [u8], from: usize) -> Result<()> {
        self.at_once(Collective::Receive { bytes, from })
    }

    fn barrier(&mut self) -> Result<()> {
        self.at_once(Collective::Barrier)
    }
}

impl Drop for Exchange {
    /// Ends the thread after what was posted, since what that names may go afterwards.
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.posted.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic in it was told, and shows in every wait.
            let _ = thread.join();
        }
    }
}

/// Takes what is posted, one after another, until it is over.
fn carry_out_all(shared: &Shared, transport: &mut dyn Transport) {
    loop {
        let queue = shared.posted.wait_while(shared.lock(), |queue| queue.posted == queue.done && !queue.over);
        let queue = queue.unwrap_or_else(PoisonError::into_inner);
        if queue.posted == queue.done {
            return;
        }
        let collective = queue.ring[(queue.done % queue.ring.len() as u64) as usize];
        let failed = queue.failed.is_some();
        drop(queue);
        let start = Instant::now();
        // SAFETY: it was posted and is not done, so nobody's wait for it has ended.
        let result = if failed { Ok(()) } else { unsafe { collective.carry_out(transport) } };
        let mut queue = shared.lock();
        queue.under_way += start.elapsed();
        queue.done += 1;
        queue.failed = queue.failed.take().or(result.err());
        drop(queue);
        shared.done.notify_all();
    }
}

/// Lets all waits end when the thread does.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        if thread::panicking() {
            queue.failed = queue.failed.take().or(Some(Error::Misuse("the communication thread panicked")));
        }
        queue.done = u64::MAX;
        drop(queue);
        self.0.done.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{in_process, in_process_within};

    /// What each rank's thread gives, with an exchange of its own.
    fn each<T: Send>(ends: Vec<impl Transport + 'static>, work: impl Fn(&mut Exchange) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let work = &work;
            let start = |end| move || work(&mut Exchange::start(Box::new(end), 2));
            let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(start(end))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn what_is_posted_is_done_in_order_while_others_are_posted() {
        let ranks = 3;
        each(in_process(ranks), |exchange| {
            let own = exchange.rank();
            let at: Vec<usize> = (0..=ranks).collect();
            // More than can be posted at a time.
            let mut buckets: Vec<Vec<u8>> = (0..7).map(|bucket| vec![(10 * bucket + own) as u8; ranks]).collect();
            let tickets: Vec<Ticket> = buckets
                .iter_mut()
                .map(|bucket| {
                    // SAFETY: buckets and places outlive the wait below, and are not touched before it.
                    unsafe { exchange.post(Collective::AllGather { all: &mut bucket[..], at: &at[..] }) }
                })
                .collect();
            assert!(tickets.is_sorted());
            exchange.wait(tickets[6]).unwrap();
            assert!(tickets.iter().all(|ticket| exchange.is_done(*ticket)));
            for (number, bucket) in buckets.iter().enumerate() {
                assert_eq!(*bucket, [0, 1, 2].map(|rank| (10 * number + rank) as u8));
            }
        });
    }

    #[test]
    fn it_is_a_transport_for_what_is_needed_at_once() {
        each(in_process(2), |exchange| {
            let (own, other) = (exchange.rank(), 1 - exchange.rank());
            let mut received = [9; 2];
            exchange.all_to_all(&[own as u8, 5], &[0, 1, 2], &mut received, &[0, 1, 2]).unwrap();
            assert_eq!(received, if own == 0 { [0, 1] } else { [5, 5] });
            let mut told = [own as u8];
            exchange.broadcast(&mut told, 1).unwrap();
            assert_eq!(told, [1]);
            match own {
                0 => exchange.send(&[7], other).unwrap(),
                _ => exchange.receive(&mut received[..1], other).unwrap(),
            }
            exchange.barrier().unwrap();
            assert!(exchange.times().under_way > Duration::ZERO);
        });
    }

    #[test]
    fn after_a_failure_every_wait_ends_with_it() {
        let errors = each(in_process_within(2, Duration::from_secs(5)), |exchange| {
            if exchange.rank() == 1 {
                return vec![];
            }
            // SAFETY: it names nothing.
            let tickets = [(); 4].map(|()| unsafe { exchange.post(Collective::Barrier) });
            tickets.map(|ticket| exchange.wait(ticket).unwrap_err()).to_vec()
        });
        assert_eq!(errors[0], vec![Error::Gone { peer: Peer::unknown(1) }; 4]);
    }

    /// A transport that cannot do anything.
    struct Broken;

    impl Transport for Broken {
        fn rank(&self) -> usize {
            0
        }

        fn ranks(&self) -> usize {
            1
        }

        fn all_to_all(&mut self, _: &[u8], _: &[usize], _: &mut [u8], _: &[usize]) -> Result<()> {
            panic!("broken")
        }

        fn all_gather(&mut self, _: &mut [u8], _: &[usize]) -> Result<()> {
            panic!("broken")
        }

        fn broadcast(&mut self, _: &mut [u8], _: usize) -> Result<()> {
            panic!("broken")
        }

        fn send(&mut self, _: &[u8], _: usize) -> Result<()> {
            panic!("broken")
        }

        fn receive(&mut self, _: &mut [u8], _: usize) -> Result<()> {
            panic!("broken")
        }

        fn barrier(&mut self) -> Result<()> {
            panic!("broken")
        }
    }

    #[test]
    fn nobody_waits_for_a_thread_that_panicked() {
        let mut exchange = Exchange::start(Box::new(Broken), 1);
        for _ in 0..3 {
            assert_eq!(exchange.barrier(), Err(Error::Misuse("the communication thread panicked")));
        }
    }
}

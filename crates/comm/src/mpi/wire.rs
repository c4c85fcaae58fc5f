//! Messages by MPI. Each is cut into pieces, of which a few are under way at a time: so every message shows its progress,
//! however large it is and however slow the link, and none is larger than MPI can count.

use crate::error::{Error, Peer, Result};
use crate::group::{Incoming, Outgoing, Wire};
use crate::mpi::library::{Mpi, Pause};
use crate::mpi::table::Handle;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Of a message, at once. Over TCP, Open MPI sends up to 64 KiB without asking; what is larger waits for an answer, which waits behind
/// all that the other side sends meanwhile: both ways of a link were then used in turns, and not at the same time.
const PIECE_BYTES: usize = 60 << 10;
/// Pieces of a message under way.
const WINDOW: usize = 32;
/// The least that a piece takes on a slow link. What comes so slowly is not asked for all the time: the core is wanted by those who compute.
const SLOW: Duration = Duration::from_micros(300);
/// Pieces of a message from which a pace is learnt.
const PACED: usize = 4;
/// How long it may take MPI to give up a message.
const WITHDRAWAL: Duration = Duration::from_secs(1);

/// One rank's end.
pub struct Messages<H: Handle> {
    mpi: &'static Mpi<H>,
    rank: usize,
    patience: Duration,
    peers: Vec<Peer>,
    /// By rank.
    sends: Vec<Stream<H>>,
    receives: Vec<Stream<H>>,
    /// What a piece of a message from another host took the last time.
    pace: Duration,
    /// Why there is no going on.
    failed: Option<Error>,
}

impl<H: Handle> Messages<H> {
    pub fn new(mpi: &'static Mpi<H>, rank: usize, ranks: usize, patience: Duration) -> Messages<H> {
        let streams = |receives| (0..ranks).map(|_| Stream::new(mpi, receives)).collect();
        let peers = (0..ranks).map(Peer::unknown).collect();
        let (sends, receives) = (streams(false), streams(true));
        Messages { mpi, rank, patience, peers, sends, receives, pace: Duration::ZERO, failed: None }
    }

    /// Tells who the others are.
    pub fn know(&mut self, peers: Vec<Peer>) {
        self.peers = peers;
    }

    /// Moves what can be moved: whether anything did, and a rank that is still awaited.
    fn advance(&mut self, outgoing: &Outgoing<'_>, incoming: &mut Incoming<'_>) -> Result<(bool, Option<usize>)> {
        let (mut moved, mut awaited) = (false, None);
        for (rank, peer) in self.peers.iter().enumerate() {
            let (receive, send) = (&mut self.receives[rank], &mut self.sends[rank]);
            if let Some(room) = incoming.from(rank) {
                let post = |piece: Range<usize>, request: &mut H| {
                    let piece = &mut room[piece];
                    // SAFETY: the room is borrowed until `exchange` returns, and by then MPI writes to it no more
                    // (`withdraw`). Nobody else looks at it meanwhile.
                    unsafe { self.mpi.receive(piece.as_mut_ptr(), piece.len(), rank, request) }
                };
                moved |= receive.advance(self.mpi, peer, post)?;
            }
            if let Some(message) = outgoing.to(rank) {
                let post = |piece: Range<usize>, request: &mut H| {
                    let piece = &message[piece];
                    // SAFETY: the message is borrowed until `exchange` returns. If it fails, MPI is not called again, and
                    // reads only when it is called.
                    unsafe { self.mpi.send(piece.as_ptr(), piece.len(), rank, request) }
                };
                moved |= send.advance(self.mpi, peer, post)?;
            }
            if awaited.is_none() && !(receive.is_done() && send.is_done()) {
                awaited = Some(rank);
            }
        }
        Ok((moved, awaited))
    }

    fn run(&mut self, outgoing: &Outgoing<'_>, incoming: &mut Incoming<'_>) -> Result<()> {
        for rank in 0..self.peers.len() {
            self.sends[rank].begin(outgoing.to(rank).map(<[u8]>::len));
            self.receives[rank].begin(incoming.from(rank).map(|room| room.len()));
        }
        let pieces = self.pieces_of_other_hosts();
        let (mut pause, mut first) = (Pause::new(), None);
        loop {
            let (moved, awaited) = self.advance(outgoing, incoming)?;
            let Some(awaited) = awaited else {
                self.learn_pace(pieces, first);
                return Ok(());
            };
            if moved {
                pause = Pause::new();
                first = first.or_else(|| self.far().any(|rank| self.receives[rank].done > 0).then(Instant::now));
            } else if pause.waited() > self.patience {
                return Err(Error::Silent { peer: self.peers[awaited].clone(), waited: self.patience });
            }
            match pieces > 1 && self.pace > SLOW {
                true => pause.sleep_expecting(self.pace),
                false => pause.sleep(),
            }
        }
    }

    /// Pieces of the longest message from or to another host: those come while nobody asks. Ranks of one host share memory, through which
    /// nothing moves but while both ask, so that who waits longer makes the other wait.
    fn pieces_of_other_hosts(&self) -> usize {
        self.far().map(|rank| self.sends[rank].pieces.max(self.receives[rank].pieces)).max().unwrap_or(0)
    }

    /// Ranks of other hosts.
    fn far(&self) -> impl Iterator<Item = usize> {
        (0..self.peers.len()).filter(|&rank| self.peers[rank].host != self.peers[self.rank].host)
    }

    /// From the first piece of another host that came to the last, since before the first one may have waited for who sends it; twofold at most.
    fn learn_pace(&mut self, pieces: usize, first: Option<Instant>) {
        if let Some(first) = first.filter(|_| pieces >= PACED) {
            self.pace = (first.elapsed() / (pieces as u32 - 1)).min(2 * self.pace.max(SLOW));
        }
    }

    /// Sees to it that MPI writes no more to what is borrowed. A message that is half there cannot be taken back: then there is
    /// no way on for this process.
    fn withdraw(&mut self, error: &Error) {
        let pause = Pause::new();
        while !self.receives.iter_mut().all(|stream| stream.is_withdrawn(self.mpi)) {
            if pause.waited() > WITHDRAWAL {
                eprintln!("error: {error}");
                std::process::exit(2);
            }
            pause.sleep();
        }
    }
}

impl<H: Handle> Wire for Messages<H> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.peers.len()
    }

    fn peer(&self, rank: usize) -> Peer {
        self.peers[rank].clone()
    }

    fn exchange(&mut self, outgoing: Outgoing<'_>, mut incoming: Incoming<'_>) -> Result<()> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let exchanged = self.run(&outgoing, &mut incoming);
        if let Err(error) = &exchanged {
            self.withdraw(error);
            self.failed = Some(error.clone());
        }
        exchanged
    }
}

/// A message on its way to or from a rank.
struct Stream<H> {
    /// Of the pieces under way, each at its number modulo the window.
    requests: [H; WINDOW],
    bytes: usize,
    /// Numbers of pieces: all of them, those that were given to MPI, and those that it is done with.
    pieces: usize,
    posted: usize,
    done: usize,
    /// Whether MPI was asked to give up those that it is not done with.
    cancelled: bool,
    /// Whether it comes: MPI counts nothing of what goes.
    receives: bool,
}

impl<H: Handle> Stream<H> {
    fn new(mpi: &Mpi<H>, receives: bool) -> Stream<H> {
        let requests = [mpi.constants.no_request; WINDOW];
        Stream { requests, bytes: 0, pieces: 0, posted: 0, done: 0, cancelled: false, receives }
    }

    /// Another message, or none. An empty one is sent too.
    fn begin(&mut self, bytes: Option<usize>) {
        self.pieces = bytes.map_or(0, |bytes| bytes.div_ceil(PIECE_BYTES).max(1));
        (self.bytes, self.posted, self.done) = (bytes.unwrap_or(0), 0, 0);
    }

    fn is_done(&self) -> bool {
        self.done == self.pieces
    }

    fn piece(&self, number: usize) -> Range<usize> {
        number * PIECE_BYTES..((number + 1) * PIECE_BYTES).min(self.bytes)
    }

    /// Takes note of the pieces that are done and posts the next ones: whether there were any.
    fn advance(
        &mut self,
        mpi: &Mpi<H>,
        peer: &Peer,
        mut post: impl FnMut(Range<usize>, &mut H) -> Result<()>,
    ) -> Result<bool> {
        let lost = |error| lost(error, peer);
        let before = self.done;
        while self.done < self.posted {
            let Some(status) = mpi.test(&mut self.requests[self.done % WINDOW]).map_err(lost)? else { break };
            let expected = self.piece(self.done).len();
            let came = if self.receives { mpi.count(&status).map_err(lost)? } else { expected };
            if came != expected {
                return Err(Error::Unlike { peer: peer.clone(), expected, came });
            }
            self.done += 1;
        }
        while self.posted < self.pieces && self.posted - self.done < WINDOW {
            post(self.piece(self.posted), &mut self.requests[self.posted % WINDOW]).map_err(lost)?;
            self.posted += 1;
        }
        Ok(self.done > before)
    }

    /// Whether MPI has given up all that is under way; the first time it is asked to.
    fn is_withdrawn(&mut self, mpi: &Mpi<H>) -> bool {
        for number in self.done..self.posted {
            let request = &mut self.requests[number % WINDOW];
            if !self.cancelled {
                mpi.cancel(request);
            }
        }
        self.cancelled = true;
        // A request that failed is done with too.
        let given_up = |request: &mut H| !matches!(mpi.test(request), Ok(None));
        (self.done..self.posted).all(|number| given_up(&mut self.requests[number % WINDOW]))
    }
}

/// What MPI said of a message, with whom it was about.
fn lost(error: Error, peer: &Peer) -> Error {
    match error {
        Error::Mpi { call, reason } => Error::Lost { peer: peer.clone(), call, reason },
        error => error,
    }
}

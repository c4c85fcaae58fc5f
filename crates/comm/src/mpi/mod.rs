//! MPI, whichever one started this process: nothing of it is needed to build.
//!
//! `launcher` reads from the environment who started the process, `library` loads the MPI that fits, `table` has its functions,
//! and `wire` carries messages with them.

mod launcher;
mod library;
mod table;
mod wire;

use crate::error::{Error, Peer, Result};
use crate::group::Group;
use crate::transport::{Transport, patience};
pub use launcher::{Implementation, Place, place};
use library::Mpi;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::time::Duration;
use table::Address;
use wire::Messages;

/// How MPI is left, once it was joined.
static LEAVE: OnceLock<Box<dyn Fn() -> Result<()> + Send + Sync>> = OnceLock::new();

/// This process's end of the group that a launcher started it in; none if it was started alone. Once a process.
pub fn join() -> Result<Option<Box<dyn Transport>>> {
    let Some(place) = place()? else { return Ok(None) };
    let patience = patience()?;
    // Each has its own type of handles.
    match place.implementation {
        Implementation::OpenMpi => joined(Mpi::<Address>::load()?, &place, patience),
        Implementation::Mpich => joined(Mpi::<c_int>::load()?, &place, patience),
    }
    .map(Some)
}

impl Implementation {
    /// Whether its library can be loaded here.
    pub fn check(self) -> Result<()> {
        match self {
            Implementation::OpenMpi => Mpi::<Address>::load().map(drop),
            Implementation::Mpich => Mpi::<c_int>::load().map(drop),
        }
    }
}

/// Says goodbye to MPI, if it was joined: the last call of a process that has done what it was to do. One that failed does not
/// make it, so that the launcher ends the others.
pub fn leave() -> Result<()> {
    LEAVE.get().map_or(Ok(()), |leave| leave())
}

fn joined<H: table::Handle>(mpi: Mpi<H>, place: &Place, patience: Duration) -> Result<Box<dyn Transport>> {
    let mpi: &'static Mpi<H> = Box::leak(Box::new(mpi));
    mpi.start()?;
    let (rank, ranks) = mpi.rank_and_size()?;
    if ranks != place.ranks {
        return Err(Error::OtherWorld {
            launcher: place.implementation.launcher(),
            started: place.ranks,
            library: mpi.file.clone(),
            sees: ranks,
        });
    }
    let mut group = Group::new(Messages::new(mpi, rank, ranks, patience));
    let peers = introduced(&mut group)?;
    group.wire_mut().know(peers);
    let left = LEAVE.set(Box::new(move || mpi.end(patience)));
    left.map_err(|_| Error::Misuse("a group is joined once a process"))?;
    Ok(Box::new(group))
}

/// Bytes of a host's name that are told.
const HOST_BYTES: usize = 60;
/// And of all that a rank tells of itself: the name, and its process.
const CARD_BYTES: usize = HOST_BYTES + size_of::<u32>();

/// Who the others are.
fn introduced(transport: &mut dyn Transport) -> Result<Vec<Peer>> {
    let (rank, ranks) = (transport.rank(), transport.ranks());
    let mut cards = vec![0; ranks * CARD_BYTES];
    let at: Vec<usize> = (0..=ranks).map(|rank| rank * CARD_BYTES).collect();
    let own = &mut cards[at[rank]..at[rank + 1]];
    let host = host_name();
    let told = host.floor_char_boundary(HOST_BYTES);
    own[..told].copy_from_slice(&host.as_bytes()[..told]);
    own[HOST_BYTES..].copy_from_slice(&std::process::id().to_le_bytes());
    transport.all_gather(&mut cards, &at)?;
    let peer = |(rank, card): (usize, &[u8])| {
        let (host, pid) = card.split_at(HOST_BYTES);
        let host = String::from_utf8_lossy(host).trim_end_matches('\0').to_string();
        let pid = u32::from_le_bytes(pid.try_into().expect("four bytes"));
        Peer { rank, host: Some(host), pid: Some(pid) }
    };
    Ok(cards.chunks(CARD_BYTES).enumerate().map(peer).collect())
}

/// Bytes that MPI comes to hold of this process once messages have gone, if it was started to join others.
pub fn messages_bytes() -> u64 {
    place().ok().flatten().map_or(0, |place| place.implementation.messages_bytes(place.ranks_here))
}

/// Which of the ranks on this machine this one is.
pub fn rank_here() -> usize {
    place().ok().flatten().map_or(0, |place| place.rank_here)
}

/// The name of this machine.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    name.or_else(|| std::env::var("HOSTNAME").ok()).map_or("an unnamed host".into(), |name| name.trim().to_string())
}

//! Training by several processes. A process that is to train has one of four parts:
//!
//! - alone: it just trains;
//! - `launcher`: `--ranks` was asked for, and it starts `mpirun` with the same arguments;
//! - `supervisor`: `mpirun` started it, and it starts the rank as a process of its own, watches it and says how it ended;
//! - `rank`: it trains as one of the ranks, and reports to its supervisor (`heartbeat`).

pub mod fault;
mod heartbeat;
mod launcher;
mod mpirun;
mod output;
mod signals;
mod supervisor;

use crate::layers::merged;
use crate::train;
use clap::ArgMatches;
use gradus_comm::{Fingerprint, Implementation, Place, agree};
use gradus_train::run::Unwatched;
use gradus_train::{Error, Result};
use heartbeat::Heartbeat;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Left in the environment of ranks that `--ranks` started.
const LAUNCHED: &str = "GRADUS_LAUNCHED";

/// Does this process's part of a training command.
pub fn take_part(command_line: &ArgMatches) -> Result<()> {
    let args = merged(command_line, &[])?;
    let Some(place) = gradus_comm::place()? else {
        return match args.ranks {
            None | Some(1) => train::run(command_line, &mut Unwatched, None),
            Some(ranks) => launcher::launch(command_line, ranks, args.restart.unwrap_or(0)),
        };
    };
    if args.ranks.is_some_and(|ranks| ranks != place.ranks) && std::env::var_os(LAUNCHED).is_none() {
        return Err(Error::Config(format!(
            "--ranks {} and {} ranks of mpirun cannot both be; leave --ranks out, or start without mpirun",
            args.ranks.unwrap_or(1),
            place.ranks
        )));
    }
    match Heartbeat::of_supervised()? {
        None => supervisor::supervise(&place),
        Some(heartbeat) => rank(command_line, heartbeat),
    }
}

/// Trains as one of the ranks.
fn rank(command_line: &ArgMatches, mut heartbeat: Heartbeat) -> Result<()> {
    let mut transport = gradus_comm::join()?.expect("a rank has a place");
    agree(transport.as_mut(), "program (gradus)", program()?)?;
    train::run(command_line, &mut heartbeat, Some(transport))?;
    Ok(gradus_comm::leave()?)
}

/// How long a rank waits before it tells an error that another one tells better: then the launcher ends this one.
const OTHERS_TELL: Duration = Duration::from_secs(2);

/// Lets the one speak that knows best: of a rank that is gone its supervisor, and of all else the first rank.
pub fn before_telling(error: &Error) {
    let rank = gradus_comm::place().ok().flatten().map(|place| place.rank);
    let of_another = matches!(error, Error::Ranks(error) if error.is_fault());
    if rank.is_some_and(|rank| rank > 0 || of_another) {
        std::thread::sleep(OTHERS_TELL);
    }
}

/// How many ranks a launcher started, if one did.
pub fn started() -> Option<usize> {
    gradus_comm::place().ok().flatten().map(|place| place.ranks)
}

/// Bytes that a process of so many ranks would come to hold of MPI, unless a launcher has started this one, by the launcher that is here; or
/// by Open MPI's, if there is none.
pub fn joining_bytes(ranks: usize) -> u64 {
    if ranks == 1 || started().is_some() {
        return 0;
    }
    let mpi = mpirun::Mpirun::find().map_or(Implementation::OpenMpi, |found| found.implementation());
    mpi.joining_bytes() + mpi.messages_bytes(ranks)
}

/// Threads of a rank, if each core of the machine has one: those that are left for it by the ranks beside it.
pub fn share_of(cores: usize) -> usize {
    let beside = gradus_comm::place().ok().flatten().map_or(1, |place: Place| place.ranks_here);
    (cores / beside).max(1)
}

/// What this program is, to be compared with the others.
fn program() -> Result<Fingerprint> {
    let path = std::env::current_exe().map_err(Error::io("find", Path::new("gradus")))?;
    let mut file = std::fs::File::open(&path).map_err(Error::io("read", &path))?;
    let (mut fingerprint, mut piece) = (Fingerprint::default(), vec![0; 1 << 18]);
    loop {
        match file.read(&mut piece).map_err(Error::io("read", &path))? {
            0 => return Ok(fingerprint),
            read => fingerprint.add(&piece[..read]),
        }
    }
}

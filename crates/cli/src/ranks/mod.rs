//! Training by several processes. A process that is to train has one of four parts:
//!
//! - alone: it just trains;
//! - `launcher`: `--ranks` was asked for, and it starts `mpirun` with the same arguments;
//! - `supervisor`: `mpirun` started it, and it starts the rank as a process of its own, watches it and says how it ended;
//! - `rank`: it trains as one of the ranks, and reports to its supervisor (`heartbeat`).

mod fault;
mod heartbeat;
mod launcher;
mod mpirun;
mod output;
mod signals;
mod supervisor;

use crate::layers::merged;
use crate::train;
use clap::ArgMatches;
use gradus_comm::{Fingerprint, Place, agree};
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
    let Some(place) = gradus_comm::place().map_err(told)? else {
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
    let mut transport = gradus_comm::join().map_err(told)?.expect("a rank has a place");
    agree(transport.as_mut(), "program (gradus)", program()?).map_err(told)?;
    train::run(command_line, &mut heartbeat, Some(transport))?;
    gradus_comm::leave().map_err(told)
}

/// How long other ranks than the first wait before they tell an error. What goes wrong everywhere is told by the first, and
/// then the launcher ends the others.
const FIRST_TELLS: Duration = Duration::from_millis(500);

/// Lets the first rank speak first.
pub fn before_an_error() {
    if gradus_comm::place().is_ok_and(|place| place.is_some_and(|place| place.rank > 0)) {
        std::thread::sleep(FIRST_TELLS);
    }
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

fn told(error: gradus_comm::Error) -> Error {
    Error::Config(error.to_string())
}

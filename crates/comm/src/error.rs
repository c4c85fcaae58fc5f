//! What can go wrong between ranks.

use std::fmt;
use std::time::Duration;

/// Another rank, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its number.
    pub rank: usize,
    /// Where it runs.
    pub host: Option<String>,
    /// Its process there.
    pub pid: Option<u32>,
}

impl Peer {
    /// One of which only the number is known.
    pub fn unknown(rank: usize) -> Peer {
        Peer { rank, host: None, pid: None }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.rank)?;
        match (self.pid, &self.host) {
            (Some(pid), Some(host)) => write!(f, " (process {pid} on {host})"),
            (Some(pid), None) => write!(f, " (process {pid})"),
            (None, Some(host)) => write!(f, " (on {host})"),
            (None, None) => Ok(()),
        }
    }
}

/// Why bytes did not come or go.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A rank that ended before the others were done with it.
    #[error("{peer} is gone; go on from the last checkpoint")]
    Gone {
        /// Which one.
        peer: Peer,
    },
    /// A rank that is awaited and says nothing.
    #[error("{peer} has been silent for {} seconds; see whether it still runs, and go on from the last checkpoint", waited.as_secs_f64())]
    Silent {
        /// Which one.
        peer: Peer,
        /// How long.
        waited: Duration,
    },
    /// Two ranks that do not make the same calls.
    #[error("{peer} sent {came} bytes where {expected} are due: its program or its configuration is another")]
    Unlike {
        /// Which one.
        peer: Peer,
        /// Bytes that are due.
        expected: usize,
        /// Bytes that came.
        came: usize,
    },
    /// A message that MPI gave up.
    #[error("{peer} cannot be reached: {call} says: {reason}; go on from the last checkpoint")]
    Lost {
        /// To or from whom.
        peer: Peer,
        /// What was called.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// Ranks that were not started alike.
    #[error("{peer} has another {what} than rank 0; give all ranks the same")]
    Differs {
        /// The first that differs.
        peer: Peer,
        /// In what.
        what: String,
    },
    /// Others that did not come to the end.
    #[error("the other ranks have not come to their end for {} seconds", waited.as_secs_f64())]
    Alone {
        /// How long it was waited for them.
        waited: Duration,
    },
    /// Devices between which nothing comes or goes any longer.
    #[error("{reason}")]
    Devices {
        /// What one of them said.
        reason: String,
    },
    /// Variables of a launcher that cannot be.
    #[error("{variables} in the environment make no sense; start the ranks with mpirun, or remove these variables")]
    Environment {
        /// As they stand there.
        variables: String,
    },
    /// A patience that cannot be.
    #[error("{variable}={text} is not a number of seconds; give one, such as 300, or leave it out")]
    Patience {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        text: String,
    },
    /// The launcher's library is not there.
    #[error(
        "{launcher} started this process, and its library ({library}) is not to be found; `apt install {package}`, or start \
         with {other} if that is what is installed"
    )]
    NoLibrary {
        /// Who started it.
        launcher: &'static str,
        /// The file.
        library: &'static str,
        /// What has it.
        package: &'static str,
        /// The other launcher.
        other: &'static str,
    },
    /// A library that is too old, or no MPI.
    #[error("{library} has no {name}; install another version of it")]
    Lacking {
        /// The file.
        library: String,
        /// The function.
        name: &'static str,
    },
    /// A library that keeps to the thread that it was started in.
    #[error("{library} was built without threads; install a version of it with MPI_THREAD_SERIALIZED")]
    Threads {
        /// The file.
        library: String,
    },
    /// A launcher and a library that do not belong together.
    #[error(
        "{launcher} started {started} ranks and {library} sees {sees}: they are of different versions; see that both are of \
         one installation"
    )]
    OtherWorld {
        /// Who started them.
        launcher: &'static str,
        /// How many.
        started: usize,
        /// The file.
        library: String,
        /// How many it sees.
        sees: usize,
    },
    /// Anything else that MPI refused.
    #[error("{call} failed: {reason}")]
    Mpi {
        /// What was called.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// A call that says nothing sensible.
    #[error("{0}")]
    Misuse(&'static str),
}

impl Error {
    /// Whether another rank had a fault, so that the same run may well go on without it.
    pub fn is_fault(&self) -> bool {
        use Error::{Alone, Devices, Gone, Lost, Silent};
        matches!(self, Gone { .. } | Silent { .. } | Lost { .. } | Alone { .. } | Devices { .. })
    }

    /// The rank that it is about, if it is about one.
    pub fn rank(&self) -> Option<usize> {
        match self {
            Error::Gone { peer }
            | Error::Silent { peer, .. }
            | Error::Unlike { peer, .. }
            | Error::Lost { peer, .. }
            | Error::Differs { peer, .. } => Some(peer.rank),
            _ => None,
        }
    }
}

/// As [`std::result::Result`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

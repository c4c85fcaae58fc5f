//! Bytes between ranks. What they mean is not known here: no graph, no training.
//!
//! A [`Transport`] is one rank's end of a group. There is one between processes, over the MPI that started them ([`join`]), and
//! one between threads of a process ([`in_process`]), for tests. [`Exchange`] carries collectives out beside what is computed,
//! [`Link`] is what a group was measured to be good for, and [`compression`] makes gradients smaller.

mod agree;
pub mod compression;
mod error;
mod exchange;
mod group;
mod in_process;
mod link;
#[cfg(unix)]
mod mpi;
#[cfg(not(unix))]
#[path = "no_mpi.rs"]
mod mpi;
mod transport;

pub use agree::{Fingerprint, agree};
pub use error::{Error, Peer, Result};
pub use exchange::{Collective, Exchange, Ticket, Times, Work};
pub use in_process::{in_process, in_process_within};
pub use link::Link;
#[cfg(unix)]
pub use mpi::{Implementation, Place, host_name, place};
pub use mpi::{join, leave, messages_bytes, rank_here};
pub use transport::{PATIENCE, PATIENCE_VARIABLE, Transport, patience};

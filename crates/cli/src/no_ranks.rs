//! Where MPI cannot be loaded, a run has one process.

use crate::layers::merged;
use crate::train;
use clap::ArgMatches;
use gradus_train::run::Unwatched;
use gradus_train::{Error, Result};

/// What a rank would end with if there were any.
pub mod fault {
    pub const FAULTY: u8 = 3;
}

/// Trains alone.
pub fn take_part(command_line: &ArgMatches) -> Result<()> {
    match merged(command_line, &[])?.ranks {
        None | Some(1) => train::run(command_line, &mut Unwatched, None),
        Some(_) => Err(Error::Config("--ranks needs MPI on a Unix; leave it out here".into())),
    }
}

pub fn before_telling(_: &Error) {}

pub fn started() -> Option<usize> {
    None
}

pub fn joining_bytes(_: usize) -> u64 {
    0
}

pub fn share_of(cores: usize) -> usize {
    cores
}

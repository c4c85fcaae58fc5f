//! Who started this process: each launcher leaves its own variables in the environment.

use crate::error::{Error, Result};
use std::fmt;

/// An MPI whose library can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// Open MPI.
    OpenMpi,
    /// MPICH, and those that are called as it is.
    Mpich,
}

impl Implementation {
    /// Its launcher, for people.
    pub fn launcher(self) -> &'static str {
        match self {
            Implementation::OpenMpi => "Open MPI's mpirun",
            Implementation::Mpich => "MPICH's mpiexec",
        }
    }

    /// Bytes of a process that joins others by it, about, with its libraries: as seen of Open MPI 4.1 and MPICH 4.0.
    pub fn joining_bytes(self) -> u64 {
        match self {
            Implementation::OpenMpi => 3_200_000,
            Implementation::Mpich => 6_400_000,
        }
    }

    /// Bytes that come to that once messages have gone between so many ranks of a machine, up to 8 of which were seen.
    pub fn messages_bytes(self, ranks: usize) -> u64 {
        match self {
            Implementation::OpenMpi => 3_600_000,
            Implementation::Mpich => 2_800_000 + 500_000 * ranks as u64,
        }
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Implementation::OpenMpi => "Open MPI",
            Implementation::Mpich => "MPICH",
        })
    }
}

/// A process's place among those that a launcher started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whose launcher it was.
    pub implementation: Implementation,
    /// Which one this is.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// How many of them are on this machine, as far as the launcher says; else all.
    pub ranks_here: usize,
    /// Which of those it is.
    pub rank_here: usize,
}

/// The variables of launchers, the surest first: those of rank and of size. Resource managers that start processes
/// themselves leave the last two kinds.
const VARIABLES: [(Implementation, &str, &str); 3] = [
    (Implementation::OpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    (Implementation::Mpich, "PMI_RANK", "PMI_SIZE"),
    (Implementation::OpenMpi, "PMIX_RANK", "SLURM_NTASKS"),
];

/// Those of the ranks on a machine: how many there are, and which one this is.
const LOCAL_SIZES: [&str; 2] = ["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"];
const LOCAL_RANKS: [&str; 3] = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];

/// This process's place, if a launcher started it.
pub fn place() -> Result<Option<Place>> {
    place_in(&|name| std::env::var(name).ok())
}

fn place_in(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Place>> {
    for (implementation, rank_name, size_name) in VARIABLES {
        let (Some(rank), Some(size)) = (variable(rank_name), variable(size_name)) else { continue };
        let numbers = rank.parse::<usize>().ok().zip(size.parse::<usize>().ok());
        let place = numbers.filter(|(rank, ranks)| rank < ranks);
        let Some((rank, ranks)) = place else {
            return Err(Error::Environment { variables: format!("{rank_name}={rank} and {size_name}={size}") });
        };
        let number = |names: &[&str]| names.iter().find_map(|name| variable(name)?.parse::<usize>().ok());
        let ranks_here = number(&LOCAL_SIZES).unwrap_or(ranks).clamp(1, ranks);
        let rank_here = number(&LOCAL_RANKS).unwrap_or(rank);
        return Ok(Some(Place { implementation, rank, ranks, ranks_here, rank_here }));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<Place>> {
        place_in(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string()))
    }

    #[test]
    fn each_launcher_is_known_by_what_it_leaves() {
        let place = |implementation, rank, ranks, ranks_here, rank_here| {
            Ok(Some(Place { implementation, rank, ranks, ranks_here, rank_here }))
        };
        let own = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let here = [("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_RANK", "1")];
        assert_eq!(found(&[own, here].concat()), place(Implementation::OpenMpi, 3, 4, 2, 1));
        let mpich = found(&[("PMI_RANK", "0"), ("PMI_SIZE", "3")]);
        assert_eq!(mpich, place(Implementation::Mpich, 0, 3, 3, 0));
        let managed = found(&[("PMIX_RANK", "2"), ("SLURM_NTASKS", "3"), ("SLURM_LOCALID", "0")]);
        assert_eq!(managed, place(Implementation::OpenMpi, 2, 3, 3, 0));
        assert_eq!(found(&[]), Ok(None));
    }

    #[test]
    fn an_environment_that_makes_no_sense_is_refused() {
        let error = found(&[("PMI_RANK", "3"), ("PMI_SIZE", "3")]).unwrap_err();
        assert!(error.to_string().contains("PMI_RANK=3 and PMI_SIZE=3"), "{error}");
        assert!(found(&[("PMI_RANK", "x"), ("PMI_SIZE", "3")]).is_err());
    }
}

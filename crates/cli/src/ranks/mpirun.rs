//! The launcher that is installed, and how it is called.

use gradus_comm::Implementation;
use gradus_train::{Error, Result};
use std::ffi::OsString;
use std::process::Command;

/// The environment variable that states which launcher is called, with arguments of its own if there are any.
const STATED: &str = "GRADUS_MPIRUN";
/// Where it is looked for.
const USUAL: [&str; 4] = ["mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.mpich"];
/// What resource managers leave who say themselves how many ranks there may be.
const MANAGERS: [&str; 4] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OMPI_MCA_orte_default_hostfile"];
/// Open MPI refuses root without these. What is started here is this very program.
const AS_ROOT: [&str; 2] = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];

/// A launcher.
pub struct Mpirun {
    /// The program, and arguments of its own.
    words: Vec<String>,
    implementation: Implementation,
}

impl Mpirun {
    /// The one that is stated, or the first that is there with its library.
    pub fn find() -> Result<Mpirun> {
        match std::env::var(STATED) {
            Ok(stated) => {
                let words: Vec<String> = stated.split_whitespace().map(str::to_string).collect();
                let unusable = || {
                    Error::Config(format!(
                        "{STATED}={stated} is no launcher of Open MPI or MPICH; give one, or unset it"
                    ))
                };
                Mpirun::of(words).ok_or_else(unusable)?.with_library()
            }
            Err(_) => Mpirun::first(USUAL.iter().filter_map(|name| Mpirun::of(vec![name.to_string()]))),
        }
    }

    fn first(found: impl Iterator<Item = Mpirun>) -> Result<Mpirun> {
        let none =
            "--ranks needs MPI, and there is no mpirun here; `apt install openmpi-bin`, or mpich, or leave --ranks out";
        let mut without_library = Err(Error::Config(none.into()));
        for mpirun in found {
            match mpirun.with_library() {
                Ok(mpirun) => return Ok(mpirun),
                Err(error) => without_library = Err(error),
            }
        }
        without_library
    }

    /// Whose it is.
    pub fn implementation(&self) -> Implementation {
        self.implementation
    }

    fn of(words: Vec<String>) -> Option<Mpirun> {
        let mut command = Command::new(words.first()?);
        let answer = command.args(&words[1..]).arg("--version").envs(AS_ROOT.map(|name| (name, "1"))).output().ok()?;
        let implementation = implementation(&String::from_utf8_lossy(&answer.stdout))?;
        Some(Mpirun { words, implementation })
    }

    fn with_library(self) -> Result<Mpirun> {
        self.implementation.check().map_err(|error| Error::Config(error.to_string()))?;
        Ok(self)
    }

    /// The command that starts so many ranks of this program.
    pub fn command(&self, ranks: usize, arguments: &[OsString]) -> Result<Command> {
        let program = std::env::current_exe().map_err(Error::io("find", std::path::Path::new("gradus")))?;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args(["-n", &ranks.to_string()]);
        if self.implementation == Implementation::OpenMpi {
            // Ranks have threads of their own, and share cores if there are more ranks than cores.
            command.args(["--bind-to", "none"]).envs(AS_ROOT.map(|name| (name, "1")));
            if !MANAGERS.iter().any(|name| std::env::var_os(name).is_some()) {
                command.arg("--oversubscribe");
            }
        }
        command.arg(program).args(arguments);
        Ok(command)
    }
}

fn implementation(version: &str) -> Option<Implementation> {
    let says = |name: &str| version.contains(name);
    match (says("Open MPI") || says("OpenRTE") || says("PRRTE"), says("HYDRA")) {
        (true, _) => Some(Implementation::OpenMpi),
        (false, true) => Some(Implementation::Mpich),
        (false, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_are_known_by_what_they_say() {
        let open = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n";
        assert_eq!(implementation(open), Some(Implementation::OpenMpi));
        assert_eq!(implementation("HYDRA build details:\n    Version: 4.0.2\n"), Some(Implementation::Mpich));
        assert_eq!(implementation("slurm 23"), None);
    }

    #[test]
    fn no_launcher_is_an_error_that_says_what_to_install() {
        let error = Mpirun::first(std::iter::empty()).err().unwrap().to_string();
        assert!(error.contains("no mpirun") && error.contains("apt install openmpi-bin"), "{error}");
    }
}

//! The live page: `gradus dashboard`, and `gradus train --dashboard`. It is made from the files of run folders alone, so
//! that a run knows nothing of it, and one that ended looks like one that goes on.

mod address;
mod files;
mod history;
mod log;
mod prometheus;
mod request;
mod response;
mod seats;
mod server;
mod site;

pub use address::Address;
pub use server::MEMORY_BYTES;

use crate::args::DashboardArgs;
use crate::print;
use gradus_train::config::CONFIG_FILE;
use gradus_train::{Error, Result};
use server::Server;
use site::Site;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Runs that are shown at once.
const RUNS_MAX: usize = 32;
/// Time in which a page that is open asks for the last lines of a run: twice as long as it waits between two questions.
const LAST_READ: Duration = Duration::from_secs(2);

/// Serves the folders of runs until the command is ended.
pub fn run(args: &DashboardArgs) -> Result<()> {
    if args.folders.len() > RUNS_MAX {
        return Err(Error::Config(format!(
            "{} runs are too many for one page; give {RUNS_MAX} at most",
            args.folders.len()
        )));
    }
    args.folders.iter().try_for_each(|folder| check(folder))?;
    let refused = |error| Error::Config(format!("the dashboard cannot be served: {error}"));
    let (server, told) = Reserved::at(args.port)?.serve(&args.folders, false).map_err(refused)?;
    print::text(told + "; Ctrl-C ends it\n")?;
    server.stay();
    Ok(())
}

fn check(folder: &Path) -> Result<()> {
    let problem = match (folder.is_dir(), folder.join(CONFIG_FILE).is_file()) {
        (true, true) => return Ok(()),
        (true, false) => format!("not the folder of a run (it has no {CONFIG_FILE}); give one such as runs/stories-1"),
        (false, _) => "no such folder; give that of a run, such as runs/stories-1".to_string(),
    };
    Err(Error::checkpoint(folder, problem))
}

/// A place to serve at, where nobody is answered yet.
pub struct Reserved(TcpListener);

impl Reserved {
    /// Takes the place that is stated, or a usual one.
    pub fn at(stated: Option<Address>) -> Result<Reserved> {
        address::listen(stated).map(Reserved)
    }

    /// Answers from now on; also gives a line that says where.
    fn serve(self, folders: &[PathBuf], is_live: bool) -> io::Result<(Server, String)> {
        let served = self.0.local_addr()?.ip();
        let server = Server::start(self.0, Site::new(folders, is_live, served))?;
        let told = format!("dashboard: {}{}", server.url(), address::caution(served));
        Ok((server, told))
    }
}

/// The page of a run that this process trains.
pub struct Live(Server);

impl Live {
    /// Serves the run's folder, which may be still to come; also gives a line that says where.
    pub fn start(place: Reserved, folder: &Path) -> io::Result<(Live, String)> {
        let (server, told) = place.serve(&[folder.to_path_buf()], true)?;
        Ok((Live(server), told))
    }

    /// Ends it; whoever reads has a last chance to see how the run ended.
    pub fn end(self) {
        if self.0.is_read() {
            std::thread::sleep(LAST_READ);
        }
    }
}

#[cfg(test)]
mod testing {
    use std::path::{Path, PathBuf};

    /// A folder that is removed at the end of the test.
    pub struct Folder(PathBuf);

    impl Folder {
        pub fn new(name: &str) -> Folder {
            let folder = std::env::temp_dir().join(format!("gradus-dashboard-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Folder(folder)
        }

        pub fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

#[cfg(test)]
mod tests;

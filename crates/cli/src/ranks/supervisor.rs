//! What `mpirun` starts: a process that starts the rank and does nothing but watch it. So there is always someone who says how
//! the rank ended, and who is not stopped with it.

use super::heartbeat::{Pulse, REPORTS};
use super::{LAUNCHED, fault, signals};
use crate::print;
use gradus_comm::{Peer, Place, host_name};
use gradus_train::{Error, Result};
use std::io::PipeWriter;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt, parent_id};
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

/// Between looks at the rank.
const TICK: Duration = Duration::from_millis(50);
/// A rank that reports nothing for so many of them has stalled.
const PATIENT_TICKS: u64 = 80;
/// What a library below MPI does with errors and signals: unless this says otherwise it prints pages of addresses.
const UCX_ERRORS: &str = "UCX_HANDLE_ERRORS";

/// Starts this rank, watches it and ends as it does.
pub fn supervise(place: &Place) -> Result<()> {
    let is_launched = std::env::var_os(LAUNCHED).is_some();
    signals::listen(is_launched);
    let (reports, their_end) = std::io::pipe().map_err(failed("open"))?;
    let mut child = start(their_end)?;
    let pulse = Arc::new(Pulse::default());
    let theirs = Arc::clone(&pulse);
    std::thread::spawn(move || theirs.follow(reports));
    let peer = Peer { rank: place.rank, host: Some(host_name()), pid: Some(child.id()) };
    let status = match watch(&mut child, &pulse).map_err(failed("watch"))? {
        Ended::ByItself(status) => status,
        ended => {
            if let Ended::Stalled = ended {
                tell(&fault::stalled(&peer, pulse.step(), TICK * PATIENT_TICKS as u32));
            }
            child.kill().and_then(|()| child.wait()).map_err(failed("end"))?;
            std::process::exit(fault::FAULTY.into());
        }
    };
    if let Some(line) = fault::killed(&peer, pulse.step(), status) {
        // MPI aborts where another rank is gone: that one is to be named, and then this process is ended.
        if status.signal() == Some(libc::SIGABRT) {
            std::thread::sleep(super::OTHERS_TELL);
        }
        tell(&line);
    }
    let code = status.code().unwrap_or(fault::FAULTY.into());
    if code != 0 && is_launched {
        print::note(fault::status_line(code));
    }
    std::process::exit(code);
}

fn tell(line: &str) {
    print::note(format!("error: {line}"));
}

fn failed(action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
    Error::io(action, Path::new("the process of a rank"))
}

/// The same program with the same arguments, and a pipe for its reports.
fn start(reports: PipeWriter) -> Result<Child> {
    let program = std::env::current_exe().map_err(failed("find"))?;
    let descriptor = reports.as_raw_fd();
    let mut command = Command::new(program);
    // In a group of its own, it is not reached by what the launcher sends to all that it started.
    command.args(std::env::args_os().skip(1)).env(REPORTS, descriptor.to_string()).process_group(0);
    if std::env::var_os(UCX_ERRORS).is_none() {
        command.env(UCX_ERRORS, "none");
    }
    // SAFETY: between fork and exec these calls allocate nothing and lock nothing.
    unsafe {
        command.pre_exec(move || {
            // The rank keeps the pipe, and is not left alone if its supervisor is killed.
            libc::fcntl(descriptor, libc::F_SETFD, 0);
            #[cfg(target_os = "linux")]
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    command.spawn().map_err(failed("start"))
}

enum Ended {
    ByItself(ExitStatus),
    Stalled,
    /// The launcher ends all ranks, or is gone itself.
    Told,
}

fn watch(child: &mut Child, pulse: &Pulse) -> std::io::Result<Ended> {
    let launcher = parent_id();
    let (mut heard, mut silent_ticks, mut passed_on) = (0, 0, 0);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::ByItself(status));
        }
        if signals::times_asked() > passed_on {
            passed_on += 1;
            signals::send(child.id() as i32, libc::SIGTERM);
        }
        if signals::times_told() > 0 {
            return Ok(Ended::Told);
        }
        // Ticks are counted, not time: where this process is stopped too, nothing is said.
        let reports = pulse.reports();
        silent_ticks = if reports > heard || reports == 0 { 0 } else { silent_ticks + 1 };
        heard = reports;
        if silent_ticks >= PATIENT_TICKS {
            return Ok(Ended::Stalled);
        }
        if parent_id() != launcher {
            return Ok(Ended::Told);
        }
        std::thread::sleep(TICK);
    }
}

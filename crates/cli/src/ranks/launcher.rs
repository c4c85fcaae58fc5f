//! `--ranks`: starts `mpirun` with the same arguments, and after a fault again with as many ranks as are left.

use super::mpirun::Mpirun;
use super::output::{self, Seen};
use super::{LAUNCHED, fault, signals};
use crate::print;
use crate::resolve::resolve;
use clap::ArgMatches;
use gradus_train::pipeline::check_ranks;
use gradus_train::{Error, Result};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Between looks at the launcher.
const TICK: Duration = Duration::from_millis(50);
/// How long a launcher may take to end all ranks after a fault.
const CLEARING: Duration = Duration::from_secs(3);

/// Trains by so many ranks.
pub fn launch(command_line: &ArgMatches, ranks: usize, restarts: usize) -> Result<()> {
    // What can be refused is refused before anything is started, and once. The folder is chosen for all ranks here.
    let resolved = resolve(command_line)?;
    let stated = resolved.config.stages;
    let mut stages = stated;
    check_ranks(ranks, stages)?;
    let mpirun = Mpirun::find()?;
    signals::listen(false);
    let (folder, mut resumes) = (resolved.config.out, resolved.resume);
    let (mut ranks, mut restarts) = (ranks, restarts);
    loop {
        let ended =
            attempt(mpirun.command(ranks, &arguments(&folder, resumes, (stages != stated).then_some(stages)))?)?;
        if ended.code == 0 {
            return Ok(());
        }
        if !ended.fault || restarts == 0 || ranks == 1 || signals::times_asked() > 0 {
            std::process::exit(ended.code);
        }
        ((ranks, stages), restarts) = (fewer(ranks, stages), restarts - 1);
        resumes |= has_steps(&folder);
        let from = if resumes { "from what was saved" } else { "from the beginning" };
        print::note(format!("going on with {ranks} rank{} {from}", if ranks == 1 { "" } else { "s" }));
    }
}

/// As many ranks as are left of so many and can have as many stages; if there are none, one fewer without stages.
fn fewer(ranks: usize, stages: usize) -> (usize, usize) {
    let fitting = (1..ranks).rev().find(|fewer| fewer.is_multiple_of(stages));
    fitting.map_or((ranks - 1, 1), |fewer| (fewer, stages))
}

/// This process's arguments with the folder of the run before all others, which come after it and so win, and after these the
/// stages, if they are other ones now.
fn arguments(folder: &Path, resumes: bool, stages: Option<usize>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let option = if resumes { "--resume" } else { "--out" };
    arguments.splice(1..1, [option.into(), folder.into()]);
    stages.iter().for_each(|stages| arguments.extend(["--stages".into(), stages.to_string().into()]));
    arguments
}

/// Whether a run has taken a step: then it is gone on with.
fn has_steps(folder: &Path) -> bool {
    std::fs::metadata(folder.join("metrics.jsonl")).is_ok_and(|about| about.len() > 0)
}

/// How the ranks ended together.
struct Ended {
    code: i32,
    fault: bool,
}

fn attempt(mut command: Command) -> Result<Ended> {
    let failed = |action| Error::io(action, Path::new("mpirun"));
    // In a group of its own, it does not get the terminal's Ctrl-C, by which it would end the ranks at once.
    command.env(LAUNCHED, "1").stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    // And a process outside of the terminal's group would be stopped when it reads from there.
    if std::io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    let mut child = command.spawn().map_err(failed("start"))?;
    let (stdout, stderr) = (child.stdout.take().expect("it is piped"), child.stderr.take().expect("it is piped"));
    let seen = Arc::new(Mutex::new(Seen::default()));
    let (of_stdout, of_stderr) = (Arc::clone(&seen), Arc::clone(&seen));
    let readers = [
        thread::spawn(move || output::pass_on(stdout, &of_stdout)),
        thread::spawn(move || output::note(stderr, &of_stderr)),
    ];
    let status = wait(&mut child, &seen).map_err(failed("watch"))?;
    for reader in readers {
        reader.join().expect("reading does not panic");
    }
    let mut seen = output::lock(&seen);
    if !status.success()
        && let Some(line) = seen.explained()
    {
        print::note(format!("error: {line}"));
    }
    let told = seen.code.or(status.code()).unwrap_or(crate::REFUSED.into());
    let failed = if seen.fault { fault::FAULTY.into() } else { told };
    let code = if status.success() { 0 } else { failed };
    Ok(Ended { code, fault: code == i32::from(fault::FAULTY) })
}

/// Waits for the launcher, passes on what this process is asked, and ends it if it cannot end the ranks after a fault.
fn wait(child: &mut Child, seen: &Mutex<Seen>) -> std::io::Result<ExitStatus> {
    let group = -(child.id() as i32);
    let (mut passed_on, mut fault_since) = (signals::times_asked(), None);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if signals::times_asked() > passed_on {
            passed_on += 1;
            // The first time the ranks stop and save; the second time they end.
            signals::send(child.id() as i32, if passed_on == 1 { libc::SIGUSR1 } else { libc::SIGTERM });
        }
        if output::lock(seen).fault {
            let since: Instant = *fault_since.get_or_insert_with(Instant::now);
            if since.elapsed() > CLEARING {
                signals::send(group, libc::SIGKILL);
            }
        }
        thread::sleep(TICK);
    }
}

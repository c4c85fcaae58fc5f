//! How a rank came to its end, in one line that launcher and people read.

use gradus_comm::Peer;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// The status of a process whose rank had a fault.
pub const FAULTY: u8 = 3;

/// What lines about faults end with.
const END: &str = "; what was saved before is whole";

/// What lines for the launcher begin with.
const STATUS: &str = "gradus: a rank ended with status ";

/// A rank that a signal ended; none if it ended by itself, having said why.
pub fn killed(peer: &Peer, step: Option<u64>, status: ExitStatus) -> Option<String> {
    let signal = status.signal()?;
    Some(format!("{peer} was ended by signal {signal}{}{}{END}", named(signal), at(step)))
}

/// A rank that does nothing.
pub fn stalled(peer: &Peer, step: Option<u64>, silent: Duration) -> String {
    format!("{peer} has stood still for {} seconds{}{END}", silent.as_secs(), at(step))
}

/// One that the launcher alone has seen the end of.
pub fn noticed(who: &str, signal: i32) -> String {
    format!("{who} was ended by signal {signal}{}{END}", named(signal))
}

/// Whether a line that a rank's process printed is about a fault.
pub fn is_one(line: &str) -> bool {
    line.starts_with("error: ") && line.ends_with(END)
}

/// What a supervisor tells the launcher of a rank that failed: not all launchers pass the status on.
pub fn status_line(code: i32) -> String {
    format!("{STATUS}{code}")
}

/// The status in such a line.
pub fn status_in(line: &str) -> Option<i32> {
    line.strip_prefix(STATUS)?.parse().ok()
}

fn at(step: Option<u64>) -> String {
    step.map_or(" before the first step".into(), |step| format!(" after step {step}"))
}

fn named(signal: i32) -> &'static str {
    match signal {
        libc::SIGKILL => " (SIGKILL: killed, or out of memory)",
        libc::SIGSEGV => " (SIGSEGV: bad memory access)",
        libc::SIGBUS => " (SIGBUS: a file or disk that is gone)",
        libc::SIGABRT => " (SIGABRT: aborted)",
        libc::SIGILL => " (SIGILL: an instruction that the CPU does not have)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGTERM => " (SIGTERM)",
        libc::SIGINT => " (SIGINT)",
        libc::SIGHUP => " (SIGHUP)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_says_who_where_how_and_when() {
        let peer = Peer { rank: 2, host: Some("node7".into()), pid: Some(123) };
        let line = killed(&peer, Some(17), ExitStatus::from_raw(9)).unwrap();
        let expected =
            "rank 2 (process 123 on node7) was ended by signal 9 (SIGKILL: killed, or out of memory) after step 17";
        assert!(line.starts_with(expected), "{line}");
        assert!(is_one(&format!("error: {line}")) && !is_one("error: no such file"));
        assert_eq!((status_in(&status_line(130)), status_in("step 1")), (Some(130), None));
        assert_eq!(killed(&peer, Some(17), ExitStatus::from_raw(2 << 8)), None, "it has said why itself");
        let line = stalled(&peer, None, Duration::from_secs(4));
        assert!(line.contains("has stood still for 4 seconds before the first step"), "{line}");
    }
}

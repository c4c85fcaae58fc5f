//! What comes out of a launcher: the ranks' own lines are passed on, its own blocks are kept, and told in one line if nothing else
//! says what happened.

use super::fault;
use crate::print;
use std::io::{BufRead, BufReader, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What was seen.
#[derive(Default)]
pub struct Seen {
    /// Whether a rank had a fault.
    pub fault: bool,
    /// An error that a rank told.
    error: Option<String>,
    /// What the first rank that failed ended with.
    pub code: Option<i32>,
    /// Whether a block of the launcher's own goes on.
    in_block: bool,
    /// What may be the beginning of one on standard output.
    held: Vec<u8>,
    /// The lines of all blocks so far.
    blocks: Vec<String>,
}

/// What is locked is whole whatever happens to whoever holds it.
pub fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes standard output on until it ends, byte for byte but for what the launcher itself says.
pub fn pass_on(reader: impl Read, seen: &Mutex<Seen>) {
    let mut reader = BufReader::new(reader);
    loop {
        let mut line = vec![];
        let more = reader.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0);
        let passed = if more { lock(seen).pass(line) } else { std::mem::take(&mut lock(seen).held) };
        // Where nobody reads it any more, the ranks need not be ended for that.
        let _ = print::out(passed);
        if !more {
            return;
        }
    }
}

/// Takes standard error until it ends.
pub fn note(reader: impl Read, seen: &Mutex<Seen>) {
    for line in BufReader::new(reader).split(b'\n').map_while(Result::ok) {
        let taken = lock(seen).take(&String::from_utf8_lossy(&line));
        if let Some(line) = taken {
            print::note(line);
        }
    }
}

/// Lines of one character, as launchers draw them around what they say.
fn is_rule(line: &str) -> bool {
    let line = line.trim();
    line.len() >= 20 && (line.bytes().all(|byte| byte == b'-') || line.bytes().all(|byte| byte == b'='))
}

impl Seen {
    /// Of a line of standard output and what was held before it, what is passed on. MPICH tells of failures there: an empty
    /// line, one of `=` and then what these stand around. A text may have such lines too, with other lines after them.
    fn pass(&mut self, line: Vec<u8>) -> Vec<u8> {
        let text = String::from_utf8_lossy(&line).trim_end().to_string();
        let rule = is_rule(&text) && text.starts_with('=');
        if self.in_block || text.starts_with(MPICH_FAILURE) && self.held.ends_with(b"=\n") {
            self.in_block = !rule;
            self.held.clear();
            self.blocks.push(text.trim_start_matches(['=', ' ']).to_string());
            return vec![];
        }
        if is_launchers(&text) && !self.blocks.is_empty() {
            self.blocks.push(text);
            return vec![];
        }
        let mut passed = vec![];
        // Only an empty line and a rule are held, in this order.
        if !(rule && self.held == b"\n") {
            passed = std::mem::take(&mut self.held);
        }
        match rule || text.is_empty() {
            true => self.held.extend(line),
            false => passed.extend(line),
        }
        passed
    }

    /// A line of standard error as it is passed on, if it is.
    fn take(&mut self, line: &str) -> Option<String> {
        let line = line.trim_end_matches('\r');
        if is_rule(line) {
            self.in_block = !self.in_block;
            return None;
        }
        if let Some(code) = fault::status_in(line) {
            self.code.get_or_insert(code);
            return None;
        }
        if fault::is_one(line) {
            // The others fail by the first.
            let first = !std::mem::replace(&mut self.fault, true);
            return first.then(|| line.to_string());
        }
        if self.in_block || is_launchers(line) {
            self.blocks.push(line.trim().to_string());
            return None;
        }
        let first = self.error.is_none();
        if first && line.starts_with("error: ") {
            self.error = Some(line.to_string());
        }
        // After a fault the others have nothing to add, and after an error not the same again.
        let again = !first && self.error.as_deref() == Some(line);
        (!self.fault && !again).then(|| line.to_string())
    }

    /// What the launcher itself has to say of a failure, if no rank did; and whether it is a fault.
    pub fn explained(&mut self) -> Option<String> {
        if self.fault || self.error.is_some() {
            return None;
        }
        let text = self.blocks.iter().filter(|line| !line.is_empty()).cloned().collect::<Vec<_>>().join(" ");
        if text.contains("not enough slots") {
            let advice = "ask for fewer with --ranks, or for more from the resource manager";
            return Some(format!("the launcher has fewer slots than ranks; {advice}"));
        }
        if let Some(line) = noticed(&text) {
            self.fault = true;
            return Some(line);
        }
        (!text.is_empty()).then(|| format!("the launcher failed: {text}"))
    }
}

/// What MPICH tells of a rank that failed begins so.
const MPICH_FAILURE: &str = "=   BAD TERMINATION";

/// Lines of launchers, and of libraries below MPI, outside of blocks.
fn is_launchers(line: &str) -> bool {
    line.starts_with("YOUR APPLICATION TERMINATED WITH")
        || line.contains(": Forwarding signal ")
        || line.starts_with("This typically refers to a problem with your application")
        || line.starts_with("Please see the FAQ page for debugging suggestions")
        || line.contains("more process") && line.contains("help message")
        || line.contains("Set MCA parameter \"orte_base_help_aggregate\"")
        || line.starts_with('[') && ["HYDU_", "HYD_", "HYDT_", ":0:"].iter().any(|mark| line.contains(mark))
}

/// A process that the launcher saw the end of, when its supervisor was killed too.
fn noticed(text: &str) -> Option<String> {
    let after = |mark: &str| text.split_once(mark).map(|(_, rest)| rest.trim_start());
    let word = |text: &str| text.split([' ', ',', ')', '.']).next().unwrap_or("").to_string();
    let number = |text: &str| word(text).parse::<i32>().ok();
    // Open MPI: "mpirun noticed that process rank 1 with PID 77 on node host exited on signal 9 (Killed)."
    if let (Some(rank), Some(signal)) =
        (after("process rank").and_then(number), after("exited on signal").and_then(number))
    {
        let host =
            after("on node").map_or(String::new(), |host| format!(" (on {})", host.split(' ').next().unwrap_or("")));
        return Some(fault::noticed(&format!("rank {rank}{host}"), signal));
    }
    // MPICH: "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES PID 77 RUNNING AT host EXIT CODE: 9".
    let (pid, code) = (after("PID").and_then(number)?, after("EXIT CODE:").and_then(number)?);
    let host =
        after("RUNNING AT").map_or(String::new(), |host| format!(" on {}", host.split(' ').next().unwrap_or("")));
    Some(fault::noticed(&format!("a rank (its supervisor, process {pid}{host})"), code))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(text: &str) -> (Seen, Vec<String>) {
        let mut seen = Seen::default();
        let passed = text.lines().filter_map(|line| seen.take(line)).collect();
        (seen, passed)
    }

    const OPEN_MPI: &str = "--------------------------------------------------------------------------\n\
        mpirun noticed that process rank 1 with PID 77 on node host.net exited on signal 9 (Killed).\n\
        --------------------------------------------------------------------------\n";

    #[test]
    fn a_fault_is_told_once_and_by_whom_it_was_seen_best() {
        let line = format!("error: {}", fault::noticed("rank 1", 9));
        let text = format!("step 1\n{line}\nerror: rank 1 is gone\n{OPEN_MPI}{line}");
        let (mut seen, passed) = seen(&text);
        assert_eq!(passed, ["step 1".to_string(), line]);
        assert!(seen.fault && seen.explained().is_none());
    }

    #[test]
    fn what_the_launcher_alone_saw_is_told() {
        let (mut open, passed) = seen(OPEN_MPI);
        assert!(passed.is_empty() && !open.fault);
        let line = open.explained().unwrap();
        assert!(open.fault && line.starts_with("rank 1 (on host.net) was ended by signal 9 (SIGKILL"), "{line}");
        let rule = "=".repeat(80);
        let said = format!(
            "step 1\n\n{rule}\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   PID 77 RUNNING AT host\n=   EXIT CODE: 9\n\
             =   CLEANING UP REMAINING PROCESSES\n{rule}\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)\n"
        );
        let (mut mpich, passed) = passed_on(&said);
        assert_eq!(passed, "step 1\n");
        let line = mpich.explained().unwrap();
        assert!(line.contains("process 77 on host) was ended by signal 9"), "{line}");
    }

    /// What is passed on of standard output.
    fn passed_on(text: &str) -> (Seen, String) {
        let mut seen = Seen::default();
        let mut passed = vec![];
        text.split_inclusive('\n').for_each(|line| passed.extend(seen.pass(line.into())));
        passed.extend(&seen.held);
        (seen, String::from_utf8(passed).unwrap())
    }

    #[test]
    fn standard_output_is_passed_on_byte_for_byte() {
        let rule = "=".repeat(80);
        for text in ["", "a\n\n\nb", "\n", "a\r\n\tb\n"] {
            assert_eq!(passed_on(text).1, text);
        }
        for text in [format!("\n{rule}\nA title\n{rule}\n\n"), format!("{rule}\n{rule}\n"), format!("\n\n{rule}\n\n")] {
            assert_eq!(passed_on(&text).1, text);
        }
    }

    #[test]
    fn other_failures_of_the_launcher_are_one_line() {
        let rule = "-".repeat(76);
        let slots =
            format!("{rule}\nThere are not enough slots available in the system to satisfy the 9\nslots\n{rule}\n");
        assert!(seen(&slots).0.explained().unwrap().contains("fewer slots than ranks"));
        let (mut other, _) = seen(&format!("{rule}\nNo network\n\ninterfaces.\n{rule}\n"));
        assert_eq!(other.explained().unwrap(), "the launcher failed: No network interfaces.");
        let (mut told, passed) = seen("error: no such file\nerror: no such file\n");
        assert_eq!((passed.len(), told.explained()), (1, None));
    }
}

//! Ranks that are processes, by every MPI that is installed: the test starts itself under its launcher. Where there is none, it says
//! so and tests nothing.

use gradus_comm::{Collective, Error, Exchange, Fingerprint, Link, Transport, agree, join, leave};
use std::alloc::{GlobalAlloc, Layout, System};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Counts what is allocated.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The environment variable that says what the ranks do.
const CASE: &str = "GRADUS_TEST_CASE";
/// What a rank ends with that has found what it was to find, and does not leave MPI.
const AS_EXPECTED: u8 = 7;

fn main() -> ExitCode {
    match std::env::var(CASE) {
        Ok(case) => rank(&case),
        Err(_) => all_launchers(),
    }
}

fn all_launchers() -> ExitCode {
    let launchers: [(&str, &[&str]); 2] =
        [("mpirun.openmpi", &["--oversubscribe", "--bind-to", "none"]), ("mpiexec.mpich", &[])];
    for (launcher, options) in launchers {
        if Command::new(launcher).arg("--version").output().is_err() {
            println!("skipped: there is no {launcher}; `apt install openmpi-bin mpich` to test it");
            continue;
        }
        for ranks in [1, 2, 3, 4] {
            succeeds(launcher, options, ranks, "collectives", &[]);
        }
        succeeds(launcher, options, 2, "thread", &[]);
        fails(
            launcher,
            options,
            3,
            "silent",
            &[("GRADUS_PATIENCE", "0.3")],
            "rank 1 (process ",
            "silent for 0.3 seconds",
        );
        fails(launcher, options, 2, "unlike", &[], "rank 0 (process ", "sent 3 bytes where 4 are due");
        fails(launcher, options, 2, "differs", &[], "rank 1 (process ", "has another program than rank 0");
        fails(
            launcher,
            options,
            2,
            "join",
            &[("GRADUS_PATIENCE", "soon")],
            "GRADUS_PATIENCE=soon",
            "number of seconds",
        );
        println!("{launcher}: ok");
    }
    ExitCode::SUCCESS
}

/// What ranks of this program say, and with what they end.
fn started(
    launcher: &str,
    options: &[&str],
    ranks: usize,
    case: &str,
    variables: &[(&str, &str)],
) -> (Option<i32>, String) {
    let mut command = Command::new(launcher);
    command.args(options).args(["-n", &ranks.to_string()]).arg(std::env::current_exe().unwrap());
    command.env(CASE, case).envs(variables.iter().copied());
    command.envs([("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]);
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into())
}

fn succeeds(launcher: &str, options: &[&str], ranks: usize, case: &str, variables: &[(&str, &str)]) {
    let (code, said) = started(launcher, options, ranks, case, variables);
    assert!(code == Some(0), "{case} of {ranks} ranks by {launcher}: {code:?}\n{said}");
    assert_eq!(said.matches("rank is done").count(), ranks, "{said}");
}

fn fails(
    launcher: &str,
    options: &[&str],
    ranks: usize,
    case: &str,
    variables: &[(&str, &str)],
    who: &str,
    what: &str,
) {
    let (code, said) = started(launcher, options, ranks, case, variables);
    assert!(code != Some(0), "{case} by {launcher} failed\n{said}");
    assert!(said.contains(who) && said.contains(what), "{case} by {launcher}: {code:?}\n{said}");
}

fn rank(case: &str) -> ExitCode {
    let joined = match join() {
        Ok(joined) => joined,
        Err(error) => return as_expected(error),
    };
    let mut transport = joined.expect("a launcher started this");
    match case {
        "collectives" => collectives(transport.as_mut()),
        "thread" => thread(transport),
        "silent" => return as_expected(silent(transport.as_mut())),
        "unlike" => return as_expected(unlike(transport.as_mut())),
        "differs" => {
            let own = Fingerprint::of(&[transport.rank() as u8]);
            return as_expected(agree(transport.as_mut(), "program", own).unwrap_err());
        }
        other => panic!("there is no case {other}"),
    }
    leave().unwrap();
    println!("rank is done");
    ExitCode::SUCCESS
}

fn as_expected(error: Error) -> ExitCode {
    println!("error: {error}");
    // Others are to find theirs too before the launcher ends them.
    std::thread::sleep(Duration::from_millis(300));
    ExitCode::from(AS_EXPECTED)
}

/// Sizes of messages: none, few, a piece of a message to the byte, and many pieces.
fn size(from: usize, to: usize) -> usize {
    [0, 1, 5, 1 << 20, (5 << 20) + 3, 1000][(from * 3 + to) % 6]
}

fn message(from: usize, to: usize) -> impl Iterator<Item = u8> {
    (0..size(from, to)).map(move |at| (from * 131 + to * 17 + at * 7 + at / 255) as u8)
}

fn places(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut at = vec![0];
    sizes.for_each(|size| at.push(at[at.len() - 1] + size));
    at
}

fn collectives(transport: &mut dyn Transport) {
    let (own, ranks) = (transport.rank(), transport.ranks());
    assert_eq!(transport.peer(own).pid, Some(std::process::id()));
    let sent_at = places((0..ranks).map(|to| size(own, to)));
    let received_at = places((0..ranks).map(|from| size(from, own)));
    let sent: Vec<u8> = (0..ranks).flat_map(|to| message(own, to)).collect();
    let expected: Vec<u8> = (0..ranks).flat_map(|from| message(from, own)).collect();
    let all_at = places((0..ranks).map(|from| size(from, 1)));
    let all_expected: Vec<u8> = (0..ranks).flat_map(|from| message(from, 1)).collect();
    let told_expected: Vec<u8> = message(0, 4).collect();
    let mut received = vec![0; expected.len()];
    let mut all = vec![0; all_expected.len()];
    let mut told = vec![0; told_expected.len()];
    for round in 0..4 {
        received.fill(0);
        all.fill(0);
        all[all_at[own]..all_at[own + 1]].copy_from_slice(&all_expected[all_at[own]..all_at[own + 1]]);
        told.fill(0);
        if own == round % ranks {
            told.copy_from_slice(&told_expected);
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        transport.all_to_all(&sent, &sent_at, &mut received, &received_at).unwrap();
        transport.all_gather(&mut all, &all_at).unwrap();
        transport.broadcast(&mut told, round % ranks).unwrap();
        if own > 0 {
            transport.receive(&mut received[..1], own - 1).unwrap();
            received[0] = expected.first().copied().unwrap_or(0);
        }
        if own + 1 < ranks {
            transport.send(&[9], own + 1).unwrap();
        }
        transport.barrier().unwrap();
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed) - before, 0, "allocations of collectives");
        assert!(received == expected, "all to all, round {round}, rank {own}");
        assert!(all == all_expected, "all gather, round {round}, rank {own}");
        assert!(told == told_expected, "broadcast, round {round}, rank {own}");
    }
    agree(transport, "program", Fingerprint::of(b"same")).unwrap();
    if let Some(link) = Link::measure(transport).unwrap() {
        assert!(link.bytes_per_second > 0.0);
        if own == 0 {
            eprintln!("{ranks} ranks: {:?}, {:.0} MB/s", link.latency, link.bytes_per_second / 1e6);
        }
    }
}

fn thread(transport: Box<dyn Transport>) {
    let ranks = transport.ranks();
    let own = transport.rank();
    let mut exchange = Exchange::start(transport, 4);
    let at: Vec<usize> = (0..=ranks).map(|rank| rank * 100_000).collect();
    let mut buckets: Vec<Vec<u8>> = (0..10).map(|bucket| vec![(bucket * 10 + own) as u8; at[ranks]]).collect();
    let mut last = None;
    for bucket in &mut buckets {
        // SAFETY: buckets and places outlive the wait below, and are not touched before it.
        last = Some(unsafe { exchange.post(Collective::AllGather { all: &mut bucket[..], at: &at[..] }) });
    }
    exchange.wait(last.unwrap()).unwrap();
    for (number, bucket) in buckets.iter().enumerate() {
        for rank in 0..ranks {
            assert!(bucket[at[rank]..at[rank + 1]].iter().all(|byte| *byte == (number * 10 + rank) as u8));
        }
    }
}

/// Rank 1 says nothing.
fn silent(transport: &mut dyn Transport) -> Error {
    if transport.rank() == 1 {
        std::thread::sleep(Duration::from_secs(2));
        std::process::exit(AS_EXPECTED.into());
    }
    let mut bytes = vec![1; 3 << 20];
    let at = [0, 1 << 20, 2 << 20, 3 << 20];
    let error = transport.all_gather(&mut bytes, &at).unwrap_err();
    assert_eq!(transport.barrier().unwrap_err(), error, "there is no going on");
    error
}

/// Ranks that do not agree on a size.
fn unlike(transport: &mut dyn Transport) -> Error {
    let result = match transport.rank() {
        0 => transport.broadcast(&mut [0; 3], 0),
        _ => transport.broadcast(&mut [0; 4], 0),
    };
    match result {
        Err(error) => error,
        Ok(()) => {
            std::thread::sleep(Duration::from_secs(2));
            std::process::exit(AS_EXPECTED.into());
        }
    }
}

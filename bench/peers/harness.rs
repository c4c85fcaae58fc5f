//! What the Rust peers share: the configurations, timing, memory, and the line that they print.

use std::time::{Duration, Instant};

/// The sizes of a GPT-2 and of its batch.
#[derive(Clone, Copy)]
pub struct Sizes {
    pub vocabulary: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub sequence: usize,
    pub batch: usize,
}

/// What the command line asks for: NAME SECONDS, with a name as in `gradus bench --list`.
pub struct Request {
    pub name: String,
    pub sizes: Sizes,
    pub time: Duration,
}

impl Request {
    pub fn read() -> Request {
        let arguments: Vec<String> = std::env::args().collect();
        let [_, name, seconds] = &arguments[..] else { panic!("give the name of a step and seconds") };
        let (vocabulary, width, layers, heads, sequence, batch) = match name.split('/').nth(1) {
            Some("reference") => (788, 256, 6, 8, 128, 32),
            Some("11m") => (4096, 320, 8, 8, 256, 8),
            Some("124m-64") => (50257, 768, 12, 12, 64, 4),
            Some("124m-256") => (50257, 768, 12, 12, 256, 4),
            _ => panic!("there is no step {name:?}"),
        };
        let sizes = Sizes { vocabulary, width, layers, heads, sequence, batch };
        Request { name: name.clone(), sizes, time: Duration::from_secs_f64(seconds.parse().expect("seconds")) }
    }
}

/// Tokens in no order.
pub fn tokens(count: usize, vocabulary: usize) -> Vec<u32> {
    let scattered = (1..=count as u64).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
    scattered.map(|bits| ((bits * vocabulary as u64) >> 32) as u32).collect()
}

/// Takes steps for the time asked for, at least five after two that do not count, and prints what they took.
pub fn measure(request: &Request, mut step: impl FnMut()) {
    (0..2).for_each(|_| step());
    let (begin, mut seconds) = (Instant::now(), vec![]);
    while seconds.len() < 5 || begin.elapsed() < request.time {
        let start = Instant::now();
        step();
        seconds.push(start.elapsed().as_secs_f64());
    }
    let peak = peak_memory();
    println!("{}", serde_json::json!({"name": request.name, "seconds": seconds, "peak_memory_bytes": peak}));
}

/// The most bytes that this process ever held, where the system says it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

//! What the process holds in memory: how much there is, how much is predicted, and how much the system counts.

mod account;
mod available;
pub mod heap;
mod predict;
mod resident;
mod size;

pub use account::{Account, Entry, Kind};
pub use available::available;
pub use predict::{Outside, Stages};
pub use resident::{Resident, resident_in};
pub use size::{Budget, Size};

use std::fs::File;
use std::io::Read;

/// Resident memory now and at its peak, in bytes; zero where the system does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident now.
    pub now: u64,
    /// The most that was ever resident.
    pub peak: u64,
}

impl ProcessMemory {
    /// Asks the system. Allocates nothing.
    pub fn read() -> ProcessMemory {
        let mut text = [0u8; 4096];
        let length = File::open("/proc/self/status").and_then(|mut file| file.read(&mut text)).unwrap_or(0);
        ProcessMemory { now: field(&text[..length], b"VmRSS:"), peak: field(&text[..length], b"VmHWM:") }
    }
}

/// The bytes that a line like `VmRSS:    1234 kB` states.
fn field(text: &[u8], name: &[u8]) -> u64 {
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(name));
    let digits = line.into_iter().flatten().filter(|byte| byte.is_ascii_digit());
    1024 * digits.fold(0, |number, digit| 10 * number + (digit - b'0') as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_in_kilobytes() {
        let text = b"Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t  1024 kB\n";
        assert_eq!((field(text, b"VmRSS:"), field(text, b"VmHWM:"), field(text, b"VmX:")), (1 << 20, 2 << 20, 0));
        #[cfg(target_os = "linux")]
        assert!(ProcessMemory::read().now > 100_000 && ProcessMemory::read().peak >= 100_000);
    }
}

//! What is resident, by where it lies.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;

/// Resident bytes of the process outside of what it mapped for itself, by what they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// The program and its libraries.
    pub files: u64,
    /// The heap.
    pub heap: u64,
    /// The main thread's stack.
    pub stack: u64,
    /// Memory without a name: what was mapped for arenas, large pieces of the heap, stacks of other threads.
    pub unnamed: u64,
}

impl Resident {
    /// Asks the system.
    pub fn read() -> Resident {
        Resident::of(&fs::read_to_string("/proc/self/smaps").unwrap_or_default())
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.files + self.heap + self.stack + self.unnamed
    }

    fn of(smaps: &str) -> Resident {
        let mut resident = Resident::default();
        let mut name = "";
        for line in smaps.lines() {
            if let Some(rest) = line.strip_prefix("Rss:") {
                let kilobytes: u64 = rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
                *resident.kind_mut(name) += 1024 * kilobytes;
            } else if line.split_whitespace().next().is_some_and(|first| !first.ends_with(':')) {
                // Addresses, permissions, offset, device, file number, and a name if there is one.
                name = line.split_whitespace().nth(5).unwrap_or("");
            }
        }
        resident
    }

    fn kind_mut(&mut self, name: &str) -> &mut u64 {
        match name {
            "" => &mut self.unnamed,
            "[heap]" => &mut self.heap,
            "[stack]" => &mut self.stack,
            _ => &mut self.files,
        }
    }
}

/// Pages of which the state is read at a time.
const PAGES_AT_A_TIME: usize = 4096;
const PAGE_BYTES: u64 = 4096;
/// The bits of a page's state that say that it is in memory, or was and is swapped out.
const IS_THERE: u64 = 0b11 << 62;

/// Bytes of the pages between two addresses that are there; pages at the edges count whole. None if the system does not
/// say.
pub fn resident_in(addresses: Range<usize>) -> Option<u64> {
    let mut map = File::open("/proc/self/pagemap").ok()?;
    let first = addresses.start as u64 / PAGE_BYTES;
    let end = (addresses.end as u64).div_ceil(PAGE_BYTES);
    map.seek(SeekFrom::Start(8 * first)).ok()?;
    let mut states = vec![0u64; PAGES_AT_A_TIME];
    let (mut page, mut pages) = (first, 0);
    while page < end {
        let count = (end - page).min(PAGES_AT_A_TIME as u64) as usize;
        map.read_exact(bytemuck::cast_slice_mut(&mut states[..count])).ok()?;
        pages += states[..count].iter().filter(|state| **state & IS_THERE != 0).count() as u64;
        page += count as u64;
    }
    Some(pages * PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_told_apart_by_their_names() {
        let smaps = "5000-6000 r-xp 00000000 fd:01 77 /usr/bin/x y\nSize: 4 kB\nRss:   8 kB\n\
                     7000-8000 rw-p 00000000 00:00 0 [heap]\nRss: 16 kB\nVmFlags: rd wr\n\
                     8000-9000 rw-p 00000000 00:00 0 \nRss: 32 kB\n\
                     9000-a000 rw-p 00000000 00:00 0 [stack]\nRss: 4 kB\n";
        let found = Resident::of(smaps);
        assert_eq!(found, Resident { files: 8192, heap: 16384, stack: 4096, unnamed: 32768 });
        assert_eq!(found.total(), 61440);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_pages_that_were_touched_are_resident() {
        let bytes = 64 << 20;
        let mut map = memmap2::MmapMut::map_anon(bytes).unwrap();
        let start = map.as_ptr() as usize;
        // Some systems do not tell a process of its own pages.
        if resident_in(start..start + bytes).is_none() {
            return;
        }
        assert_eq!(resident_in(start..start + bytes), Some(0));
        map[..bytes / 2].fill(1);
        let touched = resident_in(start..start + bytes).unwrap();
        // Where pages are large, the last one may reach a little further.
        assert!((bytes as u64 / 2..=bytes as u64 / 2 + (2 << 20)).contains(&touched), "{touched}");
        assert!(Resident::read().unnamed >= touched);
    }
}

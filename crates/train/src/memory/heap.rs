//! Giving memory back to the system. What an allocator keeps for later is resident, although nothing is in it.

use std::sync::atomic::{AtomicBool, Ordering};

/// Settings for a process whose memory is counted, to be made before it has threads: one heap for all of them, and
/// large pieces mapped on their own, so that they are gone when they are freed.
pub fn settle() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: these calls only set numbers of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Pieces that are mapped on their own.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BYTES: libc::c_int = 256 << 10;

/// Gives back what was freed. To be called after work that took much, not between steps.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the call gives pages back in which nothing is allocated.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets go of the program's own pages that are as they are in its file: code and constants, of which preparing a run, a
/// checkpoint or a sample touches much that a step does not need. Those that are needed come back from the system's
/// cache of files.
pub fn give_back_code() {
    Code::find().give_back();
}

/// From now on, code is not given back: what drives a device maps files of its own, which are none of the program's.
pub fn keep_code() {
    KEPT.store(true, Ordering::Relaxed);
}

static KEPT: AtomicBool = AtomicBool::new(false);

/// Where the program's pages lie that are as they are in its file.
pub(super) struct Code {
    #[cfg(target_os = "linux")]
    mappings: Vec<std::ops::Range<usize>>,
}

impl Code {
    /// Asks the system.
    pub fn find() -> Code {
        Code {
            #[cfg(target_os = "linux")]
            mappings: match KEPT.load(Ordering::Relaxed) {
                true => vec![],
                false => unchanged_mappings(&std::fs::read_to_string("/proc/self/smaps").unwrap_or_default()),
            },
        }
    }

    /// Lets go of them. Allocates nothing.
    pub fn give_back(&self) {
        #[cfg(target_os = "linux")]
        for mapping in &self.mappings {
            // SAFETY: the mapping is of a file, cannot be written, and has no page that differs from the file, so what
            // is in it is read from there again when it is next touched.
            unsafe {
                libc::madvise(mapping.start as *mut libc::c_void, mapping.len(), libc::MADV_DONTNEED);
            }
        }
    }
}

/// The addresses of what is mapped from files, cannot be written and was not changed by whoever loaded the program, in
/// the text of `/proc/self/smaps`. A page that was changed is `Anonymous`, or `Swap` when it was swapped out since; only
/// where the system says of both that there are none is there none.
#[cfg(target_os = "linux")]
fn unchanged_mappings(smaps: &str) -> Vec<std::ops::Range<usize>> {
    let starts_mapping = |line: &&str| line.split_whitespace().next().is_some_and(|first| !first.ends_with(':'));
    let lines: Vec<&str> = smaps.lines().collect();
    let starts: Vec<usize> = (0..lines.len()).filter(|&at| starts_mapping(&lines[at])).collect();
    let ends = starts.iter().skip(1).copied().chain([lines.len()]);
    let mappings = starts.iter().zip(ends).map(|(&start, end)| &lines[start..end]);
    let none = |lines: &[&str], field: &str| {
        lines.iter().any(|line| line.strip_prefix(field).is_some_and(|kilobytes| kilobytes.trim() == "0 kB"))
    };
    let unchanged = mappings.filter(|lines| none(lines, "Anonymous:") && none(lines, "Swap:"));
    unchanged.filter_map(|lines| file_mapping(lines[0])).collect()
}

/// The addresses of a mapping of a file that cannot be written, from the line that begins with them.
#[cfg(target_os = "linux")]
fn file_mapping(line: &str) -> Option<std::ops::Range<usize>> {
    let mut fields = line.split_whitespace();
    let (addresses, permissions) = (fields.next()?, fields.next()?);
    fields.nth(3).filter(|path| path.starts_with('/') && matches!(permissions, "r--p" | "r-xp"))?;
    let (start, end) = addresses.split_once('-')?;
    Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_mappings_of_files_that_nobody_changed_are_given_back() {
        let fields = |line: &str, fields: &str| format!("{line}\nRss:       8 kB\n{fields}VmFlags: rd mr mw me\n");
        let mapping = |line: &str, changed: u32, swapped: u32| {
            fields(line, &format!("Anonymous:   {changed} kB\nKSM: 0 kB\nSwap:   {swapped} kB\nSwapPss: 0 kB\n"))
        };
        let smaps = [
            mapping("1000-3000 r--p 00000000 fd:01 7 /bin/x", 0, 0),
            mapping("3000-5000 r-xp 00002000 fd:01 7 /bin/x", 0, 0),
            mapping("5000-6000 r--p 00004000 fd:01 7 /bin/x", 4, 0),
            mapping("6000-7000 rw-p 00005000 fd:01 7 /bin/x", 0, 0),
            mapping("7000-8000 r-xp 00000000 00:00 0 [vdso]", 0, 0),
            mapping("9000-a000 r--p 00000000 00:00 0 ", 0, 0),
            // What the loader changed and the system has swapped out is no longer counted as changed.
            mapping("a000-b000 r--p 00000000 fd:01 7 /bin/x", 0, 4),
            // The order of lines is the system's; a line that is missing says nothing.
            fields("b000-c000 r--p 00000000 fd:01 7 /bin/x", "Swap: 0 kB\nAnonymous: 0 kB\n"),
            fields("c000-d000 r--p 00000000 fd:01 7 /bin/x", "Swap: 4 kB\nAnonymous: 0 kB\n"),
            fields("d000-e000 r--p 00000000 fd:01 7 /bin/x", "Anonymous: 0 kB\n"),
        ];
        assert_eq!(unchanged_mappings(&smaps.concat()), [0x1000..0x3000, 0x3000..0x5000, 0xb000..0xc000]);
    }

    #[test]
    fn a_process_goes_on_without_what_it_gave_back() {
        let numbers: Vec<u64> = (0..100_000).collect();
        drop(vec![1u8; 10 << 20]);
        give_back();
        give_back_code();
        assert_eq!(numbers.iter().sum::<u64>(), 4_999_950_000);
    }
}

//! Giving memory back to the system. What an allocator keeps for later is resident, although nothing is in it.

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

/// Lets go of the pages of the program's own code, of which preparing a run has touched much that training does not
/// need: those that are needed come back from the system's cache of files.
pub fn give_back_code() {
    #[cfg(target_os = "linux")]
    for code in code_mappings(&std::fs::read_to_string("/proc/self/maps").unwrap_or_default()) {
        // SAFETY: the mapping is of a file and cannot be written, so what is in it is what is in the file, and is
        // read from there again when it is next touched.
        unsafe {
            libc::madvise(code.start as *mut libc::c_void, code.len(), libc::MADV_DONTNEED);
        }
    }
}

/// The addresses of code that is mapped from files, in the text of `/proc/self/maps`.
#[cfg(target_os = "linux")]
fn code_mappings(maps: &str) -> impl Iterator<Item = std::ops::Range<usize>> {
    maps.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        let (addresses, permissions) = (fields.next()?, fields.next()?);
        fields.nth(3).filter(|path| permissions == "r-xp" && path.starts_with('/'))?;
        let (start, end) = addresses.split_once('-')?;
        Some(usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?)
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_is_mapped_to_be_run_and_never_written() {
        let maps = "1000-3000 r--p 00000000 fd:01 7 /bin/x\n3000-5000 r-xp 00002000 fd:01 7 /bin/x\n\
                    5000-6000 rw-p 00004000 fd:01 7 /bin/x\n7000-8000 r-xp 00000000 00:00 0 [vdso]\n\
                    9000-a000 r-xp 00000000 00:00 0 \n";
        assert_eq!(code_mappings(maps).collect::<Vec<_>>(), [0x3000..0x5000]);
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

//! What the system says of this process's memory: what it holds, and what it may still take.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Resident memory now and at its peak, in bytes; zero where the system does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Resident now.
    pub now: u64,
    /// The most that was ever resident.
    pub peak: u64,
    /// What is resident now of what comes from no file: it cannot be had again when it is given back.
    pub anonymous: u64,
}

impl ProcessMemory {
    /// Asks the system. Allocates nothing.
    pub fn read() -> ProcessMemory {
        let mut text = [0u8; 4096];
        let length = File::open("/proc/self/status").and_then(|mut file| file.read(&mut text)).unwrap_or(0);
        let bytes = |name: &[u8]| field(&text[..length], name);
        ProcessMemory { now: bytes(b"VmRSS:"), peak: bytes(b"VmHWM:"), anonymous: bytes(b"RssAnon:") }
    }

    /// From now on the peak is that of what follows, where the system can forget it.
    pub fn forget_peak() {
        let _ = fs::write("/proc/self/clear_refs", "5");
    }
}

/// The bytes that a line like `VmRSS:    1234 kB` states.
fn field(text: &[u8], name: &[u8]) -> u64 {
    let line = text.split(|&byte| byte == b'\n').find(|line| line.starts_with(name));
    let digits = line.into_iter().flatten().filter(|byte| byte.is_ascii_digit());
    1024 * digits.fold(0, |number, digit| 10 * number + (digit - b'0') as u64)
}

/// A limit that is as good as none.
const UNLIMITED: u64 = 1 << 60;

/// Bytes that the process may still take: the least of what the machine has free, what the control groups that the
/// process is in leave, and what its own limits leave. Where the system says nothing, there is no limit.
pub fn available_memory() -> u64 {
    let machine = fs::read("/proc/meminfo").map_or(0, |text| field(&text, b"MemAvailable:"));
    let machine = if machine == 0 { UNLIMITED } else { machine };
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = left_in_groups(&groups, Path::new("/sys/fs/cgroup"));
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limits = left_of_limits(&limits, &fs::read("/proc/self/status").unwrap_or_default());
    machine.min(groups).min(limits)
}

/// What a version of control groups calls its files.
struct GroupFiles {
    limit: &'static str,
    used: &'static str,
    /// What `memory.stat` calls files that were read, in the group and all groups inside.
    files_read: [&'static str; 2],
}

const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files_read: ["total_inactive_file", "total_active_file"],
};
const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", used: "memory.current", files_read: ["inactive_file", "active_file"] };

/// What the groups named in `/proc/self/cgroup` leave, and those around them.
fn left_in_groups(groups: &str, root: &Path) -> u64 {
    let left = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" => Some(left_in_group(root.to_path_buf(), group, &VERSION_2)),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                Some(left_in_group(root.join("memory"), group, &VERSION_1))
            }
            _ => None,
        }
    });
    left.min().unwrap_or(UNLIMITED)
}

/// What is left in a group and all around it. In a container the group's own path may not be there: its files are at
/// the root then, which is looked at anyhow.
fn left_in_group(root: PathBuf, group: &str, files: &GroupFiles) -> u64 {
    let group = root.join(group.trim_start_matches('/'));
    let around = group.ancestors().take_while(|folder| folder.starts_with(&root));
    around.map(|folder| left_in_folder(folder, files)).min().unwrap_or(UNLIMITED)
}

fn left_in_folder(folder: &Path, files: &GroupFiles) -> u64 {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    let Some(limit) = number(files.limit).filter(|limit| *limit < UNLIMITED) else { return UNLIMITED };
    // Files that were read are counted too, but make room when it is needed.
    let statistics = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let files_read = statistics.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        bytes.parse::<u64>().ok().filter(|_| files.files_read.contains(&name))
    });
    let used = number(files.used).unwrap_or(0).saturating_sub(files_read.sum());
    limit.saturating_sub(used)
}

/// What the process's own limits on addresses and on data leave, from `/proc/self/limits` and `/proc/self/status`.
fn left_of_limits(limits: &str, status: &[u8]) -> u64 {
    let left = |name: &str, used: &[u8]| {
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let limit = line.split_whitespace().next()?.parse::<u64>().ok()?;
        Some(limit.saturating_sub(field(status, used)))
    };
    let lefts = [left("Max address space", b"VmSize:"), left("Max data size", b"VmData:")];
    lefts.into_iter().flatten().min().unwrap_or(UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_in_kilobytes() {
        let text = b"Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t  1024 kB\n";
        assert_eq!((field(text, b"VmRSS:"), field(text, b"VmHWM:"), field(text, b"VmX:")), (1 << 20, 2 << 20, 0));
        #[cfg(target_os = "linux")]
        {
            let ProcessMemory { now, peak, anonymous } = ProcessMemory::read();
            assert!(anonymous > 100_000 && now > anonymous && peak >= now, "{anonymous} of {now}, {peak} at most");
        }
    }

    #[test]
    fn the_machine_leaves_something() {
        let left = available_memory();
        assert!(left > 1 << 20, "{left}");
    }

    #[test]
    fn the_tightest_group_counts_in_both_versions() {
        let folder = std::env::temp_dir().join(format!("gradus-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "1000\n");
        write("a/memory.current", "700\n");
        write("a/memory.stat", "anon 600\ninactive_file 70\nactive_file 30\n");
        assert_eq!(left_in_groups("0::/a/b\n", &folder), 400);
        assert_eq!(left_in_groups("0::/elsewhere\n", &folder), UNLIMITED);
        write("memory/c/memory.limit_in_bytes", "500\n");
        write("memory/c/memory.usage_in_bytes", "260\n");
        write("memory/c/memory.stat", "inactive_file 1\ntotal_inactive_file 40\ntotal_active_file 20\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(left_in_groups("4:cpu,memory:/c\n3:devices:/\n", &folder), 300);
        assert_eq!(left_in_groups("4:memory:/c\n0::/a\n", &folder), 300);
        assert_eq!(left_in_groups("", &folder), UNLIMITED);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn limits_of_the_process_count() {
        let status = b"VmSize:\t    100 kB\nVmData:\t     10 kB\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax data size   unlimited  unlimited  bytes\n";
        assert_eq!(left_of_limits(limits, status), UNLIMITED);
        let limits = "Max data size   20480  unlimited  bytes\nMax address space   409600  409600  bytes\n";
        assert_eq!(left_of_limits(limits, status), 10 * 1024);
    }
}

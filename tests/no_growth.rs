//! Programs that are made and dropped leave nothing behind.

mod support;

use gradus::backend::Cpu;
use support::training;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("/proc/self/statm");
    let pages: usize = text.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("a count of pages");
    pages * 4096
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("/proc/self/task").count()
}

#[test]
#[cfg(target_os = "linux")]
fn two_hundred_programs_do_not_grow_the_process() {
    let once = || {
        let mut program = training::compile(&Cpu::new(2).unwrap());
        training::write_batch(&mut program, 0);
        program.run("step").unwrap();
        program.plan().regions.total()
    };
    let arena = (0..20).map(|_| once()).max().unwrap();
    let (memory, count) = (resident(), threads());
    for _ in 0..200 {
        once();
    }
    let growth = resident().saturating_sub(memory);
    // One arena leaked would show; so would a hundredth of one at each round.
    assert!(growth < arena, "200 programs of {arena} bytes grew the process by {growth}");
    assert_eq!(threads(), count, "threads are left behind");
}

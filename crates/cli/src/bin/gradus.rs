//! The `gradus` command.

use gradus_train::memory::guard::Guarded;
use gradus_train::profiler::Counting;

/// A stated budget is kept, whatever a library does, and what a profiled step allocates is counted.
#[global_allocator]
static ALLOCATOR: Counting<Guarded> = Counting(Guarded);

fn main() -> std::process::ExitCode {
    gradus_cli::main()
}

//! The `gradus` command.

use gradus_train::memory::guard::Guarded;

/// A stated budget is kept, whatever a library does.
#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

fn main() -> std::process::ExitCode {
    gradus_cli::main()
}

//! The `gradus` command.

fn main() -> std::process::ExitCode {
    gradus_cli::main()
}

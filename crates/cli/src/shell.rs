//! `gradus completions` and `gradus man`: made from the definition of the options.

use crate::args::Cli;
use crate::print;
use clap::CommandFactory;
use clap_complete::Shell;
use gradus_train::{Error, Result};
use std::path::Path;

/// Prints the script that completes commands and options in a shell.
pub fn completions(shell: Shell) -> Result<()> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "gradus", &mut script);
    print::out(&script)
}

/// Prints the man page: the command, then each of its commands.
pub fn man() -> Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = vec![];
    for command in std::iter::once(&command).chain(command.get_subcommands()) {
        let rendered = clap_mangen::Man::new(command.clone()).render(&mut page);
        rendered.map_err(Error::io("write", Path::new("the man page")))?;
    }
    print::out(&page)
}

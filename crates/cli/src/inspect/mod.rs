//! `gradus inspect`: what a folder holds, and how runs compare, read from their files alone.

mod compare;
mod figures;
mod report;
mod state;
mod stated;

use crate::args::InspectArgs;
use crate::charts::Glyphs;
use crate::print;
use gradus_train::Result;
use std::io::IsTerminal;

/// Columns of what is printed elsewhere than on a terminal, and the most of them on one.
const COLUMNS: usize = 80;
const COLUMNS_MAX: usize = 120;

/// Prints what a run, checkpoint or model folder holds; of several runs, how they compare.
pub fn run(args: &InspectArgs) -> Result<()> {
    let glyphs = Glyphs::of_locale();
    print::text(match &args.folders[..] {
        [folder] => report::report(folder, columns(), glyphs)?,
        folders => compare::report(folders, columns(), glyphs)?,
    })
}

fn columns() -> usize {
    let terminal = std::io::stdout().is_terminal().then(|| console::Term::stdout().size_checked()).flatten();
    terminal.map_or(COLUMNS, |(_, columns)| usize::from(columns).min(COLUMNS_MAX))
}

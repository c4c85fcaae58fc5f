//! The `gradus` command: one file for each of its commands, which resolve options, call the library and present.

mod args;
mod background;
mod bench;
mod charts;
mod classify;
mod curvature;
mod dashboard;
mod defaults;
mod eval;
mod folders;
mod generate;
mod in_options;
mod inspect;
mod interrupt;
mod layers;
mod library;
mod no_effect;
mod numbers;
mod page;
mod plan;
mod print;
mod profile;
#[cfg(unix)]
mod ranks;
#[cfg(not(unix))]
#[path = "no_ranks.rs"]
mod ranks;
mod resolve;
mod settings;
mod shell;
mod table;
mod terminal;
mod tokenize;
mod train;
mod train_images;
mod values;

use args::{Cli, Command};
use clap::{ArgMatches, CommandFactory, FromArgMatches};
use gradus_train::config::TrainConfig;
use gradus_train::memory::heap;
use gradus_train::run::Observer;
use gradus_train::{Error, Result};
use std::process::ExitCode;

/// What a run ends with whose numbers are of no more use.
const DIVERGED: u8 = 1;
/// What ends with something the user can put right.
const REFUSED: u8 = 2;

/// What the program does, from its arguments to its exit code.
pub fn main() -> ExitCode {
    heap::settle();
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) if !error.use_stderr() => {
            // Help or the version was asked for; a reader that has gone away is no reason to complain.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return refuse(&one_line(&error.to_string()), REFUSED),
    };
    match run(&matches) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // What was begun makes room for what it takes to end.
            heap::give_back_code();
            ranks::before_telling(&error);
            refuse(&told(&error), code(&error))
        }
    }
}

/// Trains as `gradus train` does with these options, and tells someone else of everything too.
pub fn train(options: &[&str], also: &mut dyn Observer) -> Result<()> {
    let matches = layers::train_options().try_get_matches_from(options);
    train::run(&matches.map_err(|error| Error::Config(one_line(&error.to_string())))?, also, None)
}

/// The run that options of `gradus plan` state, without its folder. No text is read and nothing is written.
pub fn planned(options: &[&str]) -> Result<TrainConfig> {
    let matches = layers::train_options().try_get_matches_from(options);
    let matches = matches.map_err(|error| Error::Config(one_line(&error.to_string())))?;
    Ok(resolve::resolve_for_planning(&matches)?.config)
}

fn run(matches: &ArgMatches) -> Result<()> {
    let cli = Cli::from_arg_matches(matches).map_err(|error| Error::Config(one_line(&error.to_string())))?;
    match &cli.command {
        None => ranks::take_part(&layers::nothing_given()),
        Some(Command::Train(_)) => ranks::take_part(matches.subcommand().expect("the command is there").1),
        Some(Command::Plan(_)) => plan::run(matches.subcommand().expect("the command is there").1),
        Some(Command::Profile(_)) => profile::run(matches.subcommand().expect("the command is there").1),
        Some(Command::TrainImages(args)) => train_images::run(args),
        Some(Command::Classify(args)) => classify::run(args),
        Some(Command::Generate(args)) => generate::run(args),
        Some(Command::Eval(args)) => eval::run(args),
        Some(Command::Curvature(args)) => curvature::run(args),
        Some(Command::Tokenize(args)) => tokenize::run(args),
        Some(Command::Inspect(args)) => inspect::run(args),
        Some(Command::Dashboard(args)) => dashboard::run(args),
        Some(Command::Bench(args)) => bench::run(args),
        Some(Command::Completions(args)) => shell::completions(args.shell),
        Some(Command::Man) => shell::man(),
    }
}

/// An error of the library as the command tells it.
fn told(error: &Error) -> String {
    in_options::in_options(&one_line(&error.to_string()))
}

/// What a run ends with that ended so.
fn code(error: &Error) -> u8 {
    match error {
        Error::Diverged(_) => DIVERGED,
        Error::Stopped(_) => interrupt::ENDED,
        Error::Ranks(error) if error.is_fault() => ranks::fault::FAULTY,
        _ => REFUSED,
    }
}

fn refuse(problem: &str, code: u8) -> ExitCode {
    print::note(format!("error: {problem}"));
    ExitCode::from(code)
}

/// A message of several lines as one, without what it is said to be and without advice on usage.
fn one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let useful = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let joined = useful.map(|line| line.strip_prefix("tip: ").map_or(line.to_string(), |tip| format!("({tip})")));
    let text = joined.collect::<Vec<_>>().join(" ");
    text.strip_prefix("error: ").unwrap_or(&text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_stated_option_is_there() {
        let options = "model preset vocab-size width layers heads kv-heads feed-forward sequence batch micro-batch steps \
             epochs time learning-rate warmup-steps schedule weight-decay optimizer clip dropout tie-embeddings precision \
             device threads seed tokenizer validation eval-every sample-every save-every keep out resume init quiet json config \
             text-field beta1 beta2 min-learning-rate-share memory dashboard tensorboard health ranks stages restart";
        has_options("train", options);
        has_options(
            "plan",
            "preset vocab-size sequence batch micro-batch optimizer clip precision device gpu threads memory out json",
        );
        has_options("profile", "preset batch precision device memory steps out json trace save-speeds speeds");
        has_options("generate", "prompt max-tokens temperature top-k top-p seed count precision");
        let options = "model size init batch micro-batch steps learning-rate memory precision threads seed out resume dashboard \
             eval-every save-every skip-broken crop flip colour mixup layout";
        has_options("train-images", options);
        has_options("classify", "top threads device json skip-broken");
        has_options("curvature", "sequences sequence steps samples seed device threads memory out json");
        has_options("dashboard", "port");
        has_options("bench", "list threads time profile save baseline json");
    }

    fn has_options(command: &str, names: &str) {
        let cli = Cli::command();
        let command = cli.find_subcommand(command).expect("the command");
        for name in names.split_whitespace() {
            let option = command.get_arguments().find(|option| option.get_long() == Some(name));
            assert!(option.is_some_and(|option| option.get_help().is_some()), "--{name} with help");
        }
    }

    #[test]
    fn every_command_is_there() {
        for name in [
            "train",
            "plan",
            "profile",
            "train-images",
            "classify",
            "generate",
            "eval",
            "curvature",
            "tokenize",
            "inspect",
            "dashboard",
            "bench",
            "completions",
            "man",
        ] {
            assert!(Cli::command().find_subcommand(name).is_some(), "{name}");
        }
    }

    #[test]
    fn messages_become_one_line() {
        let message = "error: unexpected argument\n\n  tip: try '--width'\n\nUsage: gradus\n\nFor more information";
        assert_eq!(one_line(message), "unexpected argument (try '--width')");
        assert_eq!(one_line("a\n  [b]"), "a [b]");
    }
}

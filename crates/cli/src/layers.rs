//! Options from files: each `key = value` becomes the option of that name, read by the same definition as the
//! command line, which wins.

use crate::args::TrainArgs;
use crate::one_line;
use clap::{ArgMatches, Args, FromArgMatches};
use gradus_train::{Error, Result};
use std::collections::HashSet;
use std::path::Path;
use toml::de::DeTable;
use toml::{Table, Value};

/// Options that only the command line can give: they are about this start of a run.
const COMMAND_LINE_ONLY: [&str; 5] = ["config", "resume", "ranks", "stages", "restart"];
/// The only one that is not an option but a list of paths.
const CORPUS: &str = "corpus";
/// Options that state the same thing: one of them replaces the others.
const ALTERNATIVES: [&[&str]; 2] = [&["steps", "epochs", "time"], &["decay_steps", "decay_time"]];

/// The options of a file.
pub struct FileOptions {
    entries: Vec<FileEntry>,
}

/// A key of a file, as the command line would give it.
struct FileEntry {
    id: String,
    /// The option with its value, or the paths of the corpus.
    arguments: Vec<String>,
}

impl FileOptions {
    /// Reads a file of options, each checked by itself so that an error names its line.
    pub fn read(path: &Path) -> Result<FileOptions> {
        let text = std::fs::read_to_string(path).map_err(Error::io("read", path))?;
        FileOptions::parse(&text).map_err(|(place, problem)| {
            let line = place.map_or(String::new(), |place| format!(", line {}", line_of(&text, place)));
            Error::Config(format!("{}{line}: {problem}", path.display()))
        })
    }

    /// The options of a text, or the place in it and what is wrong there.
    fn parse(text: &str) -> Result<FileOptions, (Option<usize>, String)> {
        let broken = |error: toml::de::Error| (error.span().map(|span| span.start), one_line(error.message()));
        let places = DeTable::parse(text).map_err(broken)?;
        let values: Table = text.parse().map_err(broken)?;
        let mut entries = vec![];
        for key in places.get_ref().keys() {
            let entry = entry(key.get_ref(), &values[key.get_ref().as_ref()]);
            entries.push(entry.map_err(|problem| (Some(key.span().start), problem))?);
        }
        parse(&entries.iter().collect::<Vec<_>>()).map_err(|problem| (None, problem))?;
        Ok(FileOptions { entries })
    }
}

/// The options of the command line and, where it says nothing, those of files, the first file first.
pub fn merged(command_line: &ArgMatches, files: &[FileOptions]) -> Result<TrainArgs> {
    let mut given: HashSet<&str> = command_line.ids().map(|id| id.as_str()).collect();
    let mut used: Vec<&FileEntry> = vec![];
    for file in files {
        let missing: Vec<&FileEntry> = file.entries.iter().filter(|entry| !is_given(&given, &entry.id)).collect();
        given.extend(missing.iter().map(|entry| &entry.id[..]));
        used.extend(missing);
    }
    let matches = parse(&used).map_err(Error::Config)?;
    let unreadable = |error: clap::Error| Error::Config(one_line(&error.to_string()));
    let mut args = TrainArgs::from_arg_matches(&matches).map_err(unreadable)?;
    args.update_from_arg_matches(command_line).map_err(unreadable)?;
    Ok(args)
}

fn is_given(given: &HashSet<&str>, id: &str) -> bool {
    let alone = [id];
    let same = ALTERNATIVES.into_iter().find(|options| options.contains(&id)).unwrap_or(&alone);
    same.iter().any(|id| given.contains(id))
}

/// The definition of the options of a training run, by themselves.
pub fn train_options() -> clap::Command {
    TrainArgs::augment_args(clap::Command::new("train").no_binary_name(true).disable_help_flag(true))
}

/// A command line that says nothing.
pub fn nothing_given() -> ArgMatches {
    train_options().get_matches_from(std::iter::empty::<String>())
}

fn parse(entries: &[&FileEntry]) -> Result<ArgMatches, String> {
    let (corpus, options): (Vec<&FileEntry>, Vec<&FileEntry>) = entries.iter().partition(|entry| entry.id == CORPUS);
    let mut arguments: Vec<&str> = options.iter().flat_map(|entry| &entry.arguments).map(|text| &text[..]).collect();
    arguments.push("--");
    arguments.extend(corpus.iter().flat_map(|entry| &entry.arguments).map(|text| &text[..]));
    train_options().try_get_matches_from(arguments).map_err(|error| one_line(&error.to_string()))
}

fn entry(key: &str, value: &Value) -> Result<FileEntry, String> {
    let options = train_options();
    let name = |option: &clap::Arg| option.get_long().unwrap_or(option.get_id().as_str()).to_string();
    let names: Vec<String> =
        options.get_arguments().map(name).filter(|name| !COMMAND_LINE_ONLY.contains(&&name[..])).collect();
    if !names.iter().any(|name| name == key) {
        return Err(unknown_key(key, &names));
    }
    let texts = match value {
        Value::Array(values) if key == CORPUS => values.iter().map(scalar).collect::<Option<Vec<String>>>(),
        value => scalar(value).map(|text| vec![text]),
    };
    let texts = texts.ok_or_else(|| format!("`{key}` takes one plain value, not this {}", value.type_str()))?;
    let arguments = match key {
        CORPUS => texts,
        _ => texts.iter().map(|text| format!("--{key}={text}")).collect(),
    };
    let entry = FileEntry { id: key.replace('-', "_"), arguments };
    parse(&[&entry])?;
    Ok(entry)
}

/// A value as the command line would have it.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(_) | Value::Float(_) | Value::Boolean(_) => Some(value.to_string()),
        _ => None,
    }
}

fn unknown_key(key: &str, names: &[String]) -> String {
    let distance = |name: &&String| strsim::damerau_levenshtein(key, name);
    match names.iter().min_by_key(distance) {
        Some(nearest) if distance(&nearest) <= 1 + key.len() / 3 => {
            format!("`{key}` is not an option; did you mean `{nearest}`?")
        }
        _ => format!("`{key}` is not an option; see `gradus train --help` for those there are"),
    }
}

/// The line of a place in a text, from 1.
fn line_of(text: &str, place: usize) -> usize {
    text.bytes().take(place).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command_line(arguments: &[&str]) -> ArgMatches {
        train_options().try_get_matches_from(arguments).unwrap()
    }

    fn args(arguments: &[&str], files: &[&str]) -> TrainArgs {
        let files: Vec<FileOptions> = files.iter().map(|text| FileOptions::parse(text).ok().unwrap()).collect();
        merged(&command_line(arguments), &files).unwrap()
    }

    /// The line and the problem of a text that is refused.
    fn refused(text: &str) -> (Option<usize>, String) {
        let (place, problem) = FileOptions::parse(text).err().expect("refused");
        assert!(!problem.contains('\n'), "{problem}");
        (place.map(|place| line_of(text, place)), problem)
    }

    #[test]
    fn the_command_line_wins_over_the_file_and_that_over_the_saved_one() {
        let merged = args(&["--width", "64"], &["width = 32\nheads = 2", "width = 16\nheads = 4\nlayers = 3"]);
        assert_eq!((merged.width, merged.heads, merged.layers), (Some(64), Some(2), Some(3)));
    }

    #[test]
    fn every_kind_of_value_is_taken() {
        let file = "clip = 1.5\ntime = '10m'\ntie-embeddings = false\nquiet = true\ncorpus = ['a.txt', '-b.txt']";
        let merged = args(&[], &[file]);
        assert_eq!(merged.clip, Some(gradus_train::config::Clip::Norm(1.5)));
        assert_eq!(merged.time.map(|time| time.0), Some(600.0));
        assert_eq!((merged.tie_embeddings, merged.quiet), (Some(false), Some(true)));
        assert_eq!(merged.corpus, [Path::new("a.txt"), Path::new("-b.txt")]);
        assert_eq!(args(&[], &["corpus = 'c.txt'"]).corpus, [Path::new("c.txt")]);
    }

    #[test]
    fn flags_and_corpora_of_the_command_line_replace_those_of_the_file() {
        let merged = args(&["--quiet=false", "x.txt"], &["quiet = true\njson = true\ncorpus = 'a.txt'"]);
        assert_eq!((merged.quiet, merged.json), (Some(false), Some(true)));
        assert_eq!(merged.corpus, [Path::new("x.txt")]);
        assert_eq!(args(&["--quiet"], &["json = true"]).quiet, Some(true));
    }

    #[test]
    fn one_length_replaces_another() {
        let merged = args(&["--time", "5m"], &["steps = 100"]);
        assert_eq!((merged.time.map(|time| time.0), merged.steps), (Some(300.0), None));
        let (line, problem) = refused("steps = 100\nepochs = 2");
        assert!(line.is_none() && problem.contains("--steps") && problem.contains("--epochs"), "{problem}");
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_and_its_line() {
        let (line, problem) = refused("width = 8\n\nlearning_rate = 0.1");
        assert_eq!(line, Some(3));
        assert_eq!(problem, "`learning_rate` is not an option; did you mean `learning-rate`?");
        assert!(refused("zzzzzzzz = 1").1.contains("--help"));
        assert!(refused("resume = true").1.contains("not an option"));
    }

    #[test]
    fn a_wrong_value_is_refused_with_its_line() {
        let (line, problem) = refused("heads = 2\nwidth = 'wide'");
        assert_eq!(line, Some(2));
        assert!(problem.contains("'wide'") && problem.contains("--width"), "{problem}");
        assert!(refused("width = [1, 2]").1.contains("not this array"));
        assert_eq!(refused("heads = 2\nwidth = = 3").0, Some(2));
    }
}

//! `gradus train`.

use crate::dashboard::Reserved;
use crate::in_options::InOptions;
use crate::numbers::{bytes, bytes_to_three_digits, count, duration, rounded};
use crate::page::Page;
use crate::print::quoted;
use crate::resolve::{Resolved, resolve};
use crate::{interrupt, print, terminal};
use clap::ArgMatches;
use gradus_comm::Transport;
use gradus_train::Result;
use gradus_train::config::TrainConfig;
use gradus_train::memory::{Account, Kind};
use gradus_train::ranks::Ranks;
use gradus_train::run::{Event, Observer, Stop, Summary};
use gradus_train::training::{follow, train_on};
use std::path::Path;

/// Trains as the options say, as one of several ranks if there is a transport; someone else is told of everything too.
pub fn run(command_line: &ArgMatches, also: &mut dyn Observer, transport: Option<Box<dyn Transport>>) -> Result<()> {
    let ranks = match transport.map(Ranks::new) {
        Some(ranks) if !ranks.is_first() => {
            // The first decides what the run is and when it stops; whoever asks, asks all of them.
            interrupt::listen(None);
            return follow(ranks, also).map(drop);
        }
        ranks => ranks,
    };
    let resolved = resolve(command_line)?;
    let mut page = match resolved.dashboard {
        None => Page::None,
        Some(stated) => Page::Reserved(Reserved::at(stated)?),
    };
    let trained = train(resolved, ranks, &mut page, also);
    page.end();
    trained
}

fn train(resolved: Resolved, ranks: Option<Ranks>, page: &mut Page, also: &mut dyn Observer) -> Result<()> {
    let Resolved { config, resume, quiet, json, notes, .. } = resolved;
    interrupt::listen(Some("stopping after this step and saving"));
    let mut observer = terminal::observer(quiet, json, "tokens");
    let mut in_options = InOptions(observer.as_mut());
    let mut noting = Noting { observer: &mut in_options, also, notes, page, folder: &config.out };
    let summary = train_on(ranks, &config, resume, &mut noting)?;
    // The bar goes before the last lines come.
    drop(observer);
    let mut lines = String::new();
    if !json {
        lines += &(summary_line(&summary, "tokens") + "\n");
    }
    if !json && !quiet {
        lines += &(account_table(&summary.account) + &next_command(&config, &summary) + "\n");
    }
    // A terminal that is closed, and so ended the run, takes no last lines.
    print::text(lines).or_else(|error| if interrupt::asked() { Ok(()) } else { Err(error) })
}

/// Says what was chosen for the user when the run begins: one that cannot begin says only why.
struct Noting<'a> {
    observer: &'a mut dyn Observer,
    also: &'a mut dyn Observer,
    notes: Vec<String>,
    page: &'a mut Page,
    folder: &'a Path,
}

impl Observer for Noting<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match self.page.open(self.folder) {
            Some(Ok(told)) => self.notes.push(told),
            Some(Err(problem)) => self.observer.event(&Event::Warning(&problem)),
            None => {}
        }
        self.observer.event(event);
        self.also.event(event);
        if let Event::Started { .. } = event {
            self.notes.iter().for_each(|note| self.observer.event(&Event::Note(note)));
        }
    }

    fn should_stop(&self) -> Stop {
        match self.also.should_stop() {
            Stop::No => self.observer.should_stop(),
            stop => stop,
        }
    }
}

/// What a run came to, on so many of what it counts.
pub fn summary_line(summary: &Summary, unit: &str) -> String {
    let ended = if summary.interrupted { "stopped and saved" } else { "trained" };
    let validation = summary.validation_loss.map_or(String::new(), |loss| format!(", validation loss {loss:.4}"));
    let right = summary.accuracy.map_or(String::new(), |accuracy| format!(", {:.1} % right", 100.0 * accuracy.top1));
    // A run that was at its end already has taken no step.
    let loss = if summary.loss.is_finite() { format!("loss {:.4}", summary.loss) } else { "no new loss".into() };
    format!(
        "{ended}: {} steps, {} {unit} in {}: {loss}{validation}{right}, {} {unit}/s, peak memory {}: {}",
        summary.steps,
        rounded(summary.tokens),
        duration(summary.seconds),
        count(summary.tokens_per_second as u64),
        bytes(summary.peak_memory_bytes),
        summary.run_folder.display()
    )
}

/// What was predicted of the memory and what was measured while training, by kind.
pub fn account_table(account: &Account) -> String {
    let mut table = format!("{:14}{:>10}{:>10}\n", "memory", "predicted", "measured");
    let mut row = |name: &str, predicted: &str, measured: u64| {
        table += &format!("  {name:12}{predicted:>10}{:>10}\n", bytes_to_three_digits(measured));
    };
    for kind in Kind::ALL {
        row(kind.name(), &bytes_to_three_digits(account[kind].predicted), account[kind].measured);
    }
    row("unexplained", "", account.unexplained().max(0) as u64);
    row("peak", &bytes_to_three_digits(account.predicted()), account.peak);
    table
}

/// What the user will want to do next, to be copied.
fn next_command(config: &TrainConfig, summary: &Summary) -> String {
    let quoted = |path: &std::path::Path| quoted(&path.display().to_string());
    if summary.interrupted {
        return format!("go on with:      gradus train --resume {}", quoted(&summary.run_folder));
    }
    let prompt = if config.corpus.is_empty() { "Once upon a time" } else { "The" };
    format!("sample from it:  gradus generate {} --prompt \"{prompt}\"", quoted(&summary.run_folder.join("model")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(interrupted: bool) -> Summary {
        let mut account = Account::default();
        account.peak = 85_000_000;
        Summary {
            steps: 20,
            tokens: 2_000,
            loss: 1.5,
            validation_loss: Some(1.75),
            accuracy: None,
            seconds: 61.0,
            tokens_per_second: 1_234.0,
            peak_memory_bytes: 85_000_000,
            run_folder: "runs/my text-1".into(),
            interrupted,
            account,
        }
    }

    #[test]
    fn the_end_says_what_came_out_and_what_to_do_next() {
        let config = resolve(&crate::layers::nothing_given()).unwrap().config;
        let line = summary_line(&summary(false), "tokens");
        assert!(line.starts_with("trained: 20 steps") && line.contains("validation loss 1.7500"), "{line}");
        let table = account_table(&summary(false).account);
        assert_eq!(table.lines().count(), 10, "a line a kind, and three more:\n{table}");
        assert!(table.contains("unexplained") && table.lines().last().unwrap().ends_with("85.0 MB"), "{table}");
        let command = next_command(&config, &summary(false));
        assert!(command.ends_with("gradus generate 'runs/my text-1/model' --prompt \"Once upon a time\""), "{command}");
        let command = next_command(&config, &summary(true));
        assert!(command.ends_with("gradus train --resume 'runs/my text-1'"), "{command}");
    }
}

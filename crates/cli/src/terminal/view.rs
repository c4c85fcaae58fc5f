//! What is shown of a run as it stands: a few lines as wide as the terminal, or one.

use super::step_line::{Pace, StepFigures};
use super::trend::Trend;
use crate::charts::Glyphs;
use crate::numbers::{bytes, duration};
use gradus_train::run::StepReport;
use gradus_train::watch::Verdict;
use std::time::Instant;

/// Cells of the bar in front of the first line, and of the one that shows the memory.
const BAR_CELLS: usize = 12;
/// Terminals narrower than this have no bar in front of the first line.
const NARROW: usize = 60;
/// Most cells of the losses.
const LOSS_CELLS: usize = 40;
/// Columns of what the lines after the first are of.
const LABEL: usize = 8;
/// A terminal with fewer rows shows the first line alone.
const ROWS_MIN: usize = 6;

/// What a run is doing.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Something before the first step, and how much of it is done where that is known.
    Preparing(String, Option<f64>),
    /// Steps.
    Training,
    /// After a step, so many parts of all are done.
    Validating(u64, u64, u64),
}

/// Bytes that the memory is held against.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    pub bytes: u64,
    /// Whether they are the budget that was stated, rather than what was planned.
    pub is_budget: bool,
}

/// How a run stands.
#[derive(Clone, Debug)]
pub struct View {
    pub stage: Stage,
    /// When training began.
    pub started: Instant,
    pub allowed: Option<Allowed>,
    pub validation_loss: Option<f32>,
    /// How the gradients were when last measured.
    verdict: Option<Verdict>,
    figures: Option<StepFigures>,
    pace: Pace,
    losses: Trend,
    /// What the run counts.
    unit: &'static str,
}

impl View {
    pub fn new(unit: &'static str) -> View {
        View {
            stage: Stage::Preparing(String::new(), None),
            started: Instant::now(),
            allowed: None,
            validation_loss: None,
            verdict: None,
            figures: None,
            pace: Pace::default(),
            losses: Trend::default(),
            unit,
        }
    }

    /// Takes note of a step, shown or not. Allocates nothing.
    pub fn see(&mut self, report: &StepReport) {
        let figures = StepFigures::from(report);
        self.pace.see(&figures);
        self.losses.see(report.loss);
        self.verdict = report.verdict.or(self.verdict);
        (self.figures, self.stage) = (Some(figures), Stage::Training);
    }

    /// All of it in one line.
    pub fn line(&self) -> String {
        self.first(true, None).1
    }

    /// All of it in a few lines that fit into a terminal of so many rows and columns.
    pub fn lines(&self, size: Option<(usize, usize)>, glyphs: Glyphs) -> Vec<String> {
        // The last column stays free, since some terminals begin a line after it.
        let columns = size.map(|(_, columns)| columns.saturating_sub(1));
        let is_narrow = columns.is_some_and(|columns| columns + 1 < NARROW);
        let besides = if is_narrow { 0 } else { BAR_CELLS + 1 };
        let is_short = size.is_some_and(|(rows, _)| rows < ROWS_MIN);
        let more = if is_short { vec![] } else { self.more(columns.unwrap_or(usize::MAX), glyphs) };
        let (share, text) = self.first(more.is_empty(), columns.map(|columns| columns.saturating_sub(besides)));
        let first = match is_narrow {
            true => text,
            false => format!("{} {text}", glyphs.bar(share.unwrap_or(0.0), BAR_CELLS)),
        };
        let fitting = |line: String| line.chars().take(columns.unwrap_or(usize::MAX)).collect::<String>();
        [first].into_iter().chain(more).map(fitting).collect()
    }

    /// The first line, without its bar, and how much is done.
    fn first(&self, has_memory: bool, columns: Option<usize>) -> (Option<f64>, String) {
        match (&self.stage, &self.figures) {
            (Stage::Preparing(text, share), _) => (*share, text.clone()),
            (Stage::Validating(step, done, total), figures) => {
                let share = *done as f64 / (*total).max(1) as f64;
                let left = figures.and_then(|figures| figures.seconds_left);
                let left = left.map_or(String::new(), |seconds| format!("  {} left", duration(seconds)));
                (Some(share), format!("step {step}  validating {:.0} %{left}", share * 100.0))
            }
            (Stage::Training, Some(figures)) => {
                (self.share_done(figures), figures.text(self.pace, self.unit, has_memory, columns))
            }
            (Stage::Training, None) => (None, "first step".into()),
        }
    }

    /// The share of the run that is done, by its steps or by its time.
    fn share_done(&self, figures: &StepFigures) -> Option<f64> {
        let elapsed = self.started.elapsed().as_secs_f64();
        let by_time = figures.seconds_left.map(|left| elapsed / (elapsed + left).max(f64::MIN_POSITIVE));
        let by_steps = figures.steps.map(|steps| figures.step as f64 / steps.max(1) as f64);
        by_steps.or(by_time)
    }

    /// How the loss went, the memory, and the health of the gradients, once there are steps.
    fn more(&self, columns: usize, glyphs: Glyphs) -> Vec<String> {
        let Some(figures) = &self.figures else { return vec![] };
        let memory = self.allowed.map(|allowed| memory_line(figures.memory_bytes, allowed, glyphs));
        let health = self.verdict.map(|verdict| format!("{:LABEL$}{verdict}", "health"));
        self.loss_line(columns, glyphs).into_iter().chain(memory).chain(health).collect()
    }

    fn loss_line(&self, columns: usize, glyphs: Glyphs) -> Option<String> {
        let means = self.losses.means();
        let (first, last) = (means.first()?, means.last()?);
        let mut ends = format!("  {first:.2} to {last:.2}");
        let validation = self.validation_loss.map_or(String::new(), |loss| format!("  validation {loss:.4}"));
        // Of the losses, as many cells as a sparkline needs to say something come first.
        if LABEL + BAR_CELLS + ends.len() + validation.len() <= columns {
            ends += &validation;
        }
        let cells = columns.saturating_sub(LABEL + ends.len()).min(LOSS_CELLS);
        Some(format!("{:LABEL$}{}{ends}", "loss", glyphs.sparkline(means, cells)))
    }
}

fn memory_line(held: u64, allowed: Allowed, glyphs: Glyphs) -> String {
    let bar = glyphs.bar(held as f64 / allowed.bytes.max(1) as f64, BAR_CELLS);
    let of = if allowed.is_budget { "" } else { " planned" };
    format!("{:LABEL$}{bar}  {} of {}{of}", "memory", bytes(held), bytes(allowed.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(step: u64, loss: f32) -> StepReport {
        StepReport {
            step,
            steps: Some(2000),
            tokens: 700,
            loss,
            validation_loss: None,
            accuracy: None,
            gradient_norm: 1.0,
            sharpness: None,
            learning_rate: 0.001,
            loss_scale: None,
            skipped_steps: None,
            bytes_sent: None,
            tokens_per_second: 12_345.6,
            step_ms: 8.0,
            memory_bytes: 85_000_000,
            peak_memory_bytes: 90_000_000,
            account: None,
            verdict: (step == 500).then_some(Verdict::Plateau),
            alerts: vec![],
            health: None,
            seconds_left: Some(65.0),
        }
    }

    fn view() -> View {
        let mut view = View::new("tokens");
        view.allowed = Some(Allowed { bytes: 100_000_000, is_budget: true });
        (1..=1000).for_each(|step| view.see(&report(step, 7.0 - step as f32 / 200.0)));
        view
    }

    #[test]
    fn a_run_is_shown_in_a_few_lines() {
        let mut view = view();
        let lines = view.lines(Some((24, 80)), Glyphs::Ascii);
        assert_eq!(lines[0], "######------ step 1000/2000  loss 2.0000  12,345 tokens/s  1m05s left");
        assert!(lines[1].starts_with("loss    ####") && lines[1].ends_with("__  6.99 to 2.01"), "{}", lines[1]);
        assert_eq!(lines[2], "memory  ##########--  85 MB of 100 MB");
        assert_eq!(lines[3], "health  plateau");
        view.validation_loss = Some(2.125);
        assert!(view.lines(Some((24, 80)), Glyphs::Unicode)[1].ends_with("▁▁  6.99 to 2.01  validation 2.1250"));
        view.allowed = Some(Allowed { bytes: 170_000_000, is_budget: false });
        assert_eq!(view.lines(None, Glyphs::Unicode)[2], "memory  ██████░░░░░░  85 MB of 170 MB planned");
    }

    #[test]
    fn every_line_fits_into_every_terminal() {
        let mut view = view();
        view.validation_loss = Some(2.125);
        for stage in [Stage::Training, Stage::Validating(7, 1, 3), Stage::Preparing("tokenizing 5 %".into(), None)] {
            view.stage = stage;
            for columns in 1..200 {
                for line in view.lines(Some((24, columns)), Glyphs::Unicode) {
                    assert!(line.chars().count() < columns.max(2), "{columns} columns: {line}");
                }
            }
        }
        let narrow = View { stage: Stage::Training, ..view }.lines(Some((24, 40)), Glyphs::Ascii);
        assert_eq!(narrow[0], "step 1000/2000  loss 2.0000  1m05s left");
        assert!(narrow[1].starts_with("loss    ##") && narrow[1].ends_with("_  6.99 to 2.01"), "{}", narrow[1]);
        assert_eq!(narrow[2], "memory  ##########--  85 MB of 100 MB");
    }

    #[test]
    fn a_terminal_of_few_rows_shows_the_first_line_with_the_memory() {
        let lines = view().lines(Some((4, 100)), Glyphs::Ascii);
        assert_eq!(lines, ["######------ step 1000/2000  loss 2.0000  12,345 tokens/s  85 MB  1m05s left"]);
    }

    #[test]
    fn what_comes_before_and_between_steps_is_shown_too() {
        let mut view = View::new("tokens");
        view.stage = Stage::Preparing("tokenizing 50 %".into(), Some(0.5));
        assert_eq!(view.lines(Some((24, 80)), Glyphs::Ascii), ["######------ tokenizing 50 %"]);
        view.see(&report(3, f32::NAN));
        assert_eq!(view.lines(Some((24, 80)), Glyphs::Ascii).len(), 1, "no loss yet that could be drawn");
        view.see(&report(4, 2.0));
        view.stage = Stage::Validating(4, 1, 4);
        let lines = view.lines(Some((24, 80)), Glyphs::Ascii);
        assert_eq!((&lines[0][..], lines.len()), ("###--------- step 4  validating 25 %  1m05s left", 2));
        assert!(view.line().starts_with("step 4  validating"), "{}", view.line());
    }
}

//! Curves over steps, drawn with characters: one by dots, four rows of two to a character, several by a letter each.

use super::Glyphs;
use std::fmt::Write;

/// Rows of a plot.
const ROWS: usize = 12;
/// Columns of the numbers beside it, with the space after them.
const LABEL: usize = 9;
/// Columns that a plot has at least.
const COLUMNS_MIN: usize = 10;
/// The dots of a character, by row and column, as bits of its code.
const DOTS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
const NO_DOTS: u32 = 0x2800;

/// Numbers by step.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// What it is drawn with where several are, or where its points are few.
    pub mark: char,
    /// Steps and numbers, in the order of steps.
    pub points: Vec<(u64, f32)>,
}

/// Curves over the same steps.
pub struct Plot<'a> {
    /// Curves, each a number for every step or so.
    pub curves: &'a [Series],
    /// Points that stand for themselves, drawn over the curves.
    pub points: &'a [Series],
}

impl Plot<'_> {
    /// The plot in so many columns; none where there is nothing to draw.
    pub fn text(&self, columns: usize, glyphs: Glyphs) -> Option<String> {
        let columns = columns.saturating_sub(LABEL).max(COLUMNS_MIN);
        let scale = Scale::of(self)?;
        let by_dots = glyphs == Glyphs::Unicode && self.curves.len() == 1;
        let mut cells = match by_dots {
            true => dotted(&self.curves[0], &scale, columns),
            false => vec![vec![' '; columns]; ROWS],
        };
        // The first of several comes last, and so is on top where they meet.
        let lettered = if by_dots { &[] } else { self.curves };
        for series in lettered.iter().rev() {
            for (column, mean) in scale.means(series, columns).into_iter().enumerate() {
                if let Some(mean) = mean {
                    cells[scale.row(mean, ROWS)][column] = series.mark;
                }
            }
        }
        for series in self.points {
            for (step, number) in series.points.iter().filter(|(_, number)| number.is_finite()) {
                cells[scale.row(*number, ROWS)][scale.column(*step, columns)] = series.mark;
            }
        }
        Some(framed(&cells, &scale, glyphs))
    }
}

/// What a plot reaches over.
struct Scale {
    steps: (u64, u64),
    numbers: (f32, f32),
}

impl Scale {
    fn of(plot: &Plot) -> Option<Scale> {
        let all = || plot.curves.iter().chain(plot.points).flat_map(|series| &series.points);
        let drawn = || all().filter(|(_, number)| number.is_finite());
        let steps = (drawn().map(|(step, _)| *step).min()?, drawn().map(|(step, _)| *step).max()?);
        let numbers: Vec<f32> = drawn().map(|(_, number)| *number).collect();
        Some(Scale { steps, numbers: super::range(&numbers)? })
    }

    /// Where a step is, among so many columns.
    fn column(&self, step: u64, columns: usize) -> usize {
        let (first, last) = self.steps;
        let place = (step - first) as f64 / (last - first).max(1) as f64;
        ((place * columns as f64) as usize).min(columns - 1)
    }

    /// Where a number is, among so many rows, the highest first.
    fn row(&self, number: f32, rows: usize) -> usize {
        let (low, high) = self.numbers;
        let height =
            if high > low { (f64::from(number) - f64::from(low)) / (f64::from(high) - f64::from(low)) } else { 0.0 };
        ((1.0 - height) * (rows - 1) as f64).round() as usize
    }

    /// The mean of what a series has in each of so many columns.
    fn means(&self, series: &Series, columns: usize) -> Vec<Option<f32>> {
        let mut sums = vec![(0.0, 0u32); columns];
        for (step, number) in series.points.iter().filter(|(_, number)| number.is_finite()) {
            let (sum, count) = &mut sums[self.column(*step, columns)];
            (*sum, *count) = (*sum + f64::from(*number), *count + 1);
        }
        sums.into_iter().map(|(sum, count)| (count > 0).then(|| (sum / f64::from(count)) as f32)).collect()
    }
}

/// A curve by dots: those of neighbouring columns are joined, so that it has no holes where it is steep.
fn dotted(curve: &Series, scale: &Scale, columns: usize) -> Vec<Vec<char>> {
    let mut bits = vec![vec![0; columns]; ROWS];
    let mut before: Option<usize> = None;
    for (column, mean) in scale.means(curve, 2 * columns).into_iter().enumerate() {
        let Some(row) = mean.map(|mean| scale.row(mean, 4 * ROWS)) else { continue };
        let from =
            before.map_or(row, |before| if before < row { before + 1 } else { before.saturating_sub(1).max(row) });
        for row in from.min(row)..=from.max(row) {
            bits[row / 4][column / 2] |= DOTS[row % 4][column % 2];
        }
        before = Some(row);
    }
    let character =
        |bits: u32| if bits == 0 { ' ' } else { char::from_u32(NO_DOTS + bits).expect("a character of dots") };
    bits.into_iter().map(|row| row.into_iter().map(character).collect()).collect()
}

/// The cells with numbers beside them and steps below.
fn framed(cells: &[Vec<char>], scale: &Scale, glyphs: Glyphs) -> String {
    let (upright, corner, level) = if glyphs == Glyphs::Unicode { ('│', '└', "─") } else { ('|', '+', "-") };
    let (low, high) = (f64::from(scale.numbers.0), f64::from(scale.numbers.1));
    let mut text = String::new();
    for (row, cells) in cells.iter().enumerate() {
        let middle = low + (high - low) * (ROWS - 1 - row) as f64 / (ROWS - 1) as f64;
        let label = if row % 4 == 0 || row + 1 == ROWS { number(middle) } else { String::new() };
        let line: String = cells.iter().collect();
        writeln!(text, "{label:>width$} {upright}{}", line.trim_end(), width = LABEL - 2).expect("a string takes it");
    }
    let columns = cells[0].len();
    let (first, last) = scale.steps;
    let steps =
        format!("{first}{:>width$}", format!("step {last}"), width = columns.saturating_sub(first.to_string().len()));
    let space = " ".repeat(LABEL - 1);
    writeln!(text, "{space}{corner}{}\n{space} {steps}", level.repeat(columns)).expect("a string takes it");
    text
}

/// A number beside a plot, short enough for its place.
fn number(number: f64) -> String {
    match number.abs() {
        0.0 => "0".into(),
        0.001..10_000.0 => format!("{number:.3}").chars().take(LABEL - 2).collect(),
        _ => format!("{number:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(mark: char, points: impl IntoIterator<Item = (u64, f32)>) -> Series {
        Series { mark, points: points.into_iter().collect() }
    }

    #[test]
    fn a_curve_falls_from_the_upper_left_to_the_lower_right() {
        let falling = series('*', (1..=1000).map(|step| (step, 10.0 - step as f32 / 125.0)));
        let plot = Plot { curves: &[falling], points: &[] };
        let text = plot.text(49, Glyphs::Ascii).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 2);
        assert!(lines[0].starts_with("  9.992 |**") && lines[11].starts_with("  2.000 |"), "{text}");
        assert!(lines[11].ends_with("**") && lines[11].len() == 49, "{text}");
        assert!(lines[12].ends_with(&"-".repeat(40)) && lines[13].ends_with("step 1000"), "{text}");
        assert!(lines.iter().all(|line| line.is_ascii() && line.len() <= 49), "{text}");
        let dots = plot.text(49, Glyphs::Unicode).unwrap();
        let lines: Vec<&str> = dots.lines().collect();
        assert!(lines[0].starts_with("  9.992 │⠑") && lines[11].starts_with("  2.000 │ "), "{dots}");
        assert!(lines.iter().all(|line| line.chars().count() <= 49), "{dots}");
        // Without holes: every column has a dot.
        let has =
            |column: usize| lines[..ROWS].iter().any(|line| line.chars().nth(9 + column).is_some_and(|c| c != ' '));
        assert!((0..40).all(has), "{dots}");
    }

    #[test]
    fn several_have_a_letter_each_and_points_are_on_top() {
        let [a, b] = [('A', 5.0), ('B', 1.0)].map(|(mark, loss)| series(mark, (0..100).map(|step| (step, loss))));
        let points = [series('o', [(50, 3.0), (99, f32::NAN)])];
        let text = Plot { curves: &[a, b], points: &points }.text(30, Glyphs::Unicode).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with(&"A".repeat(21)) && lines[11].ends_with(&"B".repeat(21)), "{text}");
        assert_eq!(text.matches('o').count(), 1, "{text}");
    }

    #[test]
    fn what_cannot_be_drawn_is_left_out() {
        let nothing = [series('*', [(1, f32::NAN), (2, f32::INFINITY)])];
        assert!(Plot { curves: &nothing, points: &[] }.text(80, Glyphs::Ascii).is_none());
        assert!(Plot { curves: &[], points: &[] }.text(80, Glyphs::Ascii).is_none());
        let one = [series('*', [(7, 2.0), (8, f32::NAN)])];
        for columns in [0, 5, 80] {
            let text = Plot { curves: &one, points: &[] }.text(columns, Glyphs::Ascii).unwrap();
            assert_eq!(text.matches('*').count(), 1, "{text}");
        }
        let huge = [series('*', [(1, -f32::MAX), (2, f32::MAX), (3, 1e-30)])];
        assert!(Plot { curves: &huge, points: &[] }.text(80, Glyphs::Unicode).unwrap().contains("e38"));
    }
}

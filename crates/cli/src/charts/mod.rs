//! Drawings of characters: bars, sparklines and plots, of blocks and dots where the terminal shows them, else of ASCII.

mod plot;

pub use plot::{Plot, Series};

/// The characters that drawings are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Blocks and dots.
    Unicode,
    /// What every terminal shows.
    Ascii,
}

/// Heights in a sparkline, from the lowest.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII_HEIGHTS: [char; 5] = ['_', '.', '-', '=', '#'];

impl Glyphs {
    /// Those that the locale has: the first variable that says something decides, as everywhere.
    pub fn of_locale() -> Glyphs {
        let named = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| std::env::var(name).ok());
        Glyphs::of(cfg!(windows), named)
    }

    fn of(is_windows: bool, mut named: impl Iterator<Item = String>) -> Glyphs {
        let locale = named.find(|name| !name.is_empty()).unwrap_or_default().to_lowercase();
        match is_windows || locale.contains("utf-8") || locale.contains("utf8") {
            true => Glyphs::Unicode,
            false => Glyphs::Ascii,
        }
    }

    /// A bar of so many cells, filled to a share.
    pub fn bar(self, share: f64, cells: usize) -> String {
        let (full, empty) = match self {
            Glyphs::Unicode => ("█", "░"),
            Glyphs::Ascii => ("#", "-"),
        };
        let filled = (share.clamp(0.0, 1.0) * cells as f64).round() as usize;
        full.repeat(filled) + &empty.repeat(cells - filled)
    }

    /// How numbers went, in at most so many cells.
    pub fn sparkline(self, numbers: &[f32], cells: usize) -> String {
        let means = means(numbers, cells);
        let (low, high) = range(&means).unwrap_or((0.0, 0.0));
        let heights: &[char] = if self == Glyphs::Unicode { &HEIGHTS } else { &ASCII_HEIGHTS };
        let height = |number: &f32| match high > low {
            true => ((number - low) / (high - low) * (heights.len() - 1) as f32).round() as usize,
            false => 0,
        };
        means.iter().map(|number| heights[height(number)]).collect()
    }
}

/// The numbers, or as many means of neighbours as there are cells.
fn means(numbers: &[f32], cells: usize) -> Vec<f32> {
    let cells = cells.min(numbers.len());
    let part = |cell: usize| &numbers[cell * numbers.len() / cells..(cell + 1) * numbers.len() / cells];
    (0..cells).map(|cell| part(cell).iter().sum::<f32>() / part(cell).len() as f32).collect()
}

/// The lowest and the highest of finite numbers.
fn range(numbers: &[f32]) -> Option<(f32, f32)> {
    let finite = || numbers.iter().copied().filter(|number| number.is_finite());
    Some((finite().reduce(f32::min)?, finite().reduce(f32::max)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_says_something_decides() {
        let of = |names: &[&str]| Glyphs::of(false, names.iter().map(|name| name.to_string()));
        for names in [&["C.UTF-8"][..], &["", "", "de_DE.utf8"], &["en_US.UTF-8", "C"]] {
            assert_eq!(of(names), Glyphs::Unicode, "{names:?}");
        }
        for names in [&[][..], &["", ""], &["C", "", "C.UTF-8"], &["POSIX"], &["de_DE.ISO-8859-1"]] {
            assert_eq!(of(names), Glyphs::Ascii, "{names:?}");
        }
        assert_eq!(Glyphs::of(true, std::iter::empty()), Glyphs::Unicode);
    }

    #[test]
    fn bars_have_their_length_whatever_their_share() {
        assert_eq!((Glyphs::Unicode.bar(0.5, 4), Glyphs::Ascii.bar(0.26, 8)), ("██░░".into(), "##------".into()));
        for (share, bar) in [(-1.0, "---"), (7.0, "###"), (f64::NAN, "---"), (f64::INFINITY, "###")] {
            assert_eq!(Glyphs::Ascii.bar(share, 3), bar, "{share}");
        }
    }

    #[test]
    fn sparklines_go_from_the_lowest_to_the_highest() {
        assert_eq!(Glyphs::Unicode.sparkline(&[8.0, 7.0, 4.5, 1.0], 10), "█▇▅▁");
        assert_eq!(Glyphs::Ascii.sparkline(&[0.0, 1.0, 2.0, 3.0, 4.0], 10), "_.-=#");
        assert_eq!(Glyphs::Ascii.sparkline(&[0.0, 2.0, 4.0, 4.0, 7.0, 9.0], 3), "_-#", "means of neighbours");
        assert_eq!(Glyphs::Ascii.sparkline(&[3.0, 3.0], 9), "__");
        assert_eq!((Glyphs::Ascii.sparkline(&[], 9), Glyphs::Ascii.sparkline(&[1.0], 0)), ("".into(), "".into()));
    }
}

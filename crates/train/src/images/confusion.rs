//! Which classes are taken for which, counted and drawn.

use super::font;
use crate::Result;
use crate::files::atomic;
use image::{ImageFormat, Rgb, RgbImage};
use std::io::Cursor;
use std::path::Path;

/// Most pixels of the picture's side without its names.
const SIDE_MAX: usize = 1_600;
/// Pixels of a class, at most and where its name is written.
const CELL_MAX: usize = 32;
const CELL_NAMED: usize = 9;
/// Letters of a name that are written.
const NAME_MAX: usize = 14;
const LETTER: usize = 6;

/// How often images of one class were taken for another.
#[derive(Clone, Debug, PartialEq)]
pub struct Confusion {
    classes: usize,
    /// By class, and by what it was taken for.
    counts: Vec<u32>,
}

impl Confusion {
    /// Nothing yet.
    pub fn new(classes: usize) -> Confusion {
        Confusion { classes, counts: vec![0; classes * classes] }
    }

    /// An image of a class was taken for another, or the same.
    pub fn count(&mut self, class: usize, taken_for: usize) {
        self.counts[class * self.classes + taken_for] += 1;
    }

    /// Writes the picture, a row a class and a column for what it was taken for, and the counts as a table beside it.
    pub fn write(&self, folder: &Path, names: &[String]) -> Result<()> {
        let mut bytes = vec![];
        let drawn = self.picture(names).write_to(&mut Cursor::new(&mut bytes), ImageFormat::Png);
        drawn.expect("a picture can be written to memory");
        atomic::write_file(&folder.join("confusion.png"), &bytes)?;
        atomic::write_file(&folder.join("confusion.csv"), self.table(names).as_bytes())
    }

    fn table(&self, names: &[String]) -> String {
        let quoted = |name: &String| format!("\"{}\"", name.replace('"', "\"\""));
        let mut table = format!("class,{}\n", names.iter().map(quoted).collect::<Vec<_>>().join(","));
        for (name, counts) in names.iter().zip(self.counts.chunks(self.classes)) {
            let counts: Vec<String> = counts.iter().map(u32::to_string).collect();
            table += &format!("{},{}\n", quoted(name), counts.join(","));
        }
        table
    }

    /// Rows are dark where most images of their class are; what is right is green, what is wrong red.
    fn picture(&self, names: &[String]) -> RgbImage {
        let cell = (SIDE_MAX / self.classes).clamp(1, CELL_MAX);
        let margin = if cell >= CELL_NAMED { NAME_MAX * LETTER + 8 } else { 4 };
        let side = (margin + cell * self.classes + 4) as u32;
        let mut picture = RgbImage::from_pixel(side, side, Rgb([255; 3]));
        for (class, counts) in self.counts.chunks(self.classes).enumerate() {
            let total: u32 = counts.iter().sum();
            for (taken_for, &count) in counts.iter().enumerate() {
                let share = count as f32 / total.max(1) as f32;
                // A single mistake among many can be seen.
                let share = if count > 0 { 0.15 + 0.85 * share } else { 0.0 };
                let full = if class == taken_for { [0.0, 110.0, 60.0] } else { [190.0, 30.0, 30.0] };
                let colour = full.map(|full| (245.0 + share * (full - 245.0)) as u8);
                let (left, top) = (margin + taken_for * cell, margin + class * cell);
                let gap = usize::from(cell > 4);
                for (row, column) in (0..cell - gap).flat_map(|row| (0..cell - gap).map(move |column| (row, column))) {
                    picture.put_pixel((left + column) as u32, (top + row) as u32, Rgb(colour));
                }
            }
        }
        if cell >= CELL_NAMED {
            for (class, name) in names.iter().enumerate() {
                write_name(&mut picture, name, margin, margin + class * cell + cell / 2);
            }
        }
        picture
    }
}

/// Writes a name so that it ends left of one place, around the height of another; and the same turned, above the columns.
fn write_name(picture: &mut RgbImage, name: &str, margin: usize, middle: usize) {
    let letters: Vec<char> = name.chars().take(NAME_MAX).collect();
    let start = margin - 4 - letters.len() * LETTER;
    for (place, &letter) in letters.iter().enumerate() {
        for (across, down) in (0..font::SIZE[0]).flat_map(|across| (0..font::SIZE[1]).map(move |down| (across, down))) {
            if font::covers(letter, across, down) {
                let (along, beside) = (start + place * LETTER + across, middle + down - font::SIZE[1] / 2);
                picture.put_pixel(along as u32, beside as u32, Rgb([40; 3]));
                // Above the columns, read from below.
                picture.put_pixel(beside as u32, (margin - 4 - place * LETTER - across) as u32, Rgb([40; 3]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_is_green_and_what_is_wrong_red() {
        let names: Vec<String> = ["cat", "dog"].map(str::to_string).to_vec();
        let mut confusion = Confusion::new(2);
        (0..3).for_each(|_| confusion.count(0, 0));
        confusion.count(1, 0);
        assert_eq!(confusion.table(&names), "class,\"cat\",\"dog\"\n\"cat\",3,0\n\"dog\",1,0\n");
        let picture = confusion.picture(&names);
        let margin = (NAME_MAX * LETTER + 8) as u32;
        let at = |row: u32, column: u32| picture.get_pixel(margin + column * 32 + 5, margin + row * 32 + 5).0;
        assert_eq!((at(0, 0), at(0, 1)), ([0, 110, 60], [245; 3]));
        assert_eq!((at(1, 0), at(1, 1)), ([190, 30, 30], [245; 3]));
        let many = Confusion::new(3_000);
        assert!(many.picture(&vec![String::new(); 3_000]).width() <= 3_008);
    }
}

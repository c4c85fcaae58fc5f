//! A set of images: in files, or drawn.

use super::decode;
use super::drawn;
use super::draws::Draws;
use super::files::{self, Example};
use super::view::{Augmentation, Lines, View};
use crate::data::Fingerprint;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Images to train on, and others that are held out.
#[derive(Debug)]
pub struct ImageSet {
    /// The classes.
    pub classes: Vec<String>,
    /// Images that were left out because they cannot be read, and why the first was.
    pub skipped: usize,
    /// See `skipped`.
    pub first_skipped: Option<String>,
    images: Images,
    /// Whether one that cannot be read is replaced by the next.
    skips_broken: bool,
    /// Those that were.
    replaced: Mutex<BTreeSet<(bool, usize)>>,
}

#[derive(Debug)]
enum Images {
    Drawn { seed: u32 },
    Files { train: Vec<Example>, held_out: Vec<Example> },
}

/// Room for what it takes to show images, kept from one to the next.
#[derive(Debug, Default)]
pub struct Room {
    bytes: Vec<u8>,
    drawn: Vec<i32>,
    /// Another image, to be mixed with.
    pub other: Vec<i32>,
    lines: Lines,
}

impl ImageSet {
    /// The set that is drawn, by a seed.
    pub fn drawn(seed: u32) -> ImageSet {
        let classes = drawn::CLASSES.map(str::to_string).to_vec();
        ImageSet::new(classes, Images::Drawn { seed }, false, (0, None))
    }

    /// The images of a folder or a table. `looked` is told how many of how many files were looked at.
    pub fn open(
        path: &Path,
        held_out_share: f64,
        skips_broken: bool,
        looked: &mut dyn FnMut(u64, u64) -> Result<()>,
    ) -> Result<ImageSet> {
        let stated = files::stated(path)?;
        let total = stated.len() as u64;
        let found = files::found(path, stated, held_out_share, skips_broken, &mut |done| looked(done, total))?;
        let images = Images::Files { train: found.train, held_out: found.held_out };
        Ok(ImageSet::new(found.classes, images, skips_broken, (found.skipped, found.first_skipped)))
    }

    fn new(
        classes: Vec<String>,
        images: Images,
        skips_broken: bool,
        (skipped, first_skipped): (usize, Option<String>),
    ) -> ImageSet {
        ImageSet { classes, skipped, first_skipped, images, skips_broken, replaced: Mutex::default() }
    }

    /// How many images there are to train on, or held out.
    pub fn count(&self, held_out: bool) -> usize {
        match &self.images {
            Images::Drawn { .. } => {
                if held_out {
                    drawn::HELD_OUT
                } else {
                    drawn::TRAIN
                }
            }
            Images::Files { .. } => self.examples(held_out).len(),
        }
    }

    fn examples(&self, held_out: bool) -> &[Example] {
        match &self.images {
            Images::Drawn { .. } => &[],
            Images::Files { train, held_out: others } => {
                if held_out {
                    others
                } else {
                    train
                }
            }
        }
    }

    /// The height and width that all images have; of a set whose images differ, two that do.
    pub fn size(&self) -> Result<[usize; 2]> {
        let mut examples = self.examples(false).iter().chain(self.examples(true));
        let Some(first) = examples.next() else { return Ok([drawn::SIDE; 2]) };
        match examples.find(|example| example.header.size != first.header.size) {
            None => Ok(first.header.size),
            Some(other) => {
                let said = |example: &Example| {
                    let [height, width] = example.header.size;
                    format!("{} is {width} x {height}", example.path.display())
                };
                Err(Error::Config(format!(
                    "the images differ in size ({}, {}); say by `settings.size` what the model is to see, as in 224x224",
                    said(first),
                    said(other)
                )))
            }
        }
    }

    /// A number that tells this set from others: its classes, names, sizes and how they are held out.
    pub fn fingerprint(&self) -> String {
        let of_classes = |print: Fingerprint, class: &String| print.bytes(class.as_bytes());
        let mut print = self.classes.iter().fold(Fingerprint::new(), of_classes);
        if let Images::Drawn { seed } = &self.images {
            print = print.number(u64::from(*seed));
        }
        for held_out in [false, true] {
            print = print.number(self.count(held_out) as u64);
            for example in self.examples(held_out) {
                let name = example.path.file_name().unwrap_or_default().as_encoded_bytes();
                let [height, width] = example.header.size;
                print = print.bytes(name).number(example.class as u64).number((height << 32 | width) as u64);
            }
        }
        format!("{:016x}", print.value())
    }

    /// Bytes that the set itself takes.
    pub fn bytes(&self) -> u64 {
        let of = |example: &Example| (size_of::<Example>() + example.path.as_os_str().len() + 32) as u64;
        self.examples(false).iter().chain(self.examples(true)).map(of).sum()
    }

    /// Bytes that a worker comes to hold which shows images at this size, its decoders included.
    pub fn worker_bytes(&self, size: [usize; 2], augmentation: &Augmentation) -> u64 {
        let shown = (size[0] * size[1] * size_of::<i32>()) as u64;
        let other = if augmentation.mixup > 0.0 { shown } else { 0 };
        let drawn = if *augmentation == Augmentation::NONE { 0 } else { shown };
        let headers = || self.examples(false).iter().chain(self.examples(true)).map(|example| &example.header);
        let decoded = headers().map(|header| header.bytes).max().unwrap_or(drawn);
        let besides = headers().map(|header| header.besides).max().unwrap_or(0);
        let largest = headers().flat_map(|header| header.size).max().unwrap_or(size[0].max(size[1]));
        decoded + besides + other + Lines::bytes(largest, size)
    }

    /// Images that could not be read when they were wanted.
    pub fn replaced(&self) -> usize {
        self.replaced.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Shows an image at this size and gives its class.
    pub fn show(
        &self,
        (held_out, number): (bool, usize),
        augmentation: &Augmentation,
        draws: &Draws,
        (size, to): ([usize; 2], &mut [i32]),
        room: &mut Room,
    ) -> Result<usize> {
        let mut draws = draws.clone();
        if let Images::Drawn { seed } = &self.images {
            let number = if held_out { drawn::TRAIN + number } else { number };
            if *augmentation == Augmentation::NONE {
                drawn::draw(*seed, number, size, to);
                return Ok(drawn::class(number));
            }
            room.drawn.resize(to.len(), 0);
            drawn::draw(*seed, number, size, &mut room.drawn);
            let at = |row: usize, column: usize| crate::models::vision::channels(room.drawn[row * size[1] + column]);
            View::new(size, size, augmentation, &mut draws).show(size, at, (size, to), &mut room.lines);
            return Ok(drawn::class(number));
        }
        let examples = self.examples(held_out);
        for next in 0..examples.len() {
            let number = (number + next) % examples.len();
            let example = &examples[number];
            match decode::decode(&example.path, &mut room.bytes) {
                Ok(pixels) => {
                    let view = View::new(pixels.size, size, augmentation, &mut draws);
                    view.show(pixels.size, |row, column| pixels.at(row, column), (size, to), &mut room.lines);
                    return Ok(example.class);
                }
                Err(_) if self.skips_broken => {
                    self.replaced.lock().unwrap_or_else(PoisonError::into_inner).insert((held_out, number));
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Config("none of the images can be read any more".to_string()))
    }
}

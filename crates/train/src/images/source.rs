//! Batches of images: decoded ahead by several workers, in an order and with changes that follow from the step's number.

use super::draws::Draws;
use super::set::{ImageSet, Room};
use super::view::Augmentation;
use super::{IMAGE, LABEL, OTHER, SHARE};
use crate::Result;
use crate::data::Windows;
use crate::models::vision::{channels, pixel};
use crate::step::Batch;
use crate::trainer::BatchSource;
use std::sync::Arc;
use std::thread;

/// What the random numbers are for.
const VIEWS: u32 = 0x51e3;
const MIXES: u32 = 0x6b07;

/// How images become the rows of a batch.
#[derive(Clone, Debug)]
pub struct Loading {
    /// The images.
    pub set: Arc<ImageSet>,
    /// Height and width that they are shown at.
    pub size: [usize; 2],
    /// How they are changed.
    pub augmentation: Augmentation,
    /// The seed of order and changes.
    pub seed: u32,
    /// Workers that decode.
    pub workers: usize,
}

/// A row of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// Which row of all steps.
    position: u64,
    /// Which image.
    number: usize,
    label: i32,
    /// The class of the image that it is mixed with, and what its own counts for.
    other: i32,
    share: f32,
}

/// Fills batches with images.
#[derive(Debug)]
pub struct ImageSource {
    loading: Loading,
    held_out: bool,
    rows: Vec<Row>,
    rooms: Vec<Room>,
}

impl ImageSource {
    /// Of images to train on.
    pub fn of_training(loading: Loading) -> ImageSource {
        ImageSource::new(loading, false)
    }

    /// Of images that are held out, as they are.
    pub fn of_held_out(loading: Loading) -> ImageSource {
        ImageSource::new(Loading { augmentation: Augmentation::NONE, ..loading }, true)
    }

    fn new(loading: Loading, held_out: bool) -> ImageSource {
        let rooms = (0..loading.workers.max(1)).map(|_| Room::default()).collect();
        ImageSource { loading, held_out, rows: vec![], rooms }
    }

    /// Fills the first rows with held-out images of these numbers; the others hold what they did.
    pub fn fill_numbers(&mut self, numbers: &[usize], batch: &mut Batch) -> Result<()> {
        self.rows.clear();
        self.rows.extend(numbers.iter().map(|&number| Row { number, position: number as u64, ..Row::default() }));
        self.fill_rows(batch)
    }

    fn fill_rows(&mut self, batch: &mut Batch) -> Result<()> {
        let ImageSource { loading, held_out, rows, rooms } = self;
        let of_image = loading.size[0] * loading.size[1];
        let of_worker = rows.len().div_ceil(rooms.len()).max(1);
        let pixels = batch.numbers_mut::<i32>(IMAGE)?.chunks_mut(of_worker * of_image);
        let (loading, held_out) = (&*loading, *held_out);
        let mut parts = rows.chunks_mut(of_worker).zip(pixels).zip(rooms.iter_mut());
        let first = parts.next();
        thread::scope(|scope| -> Result<()> {
            let others: Vec<_> = parts
                .map(|((rows, pixels), room)| scope.spawn(move || loading.load(held_out, rows, pixels, room)))
                .collect();
            let own = first.map_or(Ok(()), |((rows, pixels), room)| loading.load(held_out, rows, pixels, room));
            // Those of the first rows come first.
            own.and(others.into_iter().try_for_each(|other| {
                let panicked =
                    || crate::Error::Config("what decodes images has panicked; its message is above".to_string());
                other.join().unwrap_or_else(|_| Err(panicked()))
            }))
        })?;
        let labels = batch.numbers_mut::<i32>(LABEL)?;
        rows.iter().zip(labels).for_each(|(row, label)| *label = row.label);
        if loading.augmentation.mixup > 0.0 {
            let others = batch.numbers_mut::<i32>(OTHER)?;
            rows.iter().zip(others).for_each(|(row, other)| *other = row.other);
            let shares = batch.numbers_mut::<f32>(SHARE)?;
            rows.iter().zip(shares).for_each(|(row, share)| *share = row.share);
        }
        Ok(())
    }
}

impl Loading {
    fn load(&self, held_out: bool, rows: &mut [Row], pixels: &mut [i32], room: &mut Room) -> Result<()> {
        for (row, to) in rows.iter_mut().zip(pixels.chunks_mut(self.size[0] * self.size[1])) {
            let Augmentation { mixup, .. } = self.augmentation;
            let draws = Draws::new(self.seed, VIEWS, row.position);
            let show = |number: usize, draws: &Draws, to: &mut [i32], room: &mut Room| {
                self.set
                    .show((held_out, number), &self.augmentation, draws, (self.size, to), room)
                    .map(|class| class as i32)
            };
            row.label = show(row.number, &draws, to, room)?;
            (row.other, row.share) = (row.label, 1.0);
            let mut mixing = Draws::new(self.seed, MIXES, row.position);
            if f64::from(mixing.unit()) < mixup {
                let number = mixing.below(self.set.count(held_out));
                // At least half of it is the image itself.
                row.share = mixing.between(0.5, 1.0);
                let mut other = std::mem::take(&mut room.other);
                other.resize(to.len(), 0);
                row.other = show(number, &Draws::new(self.seed, VIEWS ^ MIXES, row.position), &mut other, room)?;
                to.iter_mut().zip(&other).for_each(|(to, other)| *to = mixed(*to, *other, row.share));
                room.other = other;
            }
        }
        Ok(())
    }
}

/// A pixel between two others.
fn mixed(own: i32, other: i32, share: f32) -> i32 {
    let (own, other) = (channels(own), channels(other));
    pixel(std::array::from_fn(|channel| {
        (share * f32::from(own[channel]) + (1.0 - share) * f32::from(other[channel]) + 0.5) as u8
    }))
}

impl BatchSource for ImageSource {
    fn fill(&mut self, step: u64, batch: &mut Batch) -> Result<bool> {
        // Windows of one token, two of which are never begun, are an order of so many numbers.
        let order = Windows::new(self.loading.set.count(false) as u64 + 2, 1, self.loading.seed);
        let first = step * batch.rows() as u64;
        let row = |position: u64| Row { position, number: order.start(position) as usize, ..Row::default() };
        self.rows.clear();
        self.rows.extend((first..first + batch.rows() as u64).map(row));
        self.fill_rows(batch).map(|()| true)
    }
}

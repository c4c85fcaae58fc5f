//! What of an image is shown to a model, and how: a part of it, mirrored or not, in changed colours, at the model's size.

use super::draws::Draws;
use super::framing::{Filter, Framing};
use crate::models::vision::pixel;
use serde::{Deserialize, Serialize};

/// How images are changed before a model is trained on them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Augmentation {
    /// The largest share of an image's area that is cropped away.
    pub crop: f64,
    /// Whether half of the images are mirrored.
    pub flip: bool,
    /// By how much brightness, contrast and saturation change at most, as a share.
    pub colour: f64,
    /// The share of images that are mixed with another.
    pub mixup: f64,
}

impl Augmentation {
    /// Nothing is changed.
    pub const NONE: Augmentation = Augmentation { crop: 0.0, flip: false, colour: 0.0, mixup: 0.0 };
}

/// A view of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Where it begins, from the left and the top.
    start: [f32; 2],
    /// Its width and height.
    extent: [f32; 2],
    flip: bool,
    /// What brightness, contrast and saturation are multiplied by.
    colour: [f32; 3],
    filter: Filter,
}

impl View {
    /// What of an image of this height and width is shown at another size, just as it is.
    pub fn framed(from: [usize; 2], size: [usize; 2], framing: &Framing) -> View {
        let [start, extent] = framing.part(from, size);
        View { start, extent, flip: false, colour: [1.0; 3], filter: framing.filter }
    }

    /// The middle of an image of this height and width, as much as has the form of another size; or a part of that, by chance.
    pub fn new(from: [usize; 2], size: [usize; 2], augmentation: &Augmentation, draws: &mut Draws) -> View {
        // All numbers are drawn, whether they are used or not.
        let numbers: [f32; 7] = std::array::from_fn(|_| draws.unit());
        let mut view = View::framed(from, size, &Framing::default());
        if augmentation.crop > 0.0 {
            let [height, width] = from.map(|side| side as f32);
            let scale = (width / size[1] as f32).min(height / size[0] as f32);
            let kept = (1.0 - augmentation.crop as f32 * numbers[0]).sqrt();
            view.extent = [size[1] as f32 * scale * kept, size[0] as f32 * scale * kept];
            view.start = [(width - view.extent[0]) * numbers[1], (height - view.extent[1]) * numbers[2]];
        }
        let factor = |number: f32| 1.0 + augmentation.colour as f32 * (2.0 * number - 1.0);
        view.flip = augmentation.flip && numbers[3] < 0.5;
        view.colour = [factor(numbers[4]), factor(numbers[5]), factor(numbers[6])];
        view
    }

    /// Whether an image of this height and width is shown just as it is at this size.
    fn is_plain(&self, from: [usize; 2], size: [usize; 2]) -> bool {
        let whole = [from[1] as f32, from[0] as f32];
        from == size && self.extent == whole && self.start == [0.0; 2] && !self.flip && self.colour == [1.0; 3]
    }

    /// Shows an image of this height and width, of which `at` gives the pixels by row and column, at another size.
    pub fn show(
        &self,
        from: [usize; 2],
        at: impl Fn(usize, usize) -> [u8; 3],
        (size, to): ([usize; 2], &mut [i32]),
        lines: &mut Lines,
    ) {
        let width = size[1];
        if self.is_plain(from, size) {
            for (place, to) in to.iter_mut().enumerate() {
                *to = pixel(at(place / width, place % width));
            }
            return;
        }
        lines.across.aim(self.filter, (self.start[0], self.extent[0]), width, from[1]);
        lines.down.aim(self.filter, (self.start[1], self.extent[1]), size[0], from[0]);
        let (first, end) = lines.across.span();
        lines.sums.clear();
        lines.sums.resize(end - first, [0.0; 3]);
        for (row, to) in to.chunks_exact_mut(width).enumerate() {
            lines.sums.fill([0.0; 3]);
            for &(source, weight) in lines.down.of(row) {
                for (column, sum) in lines.sums.iter_mut().enumerate() {
                    let channels = at(source, first + column);
                    (0..3).for_each(|channel| sum[channel] += weight * f32::from(channels[channel]));
                }
            }
            for (column, to) in to.iter_mut().enumerate() {
                let column = if self.flip { width - 1 - column } else { column };
                let mut shown = [0.0; 3];
                for &(source, weight) in lines.across.of(column) {
                    let sum = &lines.sums[source - first];
                    (0..3).for_each(|channel| shown[channel] += weight * sum[channel]);
                }
                *to = pixel(self.coloured(shown));
            }
        }
    }

    fn coloured(&self, shown: [f32; 3]) -> [u8; 3] {
        const MIDDLE: f32 = 127.5;
        let [brightness, contrast, saturation] = self.colour;
        let grey = 0.299 * shown[0] + 0.587 * shown[1] + 0.114 * shown[2];
        shown.map(|channel| {
            let saturated = grey + saturation * (channel - grey);
            let contrasted = MIDDLE + contrast * (saturated - MIDDLE);
            (brightness * contrasted + 0.5).clamp(0.0, 255.0) as u8
        })
    }
}

/// Room for what showing an image takes besides the image: kept from one to the next.
#[derive(Debug, Default)]
pub struct Lines {
    across: Taps,
    down: Taps,
    sums: Vec<[f32; 3]>,
}

impl Lines {
    /// Bytes for views of images up to so many pixels a side, at a size of so many.
    pub fn bytes(largest: usize, size: [usize; 2]) -> u64 {
        let taps = |size: usize| (3 * largest.max(size) + 4 * size) * size_of::<(usize, f32)>() + 8 * size;
        (taps(size[0]) + taps(size[1]) + 2 * largest * size_of::<[f32; 3]>()) as u64
    }
}

/// For each place along an axis, the places of the image that it is a mean of, and their weights: a filter that is stretched where
/// places of the image are smaller. Places beyond the image's edge count for nothing.
#[derive(Debug, Default)]
struct Taps {
    ends: Vec<usize>,
    taps: Vec<(usize, f32)>,
}

impl Taps {
    fn aim(&mut self, filter: Filter, (start, extent): (f32, f32), places: usize, length: usize) {
        self.ends.clear();
        self.taps.clear();
        let scale = extent / places as f32;
        let stretch = scale.max(1.0);
        let reach = filter.reach() * stretch;
        for place in 0..places {
            let centre = start + (place as f32 + 0.5) * scale - 0.5;
            let first = self.taps.len();
            let sources =
                (centre - reach).ceil().max(0.0) as usize..((centre + reach).floor() as usize + 1).min(length);
            let weighed = sources.map(|source| (source, filter.weight((source as f32 - centre) / stretch)));
            self.taps.extend(weighed.filter(|(_, weight)| *weight != 0.0));
            let total: f32 = self.taps[first..].iter().map(|(_, weight)| weight).sum();
            self.taps[first..].iter_mut().for_each(|(_, weight)| *weight /= total);
            self.ends.push(self.taps.len());
        }
    }

    fn of(&self, place: usize) -> &[(usize, f32)] {
        let first = if place == 0 { 0 } else { self.ends[place - 1] };
        &self.taps[first..self.ends[place]]
    }

    /// The first place of the image that is read, and the one after the last.
    fn span(&self) -> (usize, usize) {
        let places = || self.taps.iter().map(|(source, _)| *source);
        (places().min().unwrap_or(0), places().max().map_or(0, |last| last + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::vision::channels;

    fn shown(from: [usize; 2], size: [usize; 2], augmentation: &Augmentation, number: u64) -> Vec<i32> {
        let at = |row: usize, column: usize| [(7 * row + 3 * column) as u8, (row * 2) as u8, 200];
        let mut to = vec![0; size[0] * size[1]];
        let view = View::new(from, size, augmentation, &mut Draws::new(3, 0, number));
        view.show(from, at, (size, &mut to), &mut Lines::default());
        to
    }

    #[test]
    fn an_image_of_the_right_size_is_shown_as_it_is_and_mirrored_twice_too() {
        let plain = shown([9, 12], [9, 12], &Augmentation::NONE, 0);
        let expected = |row: usize, column: usize| pixel([(7 * row + 3 * column) as u8, (row * 2) as u8, 200]);
        assert_eq!(plain, (0..108).map(|place| expected(place / 12, place % 12)).collect::<Vec<_>>());
        let flipping = Augmentation { flip: true, ..Augmentation::NONE };
        let mirrored = (0..20).map(|number| shown([9, 12], [9, 12], &flipping, number)).find(|image| *image != plain);
        let mirrored = mirrored.expect("some are mirrored");
        for (line, mirrored) in plain.chunks(12).zip(mirrored.chunks(12)) {
            assert!(line.iter().eq(mirrored.iter().rev()));
        }
    }

    #[test]
    fn other_sizes_show_the_middle_and_changes_stay_in_range() {
        // A slope stays a slope, whatever the size.
        let small = shown([40, 60], [8, 8], &Augmentation::NONE, 0);
        assert!(small.chunks(8).all(|line| line.windows(2).all(|pair| channels(pair[0])[1] == channels(pair[1])[1])));
        let down: Vec<u8> = small.iter().step_by(8).map(|pixel| channels(*pixel)[1]).collect();
        assert!(down.windows(2).all(|pair| (9..=11).contains(&(pair[1] - pair[0]))), "{down:?}");
        assert_eq!(shown([1, 1], [3, 3], &Augmentation::NONE, 0), vec![pixel([0, 0, 200]); 9]);
        let all = Augmentation { crop: 0.9, flip: true, colour: 1.0, mixup: 0.0 };
        for number in 0..50 {
            let image = shown([13, 7], [16, 16], &all, number);
            assert_eq!(image, shown([13, 7], [16, 16], &all, number), "the same again");
            assert!(image.iter().all(|pixel| (0..1 << 24).contains(pixel)));
        }
    }
}

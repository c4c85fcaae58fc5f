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
    start: [f64; 2],
    /// Its width and height.
    extent: [f64; 2],
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
            let [height, width] = from.map(|side| side as f64);
            let scale = (width / size[1] as f64).min(height / size[0] as f64);
            let [share, right, down] = [numbers[0], numbers[1], numbers[2]].map(f64::from);
            let kept = (1.0 - augmentation.crop * share).sqrt();
            view.extent = [size[1] as f64 * scale * kept, size[0] as f64 * scale * kept];
            view.start = [(width - view.extent[0]) * right, (height - view.extent[1]) * down];
        }
        let factor = |number: f32| 1.0 + augmentation.colour as f32 * (2.0 * number - 1.0);
        view.flip = augmentation.flip && numbers[3] < 0.5;
        view.colour = [factor(numbers[4]), factor(numbers[5]), factor(numbers[6])];
        view
    }

    /// Whether an image of this height and width is shown just as it is at this size.
    fn is_plain(&self, from: [usize; 2], size: [usize; 2]) -> bool {
        let whole = [from[1] as f64, from[0] as f64];
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
        let Lines { across, down, narrowed, sums } = lines;
        // Lines of the image, brought to the width: those that one line of the view is a mean of, and no more.
        let kept = down.most();
        narrowed.resize(kept * width, [0; 3]);
        sums.resize(width, [0; 3]);
        let mut next = 0;
        for (row, to) in to.chunks_exact_mut(width).enumerate() {
            let taps = down.of(row);
            let end = taps[0].0 + taps.len();
            for source in next.max(taps[0].0)..end {
                let line = &mut narrowed[source % kept * width..][..width];
                across.narrow(|column| at(source, column), line);
            }
            next = end;
            sums.fill([HALF; 3]);
            for &(source, weight) in taps {
                let line = &narrowed[source % kept * width..][..width];
                for (sum, channels) in sums.iter_mut().zip(line) {
                    (0..3).for_each(|channel| sum[channel] += weight * i32::from(channels[channel]));
                }
            }
            for (column, to) in to.iter_mut().enumerate() {
                let column = if self.flip { width - 1 - column } else { column };
                *to = pixel(self.coloured(sums[column].map(whole)));
            }
        }
    }

    fn coloured(&self, shown: [u8; 3]) -> [u8; 3] {
        const MIDDLE: f32 = 127.5;
        if self.colour == [1.0; 3] {
            return shown;
        }
        let shown = shown.map(f32::from);
        let [brightness, contrast, saturation] = self.colour;
        let grey = 0.299 * shown[0] + 0.587 * shown[1] + 0.114 * shown[2];
        shown.map(|channel| {
            let saturated = grey + saturation * (channel - grey);
            let contrasted = MIDDLE + contrast * (saturated - MIDDLE);
            (brightness * contrasted + 0.5).clamp(0.0, 255.0) as u8
        })
    }
}

/// Bits of a weight below one: what PIL has of 32, so that a sum of bytes fits whatever the filter, with its sign.
const WEIGHT_BITS: u32 = 22;
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

/// The byte that a sum of weighed bytes stands for, half of one already added.
fn whole(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Room for what showing an image takes besides the image: kept from one to the next.
#[derive(Debug, Default)]
pub struct Lines {
    across: Taps,
    down: Taps,
    narrowed: Vec<[u8; 3]>,
    sums: Vec<[i32; 3]>,
}

impl Lines {
    /// Bytes for views of images up to so many pixels a side, at a size of so many, by a triangle. Lists that grow may have
    /// twice the room they need.
    pub fn bytes(largest: usize, size: [usize; 2]) -> u64 {
        let taps = |size: usize| {
            let most = 2 * largest.div_ceil(size) + 2;
            (4 * largest.max(size) + 2 * size) * size_of::<(usize, i32)>() + 2 * most * size_of::<f64>() + 8 * size
        };
        let kept = 2 * largest.div_ceil(size[0]) + 2;
        let lines = size[1] * (kept * size_of::<[u8; 3]>() + size_of::<[i32; 3]>());
        (taps(size[0]) + taps(size[1]) + 2 * lines) as u64
    }
}

/// For each place along an axis, the places of the image that it is a mean of, and their weights: a filter that is stretched where
/// places of the image are smaller. Places beyond the image's edge count for nothing.
#[derive(Debug, Default)]
struct Taps {
    ends: Vec<usize>,
    taps: Vec<(usize, i32)>,
    /// Weights of one place, before they add up to one.
    weights: Vec<f64>,
}

impl Taps {
    /// No place is left out for a weight of zero: so what a place begins with never lies before what the last began with.
    fn aim(&mut self, filter: Filter, (start, extent): (f64, f64), places: usize, length: usize) {
        self.ends.clear();
        self.taps.clear();
        let scale = extent / places as f64;
        let stretch = scale.max(1.0);
        let reach = filter.reach() * stretch;
        for place in 0..places {
            let centre = start + (place as f64 + 0.5) * scale;
            // Below zero becomes zero.
            let sources = (centre - reach + 0.5) as usize..((centre + reach + 0.5) as usize).min(length);
            self.weights.clear();
            let weight = |source: usize| filter.weight((source as f64 - centre + 0.5) * (1.0 / stretch));
            self.weights.extend(sources.clone().map(weight));
            let total: f64 = self.weights.iter().sum();
            let fixed = |weight: &f64| (weight / total * f64::from(1 << WEIGHT_BITS)).round() as i32;
            self.taps.extend(sources.zip(self.weights.iter().map(fixed)));
            self.ends.push(self.taps.len());
        }
    }

    fn of(&self, place: usize) -> &[(usize, i32)] {
        let first = if place == 0 { 0 } else { self.ends[place - 1] };
        &self.taps[first..self.ends[place]]
    }

    /// How many places of the image one is a mean of, at most.
    fn most(&self) -> usize {
        (0..self.ends.len()).map(|place| self.of(place).len()).max().unwrap_or(0)
    }

    /// Brings a line of an image to its width.
    fn narrow(&self, at: impl Fn(usize) -> [u8; 3], line: &mut [[u8; 3]]) {
        for (place, to) in line.iter_mut().enumerate() {
            let mut sums = [HALF; 3];
            for &(source, weight) in self.of(place) {
                let channels = at(source);
                (0..3).for_each(|channel| sums[channel] += weight * i32::from(channels[channel]));
            }
            *to = sums.map(whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::framing::Fit;
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

    /// `Image.fromarray(image).resize((width, height), filter)` of Pillow 13.0.0, at sizes whose horizontal pass it takes first, for an image by the formula here: hard edges
    /// that a cubic overshoots, so that what lies between both passes is cut to bytes.
    #[test]
    fn pixels_are_those_of_pil() {
        let at = |row: usize, column: usize| {
            let red = 37 * row * row + 91 * column + 13 * row * column;
            [red as u8, 255 * ((row + column) % 2) as u8, (5 * row + 29 * column * column) as u8]
        };
        let shown = |from: [usize; 2], size: [usize; 2], filter: Filter| -> Vec<u8> {
            let mut to = vec![0; size[0] * size[1]];
            let framing = Framing { fit: Fit::Squash, filter };
            View::framed(from, size, &framing).show(from, at, (size, &mut to), &mut Lines::default());
            to.into_iter().flat_map(channels).collect()
        };
        let smaller: [u8; 36] = [
            97, 126, 35, 145, 128, 107, 125, 126, 147, 133, 128, 48, 156, 127, 120, 120, 128, 160, 121, 128, 62, 129,
            127, 136, 116, 128, 177, 99, 126, 78, 108, 128, 117, 169, 126, 91,
        ];
        assert_eq!(shown([11, 7], [4, 3], Filter::Bicubic), smaller);
        let smaller: [u8; 36] = [
            103, 127, 43, 139, 128, 99, 127, 127, 149, 130, 127, 55, 154, 128, 111, 121, 127, 161, 122, 127, 69, 125,
            128, 124, 121, 127, 173, 106, 127, 81, 109, 128, 110, 165, 127, 99,
        ];
        assert_eq!(shown([11, 7], [4, 3], Filter::Bilinear), smaller);
        let larger: [u8; 90] = [
            0, 0, 0, 34, 136, 9, 105, 252, 42, 177, 3, 112, 95, 119, 62, 0, 255, 0, 5, 101, 1, 52, 129, 11, 134, 150,
            44, 209, 105, 114, 124, 126, 64, 25, 154, 1, 30, 255, 3, 80, 120, 14, 161, 19, 47, 242, 236, 117, 171, 135,
            67, 83, 0, 3, 114, 101, 6, 79, 129, 17, 68, 150, 50, 155, 105, 120, 190, 126, 70, 196, 154, 6, 167, 0, 8,
            76, 136, 19, 3, 252, 52, 94, 3, 122, 197, 119, 72, 255, 255, 8,
        ];
        assert_eq!(shown([3, 4], [5, 6], Filter::Bicubic), larger);
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

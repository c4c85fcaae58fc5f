//! How an image is brought to a model's size, as the model's folder states, by the two passes of PIL, with which `timm` resizes:
//! the horizontal one first. Some versions of PIL take the vertical one first for some images.

/// What of an image is shown, and how it is resized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Framing {
    /// What is shown.
    pub fit: Fit,
    /// How it is resized.
    pub filter: Filter,
}

/// What of an image is shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fit {
    /// The middle: the image is resized until the model's size is this share of its shorter side, and the rest is cut off.
    Crop(f64, Odd),
    /// All of it, whatever its form.
    Squash,
}

/// Where the middle begins if an odd number of pixels is cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Odd {
    /// At the even one of both places, as in `timm`.
    Even,
    /// At the first of both, as in `transformers`.
    First,
}

/// What a pixel of the resized image is a mean of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Filter {
    /// A triangle.
    Bilinear,
    /// Keys' cubic, with slopes of -1/2.
    Bicubic,
}

impl Default for Framing {
    fn default() -> Self {
        Framing { fit: Fit::Crop(1.0, Odd::Even), filter: Filter::Bilinear }
    }
}

impl Framing {
    /// Where what is shown of an image of this height and width begins, from the left and the top, and its width and height, in
    /// pixels of the image.
    pub fn part(&self, from: [usize; 2], size: [usize; 2]) -> [[f64; 2]; 2] {
        let resized = self.resized(from, size);
        let along = |axis: usize| {
            let scale = from[axis] as f64 / resized[axis] as f64;
            let half = (resized[axis] as f64 - size[axis] as f64) / 2.0;
            let cut = if let Fit::Crop(_, Odd::First) = self.fit { half.floor() } else { half.round_ties_even() };
            (cut * scale, size[axis] as f64 * scale)
        };
        let ((top, height), (left, width)) = (along(0), along(1));
        [[left, top], [width, height]]
    }

    /// The height and width to which all of the image is resized.
    fn resized(&self, from: [usize; 2], size: [usize; 2]) -> [usize; 2] {
        let Fit::Crop(share, _) = self.fit else { return size };
        let least = size.map(|side| (side as f64 / share).floor() as usize);
        if least[0] == least[1] {
            let shorter = from[0].min(from[1]);
            return from.map(|side| if side == shorter { least[0] } else { least[0] * side / shorter });
        }
        let ratio = (from[0] as f64 / least[0] as f64).min(from[1] as f64 / least[1] as f64);
        from.map(|side| (side as f64 / ratio).round_ties_even() as usize)
    }
}

impl Filter {
    /// How far it reaches, in pixels of the larger of both images.
    pub fn reach(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
        }
    }

    /// What a pixel at this distance counts for.
    pub fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Filter::Bilinear => (1.0 - x).max(0.0),
            Filter::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Filter::Bicubic if x < 2.0 => ((2.5 - 0.5 * x) * x - 4.0) * x + 2.0,
            Filter::Bicubic => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_resized_to_the_pixels_that_timm_resizes_them_to() {
        let crop = |share| Framing { fit: Fit::Crop(share, Odd::Even), filter: Filter::Bicubic };
        assert_eq!(crop(0.875).resized([201, 333], [224, 224]), [256, 424]);
        assert_eq!(crop(0.95).resized([333, 201], [224, 224]), [389, 235]);
        assert_eq!(crop(0.9).resized([100, 300], [64, 128]), [71, 213], "not as wide as high");
        assert_eq!(Framing::default().part([224, 224], [224, 224]), [[0.0; 2], [224.0; 2]]);
        assert_eq!(Framing { fit: Fit::Squash, ..crop(1.0) }.part([20, 30], [10, 10]), [[0.0; 2], [30.0, 20.0]]);
        // 424 - 224 = 200 pixels are cut off, and 256 - 224 = 32: half of them on each side.
        let [[left, top], [width, height]] = crop(0.875).part([201, 333], [224, 224]);
        assert!((left - 100.0 * 333.0 / 424.0).abs() < 1e-4 && (top - 16.0 * 201.0 / 256.0).abs() < 1e-4);
        assert!((width - 224.0 * 333.0 / 424.0).abs() < 1e-4 && (height - 224.0 * 201.0 / 256.0).abs() < 1e-4);
    }

    /// 55 - 44 = 11 pixels are cut off, of which the even half are 6 and the lower 5; 57 - 44 = 13 leave 6 both ways.
    #[test]
    fn an_odd_number_of_pixels_is_cut_off_as_the_folders_library_does() {
        let begins = |side: usize, odd: Odd| {
            let framing = Framing { fit: Fit::Crop(44.0 / side as f64, odd), filter: Filter::Bicubic };
            framing.part([side, side], [44, 44])[0]
        };
        assert_eq!((begins(55, Odd::Even), begins(55, Odd::First)), ([6.0; 2], [5.0; 2]));
        assert_eq!((begins(57, Odd::Even), begins(57, Odd::First)), ([6.0; 2], [6.0; 2]));
    }

    #[test]
    fn a_filters_weights_add_up_to_one() {
        for filter in [Filter::Bilinear, Filter::Bicubic] {
            for part in [0.0, 0.1, 0.5, 0.75] {
                let sum: f64 = (-3..=3).map(|place| filter.weight(place as f64 + part)).sum();
                assert!((sum - 1.0).abs() < 1e-12, "{filter:?} {part} {sum}");
            }
            assert_eq!((filter.weight(0.0), filter.weight(1.0), filter.weight(2.5)), (1.0, 0.0, 0.0));
        }
    }
}

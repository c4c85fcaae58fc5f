//! Models that tell what is in an image: residual networks and vision transformers.

mod resnet;
mod vit;

pub use resnet::{Block, ResNet};
pub use vit::Vit;

use crate::parameters::Parameters;
use crate::{Error, Result};
use gradus_engine::{DType, Tensor};
use serde::{Deserialize, Serialize};

/// The most pixels of a side, and the most classes: what is beyond is a mistake.
const MOST_PIXELS: usize = 1 << 15;
const MOST_CLASSES: usize = 1 << 20;

/// Mean and deviation of the channels of photographs, by which `timm` and `transformers` normalize them.
pub const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// See [`MEAN`].
pub const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// The computation of an image model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Architecture {
    /// A residual network.
    Resnet(ResNet),
    /// A vision transformer.
    Vit(Vit),
}

/// Names of architectures, for options and files.
pub const NAMES: [(&str, &str); 6] = [
    ("resnet-tiny", "a residual network of 4 blocks, 16 to 128 channels: 0.2 M weights"),
    ("resnet18", "18 layers: 11.7 M weights for 1000 classes"),
    ("resnet34", "34 layers: 21.8 M"),
    ("resnet50", "50 layers, with bottlenecks: 25.6 M"),
    ("vit-tiny", "a transformer of 4 blocks of width 64 over patches of 8: 0.2 M"),
    ("vit-s", "12 blocks of width 384 over patches of 16: 22.1 M"),
];

impl Architecture {
    /// One of the [`NAMES`].
    pub fn named(name: &str) -> Option<Architecture> {
        let resnet = |block, depths, stem: usize| {
            Architecture::Resnet(ResNet { block, stem, depths, channels: [1, 2, 4, 8].map(|times| times * stem) })
        };
        let vit = |patch, width, layers, heads| {
            let feed_forward = 4 * width;
            Architecture::Vit(Vit { patch, width, layers, heads, feed_forward, norm_epsilon: 1e-6 })
        };
        Some(match name {
            "resnet-tiny" => resnet(Block::Basic, [1; 4], 16),
            "resnet18" => resnet(Block::Basic, [2; 4], 64),
            "resnet34" => resnet(Block::Basic, [3, 4, 6, 3], 64),
            "resnet50" => resnet(Block::Bottleneck, [3, 4, 6, 3], 64),
            "vit-tiny" => vit(8, 64, 4, 4),
            "vit-s" => vit(16, 384, 12, 6),
            _ => return None,
        })
    }

    /// The name of the layer that gives the logits.
    pub fn head(&self) -> &'static str {
        match self {
            Architecture::Resnet(_) => "fc",
            Architecture::Vit(_) => "head",
        }
    }
}

/// A model of images of one size, of so many classes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ImageModel {
    /// Its computation.
    pub architecture: Architecture,
    /// Classes.
    pub classes: usize,
    /// Pixels of an image: height and width.
    pub size: [usize; 2],
    /// What channels have subtracted, as a share of the brightest.
    pub mean: [f32; 3],
    /// What they are divided by then.
    pub deviation: [f32; 3],
}

impl ImageModel {
    /// A model of images that are normalized as usual.
    pub fn new(architecture: Architecture, classes: usize, size: [usize; 2]) -> ImageModel {
        ImageModel { architecture, classes, size, mean: MEAN, deviation: DEVIATION }
    }

    /// Refuses sizes that cannot be computed.
    pub fn validate(&self) -> Result<()> {
        let refused = |problem: String| Err(Error::Config(problem));
        let [height, width] = self.size;
        if !(2..=MOST_CLASSES).contains(&self.classes) {
            return refused(format!("{} classes cannot be told apart; give 2 to {MOST_CLASSES}", self.classes));
        }
        if self.size.iter().any(|side| !(1..=MOST_PIXELS).contains(side)) {
            return refused(format!("`settings.size` {height}x{width} is no size; give sides of 1 to {MOST_PIXELS}"));
        }
        if self.mean.iter().chain(&self.deviation).any(|number| !number.is_finite())
            || self.deviation.iter().any(|deviation| *deviation <= 0.0)
        {
            return refused("mean and deviation of the channels must be finite, and deviations above 0".to_string());
        }
        match &self.architecture {
            Architecture::Resnet(ResNet { stem, depths, channels, .. }) => {
                if depths.iter().any(|depth| !(1..=1000).contains(depth))
                    || channels.iter().chain([stem]).any(|channels| !(1..=1 << 14).contains(channels))
                {
                    return refused(format!(
                        "a residual network of {depths:?} blocks of {channels:?} channels is none"
                    ));
                }
            }
            Architecture::Vit(vit) => {
                let Vit { patch, width: wide, layers, heads, feed_forward, norm_epsilon } = *vit;
                if [patch, wide, layers, heads, feed_forward].iter().any(|size| !(1..=1 << 16).contains(size))
                    || !wide.is_multiple_of(heads)
                    || !(norm_epsilon > 0.0 && norm_epsilon < 1.0)
                {
                    return refused(format!("impossible sizes of a transformer: {vit:?}"));
                }
                if self.size.iter().any(|side| !side.is_multiple_of(patch)) {
                    return refused(format!(
                        "`settings.size` {height}x{width} is not made of patches of {patch} x {patch}; give multiples of {patch}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Logits [b, classes] of images [b, h, w], each pixel a number as [`pixel`] makes it.
    #[track_caller]
    pub fn logits(&self, parameters: &Parameters, images: &Tensor) -> Tensor {
        let images = self.normalized(images); // [b, 3, h, w]
        match &self.architecture {
            Architecture::Resnet(resnet) => resnet.logits(parameters, &images, self.classes),
            Architecture::Vit(vit) => vit.logits(parameters, &images, self.classes),
        }
    }

    /// The channels [b, 3, h, w] of pixels [b, h, w]. All numbers on the way are whole and below 2^24, so f32 has them.
    #[track_caller]
    fn normalized(&self, pixels: &Tensor) -> Tensor {
        let whole = |x: &Tensor| x.cast(DType::I32).cast(DType::F32);
        let all = pixels.cast(DType::F32);
        let red = whole(&(&all * (1.0 / 65_536.0)));
        let rest = all - &red * 65_536.0;
        let green = whole(&(&rest * (1.0 / 256.0)));
        let blue = rest - &green * 256.0;
        let channel =
            |(x, (mean, deviation)): (&Tensor, (&f32, &f32))| (x - mean * 255.0) * (1.0 / (deviation * 255.0));
        let channels = [red, green, blue];
        let normed: Vec<Tensor> = channels.iter().zip(self.mean.iter().zip(&self.deviation)).map(channel).collect();
        Tensor::stack(&normed.iter().collect::<Vec<_>>(), 1)
    }
}

/// A pixel as one number: a byte each of red, green and blue. An image so takes a third of what it takes in f32.
pub fn pixel([red, green, blue]: [u8; 3]) -> i32 {
    i32::from(red) << 16 | i32::from(green) << 8 | i32::from(blue)
}

/// The channels of a pixel.
pub fn channels(pixel: i32) -> [u8; 3] {
    [(pixel >> 16) as u8, (pixel >> 8) as u8, pixel as u8]
}

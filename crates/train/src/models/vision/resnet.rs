//! Residual networks, with the names and layouts that `timm` and torchvision give their weights.

use crate::layers::{BatchNorm, Conv2d, Linear};
use crate::parameters::Parameters;
use gradus_engine::ops::{Conv2dOptions, Pool2dOptions};
use gradus_engine::{DType, Tensor};
use serde::{Deserialize, Serialize};

/// The convolutions of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Block {
    /// Two of 3 x 3.
    Basic,
    /// 1 x 1, 3 x 3 and 1 x 1, the last to four times the channels.
    Bottleneck,
}

impl Block {
    /// How many times the channels of its stage a block gives.
    pub fn expansion(self) -> usize {
        match self {
            Block::Basic => 1,
            Block::Bottleneck => 4,
        }
    }
}

/// A residual network of four stages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ResNet {
    /// The convolutions of a block.
    pub block: Block,
    /// Channels before the first stage: 64 in `timm`.
    pub stem: usize,
    /// Blocks of each stage.
    pub depths: [usize; 4],
    /// Channels of each stage, before a bottleneck's expansion.
    pub channels: [usize; 4],
}

impl ResNet {
    /// Channels that the last stage gives.
    pub fn features(&self) -> usize {
        self.channels[3] * self.block.expansion()
    }

    /// Logits [b, classes] of images [b, 3, h, w].
    #[track_caller]
    pub fn logits(&self, parameters: &Parameters, images: &Tensor, classes: usize) -> Tensor {
        let x = images.cast(parameters.precision().dtype());
        let x = normed(parameters, ("conv1", "bn1"), &x, Filters { count: self.stem, side: 7, stride: 2 }).relu();
        let mut x = x.max_pool2d(Pool2dOptions { stride: [2, 2], padding: [1, 1], ..Pool2dOptions::new([3, 3]) });
        for (stage, (&depth, &channels)) in self.depths.iter().zip(&self.channels).enumerate() {
            for number in 0..depth {
                let stride = if stage > 0 && number == 0 { 2 } else { 1 };
                let at = parameters.within(format!("layer{}", stage + 1)).within(number);
                x = self.block(&at, &x, channels, stride);
            }
        }
        let features = x.cast(DType::F32).mean(&[2, 3]); // [b, c]
        Linear::new(&parameters.within("fc"), self.features(), classes).forward(&features)
    }

    /// A block with its shortcut.
    #[track_caller]
    fn block(&self, at: &Parameters, x: &Tensor, channels: usize, stride: usize) -> Tensor {
        let plain = |side: usize, stride: usize| Filters { count: channels, side, stride };
        let last = Filters { count: channels * self.block.expansion(), side: 1, stride: 1 };
        let y = match self.block {
            Block::Basic => {
                let y = normed(at, ("conv1", "bn1"), x, plain(3, stride)).relu();
                normed(at, ("conv2", "bn2"), &y, plain(3, 1))
            }
            Block::Bottleneck => {
                let y = normed(at, ("conv1", "bn1"), x, plain(1, 1)).relu();
                let y = normed(at, ("conv2", "bn2"), &y, plain(3, stride)).relu();
                normed(at, ("conv3", "bn3"), &y, last)
            }
        };
        let shortcut = match stride == 1 && x.size(1) == last.count {
            true => x.clone(),
            false => normed(&at.within("downsample"), ("0", "1"), x, Filters { stride, ..last }),
        };
        (y + shortcut).relu()
    }
}

/// The filters of a convolution.
#[derive(Clone, Copy)]
struct Filters {
    count: usize,
    side: usize,
    stride: usize,
}

/// A convolution that keeps the size, but for its stride, and the batch norm after it.
#[track_caller]
fn normed(at: &Parameters, (conv, norm): (&str, &str), x: &Tensor, filters: Filters) -> Tensor {
    let Filters { count, side, stride } = filters;
    let options = Conv2dOptions { stride: [stride; 2], padding: [side / 2; 2], ..Default::default() };
    let x = Conv2d::without_bias(&at.within(conv), x.size(1), count, [side; 2], options).forward(x);
    BatchNorm::new(&at.within(norm), count).forward(&x)
}

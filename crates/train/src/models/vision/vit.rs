//! Vision transformers, with the names and layouts that `timm` gives their weights.

use crate::layers::{Conv2d, LayerNorm, Linear};
use crate::parameters::{Initializer, Parameters};
use gradus_engine::ops::{AttentionOptions, Conv2dOptions};
use gradus_engine::{DType, Tensor};
use serde::{Deserialize, Serialize};

/// What matrices start from, as in `timm`.
const NORMAL: Initializer = Initializer::TruncatedNormal { deviation: 0.02, limit: 0.04 };

/// A transformer over the patches of an image, and a token for its class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Vit {
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Numbers that stand for a patch.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of attention, which divide the width.
    pub heads: usize,
    /// Width of the feed-forward part.
    pub feed_forward: usize,
    /// Added to variances in norms.
    pub norm_epsilon: f32,
}

impl Vit {
    /// Logits [b, classes] of images [b, 3, h, w], whose sides are multiples of the patch.
    #[track_caller]
    pub fn logits(&self, parameters: &Parameters, images: &Tensor, classes: usize) -> Tensor {
        let Vit { patch, width, layers, .. } = *self;
        let batch = images.size(0);
        let cut = Conv2dOptions { stride: [patch; 2], ..Default::default() };
        let embed = Conv2d::new(&parameters.within("patch_embed.proj"), 3, width, [patch; 2], cut);
        let patches = embed.forward(images).flatten(2).transpose(1, 2).cast(DType::F32); // [b, n, c]
        let class = parameters.get("cls_token", [1, 1, width], Initializer::Normal { deviation: 1e-6 });
        let x = Tensor::concat(&[&class.broadcast([batch, 1, width]), &patches], 1); // [b, 1 + n, c]
        let mut x = &x + parameters.get("pos_embed", [1, x.size(1), width], NORMAL);
        for layer in 0..layers {
            let at = parameters.within("blocks").within(layer);
            x = &x + self.attention(&at.within("attn"), &self.norm(&at, "norm1", &x));
            x = &x + self.feed_forward(&at.within("mlp"), &self.norm(&at, "norm2", &x));
        }
        // Norms treat each place by itself.
        let found = self.norm(parameters, "norm", &x.slice(1, 0..1)).reshape([batch, width]);
        linear(&parameters.within("head"), width, classes).forward(&found)
    }

    #[track_caller]
    fn norm(&self, at: &Parameters, name: &str, x: &Tensor) -> Tensor {
        LayerNorm::new(&at.within(name), self.width).with_epsilon(self.norm_epsilon).forward(x)
    }

    #[track_caller]
    fn attention(&self, at: &Parameters, x: &Tensor) -> Tensor {
        let (width, depth) = (self.width, self.width / self.heads.max(1));
        let [batch, places] = [x.size(0), x.size(1)];
        let joint = linear(&at.within("qkv"), width, 3 * width).forward(&x.cast(at.precision().dtype())); // [b, n, 3 c]
        let heads = joint.split(-1, &[width; 3]).into_iter();
        let heads: Vec<Tensor> =
            heads.map(|part| part.reshape([batch, places, self.heads, depth]).transpose(1, 2)).collect(); // [b, h, n, d]
        let options = AttentionOptions { causal: false, window: None, scale: None };
        let found = heads[0].attention_with(&heads[1], &heads[2], options).transpose(1, 2).flatten(2); // [b, n, c]
        linear(&at.within("proj"), width, width).forward(&found).cast(DType::F32)
    }

    #[track_caller]
    fn feed_forward(&self, at: &Parameters, x: &Tensor) -> Tensor {
        let inward = linear(&at.within("fc1"), self.width, self.feed_forward).forward(&x.cast(at.precision().dtype()));
        linear(&at.within("fc2"), self.feed_forward, self.width).forward(&inward.gelu_erf()).cast(DType::F32)
    }
}

#[track_caller]
fn linear(at: &Parameters, inputs: usize, outputs: usize) -> Linear {
    Linear::with_initializers(at, inputs, outputs, NORMAL, Some(Initializer::Zeros))
}

//! The convolutional network of `examples/convnet.rs` in candle.

use candle_core::{D, DType, Device, ModuleT, Result, Tensor};
use candle_nn::{
    AdamW, BatchNorm, BatchNormConfig, Conv2d, Conv2dConfig, Dropout, Linear, Module, Optimizer, ParamsAdamW,
    VarBuilder, VarMap, batch_norm, conv2d_no_bias, linear, loss::cross_entropy,
};
use std::ops::Range;
use std::path::Path;

/// Pixels of a side of an image.
const SIDE: usize = 16;

struct Block {
    conv: Conv2d,
    norm: BatchNorm,
}

impl Block {
    fn new(channels: usize, filters: usize, weights: VarBuilder<'_>) -> Result<Block> {
        let same = Conv2dConfig { padding: 1, ..Default::default() };
        let conv = conv2d_no_bias(channels, filters, 3, same, weights.pp("conv"))?;
        Ok(Block { conv, norm: batch_norm(filters, BatchNormConfig::default(), weights.pp("norm"))? })
    }

    fn forward(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        self.norm.forward_t(&self.conv.forward(x)?, training)?.relu()?.max_pool2d(2)
    }
}

struct Network {
    first: Block,
    second: Block,
    dropout: Dropout,
    head: Linear,
}

impl Network {
    fn new(weights: VarBuilder<'_>) -> Result<Network> {
        let first = Block::new(1, 8, weights.pp("first"))?;
        let second = Block::new(8, 16, weights.pp("second"))?;
        Ok(Network { first, second, dropout: Dropout::new(0.1), head: linear(256, 4, weights.pp("head"))? })
    }

    /// Logits of the shapes [b, 4] for images [b, 1, 16, 16].
    fn forward(&self, x: &Tensor, training: bool) -> Result<Tensor> {
        let x = self.first.forward(x, training)?; // [b, 8, 8, 8]
        let x = self.second.forward(&x, training)?.flatten_from(1)?; // [b, 256]
        self.head.forward(&self.dropout.forward(&x, training)?)
    }
}

fn batch(numbers: Range<u64>) -> Result<(Tensor, Tensor)> {
    let (pixels, shapes) = images(numbers);
    let count = shapes.len();
    let pixels = Tensor::from_vec(pixels, (count, 1, SIDE, SIDE), &Device::Cpu)?;
    Ok((pixels, Tensor::from_vec(shapes, count, &Device::Cpu)?))
}

/// Trains up to so many steps, from where the folder stands; how many of 400 unseen images it then gets right. The moments
/// of AdamW begin anew: they cannot be saved.
fn train(steps: u64, folder: &Path) -> Result<u32> {
    std::fs::create_dir_all(folder)?;
    let (weights, taken) = (folder.join("weights.safetensors"), folder.join("steps"));
    let mut variables = VarMap::new();
    let network = Network::new(VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu))?;
    let mut first = 0;
    if weights.exists() {
        variables.load(&weights)?;
        first = std::fs::read_to_string(&taken)?.parse().map_err(candle_core::Error::wrap)?;
    }
    let mut optimizer = AdamW::new(variables.all_vars(), ParamsAdamW { lr: 3e-3, ..Default::default() })?;
    for step in first..steps {
        let (pixels, shapes) = batch(64 * step..64 * (step + 1))?;
        optimizer.backward_step(&cross_entropy(&network.forward(&pixels, true)?, &shapes)?)?;
    }
    variables.save(&weights)?;
    std::fs::write(&taken, steps.to_string())?;
    let (pixels, shapes) = batch(1_000_000..1_000_400)?;
    network.forward(&pixels, false)?.argmax(D::Minus1)?.eq(&shapes)?.to_dtype(DType::U32)?.sum_all()?.to_scalar()
}

/// Discs, squares, crosses and rings, each somewhere in an image and under noise; and which they are.
fn images(numbers: Range<u64>) -> (Vec<f32>, Vec<u32>) {
    let (pixels, shapes): (Vec<Vec<f32>>, Vec<u32>) = numbers.map(image).unzip();
    (pixels.concat(), shapes)
}

fn image(number: u64) -> (Vec<f32>, u32) {
    let [left, top] = [0, 1].map(|axis| 5.0 + 6.0 * random(2 * number + axis));
    let is_inside = |x: f32, y: f32| match number % 4 {
        0 => x.hypot(y) < 4.0,
        1 => x.abs().max(y.abs()) < 3.5,
        2 => x.abs().min(y.abs()) < 1.2 && x.abs().max(y.abs()) < 4.5,
        _ => (2.2..4.5).contains(&x.hypot(y)),
    };
    let pixel = |at: usize| {
        let inside = is_inside((at % SIDE) as f32 - left, (at / SIDE) as f32 - top);
        inside as u8 as f32 + 0.8 * random((number << 8) + at as u64)
    };
    ((0..SIDE * SIDE).map(pixel).collect(), (number % 4) as u32)
}

/// Some number between 0 and 1.
fn random(number: u64) -> f32 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)) >> 40) as f32 / (1 << 24) as f32
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("candle-convnet-{}", std::process::id()));
    for steps in [100, 200] {
        println!("{} of 400 unseen images right after {steps} steps", train(steps, &folder)?);
    }
    Ok(std::fs::remove_dir_all(&folder)?)
}

//! The convolutional network of `examples/convnet.rs` in burn, on its `flex` backend.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::error::Error;
use std::ops::Range;
use std::path::Path;

/// Pixels of a side of an image.
const SIDE: usize = 16;

#[derive(Module, Debug)]
struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    pool: MaxPool2d,
}

impl Block {
    fn new(channels: usize, filters: usize, device: &Device) -> Block {
        let conv = Conv2dConfig::new([channels, filters], [3, 3]).with_padding(PaddingConfig2d::Same).with_bias(false);
        let norm = BatchNormConfig::new(filters).init(device);
        Block { conv: conv.init(device), norm, pool: MaxPool2dConfig::new([2, 2]).init() }
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.pool.forward(relu(self.norm.forward(self.conv.forward(x))))
    }
}

#[derive(Module, Debug)]
struct Network {
    first: Block,
    second: Block,
    dropout: Dropout,
    head: Linear,
}

impl Network {
    fn new(device: &Device) -> Network {
        let (first, second) = (Block::new(1, 8, device), Block::new(8, 16, device));
        let head = LinearConfig::new(256, 4).init(device);
        Network { first, second, dropout: DropoutConfig::new(0.1).init(), head }
    }

    /// Logits of the shapes [b, 4] for images [b, 1, 16, 16].
    fn forward(&self, x: Tensor<4>) -> Tensor<2> {
        let x = self.second.forward(self.first.forward(x)).flatten(1, 3); // [b, 256]
        self.head.forward(self.dropout.forward(x))
    }
}

fn batch(numbers: Range<u64>, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
    let (pixels, shapes) = images(numbers);
    let count = shapes.len();
    let pixels = Tensor::from_data(TensorData::new(pixels, [count, 1, SIDE, SIDE]), device);
    (pixels, Tensor::from_data(TensorData::new(shapes, [count]), device))
}

/// Trains up to so many steps, from where the folder stands; how many of 400 unseen images it then gets right.
fn train(steps: u64, folder: &Path) -> Result<i64, Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let [weights, moments, taken] = ["weights.bpk", "moments.bpk", "steps"].map(|name| folder.join(name));
    let device = Device::flex().autodiff();
    device.seed(1);
    let (mut network, mut first) = (Network::new(&device), 0);
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.01).init();
    if weights.exists() {
        network = network.try_load_file(&weights)?;
        optimizer = optimizer.load(&moments)?;
        first = std::fs::read_to_string(&taken)?.parse()?;
    }
    let loss = CrossEntropyLossConfig::new().init(&device);
    for step in first..steps {
        let (pixels, shapes) = batch(64 * step..64 * (step + 1), &device);
        let gradients = loss.forward(network.forward(pixels), shapes).backward();
        let gradients = GradientsParams::from_grads(gradients, &network);
        network = optimizer.step(3e-3, network, gradients);
    }
    network.clone().save_file(&weights)?;
    optimizer.save(&moments)?;
    std::fs::write(&taken, steps.to_string())?;
    let (pixels, shapes) = batch(1_000_000..1_000_400, &device.inner());
    Ok(network.valid().forward(pixels).argmax(1).squeeze_dim(1).equal(shapes).int().sum().into_scalar())
}

/// Discs, squares, crosses and rings, each somewhere in an image and under noise; and which they are.
fn images(numbers: Range<u64>) -> (Vec<f32>, Vec<i64>) {
    let (pixels, shapes): (Vec<Vec<f32>>, Vec<i64>) = numbers.map(image).unzip();
    (pixels.concat(), shapes)
}

fn image(number: u64) -> (Vec<f32>, i64) {
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
    ((0..SIDE * SIDE).map(pixel).collect(), (number % 4) as i64)
}

/// Some number between 0 and 1.
fn random(number: u64) -> f32 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)) >> 40) as f32 / (1 << 24) as f32
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("burn-convnet-{}", std::process::id()));
    for steps in [100, 200] {
        println!("{} of 400 unseen images right after {steps} steps", train(steps, &folder)?);
    }
    Ok(std::fs::remove_dir_all(&folder)?)
}

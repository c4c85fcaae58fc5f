//! The spiral of `examples/classifier.rs` in burn, on its `flex` backend.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use std::error::Error;
use std::ops::Range;
use std::path::Path;

#[derive(Module, Debug)]
struct Network {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Network {
    fn new(device: &Device) -> Network {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Network { first: layer(2, 64), second: layer(64, 64), last: layer(64, 3) }
    }

    /// Logits of the arms [b, 3] for points [b, 2].
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = relu(self.first.forward(x));
        self.last.forward(relu(self.second.forward(x)))
    }
}

fn batch(numbers: Range<u64>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let (at, arms) = points(numbers);
    let count = arms.len();
    let at = Tensor::from_data(TensorData::new(at, [count, 2]), device);
    (at, Tensor::from_data(TensorData::new(arms, [count]), device))
}

/// Trains up to so many steps, from where the folder stands; how many of 300 unseen points it then gets right.
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
        let (at, arms) = batch(128 * step..128 * (step + 1), &device);
        let gradients = loss.forward(network.forward(at), arms).backward();
        let gradients = GradientsParams::from_grads(gradients, &network);
        network = optimizer.step(1e-2, network, gradients);
    }
    network.clone().save_file(&weights)?;
    optimizer.save(&moments)?;
    std::fs::write(&taken, steps.to_string())?;
    let (at, arms) = batch(1_000_000..1_000_300, &device.inner());
    Ok(network.valid().forward(at).argmax(1).squeeze_dim(1).equal(arms).int().sum().into_scalar())
}

/// Points of the arms, x and y of one after another, and their arms.
fn points(numbers: Range<u64>) -> (Vec<f32>, Vec<i64>) {
    let point = |number: u64| {
        let (arm, radius) = (number % 3, (number as f64 * 0.618_034).fract());
        let noise = (number as f64 * 0.754_877).fract() - 0.5;
        let angle = 5.0 * radius + 2.094_395 * arm as f64 + 0.3 * noise;
        ([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32], arm as i64)
    };
    let (at, arms): (Vec<[f32; 2]>, Vec<i64>) = numbers.map(point).unzip();
    (at.concat(), arms)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("burn-spiral-{}", std::process::id()));
    for steps in [300, 600] {
        println!("{} of 300 unseen points right after {steps} steps", train(steps, &folder)?);
    }
    Ok(std::fs::remove_dir_all(&folder)?)
}

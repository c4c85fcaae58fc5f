//! The spiral of `examples/classifier.rs` in candle.

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss::cross_entropy};
use std::ops::Range;
use std::path::Path;

struct Network {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Network {
    fn new(weights: VarBuilder<'_>) -> Result<Network> {
        let first = linear(2, 64, weights.pp("first"))?;
        let second = linear(64, 64, weights.pp("second"))?;
        Ok(Network { first, second, last: linear(64, 3, weights.pp("last"))? })
    }

    /// Logits of the arms [b, 3] for points [b, 2].
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.first.forward(x)?.relu()?;
        self.last.forward(&self.second.forward(&x)?.relu()?)
    }
}

fn batch(numbers: Range<u64>) -> Result<(Tensor, Tensor)> {
    let (at, arms) = points(numbers);
    let count = arms.len();
    Ok((Tensor::from_vec(at, (count, 2), &Device::Cpu)?, Tensor::from_vec(arms, count, &Device::Cpu)?))
}

/// Trains up to so many steps, from where the folder stands; how many of 300 unseen points it then gets right. The moments
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
    let mut optimizer = AdamW::new(variables.all_vars(), ParamsAdamW { lr: 1e-2, ..Default::default() })?;
    for step in first..steps {
        let (at, arms) = batch(128 * step..128 * (step + 1))?;
        optimizer.backward_step(&cross_entropy(&network.forward(&at)?, &arms)?)?;
    }
    variables.save(&weights)?;
    std::fs::write(&taken, steps.to_string())?;
    let (at, arms) = batch(1_000_000..1_000_300)?;
    network.forward(&at)?.argmax(D::Minus1)?.eq(&arms)?.to_dtype(DType::U32)?.sum_all()?.to_scalar()
}

/// Points of the arms, x and y of one after another, and their arms.
fn points(numbers: Range<u64>) -> (Vec<f32>, Vec<u32>) {
    let point = |number: u64| {
        let (arm, radius) = (number % 3, (number as f64 * 0.618_034).fract());
        let noise = (number as f64 * 0.754_877).fract() - 0.5;
        let angle = 5.0 * radius + 2.094_395 * arm as f64 + 0.3 * noise;
        ([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32], arm as u32)
    };
    let (at, arms): (Vec<[f32; 2]>, Vec<u32>) = numbers.map(point).unzip();
    (at.concat(), arms)
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("candle-spiral-{}", std::process::id()));
    for steps in [300, 600] {
        println!("{} of 300 unseen points right after {steps} steps", train(steps, &folder)?);
    }
    Ok(std::fs::remove_dir_all(&folder)?)
}

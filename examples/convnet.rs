//! A convolutional network learns to tell four shapes in noisy images that it is shown, within a budget of memory; it is
//! stopped half way and goes on.

use gradus::backend::Cpu;
use gradus::layers::{BatchNorm, Conv2d, Linear};
use gradus::ops::{Conv2dOptions, Pool2dOptions};
use gradus::parameters::Parameters;
use gradus::train::run::Unwatched;
use gradus::train::step::{Batch, Inputs};
use gradus::train::trainer::{Settings, Trainer};
use gradus::{DType, Tensor};
use std::sync::Arc;

type Result<T> = gradus::train::Result<T>;

/// Pixels of a side of an image.
const SIDE: usize = 16;

/// Logits of the shapes [b, 4] for images [b, 1, 16, 16].
fn network(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let block = |name: &str, x: &Tensor, filters: usize| {
        let (parameters, same) = (parameters.within(name), Conv2dOptions { padding: [1, 1], ..Default::default() });
        let x = Conv2d::without_bias(&parameters.within("conv"), x.size(1), filters, [3, 3], same).forward(x);
        BatchNorm::new(&parameters.within("norm"), filters).forward(&x).relu().max_pool2d(Pool2dOptions::new([2, 2]))
    };
    let x = block("first", &inputs.get("image", DType::F32, [1, SIDE, SIDE]), 8); // [b, 8, 8, 8]
    let x = parameters.dropout(&block("second", &x, 16).flatten(1), 0.1); // [b, 256]
    Linear::new(&parameters.within("head"), 256, 4).forward(&x) // [b, 4]
}

/// Some number between 0 and 1.
fn random(number: u64) -> f32 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)) >> 40) as f32 / (1 << 24) as f32
}

/// A disc, a square, a cross or a ring somewhere in an image, under noise; and which it is.
fn image(number: u64) -> (Vec<f32>, i32) {
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
    ((0..SIDE * SIDE).map(pixel).collect(), (number % 4) as i32)
}

fn fill(step: u64, batch: &mut Batch) -> Result<()> {
    let images: Vec<_> = (0..batch.rows() as u64).map(|row| image(step * 64 + row)).collect();
    batch.write("image", &images.iter().flat_map(|(pixels, _)| pixels.clone()).collect::<Vec<f32>>())?;
    batch.write("shape", &images.iter().map(|(_, shape)| *shape).collect::<Vec<i32>>())
}

fn main() -> Result<()> {
    let losses = |parameters: &Parameters, inputs: &Inputs| {
        network(parameters, inputs).cross_entropy_rows(&inputs.get("shape", DType::I32, []), None) // [b]
    };
    let folder = std::env::temp_dir().join(format!("gradus-convnet-{}", std::process::id()));
    for steps in [100, 200] {
        let (memory, folder) = ("64MB".parse().ok(), Some(folder.clone()));
        let settings =
            Settings { batch: 64, steps: Some(steps), learning_rate: 3e-3, memory, folder, ..Default::default() };
        let mut trainer = Trainer::new(losses, settings, Arc::new(Cpu::new(2)?))?;
        let summary = trainer.train(fill, &mut Unwatched)?;
        let mut classifier = trainer.compile(400, |parameters, inputs| network(parameters, inputs).argmax(-1))?;
        let unseen: Vec<_> = (1_000_000..1_000_400).map(image).collect();
        classifier.write("image", &unseen.iter().flat_map(|(pixels, _)| pixels.clone()).collect::<Vec<f32>>())?;
        classifier.run("forward")?;
        let chosen: Vec<i32> = classifier.read("output")?.to_vec()?;
        let right = chosen.iter().zip(&unseen).filter(|(chosen, (_, shape))| *chosen == shape).count();
        println!("after {} steps: loss {:.4}, {right} of 400 unseen images right", summary.steps, summary.loss);
        assert!(steps < 200 || right >= 380, "it learned");
    }
    std::fs::remove_dir_all(&folder).map_err(gradus::train::Error::io("remove", &folder))
}

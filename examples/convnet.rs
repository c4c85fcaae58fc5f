//! A convolutional network learns to tell four shapes in noisy images, within a budget of memory; stopped half way and gone
//! on with, it comes to the same bits.

use gradus::backend::Cpu;
use gradus::layers::{BatchNorm, Conv2d, Linear};
use gradus::ops::{Conv2dOptions, Pool2dOptions};
use gradus::train::{Error, Result};
use gradus::{Batch, Budget, DType, Inputs, Parameters, Settings, Tensor, Trainer, Unwatched};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

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

fn losses(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    network(parameters, inputs).cross_entropy_rows(&inputs.get("shape", DType::I32, []), None) // [b]
}

fn fill(step: u64, batch: &mut Batch) -> Result<()> {
    let (pixels, shapes) = images(64 * step..64 * (step + 1));
    batch.write("image", &pixels)?;
    batch.write("shape", &shapes)
}

/// Trains up to so many steps, from where the run in the folder stands; how many of 400 unseen images it then gets right.
fn train(steps: u64, folder: &Path) -> Result<usize> {
    let (steps, memory, folder) = (Some(steps), Some(Budget::megabytes(64)), Some(folder.into()));
    let settings = Settings { batch: 64, steps, learning_rate: 3e-3, memory, folder, ..Settings::default() };
    let mut trainer = Trainer::new(losses, settings, Arc::new(Cpu::new(2)?))?;
    trainer.train(fill, &mut Unwatched)?;
    let mut classifier = trainer.compile(400, |parameters, inputs| network(parameters, inputs).argmax(-1))?;
    let (pixels, shapes) = images(1_000_000..1_000_400);
    classifier.write("image", &pixels)?;
    classifier.run("forward")?;
    let found = classifier.read("output")?.to_vec::<i32>()?;
    Ok(found.iter().zip(&shapes).filter(|(found, shape)| found == shape).count())
}

/// Discs, squares, crosses and rings, each somewhere in an image and under noise; and which they are.
fn images(numbers: Range<u64>) -> (Vec<f32>, Vec<i32>) {
    let (pixels, shapes): (Vec<Vec<f32>>, Vec<i32>) = numbers.map(image).unzip();
    (pixels.concat(), shapes)
}

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

/// Some number between 0 and 1.
fn random(number: u64) -> f32 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (((mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)) >> 40) as f32 / (1 << 24) as f32
}

fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("gradus-convnet-{}", std::process::id()));
    let half_way = train(100, &scratch.join("in-two"))?;
    let in_two = train(200, &scratch.join("in-two"))?;
    let at_once = train(200, &scratch.join("at-once"))?;
    println!("of 400 unseen images right: {half_way} after 100 steps, {in_two} after 200; {at_once} without the stop");
    assert!(in_two >= 380, "it learned");
    for file in ["weights", "optimizer"] {
        let path = |run: &str| scratch.join(run).join(format!("checkpoints/step-00000200/{file}.safetensors"));
        let [once, twice] = ["at-once", "in-two"].map(|run| std::fs::read(path(run)).expect("a checkpoint"));
        assert!(once == twice, "{file} are the same to the bit");
    }
    println!("stopped and gone on with, its weights, statistics and moments are the same to the bit");
    std::fs::remove_dir_all(&scratch).map_err(Error::io("remove", &scratch))
}

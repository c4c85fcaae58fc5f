//! A network learns to tell the three arms of a spiral, within a budget of memory; stopped half way and gone on with, it
//! comes to the same bits.

use gradus::backend::Cpu;
use gradus::layers::Linear;
use gradus::train::{Error, Result};
use gradus::{Batch, Budget, DType, Inputs, Parameters, Settings, Tensor, Trainer, Unwatched};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Logits of the arms [b, 3] for points [b, 2].
fn network(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let layer = |name: &str, x: &Tensor, outputs| Linear::new(&parameters.within(name), x.size(-1), outputs).forward(x);
    let x = layer("first", &inputs.get("point", DType::F32, [2]), 64).relu(); // [b, 64]
    layer("last", &layer("second", &x, 64).relu(), 3) // [b, 3]
}

fn losses(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    network(parameters, inputs).cross_entropy_rows(&inputs.get("arm", DType::I32, []), None) // [b]
}

fn fill(step: u64, batch: &mut Batch) -> Result<()> {
    let (at, arms) = points(128 * step..128 * (step + 1));
    batch.write("point", &at)?;
    batch.write("arm", &arms)
}

/// Trains up to so many steps, from where the run in the folder stands; how many of 300 unseen points it then gets right.
fn train(steps: u64, folder: &Path) -> Result<usize> {
    let (steps, memory, folder) = (Some(steps), Some(Budget::megabytes(64)), Some(folder.into()));
    let settings = Settings { batch: 128, steps, learning_rate: 1e-2, memory, folder, ..Settings::default() };
    let mut trainer = Trainer::new(losses, settings, Arc::new(Cpu::new(2)?))?;
    trainer.train(fill, &mut Unwatched)?;
    let mut classifier = trainer.compile(300, |parameters, inputs| network(parameters, inputs).argmax(-1))?;
    let (at, arms) = points(1_000_000..1_000_300);
    classifier.write("point", &at)?;
    classifier.run("forward")?;
    let found = classifier.read("output")?.to_vec::<i32>()?;
    Ok(found.iter().zip(&arms).filter(|(found, arm)| found == arm).count())
}

/// Points of the arms, x and y of one after another, and their arms.
fn points(numbers: Range<u64>) -> (Vec<f32>, Vec<i32>) {
    let point = |number: u64| {
        let (arm, radius) = (number % 3, (number as f64 * 0.618_034).fract());
        let noise = (number as f64 * 0.754_877).fract() - 0.5;
        let angle = 5.0 * radius + 2.094_395 * arm as f64 + 0.3 * noise;
        ([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32], arm as i32)
    };
    let (at, arms): (Vec<[f32; 2]>, Vec<i32>) = numbers.map(point).unzip();
    (at.concat(), arms)
}

fn main() -> Result<()> {
    let scratch = std::env::temp_dir().join(format!("gradus-classifier-{}", std::process::id()));
    let half_way = train(300, &scratch.join("in-two"))?;
    let in_two = train(600, &scratch.join("in-two"))?;
    let at_once = train(600, &scratch.join("at-once"))?;
    println!("of 300 unseen points right: {half_way} after 300 steps, {in_two} after 600; {at_once} without the stop");
    assert!(in_two >= 285, "it learned");
    for file in ["weights", "optimizer"] {
        let path = |run: &str| scratch.join(run).join(format!("checkpoints/step-00000600/{file}.safetensors"));
        let [once, twice] = ["at-once", "in-two"].map(|run| std::fs::read(path(run)).expect("a checkpoint"));
        assert!(once == twice, "{file} are the same to the bit");
    }
    println!("stopped and gone on with, its weights and moments are the same to the bit");
    std::fs::remove_dir_all(&scratch).map_err(Error::io("remove", &scratch))
}

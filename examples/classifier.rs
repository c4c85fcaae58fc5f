//! A network learns to tell the three arms of a spiral, within a budget of memory; it is stopped half way and goes on.

use gradus::backend::Cpu;
use gradus::layers::Linear;
use gradus::parameters::Parameters;
use gradus::train::run::Unwatched;
use gradus::train::step::{Batch, Inputs};
use gradus::train::trainer::{Settings, Trainer};
use gradus::{DType, Tensor};
use std::sync::Arc;

type Result<T> = gradus::train::Result<T>;

/// Logits of the arms [b, 3] for points [b, 2].
fn network(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let layer = |name: &str, x: &Tensor, outputs| Linear::new(&parameters.within(name), x.size(-1), outputs).forward(x);
    let x = layer("first", &inputs.get("point", DType::F32, [2]), 64).relu(); // [b, 64]
    layer("last", &layer("second", &x, 64).relu(), 3) // [b, 3]
}

/// A point of one of the arms: its coordinates, and the arm.
fn point(number: u64) -> ([f32; 2], i32) {
    let (arm, radius) = (number % 3, (number as f64 * 0.618_034).fract());
    let noise = (number as f64 * 0.754_877).fract() - 0.5;
    let angle = 5.0 * radius + 2.094_395 * arm as f64 + 0.3 * noise;
    ([(radius * angle.cos()) as f32, (radius * angle.sin()) as f32], arm as i32)
}

fn fill(step: u64, batch: &mut Batch) -> Result<()> {
    let points: Vec<_> = (0..batch.rows() as u64).map(|row| point(step * 128 + row)).collect();
    batch.write("point", &points.iter().flat_map(|(at, _)| *at).collect::<Vec<f32>>())?;
    batch.write("arm", &points.iter().map(|(_, arm)| *arm).collect::<Vec<i32>>())
}

fn main() -> Result<()> {
    let losses = |parameters: &Parameters, inputs: &Inputs| {
        network(parameters, inputs).cross_entropy_rows(&inputs.get("arm", DType::I32, []), None) // [b]
    };
    let folder = std::env::temp_dir().join(format!("gradus-classifier-{}", std::process::id()));
    for steps in [300, 600] {
        let (batch, learning_rate, memory) = (128, 1e-2, "64MB".parse().ok());
        let settings = Settings {
            batch,
            learning_rate,
            memory,
            steps: Some(steps),
            folder: Some(folder.clone()),
            ..Settings::default()
        };
        let mut trainer = Trainer::new(losses, settings, Arc::new(Cpu::new(2)?))?;
        let summary = trainer.train(fill, &mut Unwatched)?;
        let mut classifier = trainer.compile(300, network)?;
        let unseen: Vec<_> = (1_000_000..1_000_300).map(point).collect();
        classifier.write("point", &unseen.iter().flat_map(|(at, _)| *at).collect::<Vec<f32>>())?;
        classifier.run("forward")?;
        let arms = classifier.read("output")?.to_f64();
        let chosen = arms.chunks(3).map(|logits| (0..3).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap());
        let right = chosen.zip(&unseen).filter(|(chosen, (_, arm))| *chosen == *arm as usize).count();
        println!("after {} steps: loss {:.4}, {right} of 300 unseen points right", summary.steps, summary.loss);
        assert!(steps < 600 || right >= 285, "it learned");
    }
    std::fs::remove_dir_all(&folder).map_err(gradus::train::Error::io("remove", &folder))
}

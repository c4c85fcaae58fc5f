//! A network learns to tell the three arms of a spiral, within a budget of memory; it is stopped half way and goes on.

use gradus::backend::Cpu;
use gradus::layers::Linear;
use gradus::parameters::Parameters;
use gradus::train::Result;
use gradus::train::run::Unwatched;
use gradus::train::step::{Batch, Inputs};
use gradus::train::trainer::{Settings, Trainer};
use gradus::{DType, Tensor};
use std::path::Path;
use std::sync::Arc;

// The model, the data and the training: 25 lines.

/// Logits of the arms [b, 3] for points [b, 2].
fn network(p: &Parameters, inputs: &Inputs) -> Tensor {
    let x = Linear::new(&p.within("first"), 2, 128).forward(&inputs.get("point", DType::F32, [2])).relu(); // [b, 128]
    Linear::new(&p.within("last"), 128, 3).forward(&x) // [b, 3]
}

/// Other points of the arms at each step.
fn spiral(step: u64, batch: &mut Batch) -> Result<()> {
    for row in 0..batch.rows() {
        let number = step as usize * batch.rows() + row;
        let (arm, radius) = (number % 3, (number as f64 * 0.618_034).fract());
        let angle = 4.0 * radius + 2.094_395 * arm as f64;
        let point = [radius * angle.cos(), radius * angle.sin()].map(|x| x as f32);
        batch.numbers_mut::<f32>("point")?[2 * row..][..2].copy_from_slice(&point);
        batch.numbers_mut::<i32>("arm")?[row] = arm as i32;
    }
    Ok(())
}

/// Trains to this step within 64 MB, from the newest checkpoint in the folder if there is one.
fn trained(steps: u64, folder: &Path) -> Result<Trainer> {
    let arm = |inputs: &Inputs| inputs.get("arm", DType::I32, []); // [b]
    let losses = move |p: &Parameters, inputs: &Inputs| network(p, inputs).cross_entropy_rows(&arm(inputs), None); // [b]
    let (steps, memory, folder) = (Some(steps), "64MB".parse().ok(), Some(folder.into()));
    let settings = Settings { batch: 128, learning_rate: 1e-2, steps, memory, folder, ..Settings::default() };
    let mut trainer = Trainer::new(losses, settings, Arc::new(Cpu::new(2)?))?;
    trainer.train(spiral, &mut Unwatched)?;
    Ok(trainer)
}

// What it shows.

/// The share of points told right that it was not trained on.
fn accuracy(trainer: &Trainer) -> Result<f64> {
    let mut batch = trainer.batch();
    spiral(1_000_000, &mut batch)?;
    let mut classifier = trainer.compile(batch.rows(), |p, inputs| network(p, inputs).argmax(-1))?;
    classifier.write("point", batch.numbers::<f32>("point")?)?;
    classifier.run("forward")?;
    let told = classifier.read("output")?.to_vec::<i32>()?;
    let right = told.iter().zip(batch.numbers::<i32>("arm")?).filter(|(told, arm)| told == arm).count();
    Ok(right as f64 / told.len() as f64)
}

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("gradus-classifier-{}", std::process::id()));
    let halfway = trained(300, &folder)?;
    println!("stopped after {} steps: {:.1} % told right", halfway.steps_taken(), 100.0 * accuracy(&halfway)?);
    drop(halfway);
    let (resumed, whole) = (trained(900, &folder)?, trained(900, &folder.join("whole"))?);
    println!("gone on to step {}: {:.1} % told right", resumed.steps_taken(), 100.0 * accuracy(&resumed)?);
    let same = resumed.read("first.weight")? == whole.read("first.weight")?;
    println!("weights of a run that was not stopped: {}", if same { "the same bits" } else { "others" });
    assert!(same && accuracy(&resumed)? > 0.95, "it learned, and going on changed nothing");
    drop((resumed, whole));
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

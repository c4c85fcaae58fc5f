//! A training step compiled once and replayed: a small network learns the exclusive or of two numbers.

use gradus::backend::Cpu;
use gradus::optimizers::{AdamW, GroupedOptimizer, StepNumbers};
use gradus::{Array, DType, Result, Routine, Trace, gradient};

const NAMES: [&str; 4] = ["hidden.weight", "hidden.bias", "output.weight", "output.bias"];

fn main() -> Result<()> {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [4, 2]);
    let y = trace.input("y", DType::F32, [4, 1]);
    let start = |count: usize| (0..count).map(|index| ((index * 37 % 19) as f32 - 9.0) / 9.0).collect::<Vec<f32>>();
    let weights = [
        trace.state(NAMES[0], Array::new([2, 8], &start(16))?),
        trace.state(NAMES[1], Array::zeros(DType::F32, [8])?),
        trace.state(NAMES[2], Array::new([8, 1], &start(8))?),
        trace.state(NAMES[3], Array::zeros(DType::F32, [1])?),
    ];
    let hidden = x.linear(&weights[0], Some(&weights[1])).tanh(); // [4, 8]
    let output = hidden.linear(&weights[2], Some(&weights[3])).sigmoid(); // [4, 1]
    let error = &output - &y;
    let loss = (&error * &error).mean_all();

    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>())?;
    let routine = Routine::new("step").output("loss", &loss).output("output", &output);
    let adamw = GroupedOptimizer::new(AdamW { weight_decay: 0.0, ..AdamW::default() });
    let numbers = StepNumbers::new(&trace.full(0.05, DType::F32, []));
    let routine = adamw.update(routine, NAMES.into_iter().zip(&weights), &gradients, &numbers);

    let mut program = trace.compile(&Cpu::new(2)?, &[routine])?;
    println!("{}", program.plan());
    program.write("x", &[0f32, 0., 0., 1., 1., 0., 1., 1.])?;
    program.write("y", &[0f32, 1., 1., 0.])?;
    for step in 0..=500 {
        program.run("step")?;
        if step % 100 == 0 {
            println!("step {step}: loss {:.5}", program.scalar("loss")?);
        }
    }
    println!("output {:.2?}", program.read("output")?.to_f64());
    assert!(program.scalar("loss")? < 0.01, "it learned");
    Ok(())
}

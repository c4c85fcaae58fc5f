//! A training step compiled once and replayed: a small network learns the exclusive or of two numbers.

use gradus::backend::Cpu;
use gradus::ops::{AdamW, AdamWInputs};
use gradus::{Array, DType, Result, Routine, Trace, gradient};

fn main() -> Result<()> {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [4, 2]);
    let y = trace.input("y", DType::F32, [4, 1]);
    let start = |count: usize| (0..count).map(|index| ((index * 37 % 19) as f32 - 9.0) / 9.0).collect::<Vec<f32>>();
    let weights = [
        trace.state("hidden.weight", Array::new([2, 8], &start(16))?),
        trace.state("hidden.bias", Array::zeros(DType::F32, [8])),
        trace.state("output.weight", Array::new([8, 1], &start(8))?),
        trace.state("output.bias", Array::zeros(DType::F32, [1])),
    ];
    let hidden = x.linear(&weights[0], Some(&weights[1])).tanh(); // [4, 8]
    let output = hidden.linear(&weights[2], Some(&weights[3])).sigmoid(); // [4, 1]
    let error = &output - &y;
    let loss = (&error * &error).mean_all();

    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>())?;
    let (learning_rate, scale) = (&trace.full(0.05, DType::F32, []), &trace.full(1.0, DType::F32, []));
    let count = trace.zero_state("step", DType::F32, []);
    let step = &(&count + 1.0);
    let mut routine = Routine::new("step").output("loss", &loss).output("output", &output).assign(&count, step);
    for (index, (weight, gradient)) in weights.iter().zip(&gradients).enumerate() {
        let first_moment = &trace.zero_state(&format!("first.{index}"), DType::F32, weight.shape());
        let second_moment = &trace.zero_state(&format!("second.{index}"), DType::F32, weight.shape());
        let inputs = AdamWInputs { weight, gradient, first_moment, second_moment, learning_rate, step, scale };
        let updated = AdamW { weight_decay: 0.0, ..AdamW::default() }.update(inputs);
        routine = routine
            .assign(weight, &updated.weight)
            .assign(first_moment, &updated.first_moment)
            .assign(second_moment, &updated.second_moment);
    }

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

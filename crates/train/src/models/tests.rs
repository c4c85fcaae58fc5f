//! What precision and dropout change, and what they leave.

use super::*;
use crate::config::Precision;
use crate::files::tensors;
use gradus_engine::backend::Cpu;
use gradus_engine::{Array, DType, Program, Routine, Tensor, TensorType, Trace, gradient};

const BATCH: usize = 2;
const SEQUENCE: usize = 11;

fn configs() -> [ModelConfig; 5] {
    let llama = ModelConfig { kv_heads: 2, feed_forward: 52, ..ModelConfig::llama(53, 40, 2, 4, SEQUENCE) };
    let sliding = |family: Family| ModelConfig { family, window: Some(4), ..llama.clone() };
    [
        ModelConfig::gpt2(53, 36, 2, 3, SEQUENCE),
        sliding(Family::Mistral),
        sliding(Family::Qwen2),
        sliding(Family::Qwen3).with_head_size(6),
        llama,
    ]
}

/// Loss and gradients of a model, traced as `change` says.
fn program(config: &ModelConfig, change: impl Fn(Parameters, Tensor) -> Parameters) -> Program {
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [BATCH, SEQUENCE]);
    let targets = trace.input("targets", DType::I32, [BATCH, SEQUENCE]);
    let key = trace.input("key", DType::U32, [2]);
    let parameters = config.declare(&trace);
    let loss = config.loss(&change(parameters.clone(), key), &tokens, &targets);
    let gradients = gradient(&loss, &parameters.tensors().iter().collect::<Vec<_>>()).unwrap();
    let mut routine = Routine::new("loss").output("loss", &loss);
    for (parameter, gradient) in parameters.list().iter().zip(&gradients) {
        routine = routine.output(&format!("gradient.{}", parameter.name), gradient);
    }
    let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
    parameters.initialize(&mut program, 3).unwrap();
    let ids: Vec<i32> = (0..(BATCH * SEQUENCE) as i32).map(|index| index * 17 % 53).collect();
    program.write("tokens", &ids).unwrap();
    program.write("targets", &ids.iter().map(|id| (id * 3 + 1) % 53).collect::<Vec<i32>>()).unwrap();
    program
}

fn loss(program: &mut Program) -> f32 {
    program.run("loss").unwrap();
    program.scalar("loss").unwrap()
}

#[test]
fn bf16_products_give_nearly_the_loss_and_gradients_of_f32() {
    for config in configs() {
        let mut accurate = program(&config, |parameters, _| parameters);
        let mut rounded = program(&config, |parameters, _| parameters.with_precision(Precision::Bf16));
        let (exact, near) = (loss(&mut accurate), loss(&mut rounded));
        assert!((exact - near).abs() < 1e-2 * exact, "{:?}: {exact} and {near}", config.family);
        assert!(exact != near, "{:?}: bf16 must round something", config.family);
        for parameter in config.parameters() {
            let name = format!("gradient.{}", parameter.name);
            let [exact, near] = [&accurate, &rounded].map(|program| program.read(&name).unwrap().to_f64());
            let scale = exact.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            let worst = exact.iter().zip(&near).fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs()));
            assert!(worst <= 0.05 * scale, "{name}: {worst} of {scale}");
        }
    }
}

#[test]
fn dropout_depends_on_its_key_alone() {
    for config in configs() {
        let without = loss(&mut program(&config, |parameters, _| parameters));
        let dropping = ModelConfig { dropout: 0.3, ..config };
        let mut dropping = program(&dropping, |parameters, key| parameters.training(&key));
        let mut losses = [[1u32, 1], [1, 2], [1, 1]].map(|key| {
            dropping.write("key", &key).unwrap();
            loss(&mut dropping)
        });
        assert_eq!(losses[0], losses[2]);
        losses.sort_by(f32::total_cmp);
        assert!(losses[0] < losses[2] && losses.iter().all(|loss| *loss != without), "{losses:?}, {without}");
    }
}

#[test]
fn parameters_are_those_that_a_trace_finds() {
    for config in configs() {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace);
        config.forward(&parameters, &trace.input("tokens", DType::I32, [BATCH, SEQUENCE]));
        trace.check().unwrap();
        assert_eq!(config.parameters(), parameters.list());
    }
}

#[test]
fn ignored_targets_do_not_count() {
    let config = &configs()[0];
    let mut program = program(config, |parameters, _| parameters);
    let mut targets = vec![IGNORED_TARGET; BATCH * SEQUENCE];
    targets[3] = 7;
    program.write("targets", &targets).unwrap();
    let one = loss(&mut program);
    assert!(one > 3.0 && one < 5.0, "the loss of one target, near ln 53: {one}");
}

/// The logits of a model whose matrices, rounded to this type, are held as `change` says.
fn logits(config: &ModelConfig, dtype: DType, change: impl Fn(Parameters) -> Parameters) -> Vec<f64> {
    let trace = Trace::new();
    let parameters = change(Parameters::new(&trace));
    parameters.declare(&config.parameters());
    let tokens = trace.input("tokens", DType::I32, [1, SEQUENCE]);
    let routine = Routine::new("forward").output("logits", &config.forward(&parameters, &tokens));
    let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
    for parameter in parameters.list() {
        let dtype = if parameter.shape.rank() > 1 { dtype } else { DType::F32 };
        let rounded =
            Array::from_f64(TensorType::new(dtype, &parameter.shape), &parameter.numbers(3).to_f64()).unwrap();
        let numbers: Vec<f32> = rounded.to_f64().into_iter().map(|number| number as f32).collect();
        tensors::write_numbers(&mut program, &parameter.name, &numbers).unwrap();
    }
    program.write("tokens", &(0..SEQUENCE as i32).map(|index| index * 17 % 53).collect::<Vec<i32>>()).unwrap();
    program.run("forward").unwrap();
    program.read("logits").unwrap().to_f64()
}

#[test]
fn matrices_held_in_16_bits_give_the_logits_of_the_same_numbers_in_f32() {
    for (config, precision) in configs()
        .into_iter()
        .flat_map(|config| [Precision::Bf16, Precision::F16].map(|precision| (config.clone(), precision)))
    {
        let exact = logits(&config, DType::F32, |parameters| parameters);
        let rounded = logits(&config, precision.dtype(), |parameters| parameters.with_precision(precision));
        let held = logits(&config, DType::F32, |parameters| parameters.held_in(precision));
        let scale = exact.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        let worst = |others: &[f64]| held.iter().zip(others).fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs()));
        assert!(worst(&rounded) <= 1e-5 * scale, "{:?}, {precision:?}: {} of {scale}", config.family, worst(&rounded));
        let allowed = if precision == Precision::Bf16 { 3e-2 } else { 4e-3 };
        let error = worst(&exact);
        assert!(error > 0.0 && error <= allowed * scale, "{:?}, {precision:?}: {error} of {scale}", config.family);
    }
}

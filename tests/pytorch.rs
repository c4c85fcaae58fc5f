//! Gradients and training against PyTorch: a two-block transformer and a small convolutional network, from the
//! fixtures that `tests/fixtures/make.py` stored.

mod support;

use gradus::models::{CausalModel, ModelConfig};
use gradus::ops::{Conv2dOptions, Pool2dOptions, Sgd, SgdInputs};
use gradus::optimizers::{AdamW, GroupedOptimizer, StepNumbers};
use gradus::{Array, DType, Program, Routine, Tensor, Trace, gradient};
use support::device;
use support::fixture::Fixture;

/// Gradients, relative to the largest number of each tensor.
const GRADIENT_TOLERANCE: f64 = 1e-5;
/// Losses over twenty steps, in which differences of rounding grow.
const LOSS_TOLERANCE: f64 = 1e-4;

fn compare(name: &str, computed: &Array, expected: &Array, tolerance: f64) {
    let (computed, expected) = (computed.to_f64(), expected.to_f64());
    let scale = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for (index, (a, b)) in computed.iter().zip(&expected).enumerate() {
        let error = (a - b).abs() / scale;
        assert!(error <= tolerance, "{name}[{index}]: {a}, PyTorch {b}: {error:e} of the largest");
    }
}

/// Runs a program with a routine "gradients", which gives each gradient by its weight's name, and a routine "step",
/// and compares both with the fixture.
fn follow(fixture: &Fixture, mut program: Program, data: &[(&str, Array)]) {
    for (name, array) in data {
        match array.ty().dtype {
            DType::F32 => program.write(name, &array.to_vec::<f32>().unwrap()).unwrap(),
            _ => program.write(name, &array.to_vec::<i32>().unwrap()).unwrap(),
        }
    }
    program.run("gradients").unwrap();
    let losses = fixture.array("losses").to_f64();
    let names = fixture.names("gradient.");
    assert!(names.len() >= 9, "the fixture has gradients");
    for name in names {
        let computed = program.read(&format!("gradient.{name}")).unwrap();
        compare(&name, &computed, &fixture.array(&format!("gradient.{name}")), GRADIENT_TOLERANCE);
    }
    for (step, expected) in losses.iter().enumerate() {
        program.run("step").unwrap();
        let loss = program.scalar("loss").unwrap() as f64;
        assert!(
            (loss - expected).abs() <= LOSS_TOLERANCE * expected.max(1.0),
            "step {step}: {loss}, PyTorch {expected}"
        );
    }
}

fn gradients_routine(names: &[String], gradients: &[Tensor]) -> Routine {
    let named = names.iter().zip(gradients);
    named.fold(Routine::new("gradients"), |routine, (name, gradient)| {
        routine.output(&format!("gradient.{name}"), gradient)
    })
}

#[test]
fn a_transformer_trains_as_in_pytorch() {
    let fixture = Fixture::open("transformer");
    let config = ModelConfig { feed_forward: 80, ..ModelConfig::gpt2(37, 24, 2, 3, 13) };
    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [3, 13]);
    let targets = trace.input("targets", DType::I32, [3, 13]);
    let parameters = config.declare(&trace);
    let weights = parameters.tensors();
    let names: Vec<String> = parameters.list().into_iter().map(|parameter| parameter.name).collect();
    let loss = config.loss(&parameters, &tokens, &targets);
    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>()).unwrap();
    // PyTorch's AdamW decays vectors too; ours does not, so the fixture gives them no decay.
    let adamw = GroupedOptimizer::new(AdamW { beta2: 0.99, weight_decay: 0.1, ..AdamW::default() });
    let step = Routine::new("step").output("loss", &loss);
    let numbers = StepNumbers::new(&trace.full(3e-3, DType::F32, []));
    let step = adamw.update(step, names.iter().map(|name| &name[..]).zip(&weights), &gradients, &numbers);
    let routines = [gradients_routine(&names, &gradients), step];
    for threads in [1, 2] {
        let mut program = trace.compile(&*device(threads), &routines).unwrap();
        for name in &names {
            program.write_array(&name[..], &fixture.array(&format!("weight.{name}"))).unwrap();
        }
        let data = [("tokens", fixture.array("data.tokens")), ("targets", fixture.array("data.targets"))];
        follow(&fixture, program, &data);
    }
}

#[test]
fn a_convolutional_network_trains_as_in_pytorch() {
    let fixture = Fixture::open("convolutional");
    let trace = Trace::new();
    let images = trace.input("images", DType::F32, [4, 3, 13, 16]);
    let labels = trace.input("labels", DType::I32, [4]);
    let names = fixture.names("weight.");
    let weights: Vec<Tensor> =
        names.iter().map(|name| trace.state(name, fixture.array(&format!("weight.{name}")))).collect();
    let weight = |name: &str| &weights[names.iter().position(|known| known == name).unwrap()];
    let loss = convolutional(&images, &labels, &weight);
    let gradients = gradient(&loss, &weights.iter().collect::<Vec<_>>()).unwrap();
    // PyTorch's decay goes through the momentum: it is part of the gradient.
    let (rule, decay) = (Sgd { momentum: 0.9, weight_decay: 0.0, nesterov: false }, 1e-3);
    let (learning_rate, scale) = (trace.full(0.05, DType::F32, []), &trace.full(1.0, DType::F32, []));
    let mut given = Routine::new("gradients");
    let mut step = Routine::new("step").output("loss", &loss);
    for ((name, weight), gradient) in names.iter().zip(&weights).zip(&gradients) {
        let buffer = &trace.zero_state(&format!("buffer.{name}"), DType::F32, weight.shape());
        let decayed = &(gradient + weight * decay);
        let inputs = SgdInputs { weight, gradient: decayed, buffer, learning_rate: &learning_rate, scale };
        let updated = rule.update(inputs);
        step = step.assign(weight, &updated.weight).assign(buffer, &updated.buffer);
        given = given.output(&format!("gradient.{name}"), gradient);
    }
    let program = trace.compile(&*device(2), &[given, step]).unwrap();
    let data = [("images", fixture.array("data.images")), ("labels", fixture.array("data.labels"))];
    follow(&fixture, program, &data);
}

fn convolutional<'a>(images: &Tensor, labels: &Tensor, weight: &dyn Fn(&str) -> &'a Tensor) -> Tensor {
    let same = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
    let x = images.conv2d(weight("conv1.weight"), None, same); // [n, 6, 13, 16]
    let x = x.batch_norm(weight("norm1.weight"), weight("norm1.bias"), 1e-5).output.relu();
    let x = x.max_pool2d(Pool2dOptions::new([2, 2])); // [n, 6, 6, 8]
    let wide = Conv2dOptions { stride: [2, 2], padding: [2, 2], dilation: [2, 2], groups: 2 };
    let x = x.conv2d(weight("conv2.weight"), Some(weight("conv2.bias")), wide); // [n, 12, 3, 4]
    let x = x.group_norm(2, weight("norm2.weight"), weight("norm2.bias"), 1e-5).silu();
    let x = x.avg_pool2d(Pool2dOptions::new([2, 2])); // [n, 12, 1, 2]
    let x = x.reshape([4, 24]).linear(&weight("head.weight").transpose(0, 1), Some(weight("head.bias"))); // [n, 5]
    x.cross_entropy(labels, None)
}

//! Logits, loss and gradients of whole models against `transformers`, from the fixtures that `tests/parity/make.py`
//! stored.

mod support;

use gradus::backend::{Backend, Cpu};
use gradus::models::{CausalModel, ModelConfig};
use gradus::{Array, DType, Routine, Trace, gradient};
use support::fixture::Fixture;
use support::second_machine::SecondMachine;

/// Differences, relative to the largest number of each tensor.
const TOLERANCE: f64 = 1e-4;

fn compare(name: &str, computed: &Array, expected: &Array) {
    assert_eq!(computed.shape(), expected.shape(), "{name}");
    let (computed, expected) = (computed.to_f64(), expected.to_f64());
    let scale = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    for (index, (a, b)) in computed.iter().zip(&expected).enumerate() {
        let error = (a - b).abs() / scale;
        assert!(error <= TOLERANCE, "{name}[{index}]: {a}, transformers {b}: {error:e} of the largest");
    }
}

fn follow(name: &str, config: &ModelConfig) {
    let fixture = Fixture::open(&format!("parity_{name}"));
    let mut names: Vec<String> = config.parameters().into_iter().map(|parameter| parameter.name).collect();
    names.sort();
    assert_eq!(names, fixture.names("weight."), "the names of {name}");
    let trace = Trace::new();
    let (stored_tokens, stored_targets) = (fixture.array("tokens"), fixture.array("targets"));
    let tokens = trace.input("tokens", DType::I32, stored_tokens.shape());
    let targets = trace.input("targets", DType::I32, stored_targets.shape());
    let parameters = config.declare(&trace);
    let (logits, loss) = (config.forward(&parameters, &tokens), config.loss(&parameters, &tokens, &targets));
    let gradients = gradient(&loss, &parameters.tensors().iter().collect::<Vec<_>>()).unwrap();
    let mut routine = Routine::new("all").output("logits", &logits).output("loss", &loss);
    for (parameter, gradient) in parameters.list().iter().zip(&gradients) {
        routine = routine.output(&format!("gradient.{}", parameter.name), gradient);
    }
    for backend in [&Cpu::new(2).unwrap() as &dyn Backend, &SecondMachine] {
        let mut program = trace.compile(backend, std::slice::from_ref(&routine)).unwrap();
        for name in &names {
            program.write_array(name, &fixture.array(&format!("weight.{name}"))).unwrap();
        }
        program.write("tokens", &stored_tokens.to_vec::<i32>().unwrap()).unwrap();
        program.write("targets", &stored_targets.to_vec::<i32>().unwrap()).unwrap();
        program.run("all").unwrap();
        let gradient_names = names.iter().map(|name| format!("gradient.{name}"));
        for output in ["logits".to_string(), "loss".to_string()].into_iter().chain(gradient_names) {
            let what = format!("{name} on {}: {output}", backend.name());
            compare(&what, &program.read(&output).unwrap(), &fixture.array(&output));
        }
    }
}

fn gpt2() -> ModelConfig {
    ModelConfig { feed_forward: 50, ..ModelConfig::gpt2(53, 36, 2, 3, 17) }
}

fn llama(heads: usize, kv_heads: usize) -> ModelConfig {
    ModelConfig { kv_heads, feed_forward: 38, ..ModelConfig::llama(53, 40, 2, heads, 17) }
}

#[test]
fn gpt2_is_that_of_transformers() {
    follow("gpt2_tied", &gpt2());
    follow("gpt2_untied", &ModelConfig { tie_embeddings: false, ..gpt2() });
}

#[test]
fn llama_is_that_of_transformers() {
    follow("llama_tied", &ModelConfig { tie_embeddings: true, ..llama(5, 1) });
    follow("llama_untied", &llama(4, 2));
}

//! Logits, loss, gradients and the likeliest continuations of whole models against `transformers`, from the fixtures that
//! `tests/parity/make.py` stored.

mod support;

use gradus::generate::{Generator, Sampling, Texts};
use gradus::models::{CausalModel, Family, ModelConfig, Parameter, RopeScaling};
use gradus::testing::SecondMachine;
use gradus::{Array, DType, Precision, Routine, Trace, gradient};
use support::device;
use support::fixture::Fixture;

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
    for backend in [&*device(2), &SecondMachine] {
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

/// As [`follow`], and the likeliest tokens after a beginning, each computed from the keys and values kept before.
fn follow_and_continue(name: &str, config: &ModelConfig) {
    follow(name, config);
    let fixture = Fixture::open(&format!("parity_{name}"));
    let expected = fixture.array("continued").to_vec::<i32>().unwrap();
    let weight = |parameter: &Parameter| fixture.array(&format!("weight.{}", parameter.name));
    let greedy = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, seed: 1 };
    // The first three tokens were given; whatever follows is to be found from any length of beginning.
    for given in [3, 5, 12] {
        let (given, rest) = expected.split_at(given);
        let texts = Texts { count: 1, prompt_tokens: given.len(), max_tokens: rest.len() };
        let mut generator = Generator::new(config, weight, Precision::F32, &*device(1), texts).unwrap();
        let texts = generator.generate(given, &greedy, rest.len(), &[], &mut |_, _| Ok(())).unwrap();
        assert_eq!(texts, [rest], "{name} after {given:?}");
    }
}

/// A model of the kind of Llama, in the sizes of the smaller fixtures.
fn smaller(family: Family) -> ModelConfig {
    ModelConfig { kv_heads: 1, feed_forward: 22, ..ModelConfig::new(family, 29, 20, 2, 2, 17) }
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

#[test]
fn scaled_rotary_angles_and_biases_are_those_of_transformers() {
    let scaling = RopeScaling { factor: 4.0, low_freq_factor: 0.5, high_freq_factor: 2.0, original_context: 16 };
    let scaled = ModelConfig { rope_theta: 1000.0, rope_scaling: Some(scaling), ..smaller(Family::Llama) };
    follow_and_continue("llama3", &ModelConfig { tie_embeddings: true, ..scaled });
    let biased = ModelConfig { attention_bias: true, mlp_bias: true, ..smaller(Family::Llama) };
    follow_and_continue("llama_biased", &biased.with_head_size(6));
}

#[test]
fn mistral_is_that_of_transformers() {
    let sliding = ModelConfig { heads: 3, window: Some(4), ..smaller(Family::Mistral) };
    follow_and_continue("mistral", &sliding.with_head_size(8));
}

#[test]
fn qwen_is_that_of_transformers() {
    let sliding = |family: Family| ModelConfig { window: Some(3), full_layers: 1, ..smaller(family) };
    follow_and_continue("qwen2", &sliding(Family::Qwen2));
    follow_and_continue("qwen3", &ModelConfig { tie_embeddings: true, ..smaller(Family::Qwen3).with_head_size(6) });
    let biased = ModelConfig { attention_bias: true, ..sliding(Family::Qwen3) };
    follow_and_continue("qwen3_sliding", &biased.with_head_size(14));
}

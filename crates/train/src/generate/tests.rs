//! Cached decoding against the whole forward pass.

use super::decoder::LOGITS;
use super::sampling::TOKENS;
use super::*;
use crate::models::{Family, KeyValueContext, ModelConfig};
use crate::parameters::{Initializer, Parameters};
use gradus_engine::backend::{Cpu, Cuda, GpuKind};
use gradus_engine::plan::{BufferKind, Operand, Step};
use gradus_engine::{DType, Role, Routine, Tensor};

const CONTEXT: usize = 12;
const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, seed: 1 };

fn without_weights(config: &ModelConfig, count: usize) -> Result<Generator> {
    let backend = Cpu::new(1)?;
    let texts = Texts { count, prompt_tokens: 2, max_tokens: CONTEXT };
    let memory = Generator::memory(config, Precision::F32, &backend, None)?;
    Generator::without_weights(config, Precision::F32, &backend, texts, &memory)
}

fn configs() -> Vec<ModelConfig> {
    let llama = ModelConfig { feed_forward: 50, ..ModelConfig::llama(29, 48, 2, 6, CONTEXT) };
    let gpt2 = ModelConfig::gpt2(29, 36, 2, 3, CONTEXT);
    let qwen = ModelConfig { kv_heads: 2, window: Some(3), ..ModelConfig::new(Family::Qwen3, 29, 24, 2, 4, CONTEXT) };
    vec![
        gpt2.clone(),
        ModelConfig { tie_embeddings: false, ..gpt2 },
        ModelConfig { kv_heads: 2, ..llama.clone() },
        ModelConfig { kv_heads: 1, tie_embeddings: true, ..llama },
        ModelConfig { window: Some(5), ..ModelConfig::new(Family::Mistral, 29, 24, 2, 2, CONTEXT) },
        ModelConfig { full_layers: 1, ..qwen.with_head_size(10) },
    ]
}

/// Weights large enough for logits that differ well.
fn numbers(parameter: &Parameter) -> Array {
    let plain = parameter.numbers(5).to_vec::<f32>().unwrap();
    let scale = if parameter.name.contains("ln_") || parameter.name.contains("norm") { 1.0 } else { 8.0 };
    Array::new(&parameter.shape, &plain.iter().map(|number| number * scale).collect::<Vec<f32>>()).unwrap()
}

/// Of texts of any length.
fn generator(config: &dyn CausalModel, count: usize, prompt_tokens: usize) -> Generator {
    let texts = Texts { count, prompt_tokens, max_tokens: usize::MAX };
    Generator::new(config, numbers, Precision::F32, &Cpu::new(1).unwrap(), texts).unwrap()
}

/// The whole forward pass over one sequence.
struct Whole {
    program: Program,
    vocabulary: usize,
}

impl Whole {
    fn new(config: &dyn CausalModel) -> Whole {
        Whole::held_in(config, Precision::F32)
    }

    fn held_in(config: &dyn CausalModel, precision: Precision) -> Whole {
        let trace = Trace::new();
        let tokens = trace.input("tokens", DType::I32, [1, CONTEXT]);
        let parameters = Parameters::new(&trace).held_in(precision);
        let routine = Routine::new("whole").output("logits", &config.forward(&parameters, &tokens));
        let mut program = trace.compile(&Cpu::new(1).unwrap(), &[routine]).unwrap();
        for parameter in parameters.list() {
            tensors::write_numbers(&mut program, &parameter.name, &numbers(&parameter).to_vec::<f32>().unwrap())
                .unwrap();
        }
        Whole { program, vocabulary: config.vocabulary() }
    }

    /// The logits after the last of these tokens.
    fn logits(&mut self, tokens: &[i32]) -> Vec<f32> {
        let mut padded = [0i32; CONTEXT];
        padded[..tokens.len()].copy_from_slice(tokens);
        self.program.write("tokens", &padded).unwrap();
        self.program.run("whole").unwrap();
        let all = self.program.read("logits").unwrap().to_vec::<f32>().unwrap();
        all[(tokens.len() - 1) * self.vocabulary..tokens.len() * self.vocabulary].to_vec()
    }

    /// The likeliest continuation, by the same rule of what is kept when the context is full.
    fn greedy(&mut self, prompt: &[i32], count: usize) -> Vec<i32> {
        let mut tokens = prompt.to_vec();
        let mut from = tokens.len().saturating_sub(if tokens.len() > CONTEXT { CONTEXT / 2 } else { CONTEXT });
        for _ in 0..count {
            if tokens.len() - from > CONTEXT {
                from = tokens.len() - CONTEXT / 2;
            }
            let logits = self.logits(&tokens[from..]);
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            tokens.push(best as i32);
        }
        tokens[prompt.len()..].to_vec()
    }
}

#[test]
fn cached_logits_are_those_of_the_whole_pass_across_the_context() {
    for config in configs() {
        let mut whole = Whole::new(&config);
        for prompt_tokens in [1, 4, CONTEXT] {
            let mut generator = generator(&config, 2, prompt_tokens);
            let token = |sequence: usize, place: usize| ((place * place + 3 * place + 11 * sequence) % 29) as i32;
            let mut sequences = [0, 1].map(|_| (0..4).map(|place| token(0, place)).collect::<Vec<i32>>());
            let mut cached = vec![];
            for place in 4..4 + 2 * CONTEXT {
                generator.decoder.advance(&mut generator.program, &sequences).unwrap();
                cached.push(generator.decoder.cached);
                // Those after the prompt are of both sequences.
                let logits = generator.program.read(LOGITS).unwrap().to_vec::<f32>().unwrap();
                for (sequence, row) in sequences.iter().zip(logits.chunks_exact(29).cycle()) {
                    let expected = whole.logits(&sequence[place - generator.decoder.cached..]);
                    let worst = row.iter().zip(&expected).fold(0f32, |worst, (a, b)| worst.max((a - b).abs()));
                    let scale = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
                    assert!(worst <= 1e-4 * scale.max(1.0), "{config:?}, place {place}: {worst} of {scale}");
                    assert!(scale > 0.1, "logits that say something: {scale}");
                }
                for (number, sequence) in sequences.iter_mut().enumerate() {
                    sequence.push(token(number, place));
                }
                let next = [0, 1].map(|sequence| token(sequence, place));
                generator.program.write(TOKENS, &next).unwrap();
            }
            let expected = (4..=12).chain(6..=12).chain(6..=12).chain(6..=12).take(cached.len());
            assert_eq!(cached, expected.collect::<Vec<usize>>());
        }
    }
}

#[test]
fn greedy_text_is_that_of_the_whole_pass() {
    for config in configs() {
        let mut whole = Whole::new(&config);
        let mut generator = generator(&config, 3, 4);
        for prompt in [vec![3], vec![1, 2, 3, 4, 5, 6, 7, 8, 9], (0..CONTEXT as i32).collect(), (0..17).collect()] {
            let expected = whole.greedy(&prompt, 20);
            let texts = generator.generate(&prompt, &GREEDY, 20, &[], &mut |_, _| Ok(())).unwrap();
            assert_eq!(texts, vec![expected; 3], "{config:?} from {prompt:?}");
        }
    }
}

/// A cache with room for one text alone gives what one of the model's whole context gives; a longer text is refused.
#[test]
fn a_cache_may_have_room_for_the_text_alone() {
    let config = ModelConfig::gpt2(29, 36, 2, 3, 40);
    let text = |texts: Texts| {
        let mut generator = Generator::new(&config, numbers, Precision::F32, &Cpu::new(2).unwrap(), texts).unwrap();
        let sampling = Sampling { temperature: 1.0, ..GREEDY };
        let text = generator.generate(&[3, 1, 4], &sampling, 13, &[], &mut |_, _| Ok(())).unwrap();
        (text, generator)
    };
    let (whole, roomy) = text(Texts { count: 2, prompt_tokens: 3, max_tokens: 100 });
    let (alone, mut tight) = text(Texts { count: 2, prompt_tokens: 3, max_tokens: 13 });
    assert_eq!(whole, alone);
    let (one_by_one, _) = text(Texts { count: 2, prompt_tokens: 1, max_tokens: 15 });
    assert_eq!(whole, one_by_one, "a prompt that is longer than was said");
    let cache_bytes = |places: usize| 2 * 2 * 2 * places * 36 * 4;
    let saved = roomy.memory_bytes() - tight.memory_bytes();
    assert!(saved >= cache_bytes(40) - cache_bytes(16), "{saved} bytes saved");
    let refused = tight.generate(&[3, 1, 4], &GREEDY, 14, &[], &mut |_, _| Ok(())).unwrap_err().to_string();
    assert!(refused.starts_with("a prompt of 3 tokens and 14 more are wanted, but there is room for 16"), "{refused}");
}

/// No step reads or writes as much as a layer's keys but what appends to them, which lies over the state.
#[test]
fn nothing_of_the_cache_is_copied() {
    for config in configs() {
        let texts = Texts { count: 3, prompt_tokens: 4, max_tokens: usize::MAX };
        let plan =
            plan(&config, Precision::F32, &Decoder::new(&config, texts).unwrap(), &Cpu::new(1).unwrap()).unwrap();
        let is_cache =
            |operand: &Operand| operand.layout.shape[..] == [3, config.kv_heads, CONTEXT, config.head_size()];
        for routine in &plan.routines {
            let of_cache = |step: &&Step| step.inputs.iter().chain(&step.outputs).any(is_cache);
            let steps: Vec<&Step> = routine.steps.iter().filter(of_cache).collect();
            // Each cache, of the prompt by itself, and of a token by the attention that reads both.
            let (name, caches): (_, &[[usize; 2]]) = match routine.name == "next" {
                true => ("cached_attention", &[[1, 1], [2, 2]]),
                false => ("append", &[[0, 0]]),
            };
            let appending: Vec<&&Step> = steps.iter().filter(|step| step.op.name() == name).collect();
            assert_eq!(appending.len() * caches.len(), 2 * config.layers, "{}", routine.name);
            assert_eq!(steps.len(), appending.len(), "{}: {:?}", routine.name, steps);
            for (step, [from, to]) in appending.into_iter().flat_map(|step| caches.iter().map(move |at| (step, *at))) {
                let [state, new] = [step.inputs[from].buffer, step.outputs[to].buffer].map(|id| &plan.buffers[id]);
                assert!(matches!(state.kind, BufferKind::State(_)), "{:?}", state.kind);
                assert_eq!(state.offset, new.offset, "{}: the cache is written where it lies", routine.name);
            }
        }
    }
}

/// A model of one's own that mixes tokens without attention: each sees the mean of itself and those before it.
struct Averaging;

impl CausalModel for Averaging {
    fn vocabulary(&self) -> usize {
        29
    }

    fn context(&self) -> usize {
        CONTEXT
    }

    fn attends_only(&self) -> bool {
        false
    }

    fn hidden(&self, parameters: &Parameters, tokens: &Tensor, _context: &mut dyn KeyValueContext) -> Tensor {
        let t = tokens.size(-1);
        let share = |index: usize| if index % t <= index / t { 1.0 / (index / t + 1) as f32 } else { 0.0 };
        let shares = Array::new([t, t], &(0..t * t).map(share).collect::<Vec<f32>>()).unwrap();
        let table = parameters.get("table", [29, 8], Initializer::Normal { deviation: 1.0 });
        let mixed = tokens.trace().constant(shares).matmul(&table.embedding(tokens)); // [b, t, 8]
        mixed.tanh() + table.embedding(tokens)
    }

    fn logits(&self, parameters: &Parameters, hidden: &Tensor) -> Tensor {
        hidden.matmul(&parameters.get("head", [8, 29], Initializer::Normal { deviation: 1.0 }))
    }
}

#[test]
fn a_model_that_mixes_tokens_in_another_way_is_computed_anew_for_each() {
    let mut whole = Whole::new(&Averaging);
    let mut generator = generator(&Averaging, 2, 3);
    for length in [1, 5, CONTEXT] {
        let prompt: Vec<i32> = (0..length as i32).map(|place| place * place % 29).collect();
        let mut expected = prompt.clone();
        for _ in 0..CONTEXT + 5 {
            let logits = whole.logits(&expected[expected.len().saturating_sub(CONTEXT)..]);
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            expected.push(best as i32);
        }
        let texts = generator.generate(&prompt, &GREEDY, CONTEXT + 5, &[], &mut |_, _| Ok(())).unwrap();
        assert_eq!(texts, vec![expected[length..].to_vec(); 2], "from {prompt:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_text_and_another_seed_another() {
    let mut generator = generator(&configs()[2], 2, 3);
    let mut text = |seed: u32| {
        let settings = Sampling { temperature: 1.0, seed, ..GREEDY };
        generator.generate(&[1, 2], &settings, 30, &[], &mut |_, _| Ok(())).unwrap()
    };
    let first = text(1);
    assert_eq!(first, text(1));
    assert_ne!(first, text(2));
    assert_ne!(first[0], first[1], "each sequence has its own random numbers");
}

#[test]
fn a_sequence_ends_before_any_of_the_stop_tokens() {
    let mut generator = generator(&configs()[0], 4, 3);
    let settings = Sampling { temperature: 2.0, ..GREEDY };
    let unstopped = generator.generate(&[1, 2], &settings, 25, &[], &mut |_, _| Ok(())).unwrap();
    let stops = [unstopped[1][3], unstopped[2][5]];
    let mut heard = vec![vec![]; 4];
    let mut ended = [0; 4];
    let mut hear = |sequence: usize, written: Written| {
        match written {
            Written::Token(token) if ended[sequence] == 0 => heard[sequence].push(token),
            Written::Token(token) => panic!("token {token} after the end of {sequence}"),
            Written::End => ended[sequence] += 1,
        }
        Ok(())
    };
    let stopped = generator.generate(&[1, 2], &settings, 25, &stops, &mut hear).unwrap();
    for (stopped, unstopped) in stopped.iter().zip(&unstopped) {
        let expected: Vec<i32> = unstopped.iter().copied().take_while(|token| !stops.contains(token)).collect();
        assert_eq!(*stopped, expected);
    }
    assert!(stopped[1].len() <= 3 && stopped[2].len() <= 5);
    assert_eq!(heard, stopped);
    assert_eq!(ended, [1; 4]);
}

#[test]
fn weights_can_be_replaced() {
    let config = &configs()[3];
    let mut expected = generator(config, 1, 2);
    let mut refreshed = without_weights(config, 1).unwrap();
    for parameter in config.parameters() {
        refreshed.set_weight(&parameter.name, &numbers(&parameter).to_vec::<f32>().unwrap()).unwrap();
    }
    let text = |generator: &mut Generator| generator.generate(&[5], &GREEDY, 9, &[], &mut |_, _| Ok(())).unwrap();
    assert_eq!(text(&mut expected), text(&mut refreshed));
    assert!(refreshed.set_weight("no.such.weight", &[1.0]).is_err());
}

#[test]
fn what_cannot_be_continued_is_named() {
    let mut generator = generator(&configs()[0], 1, 2);
    let mut problem = |prompt: &[i32], settings: &Sampling| {
        generator.generate(prompt, settings, 5, &[], &mut |_, _| Ok(())).unwrap_err().to_string()
    };
    assert!(problem(&[], &GREEDY).starts_with("the prompt has no tokens"));
    assert!(problem(&[1, 29], &GREEDY).starts_with("the prompt has token 29, but the model knows 0..29"));
    assert!(problem(&[-1], &GREEDY).starts_with("the prompt has token -1"));
    assert!(problem(&[1], &Sampling { top_p: 2.0, ..GREEDY }).starts_with("top-p is 2"));
    generator.set_weight("transformer.ln_f.bias", &[f32::NAN; 36]).unwrap();
    let diverged = generator.generate(&[1], &GREEDY, 5, &[], &mut |_, _| Ok(())).unwrap_err().to_string();
    assert!(diverged.starts_with("the model gives logits that are not finite"), "{diverged}");
    let none = without_weights(&configs()[0], 0);
    assert!(none.err().unwrap().to_string().starts_with("`settings.count` 0 is out of range"));
}

#[test]
fn only_tokens_that_are_allowed_are_written() {
    let mut generator = generator(&configs()[0], 2, 3);
    generator.allow_only(|token| token % 5 == 0).unwrap();
    let sampling = Sampling { temperature: 1.0, ..GREEDY };
    let texts = generator.generate(&[3, 1, 4], &sampling, 20, &[], &mut |_, _| Ok(())).unwrap();
    assert!(texts.iter().flatten().all(|token| token % 5 == 0), "{texts:?}");
    assert!(generator.allow_only(|_| false).is_err());
}

#[test]
fn a_program_takes_little_besides_its_weights_and_its_cache() {
    let config = ModelConfig::gpt2(50_257, 768, 12, 12, 1024);
    for count in [1, 64] {
        let texts = Texts { count, prompt_tokens: 16, max_tokens: 128 };
        let decoder = Decoder::new(&config, texts).unwrap();
        let regions = plan(&config, Precision::F32, &decoder, &Cpu::new(2).unwrap()).unwrap().regions;
        let (weights, cache) = (4 * config.parameter_count(), 2 * 12 * count * (16 + 128) * 768 * 4);
        assert!(regions.states >= weights + cache && regions.states < weights + cache + 64_000, "{regions:?}");
        assert!(regions.total() < (weights + cache) * 51 / 50, "{count}: {regions:?}");
    }
}

fn is_weight(kind: &BufferKind) -> bool {
    matches!(kind, BufferKind::State(state) if state.role == Role::Weight)
}

/// Bytes of the weights of a plan.
fn weight_bytes(plan: &Plan) -> usize {
    plan.buffers.iter().filter(|buffer| is_weight(&buffer.kind)).map(|buffer| buffer.ty.bytes()).sum()
}

#[test]
fn matrices_in_16_bits_are_there_once_and_read_where_they_lie() {
    let gpt2 = ModelConfig::gpt2(4096, 64, 2, 2, 64);
    let models = [gpt2.clone(), ModelConfig { tie_embeddings: false, ..gpt2 }, ModelConfig::llama(4096, 64, 2, 2, 64)];
    let (cpu, cuda) = (Cpu::new(2).unwrap(), Cuda::of_kind(GpuKind::H200));
    for (model, backend) in
        models.iter().flat_map(|model| [&cpu as &dyn Backend, &cuda].map(|backend| (model, backend)))
    {
        let decoder = Decoder::new(model, Texts { count: 2, prompt_tokens: 3, max_tokens: 5 }).unwrap();
        let full = plan(model, Precision::F32, &decoder, backend).unwrap();
        let bytes = |parameter: &Parameter| parameter.shape.elements() * if parameter.shape.rank() > 1 { 2 } else { 4 };
        let expected: usize = model.parameters().iter().map(bytes).sum();
        for precision in [Precision::Bf16, Precision::F16] {
            let half = plan(model, precision, &decoder, backend).unwrap();
            assert_eq!(weight_bytes(&half), expected);
            let saved = weight_bytes(&full) - expected;
            assert!(half.regions.states + saved <= full.regions.states, "{precision:?} on the {}", backend.name());
            for step in half.routines.iter().flat_map(|routine| &routine.steps) {
                let made = step.outputs.iter().map(|output| half.buffers[output.buffer].ty.bytes()).max();
                let read = step.inputs.iter().map(|input| &half.buffers[input.buffer]);
                let matrices = read.filter(|buffer| is_weight(&buffer.kind) && buffer.ty.shape.rank() > 1);
                let smallest = matrices.map(|buffer| buffer.ty.bytes()).min();
                assert!(smallest.is_none_or(|bytes| made < Some(bytes)), "a copy by {}", step.op.name());
            }
        }
    }
}

#[test]
fn texts_in_16_bits_are_those_of_the_whole_pass() {
    for config in configs() {
        let texts = Texts { count: 2, prompt_tokens: 2, max_tokens: 8 };
        let mut generator = Generator::new(&config, numbers, Precision::Bf16, &Cpu::new(2).unwrap(), texts).unwrap();
        let found = generator.generate(&[5, 11], &GREEDY, 8, &[], &mut |_, _| Ok(())).unwrap();
        let mut whole = Whole::held_in(&config, Precision::Bf16);
        for text in found {
            let mut tokens = vec![5, 11];
            for token in text {
                let logits = whole.logits(&tokens);
                let [least, most] = [f32::min, f32::max].map(|of| logits.iter().copied().reduce(of).unwrap());
                // What is rounded to 16 bits, and when, differs: so may the choice among tokens that are as good as likeliest.
                let short = (most - logits[token as usize]) / (most - least);
                assert!(short < 0.03, "{short} of the spread short of the likeliest after {tokens:?}");
                tokens.push(token);
            }
        }
    }
}

#[test]
fn what_a_precision_cannot_do_is_refused() {
    let texts = Texts { count: 1, prompt_tokens: 2, max_tokens: 3 };
    let made = |model: &dyn CausalModel, numbers: &dyn Fn(&Parameter) -> Array, precision: Precision| {
        Generator::new(model, numbers, precision, &Cpu::new(1).unwrap(), texts).map(drop)
    };
    let large =
        |parameter: &Parameter| Array::new(&parameter.shape, &vec![1e5f32; parameter.shape.elements()]).unwrap();
    made(&configs()[0], &large, Precision::Bf16).unwrap();
    let said = made(&configs()[0], &large, Precision::F16).unwrap_err().to_string();
    assert!(said.starts_with("weight \"transformer.wte.weight\" holds 100000, which f16 has no room for"), "{said}");
    let said = made(&configs()[0], &numbers, Precision::Tf32).unwrap_err().to_string();
    assert!(said.contains("tf32 is what tensor cores compute in"), "{said}");
    // A model of one's own that mixes types itself.
    made(&Averaging, &numbers, Precision::F32).unwrap();
    let said = made(&Averaging, &numbers, Precision::Bf16).unwrap_err().to_string();
    assert!(said.contains("generate/tests.rs:") && said.contains("cast one"), "{said}");
}

//! However a batch is cut into micro-batches, training gives the same bits.

use gradus_engine::backend::Cpu;
use gradus_train::config::Precision;
use gradus_train::language::LanguageModel;
use gradus_train::models::{Family, ModelConfig};
use gradus_train::step::{StepConfig, StepScalars, TrainingStep};
use std::rc::Rc;

const BATCH: usize = 32;
const SEQUENCE: usize = 32;
const VOCABULARY: usize = 61;

/// The bits of all weights and losses after a few steps with micro-batches of so many sequences.
fn trained(
    (model, sequence): (&ModelConfig, usize),
    precision: Precision,
    micro_batch: usize,
    threads: usize,
) -> Vec<(String, Vec<u32>)> {
    let config = StepConfig {
        micro_batch,
        micro_batches: BATCH / micro_batch,
        objective: Rc::new(LanguageModel { sequence, ..LanguageModel::new(Rc::new(model.clone())) }),
        precision,
        ..StepConfig::plain(model.clone(), BATCH)
    };
    let mut training = TrainingStep::new(config, &Cpu::new(threads).unwrap()).unwrap();
    training.initialize(3).unwrap();
    let mut outcomes = vec![];
    for step in 0..3 {
        let token = |place: usize| ((place * place / 7 + place * 3 + step as usize * 11) % VOCABULARY) as i32;
        let tokens: Vec<i32> = (0..BATCH * sequence).map(token).collect();
        // Some targets do not count, and not as many in every sequence.
        let target = |place: usize| if place % 37 == 5 { -100 } else { token(place + 1) };
        let targets: Vec<i32> = (0..BATCH * sequence).map(target).collect();
        let inputs = StepScalars { step, learning_rate: 1e-2, clip_norm: 1.0, seed: 5 };
        let mut batch = training.batch();
        batch.write("tokens", &tokens).unwrap();
        batch.write("targets", &targets).unwrap();
        let outcome = training.run(&batch, &inputs).unwrap();
        outcomes.extend([outcome.loss.to_bits(), outcome.gradient_norm.to_bits()]);
    }
    let bits = |name: &str| {
        let numbers = training.program().read(name).unwrap().to_vec::<f32>().unwrap();
        (name.to_string(), numbers.iter().map(|x| x.to_bits()).collect())
    };
    let weights = training.parameters().iter().map(|parameter| bits(&parameter.name));
    weights.chain([("losses and norms".to_string(), outcomes)]).collect()
}

fn check(model: ModelConfig, sequence: usize) {
    [Precision::F32, Precision::Bf16].iter().for_each(|precision| check_in(*precision, &model, sequence));
}

fn check_in(precision: Precision, model: &ModelConfig, sequence: usize) {
    let whole = trained((model, sequence), precision, BATCH, 2);
    for (micro_batch, threads) in [(1, 1), (2, 3), (4, 2), (8, 4), (16, 1)] {
        let pieces = trained((model, sequence), precision, micro_batch, threads);
        for ((name, whole), (_, pieces)) in whole.iter().zip(&pieces) {
            assert!(whole == pieces, "{name} in {precision:?}, {micro_batch} sequences at once");
        }
    }
}

#[test]
fn gpt2_with_tied_embeddings() {
    check(ModelConfig::gpt2(VOCABULARY, 32, 2, 2, SEQUENCE), SEQUENCE);
}

#[test]
fn gpt2_in_f16_with_a_scaled_loss() {
    check_in(Precision::F16, &ModelConfig::gpt2(VOCABULARY, 32, 2, 2, SEQUENCE), SEQUENCE);
}

#[test]
fn gpt2_on_sequences_shorter_than_its_context() {
    // With so many classes, the logits of a row are summed in several blocks.
    check(ModelConfig { tie_embeddings: false, ..ModelConfig::gpt2(1601, 48, 1, 3, SEQUENCE + 9) }, SEQUENCE);
}

#[test]
fn llama() {
    check(ModelConfig::llama(VOCABULARY, 32, 2, 4, SEQUENCE), SEQUENCE);
}

#[test]
fn qwen3_with_a_window() {
    let model = ModelConfig::new(Family::Qwen3, VOCABULARY, 32, 2, 4, SEQUENCE);
    check(ModelConfig { window: Some(9), full_layers: 1, kv_heads: 2, ..model }.with_head_size(6), SEQUENCE);
}

/// The gradient of attention is cut in other ways where there are few heads and sequences.
#[test]
fn sequences_of_several_blocks_of_attention() {
    for sequence in [192, 256, 320] {
        check(ModelConfig::gpt2(VOCABULARY, 32, 1, 2, sequence), sequence);
    }
}

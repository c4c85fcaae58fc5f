//! A causal model of one's own: attention with linear biases, which no built-in family has. It is trained on the built-in
//! stories, stopped, gone on with to the same bits, measured and asked for a text.

use gradus::backend::Cpu;
use gradus::generate::{Generator, Sampling, Texts};
use gradus::layers::{Embedding, FeedForward, LayerNorm, Linear};
use gradus::models::{CausalModel, KeyValueContext};
use gradus::train::Result;
use gradus::train::data::{Corpus, Stories};
use gradus::train::evaluate::{Window, evaluate_model};
use gradus::train::language::{LanguageModel, TARGETS, TOKENS};
use gradus::train::tokenizer::Tokenizer;
use gradus::{Array, Batch, Budget, DType, Parameters, Precision, Settings, Tensor, Trainer, Unwatched};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;
const CONTEXT: usize = 64;
const BATCH: usize = 16;

/// Tokens have no positions: a key counts for less the further back it lies, in each head by another slope.
#[derive(Clone, Copy)]
struct LinearBiases {
    vocabulary: usize,
}

impl CausalModel for LinearBiases {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn context(&self) -> usize {
        CONTEXT
    }

    fn hidden(&self, parameters: &Parameters, tokens: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
        let mut x = Embedding::new(&parameters.within("embedding"), self.vocabulary, WIDTH).forward(tokens); // [b, t, c]
        for layer in 0..LAYERS {
            let at = parameters.within(format_args!("blocks.{layer}"));
            let normed = LayerNorm::new(&at.within("norm1"), WIDTH).forward(&x);
            x = x + attention(&at.within("attention"), &normed, context); // [b, t, c]
            let normed = LayerNorm::new(&at.within("norm2"), WIDTH).forward(&x);
            x = x + FeedForward::new(&at.within("mlp"), WIDTH, 4 * WIDTH).forward(&normed); // [b, t, c]
        }
        LayerNorm::new(&parameters.within("norm"), WIDTH).forward(&x) // [b, t, c]
    }

    fn logits(&self, parameters: &Parameters, hidden: &Tensor) -> Tensor {
        Linear::without_bias(&parameters.within("head"), WIDTH, self.vocabulary).forward(hidden)
    }
}

/// A bias that falls with the distance is, up to what a softmax does not see, one that rises with the key's place: one more
/// number of each key, by which the query multiplies it.
fn attention(parameters: &Parameters, x: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
    let (b, t, d) = (x.size(0), x.size(1), WIDTH / HEADS);
    let joint = Linear::new(&parameters.within("qkv"), WIDTH, 3 * WIDTH).forward(x); // [b, t, 3c]
    let part = |part: usize| {
        let part = joint.slice(-1, part * WIDTH..(part + 1) * WIDTH); // [b, t, c]
        part.reshape([b, t, HEADS, d]).transpose(1, 2) // [b, h, t, d]
    };
    let places: Vec<f32> = (0..context.places()).map(|place| place as f32).collect();
    let places = x.trace().constant(Array::new([places.len(), 1], &places).expect("a number for each place"));
    let slopes: Vec<f32> = (0..HEADS).map(|head| 0.5f32.powi(2 * head as i32 + 2) * ((d + 1) as f32).sqrt()).collect();
    let slopes = x.trace().constant(Array::new([HEADS, 1, 1], &slopes).expect("a number for each head"));
    let biases = (slopes * context.rows(&places)).broadcast([b, HEADS, t, 1]);
    let longer = |x: &Tensor, by: &Tensor| Tensor::concat(&[x, by], -1); // [b, h, t, d + 1]
    let (q, k, v) = (part(0), part(1), part(2));
    let [q, v] = [longer(&q, &biases.ones_like()), longer(&v, &biases.zeros_like())];
    let found = context.attend(&q, &longer(&k, &biases), &v, None).slice(-1, 0..d); // [b, h, t, d]
    let joined = found.transpose(1, 2).reshape([b, t, WIDTH]); // [b, t, c]
    Linear::new(&parameters.within("output"), WIDTH, WIDTH).forward(&joined)
}

/// A trainer that goes on with the run in a folder, up to so many steps.
fn trained(model: LinearBiases, text: &Arc<Vec<i32>>, steps: u64, folder: &Path) -> Result<Trainer> {
    let settings = Settings {
        batch: BATCH,
        steps: Some(steps),
        learning_rate: 3e-3,
        memory: Some(Budget::megabytes(200)),
        folder: Some(folder.to_path_buf()),
        ..Settings::default()
    };
    let mut trainer = Trainer::new(LanguageModel::new(Rc::new(model)), settings, Arc::new(Cpu::new(2)?))?;
    let text = text.clone();
    let fill = move |step: u64, batch: &mut Batch| {
        for (name, ahead) in [(TOKENS, 0), (TARGETS, 1)] {
            for (row, tokens) in batch.numbers_mut::<i32>(name)?.chunks_exact_mut(CONTEXT).enumerate() {
                let start = (step as usize * BATCH + row) * 7919 % (text.len() - CONTEXT) + ahead;
                tokens.copy_from_slice(&text[start..start + CONTEXT]);
            }
        }
        Ok(())
    };
    let summary = trainer.train(fill, &mut Unwatched)?;
    println!("{} steps in {}: loss {:.3}", summary.steps, folder.display(), summary.loss);
    Ok(trainer)
}

fn main() -> Result<()> {
    let tokenizer = Tokenizer::bytes();
    let mut text = vec![];
    for story in Stories::new(1).documents(500) {
        text.extend(tokenizer.encode(&story)?.into_iter().map(|token| token as i32));
    }
    let (model, text) = (LinearBiases { vocabulary: tokenizer.vocabulary() }, Arc::new(text));

    let scratch = std::env::temp_dir().join(format!("gradus-custom-model-{}", std::process::id()));
    let at_once = trained(model, &text, 160, &scratch.join("at-once"))?;
    drop(trained(model, &text, 80, &scratch.join("in-two"))?);
    let in_two = trained(model, &text, 160, &scratch.join("in-two"))?;
    for parameter in model.parameters() {
        let [once, twice] = [&at_once, &in_two].map(|trainer| trainer.read(&parameter.name));
        assert_eq!(once?.bytes(), twice?.bytes(), "{} is the same after a stop", parameter.name);
    }
    println!("stopped and gone on with, it has the same weights to the bit");

    let unseen = Corpus::stories(2, 20);
    let window = Window { batch: 8, sequence: None, memory: None };
    let backend = Cpu::new(2)?;
    let measured = evaluate_model(&model, at_once.program(), (&tokenizer, &unseen), &backend, window, &mut |_, _| {})?;
    println!("{:.3} bits for a byte of stories that it has not seen", measured.bits_per_byte);
    assert!(measured.bits_per_byte < 3.0, "it learned more than which letters are frequent");

    let weight =
        |parameter: &gradus::parameters::Parameter| at_once.read(&parameter.name).expect("a weight of the model");
    let prompt: Vec<i32> = tokenizer.encode("Once upon a time")?.into_iter().map(|token| token as i32).collect();
    let texts = Texts { count: 1, prompt_tokens: prompt.len(), max_tokens: 40 };
    let mut generator = Generator::new(&model, weight, Precision::F32, &backend, texts)?;
    let greedy = Sampling { temperature: 0.0, top_k: None, top_p: 1.0, seed: 1 };
    let written = generator.generate(&prompt, &greedy, 40, &[], &mut |_, _| Ok(()))?.remove(0);
    let ids: Vec<u32> = prompt.iter().chain(&written).map(|token| *token as u32).collect();
    println!("{}", tokenizer.decode_text(&ids)?);

    // What is written from keys and values that are kept is what the whole model says of the whole text.
    let tokens: Vec<i32> = prompt.iter().chain(&written).copied().collect();
    let count = tokens.len();
    let mut whole = at_once.compile(1, |parameters, inputs| {
        model.forward(parameters, &inputs.get(TOKENS, DType::I32, [count])) // [1, t, v]
    })?;
    whole.write(TOKENS, &tokens)?;
    whole.run("forward")?;
    let logits = whole.read("output")?.to_f64();
    let likeliest =
        |row: &[f64]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a vocabulary") as i32;
    let said: Vec<i32> = logits.chunks(model.vocabulary).map(likeliest).collect();
    assert_eq!(said[prompt.len() - 1..count - 1], written, "with a cache and without");
    std::fs::remove_dir_all(&scratch).map_err(gradus::train::Error::io("remove", &scratch))
}

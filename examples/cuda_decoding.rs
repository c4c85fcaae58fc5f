//! Times decoding of GPT-2 124M on a CUDA device: tokens a second of all texts together.
//!
//! `cuda_decoding [TEXTS ...]`: without numbers, 64 and 256 texts. Each goes on from one token by 512; weights are random, in bf16.
//! Where there is no device, it says so.

use gradus::backend::Cuda;
use gradus_train::Result;
use gradus_train::config::Precision;
use gradus_train::generate::{Generator, Sampling, Texts};
use gradus_train::models::{ModelConfig, Parameter};
use std::time::Instant;

const TOKENS: usize = 512;
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let counts: Vec<usize> = std::env::args().skip(1).filter_map(|count| count.parse().ok()).collect();
    let cuda = match Cuda::new(0) {
        Ok(cuda) => cuda,
        Err(reason) => {
            println!("not run: {reason}");
            return Ok(());
        }
    };
    let model = ModelConfig::gpt2(50_257, 768, 12, 12, 1024);
    println!("texts   tokens/s    a token  {TOKENS} tokens each");
    for count in if counts.is_empty() { vec![64, 256] } else { counts } {
        let texts = Texts { count, prompt_tokens: 1, max_tokens: TOKENS };
        let weights = |parameter: &Parameter| parameter.numbers(1);
        let mut generator = Generator::new(&model, weights, Precision::Bf16, &cuda, texts)?;
        let sampling = Sampling { temperature: 1.0, top_k: None, top_p: 1.0, seed: 1 };
        let mut seconds = vec![];
        // The first round is not counted.
        for _ in 0..=ROUNDS {
            let began = Instant::now();
            let written = generator.generate(&[0], &sampling, TOKENS, &[], &mut |_, _| Ok(()))?;
            seconds.push(began.elapsed().as_secs_f64());
            assert!(
                written.len() == count && written.iter().all(|text| text.len() == TOKENS),
                "all of them are written"
            );
        }
        seconds.remove(0);
        seconds.sort_by(f64::total_cmp);
        let median = seconds[ROUNDS / 2];
        let (rate, milliseconds) = ((count * TOKENS) as f64 / median, median / TOKENS as f64 * 1e3);
        println!("{count:>5} {rate:>10.0} {milliseconds:>7.3} ms");
    }
    Ok(())
}

//! What a model makes of a text: its tokens, and a logit for every token that could follow each, as JSON.
//!
//! `cargo run --example logits -- FOLDER TEXT` takes a model folder as `gradus train` and Hugging Face tools write
//! them; without arguments a small model with random weights is made and used.

use gradus::backend::Cpu;
use gradus::train::Result;
use gradus::train::config::ExportDtype;
use gradus::train::export::{Export, read_model_config, read_model_weights};
use gradus::train::files::tensors::Tensors;
use gradus::train::models::{CausalModel, ModelConfig};
use gradus::train::tokenizer::Tokenizer;
use gradus::{DType, Routine, Trace};
use std::borrow::Cow;
use std::path::Path;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [folder, text] = &arguments[..] {
        return print_logits(Path::new(folder), text);
    }
    let folder = std::env::temp_dir().join(format!("gradus-logits-{}", std::process::id()));
    let printed = write_random_model(&folder).and_then(|()| print_logits(&folder, "Hello"));
    let _ = std::fs::remove_dir_all(&folder);
    printed
}

fn print_logits(folder: &Path, text: &str) -> Result<()> {
    let config = read_model_config(folder)?;
    let ids = Tokenizer::open(folder)?.encode(text)?;

    let trace = Trace::new();
    let tokens = trace.input("tokens", DType::I32, [1, ids.len()]);
    let logits = config.forward(&config.declare(&trace), &tokens); // [1, t, v]
    let routine = Routine::new("run").output("logits", &logits);
    let mut program = trace.compile(&Cpu::new(2)?, &[routine])?;

    read_model_weights(folder, &config, &mut program)?;
    program.write("tokens", &ids.iter().map(|&id| id as i32).collect::<Vec<_>>())?;
    program.run("run")?;
    let logits: Vec<f32> = program.read("logits")?.to_vec()?;
    let rows: Vec<&[f32]> = logits.chunks(config.vocabulary).collect();
    // Lists of finite numbers are written in Rust as they are in JSON.
    println!("{{\"ids\": {ids:?}, \"logits\": {rows:?}}}");
    Ok(())
}

/// A model that has learned nothing yet, in a folder that other tools open too.
fn write_random_model(folder: &Path) -> Result<()> {
    let tokenizer = Tokenizer::bytes();
    let config = ModelConfig::gpt2(tokenizer.vocabulary(), 32, 2, 4, 64);
    let export = Export {
        config: &config,
        weights: &RandomWeights(&config),
        dtype: ExportDtype::F32,
        tokenizer: &tokenizer,
        origin: None,
    };
    export.write(folder)
}

struct RandomWeights<'a>(&'a ModelConfig);

impl Tensors for RandomWeights<'_> {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let parameters = self.0.parameters();
        let parameter = parameters.iter().find(|parameter| parameter.name == name).expect("a weight of the model");
        Ok(Cow::Owned(parameter.numbers(1).bytes().to_vec()))
    }
}

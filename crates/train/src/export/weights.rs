//! The weights of a model folder: one file or several, stored as f32, f16 or bf16.

use super::WEIGHTS;
use crate::files::tensors::{Entry, TensorFile, TensorsMut};
use crate::models::{Family, ModelConfig, Parameter};
use crate::{Error, Result};
use gradus_engine::{DType, TensorType};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

const INDEX: &str = "model.safetensors.index.json";

/// The element types that weights may be stored in.
const STORED: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// Reads every weight of the model in a folder as f32, in the order of the model's parameters. Nothing is read unless
/// all of them are there and fit.
pub fn read_model_weights(folder: &Path, config: &ModelConfig, weights: &mut dyn TensorsMut) -> Result<()> {
    let parameters = config.parameters();
    let files = weight_files(folder)?.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>>>()?;
    let places = match_names(folder, config, &parameters, &files)?;
    let entries = Entry::of_parameters(&parameters);
    let mut read = entries.iter().zip(places);
    read.try_for_each(|(entry, (file, stored))| weights.fill(entry, &mut |bytes| file.read_numbers(&stored, bytes)))
}

/// The files that hold the weights.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    if folder.join(WEIGHTS).exists() {
        return Ok(vec![folder.join(WEIGHTS)]);
    }
    let index = folder.join(INDEX);
    if !index.exists() {
        let advice = "weights in other formats can be saved again from transformers with save_pretrained";
        return Err(Error::checkpoint(folder, format!("holds neither {WEIGHTS} nor {INDEX}; {advice}")));
    }
    let text = fs::read_to_string(&index).map_err(Error::io("read", &index))?;
    let broken = || Error::checkpoint(&index, "not an index of weight files; copy or save it again");
    let parsed: Value = serde_json::from_str(&text).map_err(|_| broken())?;
    let map = parsed["weight_map"].as_object().ok_or_else(broken)?;
    let mut files = BTreeSet::new();
    for file in map.values() {
        let name = file.as_str().map(Path::new).ok_or_else(broken)?;
        // A file elsewhere is no part of the folder.
        if name.file_name() != Some(name.as_os_str()) {
            return Err(broken());
        }
        files.insert(folder.join(name));
    }
    Ok(files.into_iter().collect())
}

/// The file of every parameter, and its name there.
fn match_names<'a>(
    folder: &Path,
    config: &ModelConfig,
    parameters: &[Parameter],
    files: &'a [TensorFile],
) -> Result<Vec<(&'a TensorFile, String)>> {
    let wrong = |problem: String| {
        let advice = "the weights are of another model than config.json; copy or save the folder again";
        Error::checkpoint(folder, format!("{problem}; {advice}"))
    };
    let by_name: HashMap<&str, usize> =
        parameters.iter().enumerate().map(|(at, known)| (&known.name[..], at)).collect();
    let mut places: Vec<Option<(&TensorFile, String)>> = parameters.iter().map(|_| None).collect();
    for file in files {
        for name in file.names() {
            let prefixed = format!("{}.{name}", prefix(config.family));
            let Some(&index) = by_name.get(&name[..]).or_else(|| by_name.get(&prefixed[..])) else {
                if is_no_weight(&name, config) {
                    continue;
                }
                return Err(wrong(format!("tensor {name:?} is {} and not in the model", file.described(&name))));
            };
            let expected = &parameters[index].shape;
            let fits = |ty: TensorType| ty.shape == *expected && STORED.contains(&ty.dtype);
            if !file.ty(&name).is_some_and(fits) {
                let stored = file.described(&name);
                return Err(wrong(format!("tensor {name:?} is {stored} instead of f32, f16 or bf16{expected}")));
            }
            if places[index].replace((file, name)).is_some() {
                return Err(wrong(format!("tensor {:?} is there twice", parameters[index].name)));
            }
        }
    }
    let missing = |index: usize| wrong(format!("tensor {:?} is missing", parameters[index].name));
    places.into_iter().enumerate().map(|(index, place)| place.ok_or_else(|| missing(index))).collect()
}

/// What the names of all but the projection to logits begin with, and lack where only the blocks were saved.
fn prefix(family: Family) -> &'static str {
    match family {
        Family::Gpt2 => "transformer",
        Family::Llama => "model",
    }
}

/// Whether a tensor is one that files may hold besides the weights: a mask, a table of angles, or a projection to
/// logits that is the table of tokens again.
fn is_no_weight(name: &str, config: &ModelConfig) -> bool {
    let buffers = [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"];
    buffers.iter().any(|buffer| name.ends_with(buffer)) || (config.tie_embeddings && name == "lm_head.weight")
}

//! The weights of a model folder: one file or several, stored as f32, f16 or bf16.

use super::WEIGHTS;
use super::read_json;
use crate::checkpoint;
use crate::config::ExportDtype;
use crate::files::tensors::{Entry, TensorFile, TensorsMut, first_not_finite};
use crate::models::{CausalModel, ModelConfig, Parameter};
use crate::{Error, Result};
use gradus_engine::{DType, TensorType};
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

const INDEX: &str = "model.safetensors.index.json";

/// The element types that weights may be stored in.
const STORED: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// The projection to logits, if it is not the table of tokens.
const HEAD: &str = "lm_head.weight";

/// Reads every weight of the model in a folder, rounded to what it is held in, in the order of the model's parameters. Nothing is read unless
/// all of them are there and fit; a number that is not finite is an error.
pub fn read_model_weights(folder: &Path, config: &ModelConfig, weights: &mut dyn TensorsMut) -> Result<()> {
    if config.tie_embeddings && has_head_of_its_own(folder, config)? {
        let problem = format!("{HEAD} differs from the table of tokens, so the two are not tied; state them as untied");
        return Err(Error::checkpoint(folder, problem));
    }
    let parameters = config.parameters();
    let files = open_files(folder)?;
    let places = match_names(folder, config, &parameters, &files)?;
    let entries = Entry::of_parameters(&parameters);
    entries.iter().zip(places).try_for_each(|(entry, (file, stored))| {
        weights.fill(entry, &mut |dtype, bytes| {
            file.read_numbers(&stored, dtype, bytes)?;
            let Some((place, number)) = first_not_finite(dtype, bytes) else { return Ok(()) };
            let advice = "copy the folder again, or use a model from before it diverged";
            Err(Error::checkpoint(folder, format!("tensor {stored:?} holds {number} at place {place}; {advice}")))
        })
    })
}

/// Whether the weights of a model that is stated as tied hold a projection to logits that is not the table of tokens.
pub(super) fn has_head_of_its_own(folder: &Path, config: &ModelConfig) -> Result<bool> {
    // Whoever reads the weights is told that there are none.
    let Ok(paths) = weight_files(folder) else { return Ok(false) };
    let files = paths.iter().map(|path| TensorFile::open(path)).collect::<Result<Vec<_>>>()?;
    let tied = ModelConfig { tie_embeddings: true, ..config.clone() };
    let table = &tied.parameters()[0];
    let holder = |name: &str| files.iter().find(|file| file.ty(name).is_some_and(|ty| STORED.contains(&ty.dtype)));
    let bare = table.name.split_once('.').map_or("", |(_, bare)| bare);
    let stored_table = [&table.name[..], bare].into_iter().find_map(|name| Some((name, holder(name)?)));
    match (stored_table, holder(HEAD)) {
        (Some((name, table)), Some(head)) => Ok(!table.has_same_numbers(name, head, HEAD)?),
        _ => Ok(false),
    }
}

/// What the weights of a folder are stored in: that of the table of tokens stands for all.
pub fn stored_dtype(folder: &Path, config: &ModelConfig) -> Result<ExportDtype> {
    let parameters = config.parameters();
    let files = open_files(folder)?;
    let (file, name) = match_names(folder, config, &parameters, &files)?.swap_remove(0);
    Ok(match file.ty(&name).map(|ty| ty.dtype) {
        Some(DType::Bf16) => ExportDtype::Bf16,
        Some(DType::F16) => ExportDtype::F16,
        _ => ExportDtype::F32,
    })
}

fn open_files(folder: &Path) -> Result<Vec<TensorFile>> {
    weight_files(folder)?.iter().map(|path| TensorFile::open(path)).collect()
}

/// The files that hold the weights.
fn weight_files(folder: &Path) -> Result<Vec<PathBuf>> {
    // A checkpoint is a model folder whose weights have another name.
    if let Some(file) =
        [WEIGHTS, checkpoint::WEIGHTS].map(|name| folder.join(name)).into_iter().find(|file| file.exists())
    {
        return Ok(vec![file]);
    }
    let index = folder.join(INDEX);
    if !index.exists() {
        let advice = "weights in other formats can be saved again from transformers with save_pretrained";
        return Err(Error::checkpoint(folder, format!("holds neither {WEIGHTS} nor {INDEX}; {advice}")));
    }
    let broken = || Error::checkpoint(&index, "not an index of weight files; copy or save it again");
    let parsed = read_json(&index)?;
    let map = parsed.get("weight_map").and_then(|map| map.as_object()).ok_or_else(broken)?;
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
            let prefixed = format!("{}.{name}", config.family.architecture().published().prefix);
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

/// Whether a tensor is one that files may hold besides the weights: a mask, a table of angles, or a projection to
/// logits that is the table of tokens again.
fn is_no_weight(name: &str, config: &ModelConfig) -> bool {
    let buffers = config.family.architecture().published().buffers;
    buffers.iter().any(|buffer| name.ends_with(buffer)) || (config.tie_embeddings && name == HEAD)
}

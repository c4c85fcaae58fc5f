//! Folders of image models, in the layouts of `timm` and of `transformers`, read and written.
//!
//! Weights have `timm`'s names here, which are torchvision's for residual networks. `transformers` has others, and keeps
//! queries, keys and values apart.

use super::keys::{COMMON, Keys, Rule};
use super::processor::{self, Processor};
use super::settings::Settings;
use super::{CONFIG, WEIGHTS, decimal, read_json, write_json};
use crate::config::ExportDtype;
use crate::files::atomic;
use crate::files::tensors::{self, Entry, TensorFile, Tensors, first_not_finite};
use crate::images::{Classifier, Filter, Fit, Framing, Odd};
use crate::models::vision::{Architecture, Block, DEVIATION, ImageModel, MEAN, ResNet, Vit};
use crate::parameters::Parameters;
use crate::step::Inputs;
use crate::{Error, Result};
use Rule::{Any, Only, Read};
use gradus_engine::{DType, Program, Shape, TensorType, Trace};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// Whose names and settings a folder has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// `timm`'s; the weights of residual networks are torchvision's too.
    #[default]
    Timm,
    /// That of `transformers`.
    Transformers,
}

/// An image model, its classes, and how images are shown to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    /// The model.
    pub model: ImageModel,
    /// The names of its classes.
    pub labels: Vec<String>,
    /// How images are brought to its size. What is written is how a run does it: the middle, by a triangle.
    pub framing: Framing,
}

/// The weights of an image model, and its statistics: shapes by name.
pub fn image_tensors(model: &ImageModel) -> Result<BTreeMap<String, Shape>> {
    let trace = Trace::new();
    let parameters = Parameters::new(&trace);
    Classifier::logits(model, &parameters, &Inputs::new(&trace, 1));
    trace.check()?;
    Ok(parameters.shapes())
}

/// What `timm` adds to variances in the norms of a transformer; no key of its folders states another number.
const TIMM_NORM_EPSILON: f32 = 1e-6;

/// Refuses a layout that cannot state a model.
pub fn check_layout(model: &ImageModel, layout: Layout) -> Result<()> {
    match &model.architecture {
        Architecture::Vit(vit) if layout == Layout::Timm && vit.norm_epsilon != TIMM_NORM_EPSILON => {
            Err(Error::Config(format!(
                "a folder of timm cannot state this model's layer_norm_eps of {:?}, only {:?}; give `settings.layout` transformers",
                decimal(vit.norm_epsilon),
                decimal(TIMM_NORM_EPSILON)
            )))
        }
        _ => Ok(()),
    }
}

/// Writes the folder of an image model, or replaces it.
pub fn write_image_model(
    folder: &Path,
    labelled: &Labelled,
    layout: Layout,
    dtype: ExportDtype,
    weights: &dyn Tensors,
) -> Result<()> {
    check_layout(&labelled.model, layout)?;
    let stored = Stored::of(&labelled.model, layout)?;
    let renamed = Renamed { stored: &stored, weights };
    atomic::write_folder(folder, |beside| {
        tensors::write_as(&beside.join(WEIGHTS), dtype.dtype(), &stored.entries(), &renamed)?;
        write_image_settings(beside, labelled, layout, dtype)
    })
}

/// Writes what states an image model into a folder.
fn write_image_settings(folder: &Path, labelled: &Labelled, layout: Layout, dtype: ExportDtype) -> Result<()> {
    let model = &labelled.model;
    let config = match layout {
        Layout::Timm => timm_config(labelled),
        Layout::Transformers => transformers_config(labelled, dtype),
    };
    write_json(&folder.join(CONFIG), &config)?;
    if layout == Layout::Transformers { processor::write(folder, model) } else { Ok(()) }
}

fn timm_config(Labelled { model, labels, .. }: &Labelled) -> Value {
    let [height, width] = model.size;
    let (name, features, args) = match &model.architecture {
        Architecture::Resnet(resnet) => {
            let name = match (resnet.block, resnet.depths) {
                (Block::Bottleneck, _) => "resnet50",
                (Block::Basic, [3, 4, 6, 3]) => "resnet34",
                (Block::Basic, _) => "resnet18",
            };
            let args = json!({"layers": resnet.depths, "channels": resnet.channels, "stem_width": resnet.stem});
            (name, resnet.features(), args)
        }
        Architecture::Vit(vit) => {
            let args = json!({
                "img_size": [height, width], "patch_size": vit.patch, "embed_dim": vit.width, "depth": vit.layers,
                "num_heads": vit.heads, "mlp_ratio": mlp_ratio(vit),
            });
            ("vit_small_patch16_224", vit.width, args)
        }
    };
    let usual = [("resnet18", "resnet18"), ("resnet34", "resnet34"), ("resnet50", "resnet50")];
    let is_usual = usual
        .iter()
        .any(|(timm, ours)| *timm == name && Architecture::named(ours).as_ref() == Some(&model.architecture));
    let is_vit = matches!(model.architecture, Architecture::Vit(_));
    let mut config = json!({
        "architecture": name, "num_classes": model.classes, "num_features": features, "label_names": labels,
        "pretrained_cfg": {
            "input_size": [3, height, width], "fixed_input_size": is_vit, "interpolation": "bilinear", "crop_pct": 1.0,
            "mean": model.mean.map(decimal), "std": model.deviation.map(decimal), "num_classes": model.classes,
            "first_conv": if is_vit { "patch_embed.proj" } else { "conv1" }, "classifier": model.architecture.head(),
        },
    });
    if !is_usual {
        config["model_args"] = args;
    }
    config
}

/// What a transformer's width is multiplied by and cut to a whole number. One that is no multiple is stated from the middle of
/// its range, where rounding does not matter.
fn mlp_ratio(vit: &Vit) -> f64 {
    let past = if vit.feed_forward.is_multiple_of(vit.width) { 0.0 } else { 0.5 };
    (vit.feed_forward as f64 + past) / vit.width as f64
}

fn transformers_config(Labelled { model, labels, .. }: &Labelled, dtype: ExportDtype) -> Value {
    let names: Map<String, Value> =
        labels.iter().enumerate().map(|(id, label)| (id.to_string(), json!(label))).collect();
    let ids: Map<String, Value> = labels.iter().enumerate().map(|(id, label)| (label.clone(), json!(id))).collect();
    let [height, width] = model.size;
    let mut config = match &model.architecture {
        Architecture::Resnet(resnet) => json!({
            "architectures": ["ResNetForImageClassification"], "model_type": "resnet", "num_channels": 3,
            "embedding_size": resnet.stem, "depths": resnet.depths, "hidden_act": "relu",
            "hidden_sizes": resnet.channels.map(|channels| channels * resnet.block.expansion()),
            "layer_type": if resnet.block == Block::Basic { "basic" } else { "bottleneck" },
            "downsample_in_first_stage": false, "downsample_in_bottleneck": false,
        }),
        Architecture::Vit(vit) => json!({
            "architectures": ["ViTForImageClassification"], "model_type": "vit", "num_channels": 3,
            "image_size": if height == width { json!(height) } else { json!([height, width]) }, "patch_size": vit.patch,
            "hidden_size": vit.width, "num_hidden_layers": vit.layers, "num_attention_heads": vit.heads,
            "intermediate_size": vit.feed_forward, "hidden_act": "gelu", "layer_norm_eps": decimal(vit.norm_epsilon),
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "qkv_bias": true, "initializer_range": 0.02,
        }),
    };
    config["id2label"] = Value::Object(names);
    config["label2id"] = Value::Object(ids);
    config["torch_dtype"] = json!(dtype.published_name());
    config
}

const TIMM: Keys = &[
    (Read, &["architecture", "num_classes", "label_names", "model_args", "pretrained_cfg"]),
    (Any, &["num_features", "label_descriptions", "library_name", "license", "tags"]),
    (Read, &["global_pool"]),
];
const TIMM_ARGS: Keys = &[
    (
        Read,
        &["layers", "channels", "stem_width", "img_size", "patch_size", "embed_dim", "depth", "num_heads", "mlp_ratio"],
    ),
    (Read, &["global_pool"]),
    (Only(&["3"]), &["in_chans"]),
    (Any, &["num_classes", "drop_rate", "drop_path_rate"]),
];
const TIMM_INPUT: Keys = &[
    (Read, &["input_size", "mean", "std", "interpolation", "crop_pct"]),
    (Only(&["\"center\"", "null"]), &["crop_mode"]),
    (Any, &["fixed_input_size", "min_input_size", "test_input_size", "test_crop_pct"]),
    (Any, &["num_classes", "first_conv", "classifier", "pool_size", "url", "hf_hub_id", "tag", "source"]),
    (Any, &["architecture", "license", "origin_url", "paper_name", "paper_ids", "notes", "custom_load", "file"]),
    (Any, &["hf_hub_filename", "state_dict", "label_offset", "label_names", "label_descriptions", "test_crop_mode"]),
];
const VIT: Keys = &[
    (Read, &["image_size", "patch_size", "hidden_size", "num_hidden_layers", "num_attention_heads"]),
    (Read, &["intermediate_size", "layer_norm_eps"]),
    (
        Any,
        &["hidden_dropout_prob", "attention_probs_dropout_prob", "encoder_stride", "pooler_output_size", "pooler_act"],
    ),
    (Only(&["3"]), &["num_channels"]),
    (Only(&["\"gelu\""]), &["hidden_act"]),
    (Only(&["true"]), &["qkv_bias"]),
];
const RESNET: Keys = &[
    (Read, &["embedding_size", "hidden_sizes", "depths", "layer_type"]),
    (Any, &["out_features", "out_indices", "stage_names"]),
    (Only(&["3"]), &["num_channels"]),
    (Only(&["\"relu\""]), &["hidden_act"]),
    (Only(&["false"]), &["downsample_in_first_stage", "downsample_in_bottleneck"]),
];
/// The image model that a folder states, and whose layout it has. What is not understood is refused.
pub fn read_image_config(folder: &Path) -> Result<(Labelled, Layout)> {
    let path = folder.join(CONFIG);
    if !path.exists() {
        let problem = "holds no config.json; give a folder of an image model, such as a run's `model/`";
        return Err(Error::checkpoint(folder, problem));
    }
    let settings = settings(&path, "", read_json(&path)?);
    let is_timm = settings.values.contains_key("architecture");
    let labelled = if is_timm { read_timm(&settings)? } else { read_transformers(folder, &settings)? };
    let impossible = |problem: Error| Error::checkpoint(&path, format!("impossible sizes: {problem}"));
    labelled.model.validate().map_err(impossible)?;
    Ok((labelled, if is_timm { Layout::Timm } else { Layout::Transformers }))
}

pub(super) fn settings(path: &Path, within: &'static str, values: Map<String, Value>) -> Settings {
    Settings { path: path.to_path_buf(), within, values }
}

/// An object within others, none if it is not there.
fn object(settings: &Settings, key: &str, within: &'static str, keys: Keys) -> Result<Settings> {
    let values = match settings.values.get(key) {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(values)) => values.clone(),
        Some(_) => return Err(settings.refuse(format!("{key} is no object"))),
    };
    let found = self::settings(&settings.path, within, values);
    found.check_keys(&[keys])?;
    Ok(found)
}

fn read_timm(settings: &Settings) -> Result<Labelled> {
    settings.check_keys(&[TIMM])?;
    let args = object(settings, "model_args", "model_args.", TIMM_ARGS)?;
    let input = object(settings, "pretrained_cfg", "pretrained_cfg.", TIMM_INPUT)?;
    let name = settings.text("architecture", "")?;
    let architecture = match name {
        "resnet18" | "resnet34" | "resnet50" => {
            let Some(Architecture::Resnet(usual)) = Architecture::named(name) else { unreachable!("it is named") };
            let (depths, channels) =
                (numbers(&args, "layers", usual.depths)?, numbers(&args, "channels", usual.channels)?);
            let stem = args.size("stem_width", usual.stem)?;
            Architecture::Resnet(ResNet { block: usual.block, stem, depths, channels })
        }
        "vit_small_patch16_224" => {
            let width = args.size("embed_dim", 384)?;
            let feed_forward = (width as f64 * args.precise_number("mlp_ratio", 4.0)?) as usize;
            let [layers, heads] = [args.size("depth", 12)?, args.size("num_heads", 6)?];
            let patch = args.size("patch_size", 16)?;
            Architecture::Vit(Vit { patch, width, layers, heads, feed_forward, norm_epsilon: TIMM_NORM_EPSILON })
        }
        other => {
            let known = "only resnet18, resnet34, resnet50 and vit_small_patch16_224";
            return Err(settings.refuse(format!("architecture {other:?} is not known, {known}")));
        }
    };
    let pool = if matches!(architecture, Architecture::Vit(_)) { "token" } else { "avg" };
    for stated in [settings, &args] {
        let other = stated.text("global_pool", pool)?;
        if other != pool {
            let within = stated.within;
            return Err(
                settings.refuse(format!("{within}global_pool {other:?} is not supported by {name}, only {pool:?}"))
            );
        }
    }
    let [channels, height, width] = numbers(&input, "input_size", [3, 224, 224])?;
    if channels != 3 {
        return Err(input.refuse(format!("images of {channels} channels are not supported, only of 3")));
    }
    let size = numbers(&args, "img_size", [height, width])?;
    let classes = settings.size("num_classes", 1000)?;
    let (mean, deviation) = (numbers(&input, "mean", MEAN)?, numbers(&input, "std", DEVIATION)?);
    let labels = match settings.values.get("label_names") {
        None | Some(Value::Null) => unnamed(classes),
        Some(Value::Array(names)) => {
            let name = |name: &Value| name.as_str().map(str::to_string);
            let names: Option<Vec<String>> = names.iter().map(name).collect();
            names.ok_or_else(|| settings.refuse("label_names holds what is no text".to_string()))?
        }
        Some(_) => return Err(settings.refuse("label_names is no list of names".to_string())),
    };
    let filter = match input.text("interpolation", "bicubic")? {
        "bilinear" => Filter::Bilinear,
        "bicubic" => Filter::Bicubic,
        other => {
            return Err(input.refuse(format!("interpolation {other:?} is not supported, only bilinear and bicubic")));
        }
    };
    let framing = Framing { fit: Fit::Crop(processor::share(&input)?, Odd::Even), filter };
    labelled(settings, ImageModel { architecture, classes, size, mean, deviation }, labels, framing)
}

fn read_transformers(folder: &Path, settings: &Settings) -> Result<Labelled> {
    let kind = settings.text("model_type", "")?;
    let (architecture, stated) = match kind {
        "vit" => {
            settings.check_keys(&[COMMON, VIT])?;
            let [patch, width] = [settings.size("patch_size", 16)?, settings.size("hidden_size", 768)?];
            let [layers, heads] = [settings.size("num_hidden_layers", 12)?, settings.size("num_attention_heads", 12)?];
            let feed_forward = settings.size("intermediate_size", 3072)?;
            let norm_epsilon = settings.number("layer_norm_eps", 1e-12)?;
            let stated = match settings.values.get("image_size") {
                Some(Value::Array(_)) => numbers(settings, "image_size", [224; 2])?,
                _ => [settings.size("image_size", 224)?; 2],
            };
            (Architecture::Vit(Vit { patch, width, layers, heads, feed_forward, norm_epsilon }), Some(stated))
        }
        "resnet" => {
            settings.check_keys(&[COMMON, RESNET])?;
            let block = match settings.text("layer_type", "bottleneck")? {
                "basic" => Block::Basic,
                "bottleneck" => Block::Bottleneck,
                other => return Err(settings.refuse(format!("layer_type {other:?} is not supported"))),
            };
            let sizes = numbers(settings, "hidden_sizes", [256, 512, 1024, 2048])?;
            let channels = sizes.map(|size| size / block.expansion());
            if sizes.iter().any(|size| !size.is_multiple_of(block.expansion())) {
                return Err(settings.refuse("hidden_sizes are no multiples of four".to_string()));
            }
            let stem = settings.size("embedding_size", 64)?;
            let depths = numbers(settings, "depths", [3, 4, 6, 3])?;
            (Architecture::Resnet(ResNet { block, stem, depths, channels }), None)
        }
        other => return Err(settings.refuse(format!("models of type {other:?} are not known, only vit and resnet"))),
    };
    let Processor { framing, size: shown, mean, deviation } = processor::read(folder, kind)?;
    let size = stated.unwrap_or(shown);
    if size != shown {
        let [[height, width], [shown_height, shown_width]] = [size, shown];
        return Err(settings.refuse(format!(
            "image_size is {height}x{width}, but the images of preprocessor_config.json are {shown_height}x{shown_width}"
        )));
    }
    let mut labels: Vec<(usize, String)> = vec![];
    if let Some(Value::Object(names)) = settings.values.get("id2label") {
        for (id, name) in names {
            let wrong = || settings.refuse(format!("id2label has {id:?}"));
            labels.push((id.parse().map_err(|_| wrong())?, name.as_str().ok_or_else(wrong)?.to_string()));
        }
    }
    labels.sort();
    if let Some((place, (id, _))) = labels.iter().enumerate().find(|(place, (id, _))| place != id) {
        return Err(settings.refuse(format!("id2label has {id} where {place} should be")));
    }
    let classes = if labels.is_empty() { settings.size("num_labels", 2)? } else { labels.len() };
    let labels = if labels.is_empty() { unnamed(classes) } else { labels.into_iter().map(|(_, name)| name).collect() };
    labelled(settings, ImageModel { architecture, classes, size, mean, deviation }, labels, framing)
}

fn unnamed(classes: usize) -> Vec<String> {
    (0..classes).map(|class| format!("LABEL_{class}")).collect()
}

fn labelled(settings: &Settings, model: ImageModel, labels: Vec<String>, framing: Framing) -> Result<Labelled> {
    match labels.len() == model.classes {
        true => Ok(Labelled { model, labels, framing }),
        false => Err(settings.refuse(format!("{} labels are stated for {} classes", labels.len(), model.classes))),
    }
}

/// So many numbers of a list, or what they are where nothing is said.
pub(super) fn numbers<T: Copy + serde::de::DeserializeOwned, const N: usize>(
    settings: &Settings,
    key: &str,
    usual: [T; N],
) -> Result<[T; N]> {
    let Some(value) = settings.values.get(key) else { return Ok(usual) };
    let read: Option<Vec<T>> = serde_json::from_value(value.clone()).ok();
    let wrong = || settings.refuse(format!("{}{key} is {value} and should be a list of {N} numbers", settings.within));
    read.and_then(|read| read.try_into().ok()).ok_or_else(wrong)
}

/// Reads the weights of an image model, or all but the layer that gives logits, into a program that has them. Nothing is read
/// unless all are there and fit.
pub fn read_image_weights(
    folder: &Path,
    model: &ImageModel,
    layout: Layout,
    with_head: bool,
    program: &mut Program,
) -> Result<()> {
    let path = folder.join(WEIGHTS);
    let file = TensorFile::open(&path)?;
    let stored = Stored::of(model, layout)?;
    let wrong = |problem: String| {
        Error::checkpoint(
            &path,
            format!("{problem}; the weights are of another model than config.json: copy or save the folder again"),
        )
    };
    let entries = stored.entries();
    for entry in &entries {
        let fits =
            |ty: TensorType| ty.shape == entry.ty.shape && [DType::F32, DType::F16, DType::Bf16].contains(&ty.dtype);
        if !file.ty(&entry.name).is_some_and(fits) {
            let found = file.described(&entry.name);
            return Err(wrong(format!(
                "tensor {:?} is {found} instead of f32, f16 or bf16{}",
                entry.name, entry.ty.shape
            )));
        }
    }
    let is_known = |name: &String| stored.parts.contains_key(name) || name.ends_with("num_batches_tracked");
    if let Some(name) = file.names().iter().find(|name| !is_known(name)) {
        return Err(wrong(format!("tensor {name:?} is {} and not in the model", file.described(name))));
    }
    let head = format!("{}.", model.architecture.head());
    for entry in &entries {
        let (own, bytes) = &stored.parts[&entry.name];
        if !with_head && own.starts_with(&head) {
            continue;
        }
        program.fill(&own[..], |all| {
            let part = &mut all[bytes.clone()];
            file.read_numbers(&entry.name, DType::F32, part)?;
            match first_not_finite(DType::F32, part) {
                None => Ok(()),
                Some((place, number)) => Err(wrong(format!("tensor {:?} holds {number} at place {place}", entry.name))),
            }
        })?;
    }
    Ok(())
}

/// Where the tensors of a model lie in a file.
struct Stored {
    /// By the name in the file: the model's own name, and which of its bytes.
    parts: HashMap<String, (String, Range<usize>)>,
    shapes: BTreeMap<String, Shape>,
}

impl Stored {
    fn of(model: &ImageModel, layout: Layout) -> Result<Stored> {
        let (mut parts, mut shapes) = (HashMap::new(), BTreeMap::new());
        for (own, shape) in image_tensors(model)? {
            let all = 0..shape.elements() * size_of::<f32>();
            let names = match (layout, &model.architecture) {
                (Layout::Timm, _) => vec![own.clone()],
                (Layout::Transformers, Architecture::Resnet(_)) => vec![resnet_name(&own)],
                (Layout::Transformers, Architecture::Vit(_)) => vit_names(&own),
            };
            let share = all.len() / names.len();
            let mut sizes = shape.to_vec();
            sizes[0] /= names.len();
            for (place, name) in names.into_iter().enumerate() {
                shapes.insert(name.clone(), Shape::new(&sizes[..]));
                parts.insert(name, (own.clone(), place * share..(place + 1) * share));
            }
        }
        Ok(Stored { parts, shapes })
    }

    fn entries(&self) -> Vec<Entry> {
        let entry =
            |(name, shape): (&String, &Shape)| Entry { name: name.clone(), ty: TensorType::new(DType::F32, shape) };
        self.shapes.iter().map(entry).collect()
    }
}

/// A model's tensors by their names in a file.
struct Renamed<'a> {
    stored: &'a Stored,
    weights: &'a dyn Tensors,
}

impl Tensors for Renamed<'_> {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        let (own, part) = &self.stored.parts[name];
        Ok(match self.weights.bytes(own)? {
            Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[part.clone()]),
            Cow::Owned(bytes) => Cow::Owned(bytes[part.clone()].to_vec()),
        })
    }
}

/// What `transformers` calls a tensor of a residual network.
fn resnet_name(own: &str) -> String {
    let parts: Vec<&str> = own.split('.').collect();
    let number = |text: &str, before: &str| {
        text.strip_prefix(before).and_then(|rest| rest.parse::<usize>().ok()).map(|number| number - 1)
    };
    let kind = |name: &str| if name.starts_with("conv") { "convolution" } else { "normalization" };
    match parts[..] {
        [name @ ("conv1" | "bn1"), what] => format!("resnet.embedder.embedder.{}.{what}", kind(name)),
        ["fc", what] => format!("classifier.1.{what}"),
        [layer, block, "downsample", part, what] => {
            let (stage, kind) =
                (number(layer, "layer").unwrap_or(0), if part == "0" { "convolution" } else { "normalization" });
            format!("resnet.encoder.stages.{stage}.layers.{block}.shortcut.{kind}.{what}")
        }
        [layer, block, name, what] => {
            let stage = number(layer, "layer").unwrap_or(0);
            let place = number(name, "conv").or(number(name, "bn")).unwrap_or(0);
            format!("resnet.encoder.stages.{stage}.layers.{block}.layer.{place}.{}.{what}", kind(name))
        }
        _ => own.to_string(),
    }
}

/// What `transformers` calls the parts of a tensor of a vision transformer.
fn vit_names(own: &str) -> Vec<String> {
    let parts: Vec<&str> = own.split('.').collect();
    let one = |name: String| vec![name];
    match parts[..] {
        ["cls_token"] => one("vit.embeddings.cls_token".into()),
        ["pos_embed"] => one("vit.embeddings.position_embeddings".into()),
        ["patch_embed", "proj", what] => one(format!("vit.embeddings.patch_embeddings.projection.{what}")),
        ["norm", what] => one(format!("vit.layernorm.{what}")),
        ["head", what] => one(format!("classifier.{what}")),
        ["blocks", layer, ref rest @ ..] => {
            let within = |name: &str| format!("vit.encoder.layer.{layer}.{name}");
            match rest {
                ["norm1", what] => one(within(&format!("layernorm_before.{what}"))),
                ["norm2", what] => one(within(&format!("layernorm_after.{what}"))),
                ["attn", "qkv", what] => {
                    ["query", "key", "value"].map(|name| within(&format!("attention.attention.{name}.{what}"))).to_vec()
                }
                ["attn", "proj", what] => one(within(&format!("attention.output.dense.{what}"))),
                ["mlp", "fc1", what] => one(within(&format!("intermediate.dense.{what}"))),
                ["mlp", "fc2", what] => one(within(&format!("output.dense.{what}"))),
                _ => one(own.to_string()),
            }
        }
        _ => one(own.to_string()),
    }
}

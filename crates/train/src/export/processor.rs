//! How a processor of `transformers` shows images to a model: `preprocessor_config.json`, read and written. What a key that is
//! left out stands for depends on the processor.

use super::images::{numbers, settings};
use super::keys::Keys;
use super::keys::Rule::{Any, Only, Read};
use super::settings::Settings;
use super::{decimal, read_json, write_json};
use crate::images::{Filter, Fit, Framing, Odd};
use crate::models::vision::ImageModel;
use crate::{Error, Result};
use serde_json::{Value, json};
use std::path::Path;

const PROCESSOR: &str = "preprocessor_config.json";
/// The least side from which on ConvNeXT's processor shows all of an image.
const SQUASHED_FROM: usize = 384;
/// Pillow's numbers of filters.
const BILINEAR: u64 = 2;
const BICUBIC: u64 = 3;
/// What the brightest byte is multiplied by to be one.
const RESCALE: f64 = 1.0 / 255.0;
/// Mean and deviation of channels where a processor states none, whichever it is.
const HALF: [f32; 3] = [0.5; 3];
/// The share of an image's shorter side that is shown where nothing is said, by `timm` and by ConvNeXT's processor.
const SHARE: f64 = 0.875;

const KEYS: Keys = &[
    (Read, &["image_mean", "image_std", "size", "resample", "crop_pct", "rescale_factor", "default_to_square"]),
    (Read, &["image_processor_type", "feature_extractor_type"]),
    (Any, &["do_convert_rgb", "data_format", "crop_size", "_valid_processor_keys"]),
    // Null is false to `transformers`.
    (Only(&["true"]), &["do_rescale", "do_normalize", "do_resize"]),
    (Only(&["false", "null"]), &["do_center_crop"]),
];

/// What a processor does.
pub(super) struct Processor {
    pub framing: Framing,
    /// Height and width of what it shows.
    pub size: [usize; 2],
    pub mean: [f32; 3],
    pub deviation: [f32; 3],
}

/// Processors that are understood.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// Shows all of an image.
    Vit,
    /// Shows the middle of an image, or all of it at larger sizes.
    ConvNext,
}

/// What is stated of a size.
enum Size {
    Sides([usize; 2]),
    ShortestEdge(usize),
}

/// Writes what shows images to a model as a run does, or as nearly as a processor can.
pub(super) fn write(folder: &Path, model: &ImageModel) -> Result<()> {
    let [height, width] = model.size;
    let [mean, deviation] = [model.mean, model.deviation].map(|numbers| numbers.map(decimal));
    // One processor shows the middle, of small squares only; the usual one all of an image, whatever its form.
    let (name, shown) = match height == width && height < SQUASHED_FROM {
        true => ("ConvNextImageProcessor", json!({"shortest_edge": height})),
        false => ("ViTImageProcessor", json!({"height": height, "width": width})),
    };
    let mut processor = json!({
        "image_processor_type": name, "do_resize": true, "do_rescale": true, "do_normalize": true, "size": shown,
        "image_mean": mean, "image_std": deviation, "resample": BILINEAR, "rescale_factor": RESCALE,
    });
    if processor["size"].get("shortest_edge").is_some() {
        processor["crop_pct"] = json!(1.0);
    }
    write_json(&folder.join(PROCESSOR), &processor)
}

/// The processor in the folder of a model of this type.
pub(super) fn read(folder: &Path, model_type: &str) -> Result<Processor> {
    let path = folder.join(PROCESSOR);
    if !path.exists() {
        let problem = "holds no preprocessor_config.json, so it is not said how images are shown to the model; save its \
             image processor there too";
        return Err(Error::checkpoint(folder, problem));
    }
    let settings = settings(&path, "", read_json(&path)?);
    settings.check_keys(&[KEYS])?;
    let factor = settings.precise_number("rescale_factor", RESCALE)?;
    if factor as f32 != RESCALE as f32 {
        return Err(settings.refuse(format!("rescale_factor {factor} is not supported, only {RESCALE}")));
    }
    let kind = Kind::of(&settings, model_type)?;
    let (fit, size) = kind.shown(&settings)?;
    Ok(Processor {
        framing: Framing { fit, filter: kind.filter(&settings)? },
        size,
        mean: numbers(&settings, "image_mean", HALF)?,
        deviation: numbers(&settings, "image_std", HALF)?,
    })
}

impl Kind {
    /// The one that is stated, else the usual one of the model's type.
    fn of(settings: &Settings, model_type: &str) -> Result<Kind> {
        let is_stated = |key: &&str| settings.values.get(*key).is_some_and(|value| !value.is_null());
        let Some(key) = ["image_processor_type", "feature_extractor_type"].into_iter().find(is_stated) else {
            return Ok(if model_type == "vit" { Kind::Vit } else { Kind::ConvNext });
        };
        match settings.text(key, "")? {
            "ViTImageProcessor" | "ViTImageProcessorFast" | "ViTFeatureExtractor" => Ok(Kind::Vit),
            "ConvNextImageProcessor" | "ConvNextImageProcessorFast" | "ConvNextFeatureExtractor" => Ok(Kind::ConvNext),
            other => {
                let known = "only ViTImageProcessor and ConvNextImageProcessor";
                Err(settings.refuse(format!("{key} {other:?} is not supported, {known}")))
            }
        }
    }

    fn filter(self, settings: &Settings) -> Result<Filter> {
        let usual = json!(if self == Kind::Vit { BILINEAR } else { BICUBIC });
        let stated = settings.values.get("resample").unwrap_or(&usual);
        match stated.as_u64() {
            Some(BILINEAR) => Ok(Filter::Bilinear),
            Some(BICUBIC) => Ok(Filter::Bicubic),
            _ => {
                let known = "only 2 and 3: bilinear and bicubic";
                Err(settings.refuse(format!("resample {stated} is not supported, {known}")))
            }
        }
    }

    /// What of an image is shown, and at which size.
    fn shown(self, settings: &Settings) -> Result<(Fit, [usize; 2])> {
        match (self, self.size(settings)?) {
            (Kind::Vit, Size::Sides(sides)) => Ok((Fit::Squash, sides)),
            (Kind::Vit, Size::ShortestEdge(_)) => {
                Err(settings.refuse("ViTImageProcessor with a shortest_edge is not supported".to_string()))
            }
            (Kind::ConvNext, Size::ShortestEdge(side)) if side < SQUASHED_FROM => {
                Ok((Fit::Crop(share(settings)?, Odd::First), [side; 2]))
            }
            (Kind::ConvNext, Size::ShortestEdge(side)) => Ok((Fit::Squash, [side; 2])),
            (Kind::ConvNext, Size::Sides(_)) => {
                Err(settings.refuse("ConvNextImageProcessor without a shortest_edge is not supported".to_string()))
            }
        }
    }

    fn size(self, settings: &Settings) -> Result<Size> {
        let is_square = settings.flag("default_to_square", self == Kind::Vit)?;
        let Some(stated) = settings.values.get("size") else {
            return Ok(if self == Kind::Vit { Size::Sides([224; 2]) } else { Size::ShortestEdge(SQUASHED_FROM) });
        };
        let number = |value: &Value| value.as_u64().and_then(|side| usize::try_from(side).ok());
        let side = |key: &str| stated.get(key).and_then(number);
        let found = match (stated.as_object().map(|sides| sides.len()), number(stated)) {
            (_, Some(side)) if is_square => Some(Size::Sides([side; 2])),
            (_, Some(side)) => Some(Size::ShortestEdge(side)),
            (Some(1), _) => side("shortest_edge").map(Size::ShortestEdge),
            (Some(2), _) => side("height").zip(side("width")).map(|(height, width)| Size::Sides([height, width])),
            _ => None,
        };
        let known = "only a number, height and width, or shortest_edge";
        found.ok_or_else(|| settings.refuse(format!("size {stated} is not supported, {known}")))
    }
}

/// The share of an image's shorter side that is shown.
pub(super) fn share(settings: &Settings) -> Result<f64> {
    match settings.values.get("crop_pct") {
        None | Some(Value::Null) => Ok(SHARE),
        Some(value) => value
            .as_f64()
            .filter(|share| *share > 0.0 && *share <= 1.0)
            .ok_or_else(|| settings.refuse(format!("crop_pct is {value} and should be a share, above 0 and up to 1"))),
    }
}

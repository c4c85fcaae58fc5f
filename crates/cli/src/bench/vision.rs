//! Training steps of models of images, of 16 images of 224 x 224.

use super::entry::Entry;
use super::steps::{Amount, Stepped, step_entry};
use gradus_train::config::Precision;
use gradus_train::images::{Classifier, IMAGE, LABEL};
use gradus_train::models::vision::{Architecture, Block, ImageModel, ResNet, Vit};
use gradus_train::optimizers::OptimizerKind;
use gradus_train::step::StepConfig;
use std::rc::Rc;

const BATCH: usize = 16;
const SIDE: usize = 224;
const CLASSES: usize = 1000;

/// ResNet-18 and ViT-S.
pub fn entries() -> Vec<Entry> {
    ["resnet18", "vit-s"].map(entry).into()
}

fn entry(name: &'static str) -> Entry {
    let model = ImageModel::new(Architecture::named(name).expect("a known model"), CLASSES, [SIDE; 2]);
    let operations = 6.0 * multiplications(&model.architecture) as f64;
    let amount = Amount { count: BATCH as f64, unit: "images/s", operations };
    step_entry(name, Precision::F32, true, amount, move || {
        let objective = Rc::new(Classifier { model: model.clone(), label_smoothing: 0.0, mixes: false });
        let adamw = OptimizerKind::Adamw;
        let config = StepConfig::new(objective, BATCH, adamw.grouped(adamw.usual()));
        Stepped { config, is_thrifty: true, data: images() }
    })
}

/// Pixels that look like noise, and classes.
fn images() -> Vec<(&'static str, Vec<i32>)> {
    let pixels = (0..(BATCH * SIDE * SIDE) as u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 8) as i32);
    vec![(IMAGE, pixels.collect()), (LABEL, (0..BATCH as i32).map(|number| number * 61 % CLASSES as i32).collect())]
}

/// The multiplications of an image's forward pass: in the products of convolutions, layers and attention.
fn multiplications(architecture: &Architecture) -> usize {
    match architecture {
        Architecture::Resnet(resnet) => of_resnet(resnet),
        Architecture::Vit(vit) => of_vit(vit),
    }
}

fn of_resnet(resnet: &ResNet) -> usize {
    assert_eq!(resnet.block, Block::Basic, "only basic blocks are counted");
    let mut side = SIDE / 2;
    let mut count = side * side * resnet.stem * 3 * 49;
    let mut before = resnet.stem;
    side /= 2;
    for (stage, (&depth, &channels)) in resnet.depths.iter().zip(&resnet.channels).enumerate() {
        side /= if stage > 0 { 2 } else { 1 };
        let shortcut = if before == channels { 0 } else { before };
        let filters = 9 * (before + (2 * depth - 1) * channels) + shortcut;
        count += side * side * channels * filters;
        before = channels;
    }
    count + before * CLASSES
}

fn of_vit(vit: &Vit) -> usize {
    let patches = (SIDE / vit.patch).pow(2);
    let places = patches + 1;
    let products = places * (4 * vit.width * vit.width + 2 * vit.width * vit.feed_forward);
    let attention = 2 * places * places * vit.width;
    patches * 3 * vit.patch * vit.patch * vit.width + vit.layers * (products + attention) + vit.width * CLASSES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As counted elsewhere: 1.8 and 4.6 thousand million.
    #[test]
    fn the_arithmetic_of_an_image_is_that_of_its_products() {
        let of = |name| multiplications(&Architecture::named(name).unwrap());
        assert_eq!(of("resnet18"), 1_814_073_344);
        assert_eq!(of("vit-s"), 4_598_882_304);
    }
}

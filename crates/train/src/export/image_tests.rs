//! What a folder of an image model states: taken as `timm` and `transformers` take it, or refused by name.

use super::images::{Layout, check_layout, image_tensors, read_image_config, write_image_model};
use crate::Result;
use crate::config::ExportDtype;
use crate::export::Labelled;
use crate::files::tensors::Tensors;
use crate::files::testing::Folder;
use crate::images::{Filter, Fit, Framing, Odd};
use crate::models::vision::{Architecture, ImageModel, Vit};
use gradus_engine::Shape;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn write(folder: &Path, file: &str, value: &Value) {
    fs::write(folder.join(file), value.to_string()).unwrap();
}

fn said(folder: &Path) -> String {
    let text = read_image_config(folder).expect_err("refused").to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

/// A folder of `transformers` with a model of this type and this `preprocessor_config.json`, as it is read.
fn processed(folder: &Path, model_type: &str, processor: Value) -> Result<Labelled> {
    let names = json!({"0": "a", "1": "b"});
    let config = match model_type {
        "vit" => json!({"model_type": "vit", "image_size": 224, "patch_size": 16, "id2label": names}),
        _ => json!({"model_type": "resnet", "id2label": names}),
    };
    write(folder, "config.json", &config);
    write(folder, "preprocessor_config.json", &processor);
    read_image_config(folder).map(|(labelled, _)| labelled)
}

/// What `transformers` 5.23 takes for keys that are left out, by the class of the processor.
#[test]
fn what_a_processor_leaves_out_is_its_own_default() {
    let folder = Folder::new("image-processors");
    let shown = |model_type: &str, processor: Value| {
        let labelled = processed(folder.path(), model_type, processor).unwrap();
        assert_eq!((labelled.model.mean, labelled.model.deviation), ([0.5; 3], [0.5; 3]));
        (labelled.framing, labelled.model.size)
    };
    let vit = (Framing { fit: Fit::Squash, filter: Filter::Bilinear }, [224; 2]);
    let large = (Framing { fit: Fit::Squash, filter: Filter::Bicubic }, [384; 2]);
    for name in ["ViTImageProcessor", "ViTImageProcessorFast", "ViTFeatureExtractor"] {
        for key in ["image_processor_type", "feature_extractor_type"] {
            assert_eq!(shown("vit", json!({key: name})), vit);
            assert_eq!(shown("resnet", json!({key: name, "size": 224})), vit);
        }
    }
    for name in ["ConvNextImageProcessor", "ConvNextImageProcessorFast", "ConvNextFeatureExtractor"] {
        assert_eq!(shown("resnet", json!({"feature_extractor_type": name})), large);
        let middle = (Framing { fit: Fit::Crop(0.875, Odd::First), filter: Filter::Bicubic }, [224; 2]);
        assert_eq!(shown("resnet", json!({"image_processor_type": name, "size": 224})), middle);
    }
    // Where none is named, the type of the model says which.
    assert_eq!((shown("vit", json!({})), shown("resnet", json!({}))), (vit, large));
    fs::remove_file(folder.path().join("preprocessor_config.json")).unwrap();
    assert!(said(folder.path()).contains("holds no preprocessor_config.json"));
}

#[test]
fn what_a_processor_does_otherwise_is_refused_by_name() {
    let folder = Folder::new("image-processing");
    let other = |model_type: &str, processor: Value| {
        let text = processed(folder.path(), model_type, processor).expect_err("refused").to_string();
        assert!(!text.contains('\n'), "one line: {text}");
        text
    };
    for (processor, part) in [
        (json!({"rescale_factor": 0.00784313725490196}), "rescale_factor 0.00784313725490196 is not supported"),
        (json!({"rescale_factor": 0.0039}), "rescale_factor 0.0039 is not supported"),
        (json!({"rescale_factor": null}), "rescale_factor is null"),
        (json!({"image_processor_type": "BeitImageProcessor"}), "image_processor_type \"BeitImageProcessor\""),
        (json!({"feature_extractor_type": "DeiTFeatureExtractor"}), "feature_extractor_type \"DeiTFeatureExtractor\""),
        (json!({"image_processor_type": "ConvNextV9"}), "image_processor_type \"ConvNextV9\""),
        (json!({"resample": null}), "resample null is not supported"),
        (json!({"resample": 1}), "resample 1 is not supported"),
        (json!({"size": {"longest_edge": 224}}), "size {\"longest_edge\":224} is not supported"),
        (json!({"size": null}), "size null is not supported"),
        (json!({"size": {"shortest_edge": 224}}), "with a shortest_edge is not supported"),
        (json!({"size": 224, "default_to_square": false}), "with a shortest_edge is not supported"),
        (json!({"size": 32}), "image_size is 224x224, but the images of preprocessor_config.json are 32x32"),
        (
            json!({"image_processor_type": "ConvNextImageProcessor", "size": {"height": 224, "width": 224}}),
            "without a shortest_edge is not supported",
        ),
        (json!({"image_mean": null}), "image_mean is null"),
    ] {
        let text = other("vit", processor);
        assert!(text.contains(part), "{part}: {text}");
    }
    for key in ["do_rescale", "do_normalize", "do_resize"] {
        for value in [json!(null), json!(false)] {
            let text = other("resnet", json!({key: value, "size": 224}));
            assert!(text.contains(&format!("{key} {value} is not supported, only true")), "{text}");
        }
        processed(folder.path(), "resnet", json!({key: true, "size": 224})).unwrap();
    }
    processed(folder.path(), "vit", json!({"rescale_factor": 0.00392156862745098})).unwrap();
    processed(folder.path(), "vit", json!({"rescale_factor": 0.003921569})).unwrap();
}

/// `timm`'s own `save_for_hf` states channels and pooling.
#[test]
fn what_timm_states_of_channels_and_pooling_is_what_the_model_has() {
    let folder = Folder::new("image-timm");
    for (name, own, other) in [("resnet18", "avg", "token"), ("vit_small_patch16_224", "token", "avg")] {
        let config = |channels: usize, within: &str, pool: &str| {
            let args = json!({"in_chans": channels, "global_pool": within});
            let value = json!({"architecture": name, "num_classes": 3, "global_pool": pool, "model_args": args});
            write(folder.path(), "config.json", &value);
        };
        config(3, own, own);
        read_image_config(folder.path()).unwrap();
        config(1, own, own);
        assert!(said(folder.path()).contains("model_args.in_chans 1 is not supported, only 3"));
        config(3, other, own);
        assert!(said(folder.path()).contains(&format!("model_args.global_pool {other:?} is not supported by {name}")));
        config(3, own, other);
        assert!(said(folder.path()).contains(&format!(": global_pool {other:?} is not supported by {name}")));
    }
}

/// `timm` has `int(dim * mlp_ratio)`.
#[test]
fn a_feed_forward_width_is_cut_to_a_whole_number() {
    let folder = Folder::new("image-ratio");
    for (width, ratio, expected) in [(30, 1.79, 53), (36, 2.6, 93), (384, 4.0, 1536), (36, 1.0, 36)] {
        let args = json!({"embed_dim": width, "num_heads": 6, "mlp_ratio": ratio});
        let value = json!({"architecture": "vit_small_patch16_224", "num_classes": 3, "model_args": args});
        write(folder.path(), "config.json", &value);
        let Architecture::Vit(vit) = read_image_config(folder.path()).unwrap().0.model.architecture else {
            panic!("no ViT")
        };
        assert_eq!(vit.feed_forward, expected, "{width} x {ratio}");
    }
}

/// Weights of a model, all zero.
struct Zeros(BTreeMap<String, Shape>);

impl Tensors for Zeros {
    fn bytes(&self, name: &str) -> Result<Cow<'_, [u8]>> {
        Ok(Cow::Owned(vec![0; self.0[name].elements() * size_of::<f32>()]))
    }
}

fn written(folder: &Path, labelled: &Labelled) -> Result<()> {
    let zeros = Zeros(image_tensors(&labelled.model)?);
    write_image_model(folder, labelled, Layout::Timm, ExportDtype::F32, &zeros)
}

fn transformer(width: usize, feed_forward: usize, norm_epsilon: f32) -> Labelled {
    let vit = Vit { patch: 4, width, layers: 1, heads: 1, feed_forward, norm_epsilon };
    let model = ImageModel::new(Architecture::Vit(vit), 2, [8, 8]);
    Labelled { model, labels: vec!["a".into(), "b".into()], framing: Framing::default() }
}

#[test]
fn every_feed_forward_width_that_is_written_is_read_again() {
    let folder = Folder::new("image-widths");
    let out = folder.path().join("model");
    for width in [3, 7, 36, 49] {
        for feed_forward in width..width + 20 {
            let labelled = transformer(width, feed_forward, 1e-6);
            written(&out, &labelled).unwrap();
            assert_eq!(read_image_config(&out).unwrap().0.model, labelled.model);
        }
    }
}

#[test]
fn a_transformer_that_timm_would_compute_otherwise_is_not_written_for_it() {
    let folder = Folder::new("image-epsilon");
    let out = folder.path().join("model");
    for norm_epsilon in [1e-12, 1e-5, 0.03] {
        let labelled = transformer(36, 53, norm_epsilon);
        let text = check_layout(&labelled.model, Layout::Timm).expect_err("refused").to_string();
        assert!(text.contains("layer_norm_eps") && text.contains("`settings.layout` transformers"), "{text}");
        assert!(written(&out, &labelled).is_err() && !out.exists());
        check_layout(&labelled.model, Layout::Transformers).unwrap();
    }
}

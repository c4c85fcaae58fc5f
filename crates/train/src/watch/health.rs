//! The figures of all weights in a step.

use gradus_engine::Shape;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// Rows of figures that are written of a step: with more weights they are those of layers, so that no line is too long
/// for those who read it.
const ROWS_MAX: usize = 600;

/// A weight that is watched.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Shape,
    /// Whether rows of it are looked up by number: most of its gradient may be zero without anything being wrong.
    pub is_table: bool,
}

/// The figures of one weight in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WeightHealth {
    /// Numbers of the weight.
    pub count: u64,
    /// The norm of its gradient, before clipping.
    pub gradient_norm: f32,
    /// The mean of its gradient's absolute values.
    pub mean_abs: f32,
    /// The share of its gradient's numbers that are zero.
    pub zeros: f32,
    /// How many of its gradient's numbers are not finite: none, unless the step was refused.
    pub non_finite: u64,
    /// The norm of the weight before the update.
    pub weight_norm: f32,
    /// The norm of the update; not a number where there was none.
    pub update_norm: f32,
}

impl WeightHealth {
    /// The norm of the update beside that of the weight; `None` where there was no update or the weight was zero.
    pub fn update_ratio(&self) -> Option<f32> {
        let ratio = self.update_norm / self.weight_norm;
        ratio.is_finite().then_some(ratio)
    }

    /// The root mean square of the gradient's numbers.
    pub fn gradient_rms(&self) -> f32 {
        self.gradient_norm / (self.count.max(1) as f32).sqrt()
    }

    /// Both as one.
    fn joined(self, other: WeightHealth) -> WeightHealth {
        let count = self.count + other.count;
        let mean = |a: f32, b: f32| {
            let sum = a as f64 * self.count as f64 + b as f64 * other.count as f64;
            (sum / count.max(1) as f64) as f32
        };
        WeightHealth {
            count,
            gradient_norm: self.gradient_norm.hypot(other.gradient_norm),
            mean_abs: mean(self.mean_abs, other.mean_abs),
            zeros: mean(self.zeros, other.zeros),
            non_finite: self.non_finite + other.non_finite,
            weight_norm: self.weight_norm.hypot(other.weight_norm),
            update_norm: self.update_norm.hypot(other.update_norm),
        }
    }
}

impl Serialize for WeightHealth {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("mean_abs", &self.mean_abs)?;
        map.serialize_entry("zeros", &self.zeros)?;
        if self.non_finite > 0 {
            map.serialize_entry("non_finite", &self.non_finite)?;
        }
        if let Some(ratio) = self.update_ratio() {
            map.serialize_entry("update_ratio", &ratio)?;
        }
        map.end()
    }
}

/// The figures of all weights in a step. Serialised, they are the keys `gradients` (norms) and `health` (all else) of a line
/// of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    watched: Arc<[Watched]>,
    weights: Vec<WeightHealth>,
}

impl Health {
    /// Of these weights, with no figures yet.
    pub fn new(watched: Arc<[Watched]>) -> Health {
        let weights = watched.iter().map(|weight| WeightHealth {
            count: weight.shape.elements() as u64,
            update_norm: f32::NAN,
            ..WeightHealth::default()
        });
        Health { weights: weights.collect(), watched }
    }

    /// The weights and their figures, in the order of the model.
    pub fn weights(&self) -> impl Iterator<Item = (&Watched, &WeightHealth)> + Clone {
        self.watched.iter().zip(&self.weights)
    }

    pub(crate) fn weights_mut(&mut self) -> impl Iterator<Item = (&Watched, &mut WeightHealth)> {
        self.watched.iter().zip(&mut self.weights)
    }

    /// The figures of a weight.
    pub fn weight(&self, name: &str) -> Option<&WeightHealth> {
        self.weights().find(|(watched, _)| watched.name == name).map(|(_, found)| found)
    }

    /// The most bytes that they take when they are written, as JSON or as events.
    pub(crate) fn line_bytes(&self) -> usize {
        // The name before each of five numbers, and these with theirs.
        self.watched.iter().map(|watched| 5 * watched.name.len() + 160).sum()
    }

    /// The rows of figures that are written of a step: the weights, or where they are too many, the layers.
    pub(crate) fn try_each_row<E>(&self, mut row: impl FnMut(&str, &WeightHealth) -> Result<(), E>) -> Result<(), E> {
        match self.weights.len() <= ROWS_MAX {
            true => self.weights().try_for_each(|(watched, figures)| row(&watched.name, figures)),
            false => self.layers().take(ROWS_MAX).try_for_each(|(name, figures)| row(name, &figures)),
        }
    }

    /// The layers and their figures: those of neighbouring weights of one layer together.
    pub fn layers(&self) -> impl Iterator<Item = (&str, WeightHealth)> {
        let mut weights = self.weights().peekable();
        std::iter::from_fn(move || {
            let (first, found) = weights.next()?;
            let (layer, mut joined) = (layer_of(&first.name), *found);
            while let Some((_, found)) = weights.next_if(|(watched, _)| layer_of(&watched.name) == layer) {
                joined = joined.joined(*found);
            }
            Some((layer, joined))
        })
    }
}

/// The layer of a weight: its name up to the first number, or all of it.
pub fn layer_of(name: &str) -> &str {
    let mut end = 0;
    for part in name.split_inclusive('.') {
        end += part.len();
        let part = part.trim_end_matches('.');
        if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
            return name[..end].trim_end_matches('.');
        }
    }
    name
}

/// Figures by name, as a map.
struct Rows<'a>(&'a Health, bool);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Rows(health, norms) = *self;
        let mut map = serializer.serialize_map(None)?;
        health.try_each_row(|name, figures| match norms {
            true => map.serialize_entry(name, &figures.gradient_norm),
            false => map.serialize_entry(name, figures),
        })?;
        map.end()
    }
}

impl Serialize for Health {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("gradients", &Rows(self, true))?;
        map.serialize_entry("health", &Rows(self, false))?;
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(names: &[&str]) -> Health {
        let watched =
            names.iter().map(|name| Watched { name: name.to_string(), shape: Shape::from([2, 2]), is_table: false });
        Health::new(watched.collect())
    }

    #[test]
    fn a_layer_is_named_up_to_its_number() {
        for (name, layer) in [
            ("h.0.mlp.c_fc.weight", "h.0"),
            ("model.layers.11.self_attn.q_proj.weight", "model.layers.11"),
            ("wte.weight", "wte.weight"),
            ("conv1.weight", "conv1.weight"),
            ("3", "3"),
            ("", ""),
        ] {
            assert_eq!(layer_of(name), layer);
        }
    }

    #[test]
    fn layers_are_their_weights_together() {
        let mut health = health(&["wte", "h.0.a", "h.0.b", "h.1.a"]);
        for (index, figures) in health.weights.iter_mut().enumerate() {
            let norm = index as f32 + 2.0;
            *figures = WeightHealth {
                gradient_norm: norm,
                mean_abs: norm,
                zeros: 0.25 * index as f32,
                weight_norm: 10.0 * norm,
                update_norm: norm,
                ..*figures
            };
        }
        let layers: Vec<(&str, WeightHealth)> = health.layers().collect();
        assert_eq!(layers.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["wte", "h.0", "h.1"]);
        let joined = layers[1].1;
        assert_eq!((joined.count, joined.gradient_norm, joined.mean_abs, joined.zeros), (8, 5.0, 3.5, 0.375));
        assert_eq!(joined.update_ratio(), Some(0.1));
    }

    #[test]
    fn lines_hold_what_there_is() {
        let mut few = health(&["a \"b\"", "c"]);
        few.weights[0] = WeightHealth { gradient_norm: 0.5, weight_norm: 2.0, update_norm: 0.25, ..few.weights[0] };
        few.weights[1] = WeightHealth { gradient_norm: f32::NAN, non_finite: 3, ..few.weights[1] };
        let written = serde_json::to_string(&few).unwrap();
        let expected = r#"{"gradients":{"a \"b\"":0.5,"c":null},"health":{"a \"b\"":{"mean_abs":0.0,"zeros":0.0,"update_ratio":0.125},"c":{"mean_abs":0.0,"zeros":0.0,"non_finite":3}}}"#;
        assert_eq!(written, expected);
        let names: Vec<String> =
            (0..ROWS_MAX).flat_map(|layer| ["a", "b"].map(|w| format!("layers.{layer}.{w}"))).collect();
        let many = health(&names.iter().map(|name| &name[..]).collect::<Vec<_>>());
        let written: serde_json::Value = serde_json::to_value(&many).unwrap();
        assert_eq!(written["gradients"].as_object().unwrap().len(), ROWS_MAX);
        assert!(written["gradients"].get("layers.599").is_some());
    }
}

//! Reading a `config.json`: each key checked, none passed over.

use super::keys::{Keys, LLAMA3_ROTARY, ROTARY, Rule, rule};
use crate::models::RopeScaling;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The keys of a `config.json`, or of an object in it. One that is missing has the value that `transformers` takes then.
pub(crate) struct Settings {
    pub(super) path: PathBuf,
    /// The key of the object that these lie in, with a dot after it.
    pub(super) within: &'static str,
    pub(super) values: Map<String, Value>,
}

impl Settings {
    /// The base of the rotary angles and how they are scaled: in `rope_scaling`, else in `rope_parameters`, else the base
    /// by itself. What is no scaling of Llama 3's kind is refused; where such a one does not say what the context of
    /// pretraining was, the model's is taken for it.
    pub fn rope(&self, context: usize) -> Result<(f32, Option<RopeScaling>)> {
        let stated = self.number("rope_theta", 10_000.0)?;
        for (key, within) in [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")] {
            match self.values.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::Object(values)) if values.is_empty() => {}
                Some(Value::Object(values)) => {
                    let rotary = Settings { path: self.path.clone(), within, values: values.clone() };
                    return rotary.scaled(stated, context);
                }
                Some(value) => return Err(self.wrong(key, value, "an object")),
            }
        }
        Ok((stated, None))
    }

    /// Base and scaling that an object states, with this base otherwise.
    fn scaled(&self, default: f32, context: usize) -> Result<(f32, Option<RopeScaling>)> {
        let scaling = match self.text("rope_type", self.text("type", "default")?)? {
            "default" => {
                self.check_keys(&[ROTARY])?;
                None
            }
            "llama3" => {
                self.check_keys(&[ROTARY, LLAMA3_ROTARY])?;
                Some(self.llama3_scaling(context)?)
            }
            kind => {
                let known = "only \"default\" and \"llama3\"";
                return Err(self.refuse(format!("{}rope_type {kind:?} is not supported, {known}", self.within)));
            }
        };
        Ok((self.number("rope_theta", default)?, scaling))
    }

    fn llama3_scaling(&self, context: usize) -> Result<RopeScaling> {
        let stated = |key: &str| match self.values.get(key) {
            Some(_) => self.number(key, 0.0),
            None => Err(self.refuse(format!("{}{key} is missing", self.within))),
        };
        Ok(RopeScaling {
            factor: stated("factor")?,
            low_freq_factor: stated("low_freq_factor")?,
            high_freq_factor: stated("high_freq_factor")?,
            original_context: self.size("original_max_position_embeddings", context)?,
        })
    }

    /// The sliding window and how many layers, from the first on, are without one: as `use_sliding_window`,
    /// `sliding_window` and `max_window_layers` state it, or `layer_types` in place of the last.
    pub fn window_of_later_layers(&self, layers: usize) -> Result<(Option<usize>, usize)> {
        let window = match self.flag("use_sliding_window", false)? {
            true => self.size_unless_null("sliding_window", 4096)?,
            false => None,
        };
        let full_layers = match self.values.get("layer_types") {
            None | Some(Value::Null) => self.size("max_window_layers", 28)?,
            Some(types) => {
                let full = self.full_layers(types, layers)?;
                if window.is_none() && full < layers {
                    return Err(self.refuse("layer_types has sliding_attention, but no window is used".to_string()));
                }
                full
            }
        };
        Ok(match window {
            Some(window) if full_layers < layers => (Some(window), full_layers),
            _ => (None, 0),
        })
    }

    /// Of a list of layers' types, how many see all before the rest have a window.
    fn full_layers(&self, types: &Value, layers: usize) -> Result<usize> {
        let wrong = || self.refuse(format!("layer_types is not {layers} times full_attention or sliding_attention"));
        let types = types.as_array().filter(|types| types.len() == layers).ok_or_else(wrong)?;
        let is_full = |kind: &Value| match kind.as_str() {
            Some("full_attention") => Ok(true),
            Some("sliding_attention") => Ok(false),
            _ => Err(wrong()),
        };
        let are_full = types.iter().map(is_full).collect::<Result<Vec<bool>>>()?;
        let full = are_full.iter().take_while(|is_full| **is_full).count();
        match are_full[full..].iter().any(|is_full| *is_full) {
            true => Err(self.refuse("layer_types has full_attention after sliding_attention".to_string())),
            false => Ok(full),
        }
    }

    /// Refuses a key that is in none of the lists, or that has a value which it may not have.
    pub(super) fn check_keys(&self, lists: &[Keys]) -> Result<()> {
        for (key, value) in &self.values {
            let named = format!("{}{}", self.within, key.escape_debug());
            match rule(lists, key) {
                Some(Rule::Read | Rule::Any) => {}
                Some(Rule::Only(values)) if values.contains(&&value.to_string()[..]) => {}
                Some(Rule::Only(values)) => {
                    let problem = format!("{named} {value} is not supported, only {}", values[0]);
                    return Err(self.refuse(problem));
                }
                None => {
                    let advice = "take it out if the model is the same without it, or choose another model";
                    return Err(Error::checkpoint(&self.path, format!("{named} is not understood; {advice}")));
                }
            }
        }
        Ok(())
    }

    pub fn size(&self, key: &str, default: usize) -> Result<usize> {
        let size = |value: &Value| value.as_u64().and_then(|number| usize::try_from(number).ok());
        self.read(key, default, "a whole number", size)
    }

    /// A size that null stands for the default of.
    pub fn size_or_null(&self, key: &str, default: usize) -> Result<usize> {
        if self.values.get(key).is_some_and(Value::is_null) { Ok(default) } else { self.size(key, default) }
    }

    /// A size that null stands for the lack of.
    pub fn size_unless_null(&self, key: &str, default: usize) -> Result<Option<usize>> {
        if self.values.get(key).is_some_and(Value::is_null) { Ok(None) } else { self.size(key, default).map(Some) }
    }

    /// A size that goes by two names, which must not contradict each other.
    pub fn size_by_names(&self, [general, own]: [&str; 2], default: usize) -> Result<usize> {
        let size = self.size(own, self.size(general, default)?)?;
        match self.size(general, size)? {
            other if other != size => Err(self.refuse(format!("{general} is {other} and {own} is {size}"))),
            _ => Ok(size),
        }
    }

    pub fn number(&self, key: &str, default: f32) -> Result<f32> {
        self.read(key, default, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// A number that is reckoned with in double precision.
    pub fn precise_number(&self, key: &str, default: f64) -> Result<f64> {
        self.read(key, default, "a number", Value::as_f64)
    }

    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        self.read(key, default, "true or false", Value::as_bool)
    }

    pub fn text<'a>(&'a self, key: &str, default: &'a str) -> Result<&'a str> {
        self.read(key, default, "text", Value::as_str)
    }

    fn read<'a, T>(&'a self, key: &str, default: T, kind: &str, of: impl Fn(&'a Value) -> Option<T>) -> Result<T> {
        let Some(value) = self.values.get(key) else { return Ok(default) };
        of(value).ok_or_else(|| self.wrong(key, value, kind))
    }

    fn wrong(&self, key: &str, value: &Value, kind: &str) -> Error {
        let problem = format!("{}{key} is {value} and should be {kind}; correct it or save it again", self.within);
        Error::checkpoint(&self.path, problem)
    }

    pub fn refuse(&self, problem: String) -> Error {
        Error::checkpoint(&self.path, format!("{problem}; choose another model to start from"))
    }
}

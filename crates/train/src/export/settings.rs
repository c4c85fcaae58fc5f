//! Reading a `config.json`: each key checked, none passed over.

use super::keys::{Keys, ROTARY, Rule, rule};
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
    /// The base of the rotary angles: in `rope_scaling`, else in `rope_parameters`, else by itself. Angles that are
    /// scaled in any way are refused.
    pub fn rope_theta(&self) -> Result<f32> {
        let stated = self.number("rope_theta", 10_000.0)?;
        for (key, within) in [("rope_scaling", "rope_scaling."), ("rope_parameters", "rope_parameters.")] {
            match self.values.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::Object(values)) if values.is_empty() => {}
                Some(Value::Object(values)) => {
                    let rotary = Settings { path: self.path.clone(), within, values: values.clone() };
                    return rotary.unscaled_theta(stated);
                }
                Some(value) => return Err(self.wrong(key, value, "an object")),
            }
        }
        Ok(stated)
    }

    fn unscaled_theta(&self, default: f32) -> Result<f32> {
        let kind = self.text("rope_type", self.text("type", "default")?)?;
        if kind != "default" {
            return Err(self.refuse(format!("{}rope_type {kind:?} is not supported, only \"default\"", self.within)));
        }
        self.check_keys(&[ROTARY])?;
        self.number("rope_theta", default)
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

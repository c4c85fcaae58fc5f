//! Tensors stored by `tests/fixtures/make.py`.

use gradus::{Array, DType, TensorType};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;

/// A stored file, read whole.
pub struct Fixture(Vec<u8>);

impl Fixture {
    pub fn open(name: &str) -> Fixture {
        // Looked up as it runs: programs are carried to machines with a device.
        let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
        let path = Path::new(&root).join("tests/fixtures").join(format!("{name}.safetensors"));
        Fixture(std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
    }

    /// A stored tensor.
    pub fn array(&self, name: &str) -> Array {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let view = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        let words = view.data().chunks_exact(4).map(|bytes| <[u8; 4]>::try_from(bytes).unwrap());
        let (dtype, numbers): (DType, Vec<f64>) = match view.dtype() {
            Dtype::F32 => (DType::F32, words.map(|word| f32::from_le_bytes(word) as f64).collect()),
            Dtype::I32 => (DType::I32, words.map(|word| i32::from_le_bytes(word) as f64).collect()),
            Dtype::I8 => (DType::I32, view.data().iter().map(|byte| *byte as i8 as f64).collect()),
            other => panic!("{name} is {other:?}"),
        };
        Array::from_f64(TensorType::new(dtype, view.shape()), &numbers).unwrap()
    }

    /// The names that start with this, without it.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let mut names: Vec<String> =
            file.names().into_iter().filter_map(|name| name.strip_prefix(prefix).map(str::to_string)).collect();
        names.sort();
        names
    }
}

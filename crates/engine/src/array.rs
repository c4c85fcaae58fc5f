//! Numbers on the host: what goes into a trace and what comes out.

use crate::dtype::Native;
use crate::{DType, Error, Result, Shape, TensorType};
use gradus_kernels::{Element, bf16, f16};

/// A tensor's numbers in ordinary memory, last axis fastest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Array {
    ty: TensorType,
    bytes: Vec<u8>,
}

impl Array {
    /// These numbers in this shape.
    pub fn new<T: Native>(shape: impl Into<Shape>, numbers: &[T]) -> Result<Array> {
        let ty = TensorType::new(T::DTYPE, shape);
        if numbers.len() != ty.shape.elements() {
            return Err(Error::Data {
                name: "an array".to_string(),
                expected: format!("{} ({} numbers)", ty, ty.shape.elements()),
                given: format!("{} numbers", numbers.len()),
            });
        }
        Ok(Array { ty, bytes: bytemuck::cast_slice(numbers).to_vec() })
    }

    /// A single number.
    pub fn scalar<T: Native>(number: T) -> Array {
        Array { ty: TensorType::new(T::DTYPE, []), bytes: bytemuck::bytes_of(&number).to_vec() }
    }

    /// Zeros.
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Array {
        let ty = TensorType::new(dtype, shape);
        Array { bytes: vec![0; ty.bytes()], ty }
    }

    /// Numbers of any type from f64, rounded to the type; integers saturate.
    pub fn from_f64(ty: TensorType, numbers: &[f64]) -> Array {
        assert_eq!(numbers.len(), ty.shape.elements(), "numbers for {ty}");
        let bytes = match ty.dtype {
            DType::F64 => to_bytes(numbers, |x| x),
            DType::F32 => to_bytes(numbers, |x| x as f32),
            DType::Bf16 => to_bytes(numbers, |x| <bf16 as Element>::from_f32(x as f32)),
            DType::F16 => to_bytes(numbers, |x| <f16 as Element>::from_f32(x as f32)),
            DType::I32 => to_bytes(numbers, |x| x as i32),
            DType::U32 => to_bytes(numbers, |x| x as u32),
        };
        Array { ty, bytes }
    }

    /// An array of this type with these bytes.
    pub fn from_bytes(ty: TensorType, bytes: Vec<u8>) -> Result<Array> {
        if bytes.len() != ty.bytes() {
            let (expected, given) = (format!("{ty} ({} bytes)", ty.bytes()), format!("{} bytes", bytes.len()));
            return Err(Error::Data { name: "an array".to_string(), expected, given });
        }
        Ok(Array { ty, bytes })
    }

    /// Element type and shape.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// The sizes of the axes.
    pub fn shape(&self) -> &Shape {
        &self.ty.shape
    }

    /// The elements as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The numbers, as f64: exact for every type.
    pub fn to_f64(&self) -> Vec<f64> {
        match self.ty.dtype {
            DType::F64 => self.read(|x: f64| x),
            DType::F32 => self.read(|x: f32| x as f64),
            DType::Bf16 => self.read(|x: bf16| Element::to_f32(x) as f64),
            DType::F16 => self.read(|x: f16| Element::to_f32(x) as f64),
            DType::I32 => self.read(|x: i32| x as f64),
            DType::U32 => self.read(|x: u32| x as f64),
        }
    }

    /// The numbers, if they are of that type.
    pub fn to_vec<T: Native>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.ty.dtype {
            return Err(Error::Data {
                name: "an array".to_string(),
                expected: self.ty.to_string(),
                given: format!("a wish for {}", T::DTYPE),
            });
        }
        Ok(bytemuck::allocation::pod_collect_to_vec(&self.bytes))
    }

    fn read<T: Native>(&self, convert: impl Fn(T) -> f64) -> Vec<f64> {
        bytemuck::allocation::pod_collect_to_vec::<u8, T>(&self.bytes).into_iter().map(convert).collect()
    }
}

fn to_bytes<T: Native>(numbers: &[f64], convert: impl Fn(f64) -> T) -> Vec<u8> {
    let converted: Vec<T> = numbers.iter().map(|&x| convert(x)).collect();
    bytemuck::cast_slice(&converted).to_vec()
}

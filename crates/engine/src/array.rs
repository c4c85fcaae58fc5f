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
        check_count(&ty, numbers.len())?;
        Ok(Array { ty, bytes: bytemuck::cast_slice(numbers).to_vec() })
    }

    /// A single number.
    pub fn scalar<T: Native>(number: T) -> Array {
        Array { ty: TensorType::new(T::DTYPE, []), bytes: bytemuck::bytes_of(&number).to_vec() }
    }

    /// Zeros, if there is memory for them.
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Result<Array> {
        let ty = TensorType::new(dtype, shape);
        match bytemuck::allocation::try_zeroed_vec(ty.bytes()) {
            Ok(bytes) => Ok(Array { ty, bytes }),
            Err(()) => {
                let reason = "there is not so much memory; use smaller sizes".to_string();
                Err(Error::Machine { what: format!("the {} bytes of {ty}", ty.bytes()), reason })
            }
        }
    }

    /// Numbers of any type from f64, rounded to the type; integers saturate.
    pub fn from_f64(ty: TensorType, numbers: &[f64]) -> Result<Array> {
        check_count(&ty, numbers.len())?;
        let bytes = match ty.dtype {
            DType::F64 => to_bytes(numbers, |x| x),
            DType::F32 => to_bytes(numbers, |x| x as f32),
            DType::Bf16 => to_bytes(numbers, |x| <bf16 as Element>::from_f32(x as f32)),
            DType::F16 => to_bytes(numbers, |x| <f16 as Element>::from_f32(x as f32)),
            DType::I32 => to_bytes(numbers, |x| x as i32),
            DType::U32 => to_bytes(numbers, |x| x as u32),
        };
        Ok(Array { ty, bytes })
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

fn check_count(ty: &TensorType, count: usize) -> Result<()> {
    if count == ty.shape.elements() {
        return Ok(());
    }
    let (expected, given) = (format!("{ty} ({} numbers)", ty.shape.elements()), format!("{count} numbers"));
    Err(Error::Data { name: "an array".to_string(), expected, given })
}

fn to_bytes<T: Native>(numbers: &[f64], convert: impl Fn(f64) -> T) -> Vec<u8> {
    let converted: Vec<T> = numbers.iter().map(|&x| convert(x)).collect();
    bytemuck::cast_slice(&converted).to_vec()
}

//! Element types.

use gradus_kernels::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float: the default.
    F32,
    /// 16-bit float with the range of f32.
    Bf16,
    /// IEEE 16-bit float.
    F16,
    /// 64-bit float: computed by the reference backend only.
    F64,
    /// Signed integers: targets, indices.
    I32,
    /// Unsigned integers: tokens, random keys.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::Bf16 | DType::F16 => 2,
        }
    }

    /// Whether elements are floating point, and so can have gradients.
    pub fn is_float(self) -> bool {
        !self.is_integer()
    }

    /// Whether elements are integers.
    pub fn is_integer(self) -> bool {
        matches!(self, DType::I32 | DType::U32)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DType::F32 => "f32",
            DType::Bf16 => "bf16",
            DType::F16 => "f16",
            DType::F64 => "f64",
            DType::I32 => "i32",
            DType::U32 => "u32",
        })
    }
}

/// A Rust type that is the element of a tensor.
pub trait Native: bytemuck::Pod {
    /// The tensor type it stands for.
    const DTYPE: DType;
}

impl Native for f32 {
    const DTYPE: DType = DType::F32;
}
impl Native for f64 {
    const DTYPE: DType = DType::F64;
}
impl Native for bf16 {
    const DTYPE: DType = DType::Bf16;
}
impl Native for f16 {
    const DTYPE: DType = DType::F16;
}
impl Native for i32 {
    const DTYPE: DType = DType::I32;
}
impl Native for u32 {
    const DTYPE: DType = DType::U32;
}

//! Matrices that the device copies box by box, by itself.

use crate::error::{Error, Result};
use crate::{Element, Matrix};
use cudarc::driver::sys;

/// How a matrix lies, cut into up to three axes, and the boxes that are copied of it. What a box has beyond it is zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    element: Element,
    address: u64,
    /// From the innermost axis, whose elements are neighbors.
    sizes: Vec<u64>,
    /// Bytes from one to the next along every other axis.
    strides: Vec<u64>,
    boxes: Vec<u32>,
    swizzled: bool,
}

impl Map {
    /// A matrix of these sizes, from the innermost axis, and strides of the other axes, in elements.
    pub fn new(of: &Matrix, sizes: &[usize], strides: &[usize]) -> Map {
        let bytes = |stride: &usize| (stride * of.element.size()) as u64;
        Map {
            element: of.element,
            address: of.address,
            sizes: sizes.iter().map(|&size| size as u64).collect(),
            strides: strides.iter().map(bytes).collect(),
            boxes: vec![1; sizes.len()],
            swizzled: false,
        }
    }

    /// In boxes of these sizes.
    pub fn boxes(self, sizes: &[usize]) -> Map {
        Map { boxes: sizes.iter().map(|&size| size as u32).collect(), ..self }
    }

    /// Of row r of a box, 128 bytes, the piece p of 16 bytes lies where piece p ^ r % 8 would.
    pub fn swizzled(self) -> Map {
        Map { swizzled: true, ..self }
    }

    /// What tells the device of it.
    pub(crate) fn encode(&self) -> Result<sys::CUtensorMap> {
        use sys::CUtensorMapDataType_enum as Type;
        let element = match self.element {
            Element::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
            Element::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Element::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Element::I32 => Type::CU_TENSOR_MAP_DATA_TYPE_INT32,
            Element::U32 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        };
        let swizzle = match self.swizzled {
            true => sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
            false => sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_NONE,
        };
        // SAFETY: all zeros is such a description, which the call writes.
        let mut map: sys::CUtensorMap = unsafe { std::mem::zeroed() };
        let (rank, every) = (self.sizes.len(), vec![1u32; self.sizes.len()]);
        // SAFETY: sizes, boxes and steps have as many numbers as there are axes, strides one less; nothing at the address is read.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                element,
                rank as u32,
                self.address as *mut _,
                self.sizes.as_ptr(),
                self.strides.as_ptr(),
                self.boxes.as_ptr(),
                every.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(Error::call("cuTensorMapEncodeTiled"))?;
        Ok(map)
    }
}

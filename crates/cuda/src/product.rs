//! Matrix products by cuBLASLt. It counts in columns: a product of matrices that lie by rows is asked for as the product of
//! the transposed ones, the other way round.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::{Element, Gelu, Matrix, Product};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUstream;
use std::ffi::c_void;
use std::sync::Arc;

/// Where the depth is a multiple of this, the library may share it out; elsewhere it was seen to drop the rest.
const SHARED_DEPTH: usize = 64;

/// A product whose algorithm is chosen.
pub(crate) struct PreparedProduct {
    device: Arc<Device>,
    product: Product,
    description: Description,
    a: Layout,
    b: Layout,
    added: Layout,
    d: Layout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: the descriptions are plain memory that nothing else holds.
unsafe impl Send for PreparedProduct {}

fn call(call: &'static str) -> impl FnOnce(CublasError) -> Error {
    move |error| Error::Call { call, reason: format!("{:?}", error.0) }
}

impl PreparedProduct {
    pub fn new(device: &Arc<Device>, product: &Product) -> Result<PreparedProduct> {
        let description = Description::new(product)?;
        let a = Layout::new(&product.a, [product.rows, product.depth], product.batch)?;
        let b = Layout::new(&product.b, [product.depth, product.columns], product.batch)?;
        let d = Layout::new(&product.d, [product.rows, product.columns], product.batch)?;
        let added = product.added.as_ref().unwrap_or(&product.d);
        let added = Layout::new(added, [product.rows, product.columns], product.batch)?;
        let preference = Preference::new(product)?;
        // SAFETY: all descriptions are there, and describe each other's sizes.
        let found = unsafe {
            result::get_matmul_algo_heuristic(device.products(), description.0, b.0, a.0, added.0, d.0, preference.0)
        };
        let algorithm = found.map_err(|_| Error::NoProduct { product: described(product) })?.algo;
        Ok(PreparedProduct { device: device.clone(), product: product.clone(), description, a, b, added, d, algorithm })
    }

    /// # Safety
    /// The addresses of the product must be those of live memory of the device, as large as its sizes say.
    pub unsafe fn send(&mut self, stream: CUstream) -> Result<()> {
        let (one, share): (f32, f32) = (1.0, if self.product.added.is_some() { 1.0 } else { 0.0 });
        let at = |matrix: &Matrix| matrix.address as *mut c_void;
        let (a, b, d) = (at(&self.product.a), at(&self.product.b), at(&self.product.d));
        let added = self.product.added.as_ref().map_or(d, at);
        let (workspace, bytes) = (self.product.workspace.0 as *mut c_void, self.product.workspace.1);
        // SAFETY: the descriptions are there; the memory is the caller's promise.
        unsafe {
            result::matmul(
                self.device.products(),
                self.description.0,
                (&raw const one).cast(),
                (&raw const share).cast(),
                b,
                self.b.0,
                a,
                self.a.0,
                added,
                self.added.0,
                d,
                self.d.0,
                &self.algorithm,
                workspace,
                bytes,
                stream.cast(),
            )
        }
        .map_err(call("cublasLtMatmul"))
    }
}

fn described(product: &Product) -> String {
    let Product { rows, columns, depth, batch, a, b, d, .. } = product;
    let types = [a, b, d].map(|matrix| matrix.element.name()).join(", ");
    format!("{batch} x [{rows}, {depth}] by [{depth}, {columns}] ({types})")
}

fn data_type(element: Element) -> sys::cudaDataType {
    match element {
        Element::F32 => sys::cudaDataType::CUDA_R_32F,
        Element::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        Element::F16 => sys::cudaDataType::CUDA_R_16F,
        Element::I32 => sys::cudaDataType::CUDA_R_32I,
        Element::U32 => sys::cudaDataType::CUDA_R_32U,
    }
}

/// What is computed.
struct Description(sys::cublasLtMatmulDesc_t);

impl Description {
    fn new(product: &Product) -> Result<Description> {
        use sys::cublasComputeType_t as Compute;
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let made = result::create_matmul_desc(Compute::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F);
        let description = Description(made.map_err(call("cublasLtMatmulDescCreate"))?);
        // The library's first operand is our second.
        let transposed = |matrix: &Matrix| matrix.transposed as i32;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &transposed(&product.b))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &transposed(&product.a))?;
        description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue(product))?;
        if let Some(Gelu::Keeping(address) | Gelu::SlopeAt(address)) = product.gelu {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &address)?;
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &(product.d.stride as i64))?;
        }
        if let Some(bias) = product.bias {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.address)?;
            let element = data_type(product.d.element);
            description.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &element)?;
        }
        Ok(description)
    }

    fn set<T: Copy>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the attribute takes a value of this type, which is copied.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
        .map_err(call("cublasLtMatmulDescSetAttribute"))
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed here alone.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// What the library does after the sums.
fn epilogue(product: &Product) -> sys::cublasLtEpilogue_t {
    use sys::cublasLtEpilogue_t as Epilogue;
    match (product.bias.is_some(), product.gelu) {
        (false, None) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (true, None) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (false, Some(Gelu::Of)) => Epilogue::CUBLASLT_EPILOGUE_GELU,
        (true, Some(Gelu::Of)) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
        (false, Some(Gelu::Keeping(_))) => Epilogue::CUBLASLT_EPILOGUE_GELU_AUX,
        (true, Some(Gelu::Keeping(_))) => Epilogue::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
        (_, Some(Gelu::SlopeAt(_))) => Epilogue::CUBLASLT_EPILOGUE_DGELU,
    }
}

/// How a matrix lies.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Of a matrix of [rows, columns].
    fn new(matrix: &Matrix, [rows, columns]: [usize; 2], batch: usize) -> Result<Layout> {
        use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
        // What lies by rows is, counted in columns, its own transposed.
        let [rows, columns] = if matrix.transposed { [rows, columns] } else { [columns, rows] };
        let made =
            result::create_matrix_layout(data_type(matrix.element), rows as u64, columns as u64, matrix.stride as i64);
        let layout = Layout(made.map_err(call("cublasLtMatrixLayoutCreate"))?);
        if batch > 1 {
            layout.set(Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &(batch as i32))?;
            layout.set(Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &(matrix.batch_stride as i64))?;
        }
        Ok(layout)
    }

    fn set<T: Copy>(&self, attribute: sys::cublasLtMatrixLayoutAttribute_t, value: &T) -> Result<()> {
        // SAFETY: the attribute takes a value of this type, which is copied.
        unsafe {
            result::set_matrix_layout_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
        .map_err(call("cublasLtMatrixLayoutSetAttribute"))
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed here alone.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// What an algorithm may use.
struct Preference(sys::cublasLtMatmulPreference_t);

impl Preference {
    fn new(product: &Product) -> Result<Preference> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
        let preference = Preference(result::create_matmul_pref().map_err(call("cublasLtMatmulPreferenceCreate"))?);
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &product.workspace.1)?;
        // Sums over shares of the depth may wait where the result goes, which must not be where the epilogue still reads.
        let over_slope = matches!(product.gelu, Some(Gelu::SlopeAt(address)) if address == product.d.address);
        if over_slope || !product.depth.is_multiple_of(SHARED_DEPTH) {
            preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &0u32)?;
        }
        let added = product.added.as_ref().unwrap_or(&product.d);
        let [a, b, added, d] = [&product.a, &product.b, added, &product.d].map(alignment);
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &added)?;
        preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &d)?;
        Ok(preference)
    }

    fn set<T: Copy>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the attribute takes a value of this type, which is copied.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
        .map_err(call("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed here alone.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}

/// The bytes that the address of every matrix of a batch is a multiple of.
fn alignment(matrix: &Matrix) -> u32 {
    let size = matrix.element.size() as u64;
    let bits = matrix.address | (matrix.batch_stride as u64 * size) | 256;
    1 << bits.trailing_zeros()
}

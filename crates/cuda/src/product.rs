//! Matrix products by cuBLASLt. It counts in columns: a product of matrices that lie by rows is asked for as the product of
//! the transposed ones, the other way round.

use crate::choice::key;
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

/// An algorithm of the library, which says of it that it can be kept and used again by the same version.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Algorithm(sys::cublasLtMatmulAlgo_t);

impl Algorithm {
    pub fn bytes(&self) -> Vec<u8> {
        self.0.data.iter().flat_map(|word| word.to_le_bytes()).collect()
    }
}

/// Into how many parts an algorithm shares out the depth, and how it adds them up.
pub(crate) fn shares(algorithm: &Algorithm) -> [Option<u32>; 2] {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Attribute;
    [Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME].map(|attribute| {
        let (mut value, mut written) = (0u32, 0);
        let to = (&raw mut value).cast::<c_void>();
        // SAFETY: both attributes are 32 bits, for which there is room.
        let read = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(&algorithm.0, attribute, to, size_of::<u32>(), &mut written)
        };
        read.result().ok().map(|_| value)
    })
}

/// A product whose algorithm is chosen.
pub(crate) struct PreparedProduct {
    product: LibraryProduct,
    algorithm: Algorithm,
}

impl PreparedProduct {
    /// With the algorithm that was chosen, or the first proposal.
    pub fn new(device: &Arc<Device>, product: &Product) -> Result<PreparedProduct> {
        let (chosen, product) = (device.choice(&key(product)), LibraryProduct::new(device, product)?);
        let algorithm = match chosen {
            Some(chosen) => chosen,
            None => product.first_proposal()?,
        };
        Ok(PreparedProduct { product, algorithm })
    }

    /// # Safety
    /// As [`LibraryProduct::send`].
    pub unsafe fn send(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.product.send(&self.algorithm, stream) }
    }
}

/// A product as the library knows it.
pub(crate) struct LibraryProduct {
    device: Arc<Device>,
    product: Product,
    description: Description,
    a: Layout,
    b: Layout,
    added: Layout,
    d: Layout,
}

// SAFETY: the descriptions are plain memory that nothing else holds.
unsafe impl Send for LibraryProduct {}

fn call(call: &'static str) -> impl FnOnce(CublasError) -> Error {
    move |error| Error::Call { call, reason: format!("{:?}", error.0) }
}

impl LibraryProduct {
    pub fn new(device: &Arc<Device>, product: &Product) -> Result<LibraryProduct> {
        let description = Description::new(product)?;
        let a = Layout::new(&product.a, [product.rows, product.depth], product.batch)?;
        let b = Layout::new(&product.b, [product.depth, product.columns], product.batch)?;
        let d = Layout::new(&product.d, [product.rows, product.columns], product.batch)?;
        let added = product.added.as_ref().unwrap_or(&product.d);
        let added = Layout::new(added, [product.rows, product.columns], product.batch)?;
        Ok(LibraryProduct { device: device.clone(), product: product.clone(), description, a, b, added, d })
    }

    /// What was asked for.
    pub fn stated(&self) -> &Product {
        &self.product
    }

    /// The algorithm that the library thinks best.
    pub fn first_proposal(&self) -> Result<Algorithm> {
        let first = self.ask(1)?.into_iter().next();
        first.ok_or_else(|| Error::NoProduct { product: described(&self.product) })
    }

    /// The first proposal, and then others, up to so many.
    pub fn proposals(&self, most: usize) -> Result<Vec<Algorithm>> {
        let first = self.first_proposal()?;
        let others = self.ask(most)?.into_iter().filter(|other| *other != first);
        Ok(std::iter::once(first).chain(others).collect())
    }

    fn ask(&self, most: usize) -> Result<Vec<Algorithm>> {
        let preference = Preference::new(&self.product)?;
        // SAFETY: all zeros is a result: numbers, and a state that is a success. So bytes that are not used are the same.
        let mut found: Vec<sys::cublasLtMatmulHeuristicResult_t> = vec![unsafe { std::mem::zeroed() }; most];
        let mut count = 0;
        // SAFETY: all descriptions are there, and describe each other's sizes; there is room for as many as are asked for.
        let asked = unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.device.products(),
                self.description.0,
                self.b.0,
                self.a.0,
                self.added.0,
                self.d.0,
                preference.0,
                most as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        };
        asked.result().map_err(|_| Error::NoProduct { product: described(&self.product) })?;
        let can = |found: &&sys::cublasLtMatmulHeuristicResult_t| found.state.result().is_ok();
        Ok(found[..count as usize].iter().filter(can).map(|found| Algorithm(found.algo)).collect())
    }

    /// # Safety
    /// The addresses of the product must be those of live memory of the device, as large as its sizes say, and the algorithm
    /// one that was proposed for such a product.
    pub unsafe fn send(&self, algorithm: &Algorithm, stream: CUstream) -> Result<()> {
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
                &algorithm.0,
                workspace,
                bytes,
                stream.cast(),
            )
        }
        .map_err(call("cublasLtMatmul"))
    }
}

fn described(product: &Product) -> String {
    let Product { rows, columns, depth, batch, a, b, d, tf32, .. } = product;
    let types = [a, b, d].map(|matrix| matrix.element.name()).join(", ");
    let rounded = if *tf32 { " in tf32" } else { "" };
    format!("{batch} x [{rows}, {depth}] by [{depth}, {columns}] ({types}{rounded})")
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
        let compute = match product.tf32 {
            true => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            false => Compute::CUBLAS_COMPUTE_32F,
        };
        let made = result::create_matmul_desc(compute, sys::cudaDataType::CUDA_R_32F);
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
            let element = data_type(bias.element);
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
        if !product.depth.is_multiple_of(SHARED_DEPTH) {
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
pub(crate) fn alignment(matrix: &Matrix) -> u32 {
    let size = matrix.element.size() as u64;
    let bits = matrix.address | (matrix.batch_stride as u64 * size) | 256;
    1 << bits.trailing_zeros()
}

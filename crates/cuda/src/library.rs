//! NVIDIA's libraries, loaded when they are first needed.

use crate::error::{Error, Result};
use libloading::Library;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Where toolkits put their libraries, besides where the system looks.
fn folders() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let roots = named.chain([PathBuf::from("/usr/local/cuda"), PathBuf::from("/opt/cuda")]);
    roots.flat_map(|root| [root.join("lib64"), root.join("lib"), root.join("targets/x86_64-linux/lib")]).collect()
}

/// A library from where the system looks, or from where toolkits put it.
pub(crate) fn open(file: &str) -> Option<Library> {
    // SAFETY: the initializers of NVIDIA's libraries have no demands on whoever loads them.
    unsafe { Library::new(file) }.ok().or_else(|| in_toolkit(file))
}

fn in_toolkit(file: &str) -> Option<Library> {
    // SAFETY: as above.
    folders().iter().find_map(|folder| unsafe { Library::new(folder.join(file)) }.ok())
}

/// Loads a library from where toolkits put it, so that looking for it by name finds it loaded.
fn load(file: &str) {
    // It stays for as long as the process.
    std::mem::forget(in_toolkit(file));
}

/// The driver.
pub(crate) fn driver() -> Result<()> {
    // SAFETY: as above.
    match unsafe { cudarc::driver::sys::is_culib_present() } {
        true => Ok(()),
        false => Err(Error::Missing { library: "libcuda.so.1", advice: "install NVIDIA's driver, or use the CPU" }),
    }
}

/// The compiler of kernels.
pub(crate) fn nvrtc() -> Result<()> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        load("libnvrtc.so.13");
        let (mut major, mut minor) = (0, 0);
        // SAFETY: as above; where the library was found, both are written.
        unsafe {
            cudarc::nvrtc::sys::is_culib_present()
                && cudarc::nvrtc::sys::nvrtcVersion(&mut major, &mut minor).result().is_ok()
                && major >= 13
        }
    });
    let advice =
        "install the CUDA 13 toolkit or its package of NVRTC, and set CUDA_HOME or LD_LIBRARY_PATH if it is not found";
    found.then_some(()).ok_or(Error::Missing { library: "libnvrtc.so.13", advice })
}

/// Matrix products.
pub(crate) fn cublaslt() -> Result<()> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        load("libcublasLt.so.13");
        // SAFETY: as above.
        unsafe { cudarc::cublaslt::sys::is_culib_present() && cudarc::cublaslt::sys::cublasLtGetVersion() >= 130_000 }
    });
    let advice =
        "install the CUDA 13 toolkit or its package of cuBLAS, and set CUDA_HOME or LD_LIBRARY_PATH if it is not found";
    found.then_some(()).ok_or(Error::Missing { library: "libcublasLt.so.13", advice })
}

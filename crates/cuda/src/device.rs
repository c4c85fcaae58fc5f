//! A device: its context, its stream, and the kernels that were loaded onto it.

use crate::compile::compile;
use crate::error::{Error, Result};
use crate::product::Algorithm;
use crate::stream::Stream;
use crate::{Launch, library};
use cudarc::cublaslt::{result as cublaslt, sys as cublaslt_sys};
use cudarc::driver::{result, sys};
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The least that the driver must speak: graphs with conditions, and what the kernels are compiled to.
const LEAST_DRIVER: i32 = 13000;

/// A CUDA device that is worked on.
pub struct Device {
    name: String,
    driver: i32,
    multiprocessors: usize,
    memory: usize,
    /// Functions by their source and name: loaded once, however often they occur.
    functions: Mutex<HashMap<(String, &'static str), Function>>,
    /// What decides whether states are written.
    decide: OnceLock<Function>,
    /// The algorithms of products that were timed.
    choices: Mutex<HashMap<String, Algorithm>>,
    // Dropped in this order.
    products: Library,
    /// What everything runs on, one after another.
    stream: Stream,
    context: Context,
}

/// The library of products.
struct Library(cublaslt_sys::cublasLtHandle_t);

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: made by `Device::open`, and destroyed here alone. An error has nobody to go to.
        let _ = unsafe { cublaslt::destroy_handle(self.0) };
    }
}

/// A device's primary context, retained.
struct Context {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `Device::open`, and released here alone.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A kernel on the device.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub sys::CUfunction);

// SAFETY: the driver's handles may be used from any thread on which the context is current, which `bind` sees to.
unsafe impl Send for Device {}
// SAFETY: as above; what changes is behind a lock, and streams order what is sent to them.
unsafe impl Sync for Device {}
// SAFETY: as above: a handle.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Device {
    /// The device of this number, in the order that `nvidia-smi` and CUDA_VISIBLE_DEVICES give.
    pub fn new(ordinal: usize) -> Result<Arc<Device>> {
        library::driver()?;
        let driver = check_driver()?;
        let initialized = result::init().map_err(Error::call("cuInit"));
        let count = initialized.and_then(|()| result::device::get_count().map_err(Error::call("cuDeviceGetCount")));
        let count = count.map_err(|error| Error::NoDevice { ordinal, known: error.to_string() })?;
        if ordinal >= count as usize {
            let known = match count {
                0 => "there are none".to_string(),
                1 => "there is only device 0".to_string(),
                _ => format!("there are {count}, from 0 on"),
            };
            return Err(Error::NoDevice { ordinal, known });
        }
        let device = result::device::get(ordinal as i32).map_err(Error::call("cuDeviceGet"))?;
        check_capability(device)?;
        library::nvrtc()?;
        library::cublaslt()?;
        Device::open(device, driver).map(Arc::new)
    }

    fn open(device: sys::CUdevice, driver: i32) -> Result<Device> {
        let multiprocessors = attribute(device, sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let name = result::device::get_name(device).map_err(Error::call("cuDeviceGetName"))?;
        // SAFETY: the device was found.
        let memory = unsafe { result::device::total_mem(device) }.map_err(Error::call("cuDeviceTotalMem"))?;
        // SAFETY: as above; released when this is dropped.
        let context =
            unsafe { result::primary_ctx::retain(device) }.map_err(Error::call("cuDevicePrimaryCtxRetain"))?;
        let context = Context { device, context };
        // SAFETY: the context was just retained.
        unsafe { result::ctx::set_current(context.context) }.map_err(Error::call("cuCtxSetCurrent"))?;
        let stream = Stream::new()?;
        let products = cublaslt::create_handle()
            .map_err(|error| Error::Call { call: "cublasLtCreate", reason: format!("{:?}", error.0) })?;
        Ok(Device {
            name,
            driver,
            multiprocessors: multiprocessors as usize,
            memory,
            functions: Mutex::default(),
            decide: OnceLock::new(),
            choices: Mutex::default(),
            products: Library(products),
            stream,
            context,
        })
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What choices by timing hold for.
    pub(crate) fn description(&self) -> String {
        // SAFETY: the library was found.
        let library = unsafe { cublaslt_sys::cublasLtGetVersion() };
        format!("{}, driver {}, cuBLASLt {library}", self.name, self.driver)
    }

    /// The algorithm that was chosen for such products.
    pub(crate) fn choice(&self, product: &str) -> Option<Algorithm> {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).get(product).copied()
    }

    /// From now on, such products are computed so.
    pub(crate) fn choose(&self, product: String, algorithm: Algorithm) {
        self.choices.lock().unwrap_or_else(PoisonError::into_inner).insert(product, algorithm);
    }

    /// Its multiprocessors.
    pub fn multiprocessors(&self) -> usize {
        self.multiprocessors
    }

    /// Its memory, in bytes.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// What of its memory is free.
    pub fn free_memory(&self) -> Result<usize> {
        self.bind()?;
        Ok(result::mem_get_info().map_err(Error::call("cuMemGetInfo"))?.0)
    }

    /// Waits for all that was sent.
    pub fn synchronize(&self) -> Result<()> {
        self.bind()?;
        // SAFETY: the stream lives as long as the device.
        unsafe { result::stream::synchronize(self.stream.0) }.map_err(Error::call("cuStreamSynchronize"))
    }

    /// Lets calls of this thread go to this device.
    pub(crate) fn bind(&self) -> Result<()> {
        // SAFETY: the context lives as long as the device.
        unsafe { result::ctx::set_current(self.context.context) }.map_err(Error::call("cuCtxSetCurrent"))
    }

    pub(crate) fn context(&self) -> sys::CUcontext {
        self.context.context
    }

    pub(crate) fn stream(&self) -> sys::CUstream {
        self.stream.0
    }

    pub(crate) fn products(&self) -> cublaslt_sys::cublasLtHandle_t {
        self.products.0
    }

    /// Compiles the kernels that are not loaded yet, several at a time.
    pub(crate) fn compile_all(&self, launches: &[&Launch]) -> Result<()> {
        let mut wanted: Vec<&Launch> = vec![];
        {
            let known = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
            let mut seen = std::collections::HashSet::new();
            wanted
                .extend(launches.iter().filter(|launch| !known.contains_key(&key(launch)) && seen.insert(key(launch))));
        }
        for (launch, code) in compile_several(&wanted)? {
            let function = self.load(launch, &code)?;
            self.functions.lock().unwrap_or_else(PoisonError::into_inner).insert(key(launch), function);
        }
        Ok(())
    }

    /// The function of a launch, which was compiled before.
    pub(crate) fn function(&self, launch: &Launch) -> Function {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner)[&key(launch)]
    }

    fn load(&self, launch: &Launch, code: &[u8]) -> Result<Function> {
        let function = self.load_image(launch.entry, code)?;
        if launch.shared > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function was just loaded.
            unsafe { result::function::set_function_attribute(function.0, attribute, launch.shared as i32) }
                .map_err(Error::call("cuFuncSetAttribute"))?;
        }
        Ok(function)
    }

    /// The function `decide` of this text, loaded once.
    pub(crate) fn decide(&self, text: &str) -> Result<Function> {
        if let Some(function) = self.decide.get() {
            return Ok(*function);
        }
        let function = self.load_image("decide", text.as_bytes())?;
        Ok(*self.decide.get_or_init(|| function))
    }

    /// Loads machine code, or text that ends with a zero byte. It stays for as long as the context.
    pub(crate) fn load_image(&self, entry: &str, code: &[u8]) -> Result<Function> {
        self.bind()?;
        let name = CString::new(entry).expect("names have no zero bytes");
        // SAFETY: the image is whole: it comes from the compiler, or from a file that was checked.
        let module = unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) }
            .map_err(Error::call("cuModuleLoadData"))?;
        // SAFETY: the module was just loaded, and is never unloaded while the context is there.
        let function =
            unsafe { result::module::get_function(module, name) }.map_err(Error::call("cuModuleGetFunction"))?;
        Ok(Function(function))
    }
}

/// A kernel and its machine code.
type Compiled<'a> = (&'a Launch, Vec<u8>);

/// Compiles kernels on all cores.
fn compile_several<'a>(wanted: &[&'a Launch]) -> Result<Vec<Compiled<'a>>> {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get()).min(wanted.len().max(1));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut codes: Vec<Compiled<'a>> = vec![];
        while let Some(launch) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
            codes.push((launch, compile(launch.entry, &launch.source)?));
        }
        Ok(codes)
    };
    let codes = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("compiling does not panic")).collect::<Result<Vec<_>>>()
    });
    Ok(codes?.into_iter().flatten().collect())
}

/// What a loaded function is known by.
fn key(launch: &Launch) -> (String, &'static str) {
    (launch.source.clone(), launch.entry)
}

impl Drop for Device {
    fn drop(&mut self) {
        // What is left is destroyed in the context that is current. A device that is lost says so at once.
        let _ = self.synchronize();
    }
}

fn check_driver() -> Result<i32> {
    let mut version = 0;
    // SAFETY: the driver was found, and writes the number.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(Error::call("cuDriverGetVersion"))?;
    if version < LEAST_DRIVER {
        let found = format!("{}.{}", version / 1000, version % 1000 / 10);
        return Err(Error::OldDriver { found, needed: "13.0" });
    }
    Ok(version)
}

fn check_capability(device: sys::CUdevice) -> Result<()> {
    use sys::CUdevice_attribute as Attribute;
    let major = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    // Kernels use instructions that are of this generation alone.
    if (major, minor) != (9, 0) {
        let name = result::device::get_name(device).map_err(Error::call("cuDeviceGetName"))?;
        return Err(Error::OtherDevice { name, major, minor });
    }
    Ok(())
}

fn attribute(device: sys::CUdevice, attribute: sys::CUdevice_attribute) -> Result<i32> {
    // SAFETY: the device was found.
    unsafe { result::device::get_attribute(device, attribute) }.map_err(Error::call("cuDeviceGetAttribute"))
}

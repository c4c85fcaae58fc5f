//! Commands made ready for a device: kernels loaded, algorithms chosen. Sending one allocates nothing.

use crate::device::{Device, Function};
use crate::error::{Error, Result};
use crate::product::PreparedProduct;
use crate::{Command, Launch, Map};
use cudarc::driver::{result, sys};
use std::ffi::c_void;
use std::sync::Arc;

/// A command that is ready.
pub(crate) enum Prepared {
    Kernel(Kernel),
    Product(Box<PreparedProduct>),
    Zero { address: u64, bytes: usize },
}

/// A loaded kernel and what it runs on.
pub(crate) struct Kernel {
    function: Function,
    grid: [u32; 3],
    block: u32,
    shared: u32,
    maps: Vec<sys::CUtensorMap>,
    arguments: Vec<u64>,
    /// Where the maps and arguments lie, as a launch takes them.
    pointers: Vec<*mut c_void>,
    waits: bool,
}

// SAFETY: the pointers are to the maps and arguments beside them, which nothing else holds.
unsafe impl Send for Kernel {}

impl Kernel {
    pub fn new(function: Function, launch: &Launch) -> Result<Kernel> {
        let mut arguments = launch.arguments.clone();
        let mut maps: Vec<_> = launch.maps.iter().map(Map::encode).collect::<Result<_>>()?;
        // Maps and arguments stay where they are when the vectors themselves move.
        let first = maps.iter_mut().map(|map| std::ptr::from_mut(map).cast());
        let pointers = first.chain(arguments.iter_mut().map(|argument| std::ptr::from_mut(argument).cast())).collect();
        let Launch { grid, block, shared, .. } = *launch;
        let waits = launch.early.is_some();
        Ok(Kernel { function, grid, block, shared, maps, arguments, pointers, waits })
    }

    /// If it `overlaps`, and waits by itself, it begins while the kernel that was sent before it runs.
    ///
    /// # Safety
    /// The addresses that it was linked to must be those of live memory of the device, as large as its source says. If it
    /// overlaps, the kernel before it must write nothing that it touches before it waits.
    pub unsafe fn send(&mut self, stream: sys::CUstream, overlaps: bool) -> Result<()> {
        use sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION as BEGINS_EARLY;
        debug_assert_eq!(self.maps.len() + self.arguments.len(), self.pointers.len());
        let [x, y, z] = self.grid;
        let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        let mut attribute = sys::CUlaunchAttribute { id: BEGINS_EARLY, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: self.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: &mut attribute,
            numAttrs: (overlaps && self.waits) as u32,
        };
        let (arguments, none) = (self.pointers.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: the function takes as many maps and addresses as there are, and the rest is the caller's promise.
        unsafe { sys::cuLaunchKernelEx(&config, self.function.0, arguments, none) }
            .result()
            .map_err(Error::call("cuLaunchKernelEx"))
    }
}

impl Prepared {
    /// Makes a command ready, whose kernel was compiled before.
    pub fn new(device: &Arc<Device>, command: &Command) -> Result<Prepared> {
        Ok(match command {
            Command::Launch(launch) => Prepared::Kernel(Kernel::new(device.function(launch), launch)?),
            Command::Product(product) => Prepared::Product(Box::new(PreparedProduct::new(device, product)?)),
            Command::Zero { address, bytes } => Prepared::Zero { address: *address, bytes: *bytes },
        })
    }

    /// Whether it is a kernel of ours.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Prepared::Kernel(_))
    }

    /// Sends it to a stream.
    ///
    /// # Safety
    /// As [`Kernel::send`].
    pub unsafe fn send(&mut self, stream: sys::CUstream, overlaps: bool) -> Result<()> {
        match self {
            // SAFETY: the caller's promise.
            Prepared::Kernel(kernel) => unsafe { kernel.send(stream, overlaps) },
            // SAFETY: the caller's promise.
            Prepared::Product(product) => unsafe { product.send(stream) },
            Prepared::Zero { address, bytes } => {
                // SAFETY: the caller's promise.
                unsafe { result::memset_d8_async(*address, 0, *bytes, stream) }.map_err(Error::call("cuMemsetD8Async"))
            }
        }
    }
}

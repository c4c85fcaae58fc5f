//! Commands made ready for a device: kernels loaded, algorithms chosen. Sending one allocates nothing.

use crate::device::{Device, Function};
use crate::error::{Error, Result};
use crate::product::PreparedProduct;
use crate::{Command, Launch};
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
    arguments: Vec<u64>,
    /// Where the arguments lie, as a launch takes them.
    pointers: Vec<*mut c_void>,
}

// SAFETY: the pointers are to the arguments beside them, which nothing else holds.
unsafe impl Send for Kernel {}

impl Kernel {
    pub fn new(function: Function, launch: &Launch) -> Kernel {
        let mut arguments = launch.arguments.clone();
        // The arguments stay where they are when the vector itself moves.
        let pointers = arguments.iter_mut().map(|argument| std::ptr::from_mut(argument).cast()).collect();
        let Launch { grid, block, shared, .. } = *launch;
        Kernel { function, grid, block, shared, arguments, pointers }
    }

    /// # Safety
    /// The addresses that it was linked to must be those of live memory of the device, as large as its source says.
    pub unsafe fn send(&mut self, stream: sys::CUstream) -> Result<()> {
        let ([x, y, z], block) = (self.grid, (self.block, 1, 1));
        debug_assert_eq!(self.arguments.len(), self.pointers.len());
        // SAFETY: the function takes as many addresses as there are, and the rest is the caller's promise.
        unsafe { result::launch_kernel(self.function.0, (x, y, z), block, self.shared, stream, &mut self.pointers) }
            .map_err(Error::call("cuLaunchKernel"))
    }
}

impl Prepared {
    /// Makes a command ready, whose kernel was compiled before.
    pub fn new(device: &Arc<Device>, command: &Command) -> Result<Prepared> {
        Ok(match command {
            Command::Launch(launch) => Prepared::Kernel(Kernel::new(device.function(launch), launch)),
            Command::Product(product) => Prepared::Product(Box::new(PreparedProduct::new(device, product)?)),
            Command::Zero { address, bytes } => Prepared::Zero { address: *address, bytes: *bytes },
        })
    }

    /// Sends it to a stream.
    ///
    /// # Safety
    /// As [`Kernel::send`].
    pub unsafe fn send(&mut self, stream: sys::CUstream) -> Result<()> {
        match self {
            // SAFETY: the caller's promise.
            Prepared::Kernel(kernel) => unsafe { kernel.send(stream) },
            // SAFETY: the caller's promise.
            Prepared::Product(product) => unsafe { product.send(stream) },
            Prepared::Zero { address, bytes } => {
                // SAFETY: the caller's promise.
                unsafe { result::memset_d8_async(*address, 0, *bytes, stream) }.map_err(Error::call("cuMemsetD8Async"))
            }
        }
    }
}

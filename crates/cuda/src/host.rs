//! Memory of the host that a device reads and writes by itself.

use crate::device::Device;
use crate::error::{Error, Result};
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// Eight bytes that the device writes.
pub(crate) struct HostCell {
    cell: *mut u64,
    /// The memory is freed in its context.
    device: Arc<Device>,
}

impl HostCell {
    pub fn new(device: &Arc<Device>) -> Result<HostCell> {
        device.bind()?;
        // SAFETY: freed once, when this is dropped.
        let cell = unsafe { result::malloc_host(8, 0) }.map_err(Error::call("cuMemHostAlloc"))?.cast::<u64>();
        // SAFETY: eight bytes were just allocated.
        unsafe { cell.write(u64::MAX) };
        Ok(HostCell { cell, device: device.clone() })
    }

    /// Has eight bytes of the device copied here.
    ///
    /// # Safety
    /// They must be live memory of the device.
    pub unsafe fn fetch(&self, address: u64, stream: sys::CUstream) -> Result<()> {
        // SAFETY: these are eight bytes, and those live by the caller's promise; the host reads after synchronizing only.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.cell.cast(), address, 8, stream) }
            .result()
            .map_err(Error::call("cuMemcpyDtoHAsync"))
    }

    /// What was copied last.
    pub fn value(&self) -> u64 {
        // SAFETY: the cell lives; the device writes it through the driver, so it is read as it is now.
        unsafe { self.cell.read_volatile() }
    }
}

impl Drop for HostCell {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `new`, and freed here alone.
            let _ = unsafe { result::free_host(self.cell.cast()) };
        }
    }
}

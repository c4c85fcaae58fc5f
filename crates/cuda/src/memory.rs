//! Memory of a device.

use crate::Device;
use crate::error::{Error, Result};
use cudarc::driver::result;
use std::sync::Arc;

/// One piece of device memory.
pub struct Memory {
    device: Arc<Device>,
    address: u64,
    bytes: usize,
}

impl Memory {
    /// So many bytes, all zero.
    pub fn zeroed(device: &Arc<Device>, bytes: usize) -> Result<Memory> {
        device.bind()?;
        let bytes = bytes.max(1);
        // SAFETY: the memory is freed once, when this is dropped.
        let address = unsafe { result::malloc_sync(bytes) }.map_err(|error| {
            if error.0 != cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                return Error::call("cuMemAlloc")(error);
            }
            let (free, total) = result::mem_get_info().unwrap_or((0, device.memory()));
            Error::Memory { wanted: bytes, free, total }
        })?;
        let mut memory = Memory { device: device.clone(), address, bytes };
        memory.clear()?;
        Ok(memory)
    }

    /// Makes all of it zero.
    pub fn clear(&mut self) -> Result<()> {
        self.device.bind()?;
        // SAFETY: as many bytes as were allocated.
        unsafe { result::memset_d8_async(self.address, 0, self.bytes, self.device.stream()) }
            .map_err(Error::call("cuMemsetD8Async"))?;
        self.device.synchronize()
    }

    /// Where it lies on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes bytes from an offset on, after all that was sent before.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the copy is over before the borrow ends.
        unsafe { self.write_soon(offset, bytes) }?;
        self.device.synchronize()
    }

    /// As [`Memory::write`], without waiting until it is done.
    ///
    /// # Safety
    /// The bytes must stay as they are until the stream has come so far.
    pub(crate) unsafe fn write_soon(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.check(offset, bytes.len());
        self.device.bind()?;
        // SAFETY: the range is inside; the bytes stay, by the caller's promise.
        unsafe { result::memcpy_htod_async(self.address + offset as u64, bytes, self.device.stream()) }
            .map_err(Error::call("cuMemcpyHtoDAsync"))
    }

    /// Reads bytes from an offset on, after all that was sent before.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(offset, bytes.len());
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range is inside; the copy is over before the borrow ends.
        unsafe { result::memcpy_dtoh_async(bytes, self.address + offset as u64, self.device.stream()) }
            .map_err(Error::call("cuMemcpyDtoHAsync"))?;
        self.device.synchronize()
    }

    /// Copies the first bytes of another piece.
    pub fn copy_from(&mut self, other: &Memory, bytes: usize) -> Result<()> {
        self.check(0, bytes);
        other.check(0, bytes);
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: both ranges are inside pieces of their own.
        unsafe { result::memcpy_dtod_async(self.address, other.address, bytes, self.device.stream()) }
            .map_err(Error::call("cuMemcpyDtoDAsync"))?;
        self.device.synchronize()
    }

    fn check(&self, offset: usize, length: usize) {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{length} bytes at {offset} of {} on the device", self.bytes);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: allocated by `zeroed` and freed here alone, after all that may use it.
            unsafe {
                let _ = result::stream::synchronize(self.device.stream());
                let _ = result::free_sync(self.address);
            }
        }
    }
}

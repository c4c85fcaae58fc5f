//! Memory of the host that a device reads and writes by itself, while the host goes on.

use crate::Memory;
use crate::device::Device;
use crate::error::{Error, Result};
use cudarc::driver::{result, sys};
use std::sync::Arc;

/// One piece of such memory.
pub(crate) struct HostMemory {
    start: *mut u8,
    bytes: usize,
    /// The memory is freed in its context.
    device: Arc<Device>,
}

// SAFETY: the memory is this one's alone, and the driver's calls may come from any thread.
unsafe impl Send for HostMemory {}

impl HostMemory {
    /// So many bytes, all zero.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<HostMemory> {
        device.bind()?;
        let refused = |error| match error {
            cudarc::driver::DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY) => Error::HostMemory { wanted: bytes },
            other => Error::call("cuMemHostAlloc")(other),
        };
        // SAFETY: freed once, when this is dropped.
        let start = unsafe { result::malloc_host(bytes.max(1), 0) }.map_err(refused)?.cast::<u8>();
        // SAFETY: as many bytes as were just allocated.
        unsafe { start.write_bytes(0, bytes) };
        Ok(HostMemory { start, bytes, device: device.clone() })
    }

    /// Has bytes of the device copied here, from an offset on.
    ///
    /// # Safety
    /// They must be live memory of the device, and what is here must not be read before the stream has come so far.
    pub unsafe fn fetch(&self, offset: usize, address: u64, bytes: usize, stream: sys::CUstream) -> Result<()> {
        self.check(offset, bytes);
        // SAFETY: the range is inside; the rest is the caller's promise.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.start.add(offset).cast(), address, bytes, stream) }
            .result()
            .map_err(Error::call("cuMemcpyDtoHAsync"))
    }

    /// Copies what is here from an offset on.
    pub fn read(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: the range is inside, and nobody else's. The device writes it only while the stream runs, which whoever had
        // it fetched has waited for.
        unsafe { self.start.add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
    }

    /// The first eight bytes.
    pub fn cell(&self) -> u64 {
        let mut bytes = [0; 8];
        self.read(0, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn check(&self, offset: usize, length: usize) {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.bytes);
        assert!(inside, "{length} bytes at {offset} of {} of the host", self.bytes);
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // What still copies here must be through.
        let _ = self.device.synchronize();
        // SAFETY: allocated by `new`, and freed here alone.
        let _ = unsafe { result::free_host(self.start.cast()) };
    }
}

/// Bytes on their way to the device: copied here, and from here by the device itself, so that whoever writes them does not
/// wait.
pub struct Staging {
    memory: HostMemory,
    /// What lies before this may not be copied yet.
    used: usize,
}

impl Staging {
    /// Room for so many bytes.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Staging> {
        Ok(Staging { memory: HostMemory::new(device, bytes)?, used: 0 })
    }

    /// Writes bytes to a device's memory from an offset on, after all that was sent before. Whether they take the way through
    /// here depends on their size.
    pub fn write(&mut self, to: &mut Memory, offset: usize, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() || bytes.len() > self.memory.bytes {
            return to.write(offset, bytes);
        }
        if bytes.len() > self.memory.bytes - self.used {
            self.memory.device.synchronize()?;
            self.used = 0;
        }
        // SAFETY: there is room from here on, which the device does not read.
        let start = unsafe { self.memory.start.add(self.used) };
        // SAFETY: as above; the bytes are somebody else's.
        unsafe { start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.used += bytes.len();
        // SAFETY: what was copied stays until the stream has come so far: it is overwritten, and freed, after waiting only.
        unsafe { to.write_soon(offset, std::slice::from_raw_parts(start, bytes.len())) }
    }
}

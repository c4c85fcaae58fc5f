//! A library with the names of NVIDIA's driver and compiler, which answers as the environment says: built by a test, to see how
//! a machine is refused that is not to be had.

use std::ffi::{c_char, c_int, c_uint};

fn stated(name: &str) -> i32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(0)
}

// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    stated("FAKE_INIT")
}

// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: whoever calls gives room for it.
    unsafe { *version = stated("FAKE_DRIVER") };
    0
}

// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: whoever calls gives room for it.
    unsafe { *count = stated("FAKE_DEVICES") };
    0
}

// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    // SAFETY: whoever calls gives room for it.
    unsafe { *device = ordinal };
    0
}

/// Of all attributes only the compute capability is asked for.
// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    const MAJOR: c_int = 75;
    // SAFETY: whoever calls gives room for it.
    unsafe { *value = if attribute == MAJOR { stated("FAKE_MAJOR") } else { 0 } };
    0
}

// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, _length: c_int, _device: c_int) -> c_int {
    // SAFETY: whoever calls gives room for it.
    unsafe { name.copy_from_nonoverlapping(c"A GPU of before".as_ptr(), 16) };
    0
}

// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(_error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: whoever calls gives room for it.
    unsafe { *text = c"it said no".as_ptr() };
    0
}

// SAFETY: the name is the driver's, and this stands in for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    // SAFETY: whoever calls gives room for it.
    unsafe { (*major, *minor) = (12, 4) };
    0
}

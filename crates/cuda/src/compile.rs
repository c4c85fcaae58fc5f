//! Compiling kernels by NVRTC, and keeping what was compiled.

use crate::disk_cache::Cached;
use crate::error::{Error, Result};
use crate::library;
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;

const OPTIONS: [&str; 2] = ["--gpu-architecture=sm_90a", "--std=c++17"];

/// The machine code of a kernel: as it was compiled before, by this compiler, or compiled now.
pub fn compile(entry: &str, source: &str) -> Result<Vec<u8>> {
    library::nvrtc()?;
    let cached = Cached::new(format!("{}\n{}\n{source}", version()?, OPTIONS.join(" ")), "cubin");
    if let Some(code) = cached.read() {
        return Ok(code);
    }
    let code = compile_anew(entry, source)?;
    cached.write(&code);
    Ok(code)
}

/// Whether kernels can be compiled here.
pub fn can_compile() -> Result<()> {
    library::nvrtc()
}

fn version() -> Result<String> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both are written by the call; the library was found.
    let status = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    status.result().map_err(|error| call("nvrtcVersion", error))?;
    Ok(format!("{major}.{minor}"))
}

fn call(call: &'static str, error: result::NvrtcError) -> Error {
    Error::Call { call, reason: format!("{error:?}") }
}

/// Compiles, with nothing kept.
fn compile_anew(entry: &str, source: &str) -> Result<Vec<u8>> {
    let text = CString::new(source).expect("sources have no zero bytes");
    let program = result::create_program(&text, None).map_err(|error| call("nvrtcCreateProgram", error))?;
    // SAFETY: the program was just made, and is destroyed once, after all that is done with it.
    unsafe {
        let code = match result::compile_program(program, &OPTIONS) {
            Ok(()) => machine_code(program),
            Err(_) => Err(Error::Compile { entry: entry.to_string(), log: log(program) }),
        };
        result::destroy_program(program).map_err(|error| call("nvrtcDestroyProgram", error))?;
        code
    }
}

/// # Safety
/// The program must be there, and compiled.
unsafe fn machine_code(program: sys::nvrtcProgram) -> Result<Vec<u8>> {
    let mut size = 0;
    // SAFETY: the program is there, by the caller's promise; the size is written by the call.
    unsafe { sys::nvrtcGetCUBINSize(program, &mut size) }.result().map_err(|error| call("nvrtcGetCUBINSize", error))?;
    let mut code = vec![0u8; size];
    // SAFETY: as above, and there is room for as many bytes as it said.
    unsafe { sys::nvrtcGetCUBIN(program, code.as_mut_ptr().cast()) }
        .result()
        .map_err(|error| call("nvrtcGetCUBIN", error))?;
    Ok(code)
}

/// # Safety
/// The program must be there.
unsafe fn log(program: sys::nvrtcProgram) -> String {
    // SAFETY: by the caller's promise.
    let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
    log.iter().map(|&byte| byte as u8 as char).filter(|&c| c != '\0').collect()
}

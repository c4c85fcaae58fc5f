//! Compiling kernels by NVRTC, and keeping what was compiled.

use crate::error::{Error, Result};
use crate::library;
use cudarc::nvrtc::{result, sys};
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

const OPTIONS: [&str; 2] = ["--gpu-architecture=sm_90a", "--std=c++17"];

/// The machine code of a kernel: as it was compiled before, by this compiler, or compiled now.
pub fn compile(entry: &str, source: &str) -> Result<Vec<u8>> {
    library::nvrtc()?;
    let key = format!("{}\n{}\n{source}", version()?, OPTIONS.join(" "));
    let file = cached_at(&key);
    if let Some(code) = file.as_ref().and_then(|file| read_cached(file, &key)) {
        return Ok(code);
    }
    let code = compile_anew(entry, source)?;
    if let Some(file) = file {
        write_cached(&file, &key, &code);
    }
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

/// The file for what is compiled from this, if there is a folder for such.
fn cached_at(key: &str) -> Option<PathBuf> {
    let caches = std::env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let caches = caches.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    Some(caches.join("gradus").join("kernels").join(format!("{:016x}.cubin", hasher.finish())))
}

/// A file begins with what it was compiled from, so that another source of the same name is not taken for it.
fn read_cached(file: &PathBuf, key: &str) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (known, rest) = rest.split_at_checked(length)?;
    let (check, code) = rest.split_first_chunk::<8>()?;
    (known == key.as_bytes() && u64::from_le_bytes(*check) == checksum(code)).then(|| code.to_vec())
}

/// Keeping it is a convenience: where it cannot be, it is compiled again next time.
fn write_cached(file: &PathBuf, key: &str, code: &[u8]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let unfinished = file.with_extension(format!("{}-{number}", std::process::id()));
    let parts = [&(key.len() as u64).to_le_bytes()[..], key.as_bytes(), &checksum(code).to_le_bytes(), code];
    let written = file.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok())
        && std::fs::write(&unfinished, parts.concat()).is_ok()
        && std::fs::rename(&unfinished, file).is_ok();
    if !written {
        let _ = std::fs::remove_file(&unfinished);
    }
}

fn checksum(code: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    code.hash(&mut hasher);
    hasher.finish()
}

//! What can go wrong with a device.

use cudarc::driver::sys::CUresult;

/// Why a device could not be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// A library that is not there.
    #[error("{library} is not to be found; {advice}")]
    Missing {
        /// The file.
        library: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// A driver that is too old.
    #[error("the NVIDIA driver speaks CUDA {found} and {needed} is needed; update the driver")]
    OldDriver {
        /// What it speaks.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// No such device.
    #[error("there is no CUDA device {ordinal}: {known}")]
    NoDevice {
        /// The number that was asked for.
        ordinal: usize,
        /// What there is.
        known: String,
    },
    /// A device of another generation.
    #[error("{name} has compute capability {major}.{minor} and 9.0 (Hopper: H100, H200) is needed; use the CPU")]
    OtherDevice {
        /// The device.
        name: String,
        /// Of its capability.
        major: i32,
        /// Of its capability.
        minor: i32,
    },
    /// Memory that the device does not have.
    #[error(
        "{wanted} bytes are wanted and {free} of {total} are free; ask for less, or end what else runs on the device"
    )]
    Memory {
        /// What was asked for.
        wanted: usize,
        /// What is free.
        free: usize,
        /// What the device has.
        total: usize,
    },
    /// Memory of the host that the system does not let a device reach.
    #[error(
        "the system refused {wanted} bytes of memory that stays where it is, for copies to and from the device; free some"
    )]
    HostMemory {
        /// What was asked for.
        wanted: usize,
    },
    /// A kernel that was not accepted.
    #[error("kernel {entry} does not compile: {log}")]
    Compile {
        /// Its name.
        entry: String,
        /// What the compiler said.
        log: String,
    },
    /// A product that the library has no algorithm for.
    #[error("cuBLASLt has no algorithm for a product of {product}")]
    NoProduct {
        /// Its sizes and types.
        product: String,
    },
    /// A device that can no longer be used by this process.
    #[error(
        "the device failed in {call} ({reason}), and what it held is lost; what was saved before stands: go on from there"
    )]
    Lost {
        /// What was called.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// Devices of other ranks with which nothing can be exchanged.
    #[error(
        "the GPUs of the other ranks cannot be reached: {call} says: {reason}; give each rank a GPU of its own (leave \
         CUDA_VISIBLE_DEVICES out), see what NCCL_DEBUG=WARN tells, and go on from the last checkpoint"
    )]
    Peers {
        /// What was called.
        call: &'static str,
        /// What it said.
        reason: String,
    },
    /// Anything else that a library refused.
    #[error("{call} failed: {reason}")]
    Call {
        /// What was called.
        call: &'static str,
        /// What it said.
        reason: String,
    },
}

impl Error {
    /// A call that was refused.
    pub(crate) fn call(call: &'static str) -> impl FnOnce(cudarc::driver::DriverError) -> Error {
        move |error| {
            let reason =
                error.error_string().map_or_else(|_| format!("{error:?}"), |text| text.to_string_lossy().into());
            match error.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    Error::Call { call, reason: format!("{reason}; end what else runs on the device") }
                }
                code if is_lost(code) => Error::Lost { call, reason },
                _ => Error::Call { call, reason },
            }
        }
    }
}

/// Whether every call after this one is refused too.
fn is_lost(code: CUresult) -> bool {
    use CUresult::*;
    matches!(
        code,
        CUDA_ERROR_DEINITIALIZED
            | CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_EXTERNAL_DEVICE
            | CUDA_ERROR_SYSTEM_NOT_READY
            | CUDA_ERROR_UNKNOWN
    )
}

/// As [`std::result::Result`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

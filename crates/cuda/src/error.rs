//! What can go wrong with a device.

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
    #[error("the device refused {wanted} bytes, {free} of {total} are free; ask for less, or end what else runs on it")]
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
            Error::Call { call, reason }
        }
    }
}

/// As [`std::result::Result`].
pub type Result<T> = std::result::Result<T, Error>;

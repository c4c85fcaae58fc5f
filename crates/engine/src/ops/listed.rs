//! Keeps the list of operations closed.

/// Is in the list of operations. Nothing outside of this crate can be, so that no safe code can bring kernels of its own
/// into a program.
///
/// ```compile_fail,E0603
/// struct Mine;
/// impl gradus_engine::ops::listed::Listed for Mine {}
/// ```
pub trait Listed {}

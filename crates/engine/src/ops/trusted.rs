//! Which kernels are given pointers.

/// Kernels that are trusted with memory: the jobs that they build are run as they are. Those of the list are trusted in
/// one place; an operation from elsewhere says so with `unsafe impl`, or has a kernel on slices
/// ([`super::SliceKernel`]), which needs no trust.
///
/// # Safety
/// For all operands that the operation's own [`super::Operation::outputs`] takes, in layouts that
/// [`super::Kernels::takes`] accepts:
/// - jobs, and the commands for a device, read nothing but elements of these layouts, and write nothing but the results,
///   whole and dense, and scratch that they have asked for;
/// - no part of a job writes what another part reads or writes, whichever threads run them;
/// - both hold where a result lies over an operand as [`super::Operation::in_place`] allows;
/// - the operation's answers depend on nothing but itself and what it was asked.
///
/// ```compile_fail,E0277
/// use gradus_engine::{Layout, ops::{CudaLinker, Kernels, Linker, Unsupported}};
///
/// struct Mine;
/// impl Kernels for Mine {
///     fn takes(&self, _input: usize, _layout: &Layout) -> bool {
///         true
///     }
///     fn cpu(&self, _linker: &mut Linker<'_>) -> Result<(), Unsupported> {
///         Ok(())
///     }
///     fn cuda(&self, _linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
///         Ok(())
///     }
/// }
/// ```
pub unsafe trait Trusted {}

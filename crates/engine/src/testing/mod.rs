//! How operations are tested: ours, and those from outside. It panics where something does not hold, as tests do.
//!
//! ```no_run
//! # use gradus_engine::ops::Elementwise as MyOperation;
//! #[test]
//! fn my_operation_holds() {
//!     gradus_engine::testing::check_operation::<MyOperation>();
//! }
//! ```

pub mod comparison;
mod gradients;
mod kernels;
pub mod numbers;
pub mod rounding;
mod second_machine;
mod shared_device;
mod tangents;

pub use gradients::check as check_gradients;
pub use kernels::{KernelChecks, check_on, plans_for};
pub use second_machine::SecondMachine;
pub use shared_device::{SharedDevice, Traffic};
pub use tangents::check as check_tangents;

use crate::ops::{ListedOperation, Operation};

/// Runs the cases of an operation as those of the list are run: every case on every instruction set, element type, kind of
/// operand and number of threads against the reference, and on a machine unlike the CPU in everything a planner can ask;
/// its first and second derivatives and its tangents against finite differences.
pub fn check_operation<O: Operation>() {
    let entry = ListedOperation::of::<O>();
    check_gradients(&entry);
    check_tangents(&entry);
    let mut kernels = KernelChecks::new().expect("threads");
    kernels.check(&entry);
    check_on(&SecondMachine, &entry);
}

//! What the pool's threads share: the system's threads, atomics and cells, or those of loom, which carries a test out in
//! every order that they allow (`--cfg loom`).

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::{Arc, atomic},
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::{Arc, atomic},
    thread,
};

/// A cell with loom's interface.
#[cfg(not(loom))]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Gives a pointer to read from.
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Gives a pointer to write to.
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

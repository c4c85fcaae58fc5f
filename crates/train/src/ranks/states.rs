//! Numbers of a program's states, where the host can see them.

use crate::{Error, Result};
use gradus_engine::Program;
use std::borrow::Cow;

/// The numbers of a state.
pub(super) fn numbers_of<'p>(program: &'p Program, state: &str) -> Result<&'p [f32]> {
    match program.bytes(state)? {
        Cow::Borrowed(bytes) => Ok(bytemuck::cast_slice(bytes)),
        Cow::Owned(_) => {
            Err(Error::Config("lanes are compressed where the host can see them; take `settings.device` cpu".into()))
        }
    }
}

/// Changes the numbers of a state.
pub(super) fn with_numbers(program: &mut Program, state: &str, change: impl FnOnce(&mut [f32])) -> Result<()> {
    program.fill(state, |bytes| {
        change(bytemuck::cast_slice_mut(bytes));
        Ok(())
    })
}

/// Writes some numbers of a state, from this one on.
pub(super) fn copy_from(program: &mut Program, state: &str, first: usize, numbers: &[f32]) -> Result<()> {
    with_numbers(program, state, |all| all[first..first + numbers.len()].copy_from_slice(numbers))
}

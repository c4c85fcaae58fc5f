//! From when to when each buffer of a routine is needed: for reports, and for pictures of the arena.

use super::{BufferId, Plan};
use std::collections::BTreeMap;

/// When a buffer is needed, by the numbers of a routine's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Which buffer.
    pub buffer: BufferId,
    /// The step that writes it.
    pub first: usize,
    /// The last step that reads it, or the last of all if the caller does.
    pub last: usize,
}

impl Plan {
    /// The lifetimes of everything that a routine makes, scratch included, in the order of the steps.
    pub fn lifetimes(&self, routine: usize) -> Vec<Lifetime> {
        let routine = &self.routines[routine];
        let mut found: BTreeMap<BufferId, Lifetime> = BTreeMap::new();
        for (at, step) in routine.steps.iter().enumerate() {
            for buffer in step.outputs.iter().map(|output| output.buffer).chain(step.scratch) {
                found.entry(buffer).or_insert(Lifetime { buffer, first: at, last: at }).last = at;
            }
            for input in &step.inputs {
                if let Some(lifetime) = found.get_mut(&input.buffer) {
                    lifetime.last = at;
                }
            }
        }
        let given = routine.outputs.iter().map(|(_, output)| output.buffer);
        for buffer in given.chain(routine.assigns.iter().map(|&(_, new)| new)) {
            if let Some(lifetime) = found.get_mut(&buffer) {
                lifetime.last = routine.steps.len().saturating_sub(1);
            }
        }
        let mut lifetimes: Vec<Lifetime> = found.into_values().collect();
        lifetimes.sort_by_key(|lifetime| lifetime.first);
        lifetimes
    }
}

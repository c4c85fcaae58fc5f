//! Which results are made again where the gradient needs them, instead of being kept from the forward pass.
//!
//! A result that is not kept is *evicted*: after the forward pass its bytes are free, and before the first step of
//! the gradient that reads it, the step that made it occurs a second time. The same operation on the same operands
//! gives the same bits, so no choice made here changes a number.

mod flow;
mod ladder;

pub(super) use ladder::Rung;

use super::schedule::Scheduled;
use super::{Buffer, BufferId, Machine, PlannedRoutine, Step};
use crate::Result;
use crate::ops::Effect;
use flow::Flow;
use ladder::Ladder;

/// The ways to carry a routine out, from the fastest to the smallest.
pub(super) struct Ways {
    routine: PlannedRoutine,
    flow: Flow,
    ladder: Ladder,
}

/// A routine in one of its ways.
pub(super) struct Recomputed(pub PlannedRoutine);

impl Ways {
    /// The ways that a policy allows.
    pub fn of(
        Scheduled { routine, .. }: Scheduled,
        buffers: &[Buffer],
        machine: &dyn Machine,
        policy: Recompute,
    ) -> Result<Ways> {
        let flow = Flow::of(&routine, buffers, machine)?;
        let mut evicted = checkpointed(&flow, &routine.steps);
        let ladder = match policy {
            Recompute::Auto => Ladder::climb(&flow, evicted),
            _ => {
                evicted.extend(evicted_by(policy, &flow, &routine.steps));
                // A policy may name what is checkpointed once more.
                evicted.sort_unstable();
                evicted.dedup();
                Ladder::fixed(&flow, evicted)
            }
        };
        Ok(Ways { routine, flow, ladder })
    }

    /// The ways, from the fastest to the smallest.
    pub fn rungs(&self) -> &[Rung] {
        self.ladder.rungs()
    }

    /// How often the routine is replayed in a training step.
    pub fn times_per_step(&self) -> usize {
        self.routine.times_per_step
    }

    /// Whether nothing of other routines may lie over its transients.
    pub fn is_apart(&self) -> bool {
        self.routine.apart
    }

    /// The routine in the way of a rung, over buffers that grow by what is made twice.
    pub fn at(&self, rung: &Rung, buffers: &mut Vec<Buffer>) -> Recomputed {
        Recomputed(self.flow.apply(&self.routine, &self.ladder.evicted(&self.flow, rung), buffers))
    }
}

/// How it is chosen what to keep for the gradient and what to compute again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recompute {
    /// Everything is kept.
    #[default]
    None,
    /// Only what enters every so many layers is kept; what is inside is computed again. Layers are those that the
    /// trace was told of ([`crate::Trace::in_layer`]).
    Block {
        /// Layers computed again together.
        every: usize,
    },
    /// What takes at most so many operations for each byte is computed again.
    Selective {
        /// The limit.
        operations_per_byte: u64,
    },
    /// As little as possible is computed again for the plan to fit its limit.
    Auto,
}

/// What a policy that needs no limit evicts.
fn evicted_by(policy: Recompute, flow: &Flow, steps: &[Step]) -> Vec<BufferId> {
    let candidates = flow.candidates();
    match policy {
        Recompute::None | Recompute::Auto => vec![],
        Recompute::Block { every } => {
            let kept = entering_blocks(steps, every.max(1));
            let in_layer = |id: BufferId| flow.writer(id).is_some_and(|step| steps[step].part.layer.is_some());
            candidates.filter(|&id| in_layer(id) && !kept.contains(&id)).collect()
        }
        Recompute::Selective { operations_per_byte } => candidates
            .filter(|&id| flow.operations_to_remake(id) <= operations_per_byte.saturating_mul(flow.bytes(id)))
            .collect(),
    }
}

/// What the trace asked to be made again, whatever the policy: all that is made inside of a checkpointed part and that
/// the forward pass reads nowhere else.
fn checkpointed(flow: &Flow, steps: &[Step]) -> Vec<BufferId> {
    let mut evicted = vec![];
    let is_inside =
        |step: &&Step| step.part.checkpoint.is_some() && !step.part.backward && step.effect() != Effect::Collective;
    for step in steps.iter().filter(is_inside) {
        let inside = step.outputs.iter().map(|output| output.buffer);
        evicted.extend(inside.filter(|&buffer| flow.may_be_evicted(buffer)));
    }
    for reader in steps.iter().filter(|step| !step.part.backward) {
        let checkpoint = |id: BufferId| flow.writer(id).and_then(|step| steps[step].part.checkpoint);
        evicted.retain(|&id| {
            checkpoint(id) == reader.part.checkpoint || reader.inputs.iter().all(|input| input.buffer != id)
        });
    }
    evicted
}

/// What the first of every so many layers reads of the layer before it.
fn entering_blocks(steps: &[Step], every: usize) -> Vec<BufferId> {
    let forward = || steps.iter().filter(|step| !step.part.backward);
    let mut layer_of = std::collections::HashMap::new();
    for step in forward() {
        layer_of.extend(step.outputs.iter().map(|output| (output.buffer, step.part.layer)));
    }
    let mut entering = vec![];
    for step in forward() {
        let first_of_block = step.part.layer.is_none_or(|layer| layer.is_multiple_of(every));
        for input in step.inputs.iter().filter(|_| first_of_block) {
            if layer_of.get(&input.buffer).is_some_and(|layer| *layer != step.part.layer) {
                entering.push(input.buffer);
            }
        }
    }
    entering
}

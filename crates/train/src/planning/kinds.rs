//! What the bytes of an arena are for.

use crate::memory::{Kind, Outside};
use gradus_engine::Role;
use gradus_engine::ops::Form;
use gradus_engine::plan::{Buffer, BufferId, BufferKind, Plan};
use std::collections::HashSet;

/// Bytes of an arena by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaBytes {
    /// The model.
    pub weights: usize,
    /// Gradients, summed over micro-batches or waiting for the update.
    pub gradients: usize,
    /// What the optimizer remembers.
    pub optimizer: usize,
    /// Results between the forward pass and the gradient, and whatever else is alive where most is.
    pub activations: usize,
    /// What kernels need beside operands and results.
    pub scratch: usize,
    /// The batch.
    pub data: usize,
}

impl ArenaBytes {
    /// Each kind and its bytes, with what lies outside of the arena.
    pub fn by_kind(&self, outside: Outside) -> [(Kind, u64); 7] {
        [
            (Kind::Weights, self.weights as u64),
            (Kind::Gradients, self.gradients as u64),
            (Kind::Optimizer, self.optimizer as u64),
            (Kind::Activations, self.activations as u64),
            (Kind::Scratch, self.scratch as u64),
            (Kind::Data, self.data as u64 + outside.data),
            (Kind::Runtime, outside.runtime),
        ]
    }

    /// What an arena's bytes are for, at the place where most of them are used.
    pub fn of(plan: &Plan) -> ArenaBytes {
        let kinds = Kinds::of(plan);
        let mut bytes = ArenaBytes { scratch: plan.regions.workers, ..ArenaBytes::default() };
        for (id, buffer) in plan.buffers.iter().enumerate().filter(|(_, buffer)| buffer.kind.is_persistent()) {
            let size = buffer.bytes().next_multiple_of(plan.alignment);
            match kinds.kind(id) {
                Kind::Weights => bytes.weights += size,
                Kind::Gradients => bytes.gradients += size,
                Kind::Optimizer => bytes.optimizer += size,
                Kind::Data => bytes.data += size,
                _ => bytes.activations += size,
            }
        }
        let (gradients, scratch) = at_the_peak(plan, &kinds);
        bytes.gradients += gradients;
        bytes.scratch += scratch;
        bytes.activations += plan.regions.transients.saturating_sub(gradients + scratch);
        bytes
    }
}

/// The kind of every buffer in the plan of a step.
pub struct Kinds {
    of_buffer: Vec<Kind>,
}

impl Kinds {
    /// Finds the kinds of a plan's buffers.
    pub fn of(plan: &Plan) -> Kinds {
        let gradients = read_by_updates(plan);
        let kind = |(id, buffer): (BufferId, &Buffer)| match &buffer.kind {
            BufferKind::State(state) => match state.role {
                Role::Weight => Kind::Weights,
                Role::Gradient => Kind::Gradients,
                Role::Optimizer | Role::Statistics => Kind::Optimizer,
                Role::Cache => Kind::Activations,
            },
            BufferKind::Input(_) => Kind::Data,
            BufferKind::Scratch => Kind::Scratch,
            BufferKind::Transient if gradients.contains(&id) => Kind::Gradients,
            BufferKind::Transient | BufferKind::Constant(_) => Kind::Activations,
        };
        Kinds { of_buffer: plan.buffers.iter().enumerate().map(kind).collect() }
    }

    /// The kind of a buffer.
    pub fn kind(&self, buffer: BufferId) -> Kind {
        self.of_buffer[buffer]
    }
}

/// Gradients and scratch, in bytes, at the step where most transients are alive, over all routines.
fn at_the_peak(plan: &Plan, kinds: &Kinds) -> (usize, usize) {
    // What a routine assigns lies in the bytes of the states.
    let start = plan.regions.states + plan.regions.inputs + plan.regions.constants;
    let mut highest = (0, (0, 0));
    for (index, routine) in plan.routines.iter().enumerate() {
        // By step: bytes alive in all, of gradients, of scratch.
        let mut alive = vec![[0usize; 3]; routine.steps.len()];
        for lifetime in plan.lifetimes(index) {
            let buffer = &plan.buffers[lifetime.buffer];
            if buffer.offset < start {
                continue;
            }
            let kind = kinds.kind(lifetime.buffer);
            for here in &mut alive[lifetime.first..=lifetime.last] {
                here[0] += buffer.bytes();
                here[1] += if kind == Kind::Gradients { buffer.bytes() } else { 0 };
                here[2] += if kind == Kind::Scratch { buffer.bytes() } else { 0 };
            }
        }
        for [all, of_gradients, of_scratch] in alive {
            if all > highest.0 {
                highest = (all, (of_gradients, of_scratch));
            }
        }
    }
    highest.1
}

/// Transients that an update reads as its gradient.
fn read_by_updates(plan: &Plan) -> HashSet<BufferId> {
    let steps = plan.routines.iter().flat_map(|routine| &routine.steps);
    let read = steps.filter_map(|step| match step.op.form() {
        Form::Update { gradient } => Some(step.inputs[gradient].buffer),
        _ => None,
    });
    read.filter(|&id| matches!(plan.buffers[id].kind, BufferKind::Transient)).collect()
}

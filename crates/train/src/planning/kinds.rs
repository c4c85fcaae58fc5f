//! What the bytes of an arena are for.

use crate::memory::Kind;
use crate::models::Parameter;
use crate::step::{StepConfig, TrainingStep};
use gradus_engine::ops::OpKind;
use gradus_engine::plan::{BufferId, BufferKind, Plan};
use std::collections::HashSet;

/// Bytes of an arena by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaBytes {
    /// The model.
    pub weights: usize,
    /// Gradients, summed over micro-batches or waiting for the update.
    pub gradients: usize,
    /// What the optimiser remembers.
    pub optimiser: usize,
    /// Results between the forward pass and the gradient, and whatever else is alive where most is.
    pub activations: usize,
    /// What kernels need beside operands and results.
    pub scratch: usize,
    /// The batch.
    pub data: usize,
}

impl ArenaBytes {
    /// What an arena's bytes are for, at the place where most of them are used.
    pub fn of(plan: &Plan, config: &StepConfig) -> ArenaBytes {
        let names = Names::of(config);
        let mut bytes = ArenaBytes { scratch: plan.regions.workers, ..ArenaBytes::default() };
        for buffer in &plan.buffers {
            let size = buffer.bytes().next_multiple_of(plan.alignment);
            match &buffer.kind {
                BufferKind::State(name, _) => match names.kind(name) {
                    Kind::Weights => bytes.weights += size,
                    Kind::Gradients => bytes.gradients += size,
                    Kind::Optimiser => bytes.optimiser += size,
                    Kind::Activations => bytes.activations += size,
                    _ => bytes.activations += size,
                },
                BufferKind::Input(_) => bytes.data += size,
                BufferKind::Constant(_) => bytes.activations += size,
                BufferKind::Transient | BufferKind::Scratch => {}
            }
        }
        let (gradients, scratch) = at_the_peak(plan);
        bytes.gradients += gradients;
        bytes.scratch += scratch;
        bytes.activations += plan.regions.transients.saturating_sub(gradients + scratch);
        bytes
    }
}

/// The kind of a state by its name.
struct Names {
    parameters: HashSet<String>,
}

impl Names {
    fn of(config: &StepConfig) -> Names {
        Names { parameters: config.model.parameters().into_iter().map(|parameter: Parameter| parameter.name).collect() }
    }

    fn kind(&self, state: &str) -> Kind {
        match state {
            _ if self.parameters.contains(state) => Kind::Weights,
            _ if StepConfig::is_gradient(state) => Kind::Gradients,
            // Keys and values of a text that is being written.
            _ if !TrainingStep::outlasts_a_step(state) => Kind::Activations,
            _ => Kind::Optimiser,
        }
    }
}

/// The kind of a buffer in the plan of a step.
pub fn kind_of(plan: &Plan, config: &StepConfig, buffer: BufferId) -> Kind {
    match &plan.buffers[buffer].kind {
        BufferKind::State(name, _) => Names::of(config).kind(name),
        BufferKind::Input(_) => Kind::Data,
        BufferKind::Scratch => Kind::Scratch,
        BufferKind::Constant(_) => Kind::Activations,
        BufferKind::Transient if read_by_updates(plan).contains(&buffer) => Kind::Gradients,
        BufferKind::Transient => Kind::Activations,
    }
}

/// Gradients and scratch, in bytes, at the step where most transients are alive, over all routines.
fn at_the_peak(plan: &Plan) -> (usize, usize) {
    let gradients = read_by_updates(plan);
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
            let is_scratch = matches!(buffer.kind, BufferKind::Scratch);
            for here in &mut alive[lifetime.first..=lifetime.last] {
                here[0] += buffer.bytes();
                here[1] += if gradients.contains(&lifetime.buffer) { buffer.bytes() } else { 0 };
                here[2] += if is_scratch { buffer.bytes() } else { 0 };
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

/// Transients that an update reads.
fn read_by_updates(plan: &Plan) -> HashSet<BufferId> {
    let steps = plan.routines.iter().flat_map(|routine| &routine.steps);
    let updates = steps.filter(|step| matches!(step.op.kind(), OpKind::AdamW | OpKind::Sgd | OpKind::Lion));
    let read = updates.flat_map(|step| step.inputs.iter().map(|input| input.buffer));
    read.filter(|&id| matches!(plan.buffers[id].kind, BufferKind::Transient)).collect()
}

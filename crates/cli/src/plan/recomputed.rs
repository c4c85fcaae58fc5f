//! What a plan computes a second time rather than keep.

use gradus_engine::plan::{Plan, PlannedRoutine};
use gradus_train::planning::Chosen;
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};

/// An operation of a layer that is computed again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Recomputed {
    /// The layer, from 0; none for what belongs to no layer.
    pub layer: Option<usize>,
    /// The operation.
    pub operation: String,
    /// How many of them, in a pass over one micro-batch.
    pub count: usize,
    /// Bytes that are not kept from the forward pass for it.
    pub bytes: u64,
    /// Seconds that they add to a step over the whole batch.
    pub seconds: f64,
}

/// What is computed again, by layer and operation.
pub fn recomputed(chosen: &Chosen) -> Vec<Recomputed> {
    let Some(routine) = gradient_routine(&chosen.plan) else { return vec![] };
    let read: HashSet<usize> =
        routine.steps.iter().flat_map(|step| step.inputs.iter().map(|input| input.buffer)).collect();
    let mut found: BTreeMap<(Option<usize>, &str), Recomputed> = BTreeMap::new();
    for step in routine.steps.iter().filter(|step| step.again) {
        let operation = step.op.name();
        let layer = step.part.layer;
        let entry = found.entry((layer, operation)).or_insert_with(|| Recomputed {
            layer,
            operation: operation.to_string(),
            count: 0,
            bytes: 0,
            seconds: 0.0,
        });
        let remade = step.outputs.iter().map(|output| output.buffer).filter(|id| read.contains(id));
        entry.count += 1;
        entry.bytes += remade.map(|id| chosen.plan.buffers[id].bytes() as u64).sum::<u64>();
        // Every micro-batch is computed in the same way.
        entry.seconds += step.seconds * chosen.config.passes() as f64;
    }
    found.into_values().collect()
}

/// The routine that takes most of a step's time: all of it, or one micro-batch's part.
fn gradient_routine(plan: &Plan) -> Option<&PlannedRoutine> {
    plan.routines.iter().find(|routine| ["step", "accumulate"].contains(&&routine.name[..]))
}

//! Every buffer of a plan, and every step, in the form that the page draws: names and numbers in arrays, each text once.

use gradus_engine::graph::State;
use gradus_engine::plan::{BufferId, BufferKind, Plan};
use gradus_train::planning::{Chosen, Kind, Kinds};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// The arena and all routines.
#[derive(Serialize)]
pub struct Map {
    /// Where the transients begin, and how many bytes they span.
    start: usize,
    span: usize,
    /// Texts that others name by their place: operations, types, lines of code.
    texts: Vec<String>,
    /// What persists: name, kind, offset, bytes, type.
    persistent: Vec<(String, Kind, usize, usize, usize)>,
    routines: Vec<RoutineMap>,
    /// The routine with most bytes alive, which is shown first.
    largest: usize,
    /// The kinds, in the order in which they are told.
    kinds: [Kind; Kind::ALL.len()],
    /// By routine, in the order in which they ran: what the process held after each of its steps, when they first touched the
    /// memory.
    resident: Vec<(String, Vec<u64>)>,
}

#[derive(Serialize)]
struct RoutineMap {
    name: String,
    /// By step: operation, layer or -1, line of code, microseconds, whether it is in the gradient (1) and made again (2).
    steps: Vec<(usize, i64, usize, f64, u8)>,
    /// By buffer: offset, bytes, first and last step, kind, type, flags of [`Overlap`].
    buffers: Vec<(usize, usize, usize, usize, Kind, usize, u8)>,
}

/// How a buffer meets another one in place, at the step that reads the one and writes the other.
struct Overlap;

impl Overlap {
    /// It begins over an operand of its step.
    const BEGINS_OVER: u8 = 1;
    /// A result of its last step begins over it.
    const ENDS_UNDER: u8 = 2;
}

/// Texts, each once.
#[derive(Default)]
struct Texts {
    all: Vec<String>,
    places: HashMap<String, usize>,
}

impl Texts {
    fn index(&mut self, text: String) -> usize {
        *self.places.entry(text).or_insert_with_key(|text| {
            self.all.push(text.clone());
            self.all.len() - 1
        })
    }
}

impl Map {
    /// The map of a planned step.
    pub fn of(chosen: &Chosen) -> Map {
        let plan = &chosen.plan;
        let kinds = Kinds::of(plan);
        let mut texts = Texts::default();
        let persistent = (0..plan.buffers.len())
            .filter(|&id| plan.buffers[id].kind.is_persistent())
            .map(|id| {
                let buffer = &plan.buffers[id];
                let ty = texts.index(buffer.ty.to_string());
                (name(&buffer.kind), kinds.kind(id), buffer.offset, buffer.bytes(), ty)
            })
            .collect();
        let routines: Vec<RoutineMap> =
            (0..plan.routines.len()).map(|index| RoutineMap::of(plan, &kinds, index, &mut texts)).collect();
        let start = plan.regions.states + plan.regions.inputs + plan.regions.constants;
        let highest = |routine: &RoutineMap| routine.buffers.iter().map(|buffer| buffer.0 + buffer.1).max();
        // Of routines that reach as high, the one with most steps is that which trains.
        let largest = (0..routines.len()).max_by_key(|&at| (highest(&routines[at]), routines[at].steps.len()));
        let (span, largest) = (plan.regions.transients, largest.unwrap_or(0));
        let (kinds, resident) = (Kind::ALL, vec![]);
        Map { start, span, texts: texts.all, persistent, routines, largest, kinds, resident }
    }

    /// With what the process was measured to hold, by routine and step.
    pub fn measured(self, resident: &[(String, Vec<u64>)]) -> Map {
        Map { resident: resident.to_vec(), ..self }
    }
}

fn name(kind: &BufferKind) -> String {
    match kind {
        BufferKind::Input(name) | BufferKind::State(State { name, .. }) => name.to_string(),
        _ => "constant".to_string(),
    }
}

impl RoutineMap {
    fn of(plan: &Plan, kinds: &Kinds, index: usize, texts: &mut Texts) -> RoutineMap {
        let routine = &plan.routines[index];
        let steps = routine.steps.iter().map(|step| {
            let layer = step.part.layer.map_or(-1, |layer| layer as i64);
            let microseconds = (step.seconds * 1e7).round() / 10.0;
            let flags = step.part.backward as u8 | (step.again as u8) << 1;
            (
                texts.index(step.op.name().to_string()),
                layer,
                texts.index(step.location.to_string()),
                microseconds,
                flags,
            )
        });
        let steps = steps.collect();
        let lifetimes = plan.lifetimes(index);
        let last: HashMap<BufferId, usize> = lifetimes.iter().map(|life| (life.buffer, life.last)).collect();
        let (mut over, mut under) = (HashSet::new(), HashSet::new());
        for (at, step) in routine.steps.iter().enumerate() {
            let ending = step.inputs.iter().map(|input| input.buffer).filter(|id| last.get(id) == Some(&at));
            for input in ending {
                let offset = plan.buffers[input].offset;
                let above = step.outputs.iter().find(|output| plan.buffers[output.buffer].offset == offset);
                if let Some(output) = above {
                    over.insert(output.buffer);
                    under.insert(input);
                }
            }
        }
        let buffers = lifetimes.iter().map(|life| {
            let buffer = &plan.buffers[life.buffer];
            let begins = if over.contains(&life.buffer) { Overlap::BEGINS_OVER } else { 0 };
            let ends = if under.contains(&life.buffer) { Overlap::ENDS_UNDER } else { 0 };
            let (kind, ty) = (kinds.kind(life.buffer), texts.index(buffer.ty.to_string()));
            (buffer.offset, buffer.bytes(), life.first, life.last, kind, ty, begins | ends)
        });
        RoutineMap { name: routine.name.clone(), steps, buffers: buffers.collect() }
    }
}

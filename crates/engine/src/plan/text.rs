//! Plans as text, for people and for tests: a whole plan, or one routine between two stages.

use super::{Buffer, BufferKind, Operand, Parts, Plan, PlannedRoutine};
use crate::Layout;
use std::fmt;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Parts::fmt(self, f)
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let regions = &self.regions;
        writeln!(
            f,
            "arena {} bytes: states {}, inputs {}, constants {}, transients {}, workers {}",
            regions.total(),
            regions.states,
            regions.inputs,
            regions.constants,
            regions.transients,
            regions.workers
        )?;
        for (id, buffer) in self.buffers.iter().enumerate().filter(|(_, buffer)| buffer.kind.is_persistent()) {
            writeln!(f, "{} {}", name(id, buffer), address(buffer))?;
        }
        self.routines.iter().try_for_each(|routine| write!(f, "{}", RoutineText { routine, buffers: &self.buffers }))
    }
}

/// A routine with the buffers it names; those that have no offset yet are shown without.
pub(super) struct RoutineText<'a> {
    pub routine: &'a PlannedRoutine,
    pub buffers: &'a [Buffer],
}

impl fmt::Display for RoutineText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "routine {}", self.routine.name)?;
        for step in &self.routine.steps {
            let outputs: Vec<String> = step.outputs.iter().map(|output| self.result(output)).collect();
            let inputs: Vec<String> = step.inputs.iter().map(|input| self.operand(input)).collect();
            write!(f, "  {} = {}({})", outputs.join(", "), step.op.name(), inputs.join(", "))?;
            let attributes = step.op.attributes();
            if !attributes.is_empty() {
                write!(f, " {{{attributes}}}")?;
            }
            match step.scratch {
                Some(id) => writeln!(f, " scratch {}", address(&self.buffers[id]))?,
                None => writeln!(f)?,
            }
        }
        for (output, operand) in &self.routine.outputs {
            writeln!(f, "  output {output} = {}", self.operand(operand))?;
        }
        for &(state, new) in &self.routine.assigns {
            writeln!(f, "  assign {} = {}", name(state, &self.buffers[state]), name(new, &self.buffers[new]))?;
        }
        Ok(())
    }
}

impl RoutineText<'_> {
    fn result(&self, operand: &Operand) -> String {
        let buffer = &self.buffers[operand.buffer];
        format!("{} {}", name(operand.buffer, buffer), address(buffer))
    }

    fn operand(&self, operand: &Operand) -> String {
        let buffer = &self.buffers[operand.buffer];
        let name = name(operand.buffer, buffer);
        let Layout { shape, strides, offset } = &operand.layout;
        match operand.layout == Layout::dense(&buffer.ty.shape) {
            true => name,
            false => format!("{name}[{shape} by {strides:?} from {offset}]"),
        }
    }
}

fn name(id: usize, buffer: &Buffer) -> String {
    match &buffer.kind {
        BufferKind::Input(name) => format!("input:{name}"),
        BufferKind::State(state) => format!("state:{}", state.name),
        BufferKind::Constant(_) => format!("constant:{id}"),
        BufferKind::Transient => format!("b{id}"),
        BufferKind::Scratch => format!("scratch:{id}"),
    }
}

fn address(buffer: &Buffer) -> String {
    match buffer.offset {
        usize::MAX => buffer.ty.to_string(),
        offset => format!("{}@{offset}+{}", buffer.ty, buffer.bytes()),
    }
}

//! The CPU backend: jobs over one arena, shared out to a pool of threads.

#[macro_use]
mod linker;
mod executable;
mod slices;
mod speeds;

pub use linker::{LinkedOperand, Linker, Unsupported};

use super::{Backend, DeviceMemory, Executable};
use crate::ops::{Elementwise, Kernels, Lowering, Matmul, Operation, own_kernels};
use crate::plan::{Absorption, BufferId, FusionLimits, Machine, Operand, Plan, Reading, Scratch, Speeds, Step};
use crate::{DType, Error, Layout, Result};
use executable::CpuExecutable;
use gradus_kernels::{Fault, Isa, Pool};
use linker::ALIGNMENT;
use std::sync::Arc;

/// Products of at most so many rows are computed together with others of the same columns: packing these is some of the work.
const ROWS_THAT_SHARE_COLUMNS: usize = 512;

/// A CPU with a number of threads and an instruction set. Programs linked on one share its threads.
#[derive(Clone)]
pub struct Cpu {
    pool: Arc<Pool>,
    isa: Isa,
    speeds: Arc<Speeds>,
}

impl Cpu {
    /// More threads than any machine has cores.
    pub const MOST_THREADS: usize = 1024;

    /// This many threads, the caller's included, and the best instruction set there is.
    pub fn new(threads: usize) -> Result<Cpu> {
        Cpu::with_isa(threads, Isa::detect())
    }

    /// This many threads and a certain instruction set: for tests and comparisons.
    pub fn with_isa(threads: usize, isa: Isa) -> Result<Cpu> {
        if !(1..=Cpu::MOST_THREADS).contains(&threads) || !Isa::available().contains(&isa) {
            let what = format!("{threads} threads of {isa}");
            let reason =
                format!("1 to {} threads and an instruction set that this machine has are needed", Cpu::MOST_THREADS);
            return Err(Error::Machine { what, reason });
        }
        let refused =
            |reason: std::io::Error| Error::Machine { what: format!("{threads} threads"), reason: reason.to_string() };
        Ok(Cpu { pool: Arc::new(Pool::new(threads).map_err(refused)?), isa, speeds: Arc::default() })
    }

    /// Planned for by speeds that were measured, rather than by those of a usual machine.
    pub fn with_speeds(self, speeds: Speeds) -> Cpu {
        Cpu { speeds: Arc::new(speeds), ..self }
    }

    /// The instruction set that kernels are linked for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Links one step, its buffers at these addresses.
    fn link_step(&self, step: &Step, address: impl Fn(BufferId) -> *mut u8, fault: Option<Fault>) -> Result<Linked> {
        let operand = |operand: &Operand| LinkedOperand {
            dtype: operand.dtype,
            layout: operand.layout.clone(),
            buffer: address(operand.buffer),
        };
        let inputs: Vec<LinkedOperand> = step.inputs.iter().map(operand).collect();
        let outputs: Vec<LinkedOperand> = step.outputs.iter().map(operand).collect();
        let scratch = step.scratch.map_or(std::ptr::without_provenance_mut(ALIGNMENT), &address);
        if let Lowering::Slices(kernel) = step.op.lowering() {
            return slices::link(kernel, step, &inputs, &outputs);
        }
        let mut linker = Linker::new((self.isa, self.pool.threads()), &inputs, &outputs, scratch, fault);
        kernels(step.op.as_ref()).cpu(&mut linker).map_err(|Unsupported(dtype)| Error::Unsupported {
            backend: self.name(),
            op: step.op.name().to_string(),
            dtype,
            advice: "compute in f32, bf16 or f16, or use the reference backend",
            at: step.location,
        })?;
        Ok(linker.finish())
    }
}

/// The kernels of an operation that is a step.
fn kernels(op: &dyn Operation) -> &dyn Kernels {
    own_kernels(op).unwrap_or_else(|| panic!("{} has no kernels, or has kernels that are not its own", op.name()))
}

/// A linked step: its jobs and the scratch they share.
struct Linked {
    jobs: Vec<Box<dyn gradus_kernels::Job>>,
    scratch: usize,
    /// What its kernel said when it panicked, if that is a function from outside.
    panicked: Option<slices::Panicked>,
}

impl Linked {
    fn needs(&self) -> Scratch {
        let per_worker = self.jobs.iter().map(|job| job.worker_scratch()).max().unwrap_or(0);
        Scratch { shared: self.scratch, per_worker }
    }
}

impl Machine for Cpu {
    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn workers(&self) -> usize {
        self.pool.threads()
    }

    fn fusion(&self) -> FusionLimits {
        // A program's registers stay in the first-level cache, and its operands in the load ports' reach.
        FusionLimits { inputs: 10, instructions: 48 }
    }

    fn absorbs(&self, _product: &Matmul, _epilogue: &Elementwise) -> Absorption {
        Absorption::InPlace
    }

    fn gives_aside(&self, _product: &Matmul, _epilogue: &Elementwise, _aside: &Elementwise) -> bool {
        false
    }

    fn shares_columns(&self, _product: &Matmul, rows: usize) -> bool {
        rows <= ROWS_THAT_SHARE_COLUMNS
    }

    fn holds_logits(&self) -> bool {
        true
    }

    fn multiplies_tf32(&self) -> bool {
        false
    }

    fn takes_in(&self, _op: &dyn Operation) -> bool {
        false
    }

    fn reads(&self, op: &dyn Operation, input: usize, dtype: DType, layout: &Layout) -> Reading {
        let takes = match op.lowering() {
            Lowering::Slices(_) => layout.is_dense(),
            _ => kernels(op).takes(input, layout),
        };
        match takes {
            true => Reading::AsItLies,
            false => Reading::Copied(dtype),
        }
    }

    fn scratch(&self, step: &Step) -> Result<Scratch> {
        if let Lowering::Slices(kernel) = step.op.lowering() {
            return slices::checked_cut(kernel, step).map(|_| Scratch::default());
        }
        // Jobs are built to be asked, at addresses that nothing follows; nothing raises a fault meanwhile.
        let nowhere = |_| std::ptr::without_provenance_mut(ALIGNMENT);
        let fault = step.effect().check().map(|_| Fault::new(std::ptr::null(), 0));
        Ok(self.link_step(step, nowhere, fault)?.needs())
    }

    fn seconds(&self, step: &Step) -> f64 {
        speeds::seconds(step, self.isa, self.pool.threads()) * self.speeds.factor(step.op.name())
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn memory(&self) -> Result<Option<DeviceMemory>> {
        Ok(None)
    }

    fn link(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(CpuExecutable::link(self, plan)?))
    }
}

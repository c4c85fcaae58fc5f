//! The CUDA backend: commands over one arena on a device, captured as one graph a routine.

mod executable;
mod groups;
mod linker;
mod speeds;

pub use linker::CudaLinker;

use crate::backend::{Backend, DeviceMemory, Executable, Peers, Unsupported};
use crate::ops::{Elementwise, Form, Kernels, Lowering, Matmul, Operation, own_kernels};
use crate::plan::{Absorption, BufferId, FusionLimits, Machine, Plan, PlannedRoutine, Reading, Scratch, Speeds, Step};
use crate::{DType, Error, Layout, Result};
use executable::CudaExecutable;
use gradus_cuda::{Command, Device, Launch, Meeting};
use linker::{ALIGNMENT, Addresses, Linked};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// What the driver's context, the libraries and the kernels of a program take of the device, at most.
const CONTEXT_BYTES: u64 = 800 << 20;

/// A kind of GPU, as far as plans depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GpuKind {
    /// Its name.
    pub name: &'static str,
    /// Its multiprocessors.
    pub multiprocessors: usize,
    /// Its memory, in bytes.
    pub memory: usize,
    /// Bytes a second to and from memory, as measured by a copy.
    pub bandwidth: f64,
    /// Operations a second in products of 16-bit numbers, as measured.
    pub product_rate: f64,
}

impl GpuKind {
    /// NVIDIA H200, measured.
    pub const H200: GpuKind =
        GpuKind { name: "h200", multiprocessors: 132, memory: 143_771 << 20, bandwidth: 4.2e12, product_rate: 7.8e14 };

    /// The kinds that are known by name.
    pub const KNOWN: [GpuKind; 1] = [GpuKind::H200];

    /// The kind of a device: one that is not known is taken for one that is, with memory and multiprocessors of its own.
    fn of(device: &Device) -> GpuKind {
        GpuKind { multiprocessors: device.multiprocessors(), memory: device.memory(), ..GpuKind::H200 }
    }
}

impl FromStr for GpuKind {
    type Err = String;

    fn from_str(name: &str) -> Result<GpuKind, String> {
        let known = GpuKind::KNOWN.into_iter().find(|kind| kind.name.eq_ignore_ascii_case(name));
        let names = GpuKind::KNOWN.map(|kind| kind.name).join(", ");
        known.ok_or_else(|| format!("no kind of GPU that is known; give one of: {names}"))
    }
}

/// A machine with a CUDA device. Plans follow from its kind alone, so they are made for it anywhere.
#[derive(Clone)]
pub struct Cuda {
    kind: GpuKind,
    device: Option<Arc<Device>>,
    speeds: Arc<Speeds>,
}

impl Cuda {
    /// The device of this number, in the order that the driver gives.
    pub fn new(ordinal: usize) -> Result<Cuda> {
        let device = Device::new(ordinal)?;
        let kind = GpuKind::of(&device);
        Ok(Cuda { kind, device: Some(device), speeds: Arc::default() })
    }

    /// Planned for by speeds that were measured, rather than by those of its kind.
    pub fn with_speeds(self, speeds: Speeds) -> Cuda {
        Cuda { speeds: Arc::new(speeds), ..self }
    }

    /// A device of this kind that is not here: plans can be made for it, not run.
    pub fn of_kind(kind: GpuKind) -> Cuda {
        Cuda { kind, device: None, speeds: Arc::default() }
    }

    fn device(&self) -> Result<&Arc<Device>> {
        let what = format!("a device of the kind {}", self.kind.name);
        let reason = "it is only planned for, and is not here".to_string();
        self.device.as_ref().ok_or(Error::Machine { what, reason })
    }

    /// What a device would do to carry a plan out, with its arena at this address: routine by routine, step by step.
    pub fn commands(&self, plan: &Plan, arena: u64) -> Result<Vec<Vec<Vec<Command>>>> {
        let step = |(index, step): (usize, &Step)| Ok(self.link_planned(plan, step, index, arena)?.commands);
        let routine = |routine: &PlannedRoutine| routine.steps.iter().enumerate().map(step).collect();
        plan.routines.iter().map(routine).collect()
    }

    /// A step of a plan whose arena lies at this address. Faults are raised in the eight bytes behind it.
    fn link_planned(&self, plan: &Plan, step: &Step, index: usize, arena: u64) -> Result<Linked> {
        let address = |id: BufferId| arena + plan.buffers[id].offset as u64;
        let scratch = step.scratch.map_or(arena, address);
        let workspace = arena + (plan.regions.total() - plan.regions.workers) as u64;
        let fault = (arena + plan.regions.total() as u64, index as u32);
        self.link_step(step, address, Addresses { scratch, workspace, fault })
    }

    /// The commands of a step whose buffers lie at these addresses, and the scratch they need.
    fn link_step(&self, step: &Step, address: impl Fn(BufferId) -> u64, others: Addresses) -> Result<Linked> {
        let unsupported = |Unsupported(dtype): Unsupported| Error::Unsupported {
            backend: self.name(),
            op: step.op.name().to_string(),
            dtype,
            advice: "compute in f32, bf16 or f16, or use the reference backend",
            at: step.location,
        };
        let operands = |operands: &[crate::plan::Operand]| {
            let linked = operands.iter().map(|operand| linker::linked(operand, address(operand.buffer)));
            linked.collect::<Result<Vec<_>, _>>().map_err(unsupported)
        };
        let (inputs, outputs) = (operands(&step.inputs)?, operands(&step.outputs)?);
        let mut linker = CudaLinker::new(&inputs, &outputs, others);
        if let Lowering::Slices(_) = step.op.lowering() {
            let op = step.op.name().to_string();
            return Err(Error::NoKernel { backend: self.name(), op, at: step.location });
        }
        kernels(step.op.as_ref()).cuda(&mut linker).map_err(unsupported)?;
        let linked = linker.finish();
        match linked.commands.iter().filter_map(Command::launch).find_map(Launch::too_many_blocks) {
            None => Ok(linked),
            Some(blocks) => {
                let op = step.op.name().to_string();
                Err(Error::TooManyBlocks { backend: self.name(), op, blocks, at: step.location })
            }
        }
    }
}

/// The kernels of an operation that is a step.
fn kernels(op: &dyn Operation) -> &dyn Kernels {
    own_kernels(op).unwrap_or_else(|| panic!("{} has no kernels, or has kernels that are not its own", op.name()))
}

/// The product that an operation computes, if it is one.
fn product_of(op: &dyn Operation) -> Option<&Matmul> {
    match op.form() {
        Form::Product(product) => Some(product),
        Form::FusedProduct(fused) => Some(fused.product()),
        Form::Accumulation(accumulation) => product_of(accumulation.inner()),
        _ => None,
    }
}

impl Machine for Cuda {
    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    fn workers(&self) -> usize {
        // One workspace: commands run one after another.
        1
    }

    fn fusion(&self) -> FusionLimits {
        FusionLimits { inputs: 10, instructions: 48 }
    }

    fn absorbs(&self, product: &Matmul, epilogue: &Elementwise) -> Absorption {
        // The slope of GELU over the operand that it is taken at was seen to be wrong.
        if product.is_followed_on_cuda(epilogue) { Absorption::Apart } else { Absorption::No }
    }

    fn gives_aside(&self, product: &Matmul, epilogue: &Elementwise, aside: &Elementwise) -> bool {
        product.gives_aside_on_cuda(epilogue, aside)
    }

    fn shares_columns(&self, _product: &Matmul, _rows: usize) -> bool {
        false
    }

    fn holds_logits(&self) -> bool {
        false
    }

    fn multiplies_tf32(&self) -> bool {
        true
    }

    fn takes_in(&self, op: &dyn Operation) -> bool {
        match op.form() {
            Form::FusedProduct(fused) => fused.product().sums_columns_on_cuda(fused.epilogue()),
            _ => true,
        }
    }

    fn reads(&self, op: &dyn Operation, input: usize, dtype: DType, layout: &Layout) -> Reading {
        let wanted = product_of(op).and_then(|product| product.operand_type(input)).unwrap_or(dtype);
        let takes = match op.lowering() {
            Lowering::Slices(_) => layout.is_dense(),
            _ => {
                kernels(op).takes(input, layout)
                    && product_of(op).is_none_or(|product| product.is_read_by_cuda(input, layout))
            }
        };
        match takes {
            true if wanted == dtype => Reading::AsItLies,
            true => Reading::Converted(wanted),
            false => Reading::Copied(wanted),
        }
    }

    fn scratch(&self, step: &Step) -> Result<Scratch> {
        let nowhere = Addresses { scratch: 0, workspace: 0, fault: (0, 0) };
        Ok(self.link_step(step, |_| 0, nowhere)?.needs)
    }

    fn seconds(&self, step: &Step) -> f64 {
        speeds::seconds(step, &self.kind) * self.speeds.factor(step.op.name())
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn memory(&self) -> Result<Option<DeviceMemory>> {
        let available = match &self.device {
            // The context is there already, and kernels are still to come.
            Some(device) => (device.free_memory()? as u64 + CONTEXT_BYTES / 2).min(self.kind.memory as u64),
            None => self.kind.memory as u64,
        };
        Ok(Some(DeviceMemory { available, besides: CONTEXT_BYTES }))
    }

    fn link(&self, plan: &Plan) -> Result<Box<dyn Executable>> {
        Ok(Box::new(CudaExecutable::link(self, self.device()?, plan)?))
    }

    fn meeting_point(&self) -> Result<Vec<u8>> {
        Ok(gradus_cuda::Peers::meeting_point()?)
    }

    fn connect(&self, rank: usize, ranks: usize, meeting_point: &[u8]) -> Result<Box<dyn Peers>> {
        let device = self.device()?;
        Ok(Box::new(gradus_cuda::Peers::connect(device, rank, ranks, meeting_point)?))
    }
}

impl Peers for gradus_cuda::Peers {
    fn room(&mut self, numbers: usize) -> Result<u64> {
        Ok(self.room(numbers)?)
    }

    unsafe fn prepare(&mut self, number: usize, meetings: Vec<Meeting>) -> Result<()> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.prepare(number, meetings) }?)
    }

    fn meet(&mut self, number: usize) -> Result<()> {
        Ok(self.meet(number)?)
    }

    fn wait(&mut self, patience: Duration) -> Result<()> {
        Ok(self.wait(patience)?)
    }
}

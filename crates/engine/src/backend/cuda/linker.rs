//! Linking for CUDA: an operation turns its operands' addresses into commands.

use crate::DType;
use crate::backend::Unsupported;
use crate::plan::{Operand, Scratch};
use gradus_cuda::{self as device, Command, Element, Launch, Product, ReduceOptions, Source};

/// Offsets inside an arena are multiples of this: what the library's fastest products and the copy engine ask for.
pub(super) const ALIGNMENT: usize = 256;

/// Scratch that the library of products may use: with it, it can share out the depth of a product whose result has few tiles.
/// It lies at the same place for all of them, so that it need not be planned for each.
const WORKSPACE: usize = 32 << 20;

/// What an operation sees while it is linked for CUDA.
///
/// As on the CPU, each operation is linked twice: once to measure, at addresses that nothing follows, and once with the
/// real ones. So a kernel states its scratch in one place only.
pub struct CudaLinker<'a> {
    inputs: &'a [device::Operand],
    outputs: &'a [device::Operand],
    addresses: Addresses,
    scratch_used: usize,
    workspace_used: usize,
    /// The results whose sums go on from what is there.
    accumulated: Vec<usize>,
    commands: Vec<Command>,
}

/// Where a step finds what is not an operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// The shared scratch of the step.
    pub scratch: u64,
    /// Scratch of the products.
    pub workspace: u64,
    /// Where faults are raised, and the number of the step.
    pub fault: (u64, u32),
}

/// What became of a step.
pub(super) struct Linked {
    pub commands: Vec<Command>,
    pub needs: Scratch,
}

impl<'a> CudaLinker<'a> {
    pub(super) fn new(
        inputs: &'a [device::Operand],
        outputs: &'a [device::Operand],
        addresses: Addresses,
    ) -> CudaLinker<'a> {
        CudaLinker {
            inputs,
            outputs,
            addresses,
            scratch_used: 0,
            workspace_used: 0,
            accumulated: vec![],
            commands: vec![],
        }
    }

    pub(super) fn finish(self) -> Linked {
        let needs = Scratch { shared: self.scratch_used, per_worker: self.workspace_used };
        Linked { commands: self.commands, needs }
    }
}

impl CudaLinker<'_> {
    /// An operand.
    pub fn input(&self, index: usize) -> device::Operand {
        self.inputs[index].clone()
    }

    /// How many operands there are.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// A result. It is dense.
    pub fn output(&self, index: usize) -> device::Operand {
        self.outputs[index].clone()
    }

    /// Whether the sums that a result holds go on from what is there already, instead of from zero.
    pub fn accumulates(&self, output: usize) -> bool {
        self.accumulated.contains(&output)
    }

    /// Lets the sums of these results go on from what is there when the commands that follow run.
    pub(crate) fn let_accumulate(&mut self, outputs: &[usize]) {
        self.accumulated = outputs.to_vec();
    }

    /// The kernel with two more things to use: the parameter `u64 *fault` and the constant `FAULT_STEP`, for `raise_fault`.
    /// The detail is the index that is out of range, or the place of the number that is not finite. What was raised keeps
    /// states from being written, but the kernel itself must not follow an index that is out of range.
    pub fn with_fault(&self, source: Source) -> Source {
        self.faulting()(source)
    }

    /// [`CudaLinker::with_fault`] as a function of its own.
    pub fn faulting(&self) -> impl Fn(Source) -> Source + use<> {
        let (cell, step) = self.addresses.fault;
        move |source| source.address(cell).constant("FAULT_STEP", format_args!("{step}u"))
    }

    /// The address of scratch of this operation, for partial results between its commands; not zeroed.
    pub fn scratch(&mut self, bytes: usize) -> u64 {
        let start = self.scratch_used;
        self.scratch_used += bytes.next_multiple_of(ALIGNMENT);
        self.addresses.scratch + start as u64
    }

    /// Scratch as a dense operand.
    pub fn scratch_operand(&mut self, element: Element, shape: &[usize]) -> device::Operand {
        let address = self.scratch(shape.iter().product::<usize>() * element.size());
        device::Operand::dense(element, shape, address)
    }

    /// Runs a kernel, after what was added before. One of no blocks is left out.
    pub fn launch(&mut self, launch: Launch) {
        if launch.grid.iter().all(|&blocks| blocks > 0) {
            self.commands.push(Command::Launch(launch));
        }
    }

    /// Reduces an operand, or scratch, over these axes to a dense one.
    pub fn reduce(&mut self, x: &device::Operand, axes: &[usize], y: &device::Operand, options: ReduceOptions) {
        for launch in device::reduce(x, axes, y, options, |bytes| self.scratch(bytes)) {
            self.launch(launch);
        }
    }

    /// Adds a product, with scratch for the library.
    pub fn product(&mut self, product: Product) {
        self.workspace_used = WORKSPACE;
        let workspace = (self.addresses.workspace, WORKSPACE);
        self.commands.push(Command::Product(Product { workspace, ..product }));
    }

    /// Sets bytes to zero.
    pub fn zero(&mut self, address: u64, bytes: usize) {
        if bytes > 0 {
            self.commands.push(Command::Zero { address, bytes });
        }
    }
}

/// An operand whose buffer lies at this address.
pub(super) fn linked(operand: &Operand, buffer: u64) -> Result<device::Operand, Unsupported> {
    let address = buffer + (operand.layout.offset * operand.dtype.size()) as u64;
    let (shape, strides) = (operand.layout.shape.to_vec(), operand.layout.strides.clone());
    Ok(device::Operand { element: element(operand.dtype)?, shape, strides, address })
}

/// The element type on the device.
pub(crate) fn element(dtype: DType) -> Result<Element, Unsupported> {
    Ok(match dtype {
        DType::F32 => Element::F32,
        DType::Bf16 => Element::Bf16,
        DType::F16 => Element::F16,
        DType::I32 => Element::I32,
        DType::U32 => Element::U32,
        DType::F64 => return Err(Unsupported(DType::F64)),
    })
}

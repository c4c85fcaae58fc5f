//! Linking on the CPU: an operation turns its operands' addresses into jobs.

use super::Linked;
use crate::DType;
use crate::dtype::Native;
use crate::shape::Layout;
use gradus_kernels::{Fault, In, Isa, Job, Out};
use std::ops::Range;

/// Offsets inside an arena are multiples of this: a cache line, and the widest vector.
pub(crate) const ALIGNMENT: usize = 64;

/// An element type that an operation's kernels do not compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsupported(pub DType);

/// Where an operand lies and how.
#[derive(Clone, Debug)]
pub struct LinkedOperand {
    /// The element type.
    pub dtype: DType,
    /// Where the elements lie, counted from the buffer's first.
    pub layout: Layout,
    pub(crate) buffer: *mut u8,
}

impl LinkedOperand {
    /// The elements to read, from the layout's first to its last.
    pub fn read<T: Native>(&self) -> In<T> {
        assert_eq!(T::DTYPE, self.dtype, "an operand read as another type");
        In::new(self.first::<T>(), self.layout.end().saturating_sub(self.layout.offset))
    }

    /// The elements to write. Results are dense.
    pub fn write<T: Native>(&self) -> Out<T> {
        assert_eq!(T::DTYPE, self.dtype, "a result written as another type");
        Out::new(self.first::<T>(), self.layout.shape.elements())
    }

    /// The elements to read as plain bits of their size, for kernels that only move them.
    pub fn bits<T: bytemuck::Pod>(&self) -> In<T> {
        assert_eq!(size_of::<T>(), self.dtype.size(), "an operand moved in another size");
        In::new(self.first::<T>(), self.layout.end().saturating_sub(self.layout.offset))
    }

    /// The elements to write as plain bits of their size.
    pub fn bits_mut<T: bytemuck::Pod>(&self) -> Out<T> {
        assert_eq!(size_of::<T>(), self.dtype.size(), "a result moved in another size");
        Out::new(self.first::<T>(), self.layout.shape.elements())
    }

    /// The bytes of an operand that lies densely, to be read.
    pub(super) fn bytes(&self) -> In<u8> {
        let first = self.buffer.wrapping_add(self.layout.offset * self.dtype.size());
        In::new(first, self.layout.shape.elements() * self.dtype.size())
    }

    /// The bytes of a result, to be written.
    pub(super) fn bytes_mut(&self) -> Out<u8> {
        let bytes = self.bytes();
        Out::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// The sizes of the axes.
    pub fn shape(&self) -> &crate::Shape {
        &self.layout.shape
    }

    fn first<T>(&self) -> *mut T {
        self.buffer.cast::<T>().wrapping_add(self.layout.offset)
    }
}

/// What an operation sees while it is linked.
///
/// Each operation is linked twice: once to measure, with addresses that nothing follows, so that the planner
/// learns the scratch it needs; and once with the real ones. So a kernel states its scratch in one place only.
pub struct Linker<'a> {
    isa: Isa,
    workers: usize,
    inputs: &'a [LinkedOperand],
    outputs: &'a [LinkedOperand],
    /// Where faults go, if the operation checks its data.
    fault: Option<Fault>,
    scratch: *mut u8,
    scratch_used: usize,
    /// The results whose sums go on from what is there.
    accumulated: Vec<usize>,
    jobs: Vec<Box<dyn Job>>,
}

impl<'a> Linker<'a> {
    pub(super) fn new(
        (isa, workers): (Isa, usize),
        inputs: &'a [LinkedOperand],
        outputs: &'a [LinkedOperand],
        scratch: *mut u8,
        fault: Option<Fault>,
    ) -> Linker<'a> {
        Linker { isa, workers, inputs, outputs, fault, scratch, scratch_used: 0, accumulated: vec![], jobs: vec![] }
    }

    pub(super) fn finish(self) -> Linked {
        Linked { jobs: self.jobs, scratch: self.scratch_used, panicked: None }
    }
}

impl Linker<'_> {
    /// The instruction set to link for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// How many threads will share out the jobs. A job may be cut by it only if no cut changes its bits.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// An operand.
    pub fn input(&self, index: usize) -> LinkedOperand {
        self.inputs[index].clone()
    }

    /// How many operands there are.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// A result.
    pub fn output(&self, index: usize) -> LinkedOperand {
        self.outputs[index].clone()
    }

    /// What one of several operations sees that are linked as one: these operands and results, in turn.
    pub(crate) fn part(&self, inputs: Range<usize>, outputs: Range<usize>) -> Linker<'_> {
        let machine = (self.isa, self.workers);
        Linker::new(machine, &self.inputs[inputs], &self.outputs[outputs], self.scratch, self.fault)
    }

    /// Whether the sums that a result holds go on from what is there already, instead of from zero.
    pub fn accumulates(&self, output: usize) -> bool {
        self.accumulated.contains(&output)
    }

    /// Lets the sums of these results go on from what is there when the jobs that follow run.
    pub(crate) fn let_accumulate(&mut self, outputs: &[usize]) {
        self.accumulated = outputs.to_vec();
    }

    /// Where the jobs report data that the operation's check does not let pass. The detail that they raise is the index
    /// that is out of range, or the place of the number that is not finite.
    pub fn fault(&self) -> Fault {
        self.fault.expect("an operation whose jobs raise faults says in `effect` what it looks for")
    }

    /// Scratch that all jobs of this operation share, for partial results between them; not zeroed.
    pub fn scratch<T>(&mut self, elements: usize) -> Out<T> {
        let start = self.scratch_used;
        self.scratch_used += (elements * size_of::<T>()).next_multiple_of(ALIGNMENT);
        Out::new(self.scratch.wrapping_add(start).cast(), elements)
    }

    /// Adds a job, to run after those added before it.
    pub fn job(&mut self, job: impl Job + 'static) {
        self.jobs.push(Box::new(job));
    }
}

/// Runs the block with `T` standing for the floating-point element type; other types are unsupported.
macro_rules! with_float {
    ($dtype:expr, $t:ident => $body:block) => {
        match $dtype {
            $crate::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::DType::Bf16 => {
                type $t = gradus_kernels::bf16;
                $body
            }
            $crate::DType::F16 => {
                type $t = gradus_kernels::f16;
                $body
            }
            other => return Err($crate::backend::Unsupported(other)),
        }
    };
}

/// Runs the block with `T` standing for an unsigned integer of the element's size, for kernels that only move bits.
macro_rules! with_bits {
    ($dtype:expr, $t:ident => $body:block) => {
        match $dtype.size() {
            8 => {
                type $t = u64;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u16;
                $body
            }
        }
    };
}

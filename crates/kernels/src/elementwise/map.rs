//! The job that runs a program on every element.

use super::program::{Compiled, Slot, Step, compile};
use super::{InputElements, OutputElements};
use crate::lanes::LANES;
use crate::strided::{Axis, Reader, Writer};
use crate::{In, Isa, Job, Out, chunk, parts_of};
use bytemuck::Pod;
use gradus_scalar::{Argument, ScalarProgram};
use std::ops::Range;

/// Elements of a block: a few registers of them fit the first cache.
const BLOCK: usize = 512;

/// Elements of a part.
const PART_ELEMENTS: usize = 32 * BLOCK;

/// Runs a program on every element.
pub struct Map {
    job: Box<dyn Job>,
}

impl Map {
    /// The program on operands with these strides over `shape`; the result is dense. It may lie over operands
    /// that are dense and of its own element size.
    pub fn new(
        isa: Isa,
        program: &ScalarProgram,
        sources: Vec<(InputElements, Vec<usize>)>,
        target: OutputElements,
        shape: &[usize],
    ) -> Map {
        if let (true, Argument::Input(index)) = (program.instructions.is_empty(), program.result) {
            let (source, strides) = &sources[index];
            if let Some(job) = copy(isa, *source, axes(shape, strides), target) {
                return Map { job };
            }
        }
        let sources: Vec<_> = sources.into_iter().map(Some).collect();
        Map { job: Box::new(Blocks::new(isa, program, &sources, (target, false), shape, BLOCK)) }
    }
}

impl Job for Map {
    fn parts(&self) -> usize {
        self.job.parts()
    }

    fn worker_scratch(&self) -> usize {
        self.job.worker_scratch()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        // SAFETY: the caller's promise.
        unsafe { self.job.run(part, scratch) }
    }
}

fn axes(shape: &[usize], strides: &[usize]) -> Vec<Axis> {
    shape.iter().zip(strides).map(|(&size, &stride)| Axis { size, stride }).collect()
}

/// The job that only moves bits, if the types are the same.
fn copy(isa: Isa, source: InputElements, axes: Vec<Axis>, target: OutputElements) -> Option<Box<dyn Job>> {
    fn job<T: Pod + Send + Sync>(isa: Isa, from: In<T>, axes: Vec<Axis>, to: Out<T>) -> Option<Box<dyn Job>> {
        // Where the target is the source itself, its bits are there already.
        let elements = if from.overlaps(&to) { 0 } else { to.len() };
        Some(Box::new(Copy { reader: Reader::verbatim(isa, from, axes), to, elements }))
    }
    match (source, target) {
        (InputElements::F32(from), OutputElements::F32(to)) => job(isa, from, axes, to),
        (InputElements::Bf16(from), OutputElements::Bf16(to)) => job(isa, from, axes, to),
        (InputElements::F16(from), OutputElements::F16(to)) => job(isa, from, axes, to),
        (InputElements::I32(from), OutputElements::I32(to)) => job(isa, from, axes, to),
        (InputElements::U32(from), OutputElements::U32(to)) => job(isa, from, axes, to),
        _ => None,
    }
}

/// A dense copy of an operand that the target does not lie over.
struct Copy<T> {
    reader: Reader<T>,
    to: Out<T>,
    elements: usize,
}

impl<T: Pod + Send + Sync> Job for Copy<T> {
    fn parts(&self) -> usize {
        parts_of(self.elements, PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        let range = chunk(part, PART_ELEMENTS, self.elements);
        // SAFETY: parts write disjoint ranges, and the operand is elsewhere.
        unsafe { self.reader.read(range.start, self.to.slice(range)) }
    }
}

/// An operand that the program uses.
enum Input {
    /// Read from memory.
    Stored {
        reader: Reader<f32>,
        /// The elements, where blocks of them can be read as they lie: dense f32 that the target does not lie over.
        direct: Option<In<f32>>,
        /// All its elements are one: its register is filled once for each part.
        constant: bool,
    },
    /// Handed in with each block, as f32.
    Given {
        /// It may lie where the target does, and is copied first.
        under_target: bool,
    },
}

impl Input {
    fn is_constant(&self) -> bool {
        matches!(self, Input::Stored { constant: true, .. })
    }
}

/// A program at the end of another kernel, which hands in one of the operands while it is still in the cache.
pub struct Epilogue {
    blocks: Blocks,
}

impl Epilogue {
    /// The program on operands with these strides over `shape`; `None` stands for the numbers handed in, at most
    /// `width` at a time, which may lie where the target does if `under_target`.
    pub fn new(
        isa: Isa,
        program: &ScalarProgram,
        sources: &[Option<(InputElements, Vec<usize>)>],
        (target, under_target): (OutputElements, bool),
        shape: &[usize],
        width: usize,
    ) -> Epilogue {
        Epilogue { blocks: Blocks::new(isa, program, sources, (target, under_target), shape, width) }
    }

    /// The same, with results written past the caches if they are large and lie over no operand: whoever runs it must
    /// fence.
    pub(crate) fn streaming(mut self) -> Epilogue {
        let blocks = &mut self.blocks;
        let over_operand = |input: &Input| match input {
            Input::Stored { reader, .. } => reader.overlaps(&blocks.target),
            Input::Given { .. } => false,
        };
        if blocks.target.should_stream() && !blocks.inputs.iter().any(over_operand) {
            blocks.direct_target = None;
            blocks.streams = true;
        }
        self
    }

    /// Numbers of scratch.
    pub fn scratch(&self) -> usize {
        self.blocks.registers * self.blocks.block
    }

    /// The bytes of the operands from which the elements from `start` on will be computed, where they lie together.
    pub(crate) fn operands(&self, start: usize, elements: usize) -> impl Iterator<Item = Range<*const u8>> {
        self.blocks.inputs.iter().filter_map(move |input| match input {
            Input::Stored { reader, constant: false, .. } => reader.dense_bytes(start, elements),
            _ => None,
        })
    }

    /// Makes the scratch ready for any number of runs.
    ///
    /// # Safety
    /// The operands must be alive and nothing may write them.
    pub unsafe fn prepare(&self, scratch: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.blocks.prepare(scratch) }
    }

    /// Computes the elements from `start` on, in the order of the shape, from the numbers handed in.
    ///
    /// # Safety
    /// The operands must be alive, and the target's elements this caller's alone; `given` must hold `length`
    /// numbers; the scratch must have been prepared.
    #[inline(always)]
    pub unsafe fn run(&self, start: usize, given: *const f32, length: usize, scratch: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe { self.blocks.run_block(Block::new(start, length, given, scratch.as_mut_ptr())) }
    }
}

/// A program on blocks. Every block's operands are in hand, read in place or copied to registers, before the
/// target's block is borrowed: so the target may lie over an operand, which is then copied.
struct Blocks {
    inputs: Vec<Input>,
    steps: Vec<Step>,
    result: Slot,
    /// Blocks filled with the program's constants.
    constants: Vec<f32>,
    target: Writer,
    /// The target, if blocks can be computed where they will lie.
    direct_target: Option<Out<f32>>,
    /// Whether blocks are written past the caches.
    streams: bool,
    registers: usize,
    block: usize,
    elements: usize,
}

impl Blocks {
    fn new(
        isa: Isa,
        program: &ScalarProgram,
        sources: &[Option<(InputElements, Vec<usize>)>],
        (target, under_target): (OutputElements, bool),
        shape: &[usize],
        block: usize,
    ) -> Blocks {
        let (writer, direct_target) = match target {
            OutputElements::F32(to) => (Writer::new(isa, to), Some(to)),
            OutputElements::Bf16(to) => (Writer::new(isa, to), None),
            OutputElements::F16(to) => (Writer::new(isa, to), None),
            OutputElements::I32(to) => (Writer::new(isa, to), None),
            OutputElements::U32(to) => (Writer::new(isa, to), None),
        };
        let elements: usize = shape.iter().product();
        let block = block.min(elements).next_multiple_of(LANES);
        let input = |source: &Option<(InputElements, Vec<usize>)>| match source {
            Some((source, strides)) => stored(isa, *source, axes(shape, strides), &writer),
            None => Input::Given { under_target },
        };
        let inputs: Vec<Input> = sources.iter().map(input).collect();
        let lasts: Vec<bool> = inputs.iter().map(Input::is_constant).collect();
        let Compiled { steps, result, sources: used, registers, constants } = compile(isa, program, &lasts);
        Blocks {
            inputs: inputs.into_iter().zip(used).filter_map(|(input, used)| used.map(|_| input)).collect(),
            steps,
            result,
            constants: constants.iter().flat_map(|&constant| std::iter::repeat_n(constant, block)).collect(),
            target: writer,
            direct_target,
            streams: false,
            registers,
            block,
            elements,
        }
    }

    /// Fills the registers of operands that are one number.
    ///
    /// # Safety
    /// The operands must be alive.
    unsafe fn prepare(&self, registers: &mut [f32]) {
        for (register, input) in registers.chunks_mut(self.block).zip(&self.inputs) {
            if let Input::Stored { reader, constant: true, .. } = input {
                // SAFETY: the operand is alive, by the caller's promise, and dense targets do not lie over it.
                unsafe { reader.read(0, register) };
            }
        }
    }

    /// Computes a block.
    ///
    /// # Safety
    /// As for [`Job::run`]; the block's registers must point at the scratch, and those of constant operands be filled.
    #[inline(always)]
    unsafe fn run_block(&self, block: Block) {
        // SAFETY: registers are disjoint blocks of the scratch, all of it initialized, and a step writes another
        // register than it reads. Borrows of operands that the target lies over end with the copy. The target's block
        // is this part's own.
        unsafe {
            self.load(&block);
            let Some((last, earlier)) = self.steps.split_last() else {
                return self.store(&block);
            };
            for step in earlier {
                self.compute(step, &block, self.register_mut(&block, step.to));
            }
            match &self.direct_target {
                Some(target) if block.is_whole() => {
                    self.compute(last, &block, target.slice(block.start..block.start + block.length));
                }
                _ => {
                    self.compute(last, &block, self.register_mut(&block, last.to));
                    self.store(&block);
                }
            }
        }
    }

    /// Copies the operands that are not read in place to their registers.
    #[inline(always)]
    unsafe fn load(&self, block: &Block) {
        for (index, input) in self.inputs.iter().enumerate() {
            // SAFETY: the caller's promise; the operands are alive, and hold a block.
            unsafe {
                let register = self.register_mut(block, index).get_unchecked_mut(..block.length);
                match input {
                    Input::Stored { constant: true, .. } => {}
                    Input::Stored { direct: Some(_), .. } | Input::Given { under_target: false }
                        if block.is_whole() => {}
                    Input::Stored { reader, .. } => reader.read(block.start, register),
                    Input::Given { .. } => {
                        register.copy_from_slice(std::slice::from_raw_parts(block.given, block.length));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn compute(&self, step: &Step, block: &Block, to: &mut [f32]) {
        let [x, y, z] = step.arguments;
        // SAFETY: the caller's promise.
        unsafe { (step.body)(to, self.place(x, block), self.place(y, block), self.place(z, block)) }
    }

    #[inline(always)]
    unsafe fn store(&self, block: &Block) {
        // SAFETY: the caller's promise; the result is at least as long as the block.
        unsafe {
            let result = self.place(self.result, block).get_unchecked(..block.length);
            match self.streams {
                true => self.target.stream(block.start, result),
                false => self.target.write(block.start, result),
            }
        }
    }

    /// The numbers at a place, whole vectors of them.
    #[inline(always)]
    unsafe fn place<'a>(&'a self, place: Slot, block: &Block) -> &'a [f32] {
        // SAFETY: the caller's promise. Operands are read in place where the block is whole, and so inside them, and
        // the target does not lie over them.
        unsafe {
            match place {
                Slot::Source(index) => match &self.inputs[index] {
                    Input::Stored { direct: Some(elements), .. } if block.is_whole() => {
                        elements.slice(block.start..block.start + block.length)
                    }
                    Input::Given { under_target: false } if block.is_whole() => {
                        std::slice::from_raw_parts(block.given, block.length)
                    }
                    _ => self.register(block, index),
                },
                Slot::Register(index) => self.register(block, index),
                Slot::Constant(index) => &self.constants[index * self.block..][..block.padded],
            }
        }
    }

    /// A register, to be read: whole vectors of numbers.
    #[inline(always)]
    unsafe fn register<'a>(&self, block: &Block, index: usize) -> &'a [f32] {
        // SAFETY: the scratch has so many registers, by the caller's promise, who writes none that is read.
        unsafe { std::slice::from_raw_parts(block.registers.add(index * self.block), block.padded) }
    }

    /// A register, to be written.
    #[inline(always)]
    unsafe fn register_mut<'a>(&self, block: &Block, index: usize) -> &'a mut [f32] {
        // SAFETY: the scratch has so many registers, by the caller's promise, who borrows this one nowhere else.
        unsafe { std::slice::from_raw_parts_mut(block.registers.add(index * self.block), block.padded) }
    }
}

/// Elements that are computed together.
struct Block {
    start: usize,
    length: usize,
    /// Instructions take whole vectors. What lies beyond a last, shorter block is computed in registers only.
    padded: usize,
    /// The numbers of the operand that is handed in, if there is one.
    given: *const f32,
    registers: *mut f32,
}

impl Block {
    #[inline(always)]
    fn new(start: usize, length: usize, given: *const f32, registers: *mut f32) -> Block {
        Block { start, length, padded: length.next_multiple_of(LANES), given, registers }
    }

    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.padded == self.length
    }
}

fn stored(isa: Isa, source: InputElements, axes: Vec<Axis>, target: &Writer) -> Input {
    let reader = match source {
        InputElements::F32(from) => Reader::widened(isa, from, axes),
        InputElements::Bf16(from) => Reader::widened(isa, from, axes),
        InputElements::F16(from) => Reader::widened(isa, from, axes),
        InputElements::I32(from) => Reader::widened(isa, from, axes),
        InputElements::U32(from) => Reader::widened(isa, from, axes),
    };
    let direct = match source {
        InputElements::F32(from) if reader.is_dense() && !reader.overlaps(target) => Some(from),
        _ => None,
    };
    let constant = reader.is_constant();
    Input::Stored { reader, direct, constant }
}

impl Job for Blocks {
    fn parts(&self) -> usize {
        parts_of(self.elements, PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        self.registers * self.block * size_of::<f32>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let registers: &mut [f32] = bytemuck::cast_slice_mut(&mut scratch[..self.worker_scratch()]);
        // SAFETY: the operands are alive, by the caller's promise.
        unsafe { self.prepare(registers) };
        let registers = registers.as_mut_ptr();
        let Range { start, end } = chunk(part, PART_ELEMENTS, self.elements);
        for start in (start..end).step_by(self.block) {
            let block = Block::new(start, self.block.min(end - start), std::ptr::null(), registers);
            // SAFETY: the caller's promise; parts are disjoint ranges of the target.
            unsafe { self.run_block(block) };
        }
    }
}

//! Reading and writing blocks of any element type as f32: what element-wise programs and reductions share.

use crate::isa::multiversion;
use crate::{Element, In, Isa, Out, streaming};
use bytemuck::Pod;
use std::marker::PhantomData;
use std::ops::Range;

/// An element of an operand, read as f32 and written from it. Unlike [`Element`] it may be an integer.
pub(crate) trait Scalar: Pod + Send + Sync + 'static {
    fn to_f32(self) -> f32;
    fn from_f32(value: f32) -> Self;
}

impl<T: Element> Scalar for T {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        Element::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> T {
        Element::from_f32(value)
    }
}

// Integers are cut towards zero and held at their limits; NaN becomes 0.
impl Scalar for i32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn from_f32(value: f32) -> i32 {
        value as i32
    }
}

impl Scalar for u32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self as f32
    }
    #[inline(always)]
    fn from_f32(value: f32) -> u32 {
        value as u32
    }
}

/// One axis of an operand: its size, and how far apart neighbours lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub size: usize,
    pub stride: usize,
}

/// Neighbouring axes that lie regularly are one axis; axes of size 1 are none.
pub(crate) fn joined(axes: impl IntoIterator<Item = Axis>) -> Vec<Axis> {
    let mut joined: Vec<Axis> = vec![];
    for axis in axes.into_iter().filter(|axis| axis.size != 1) {
        match joined.last_mut() {
            Some(last) if last.stride == axis.size * axis.stride => {
                *last = Axis { size: last.size * axis.size, stride: axis.stride };
            }
            _ => joined.push(axis),
        }
    }
    joined
}

/// Where the elements lie, counted in the order of the axes.
#[derive(Debug)]
struct Layout {
    /// All axes but the last two, outermost first.
    outer: Vec<Axis>,
    middle: Axis,
    inner: Axis,
}

impl Layout {
    fn new(axes: impl IntoIterator<Item = Axis>) -> Layout {
        let one = Axis { size: 1, stride: 0 };
        let mut outer = joined(axes);
        // A single element counts as dense.
        let inner = outer.pop().unwrap_or(Axis { size: 1, stride: 1 });
        let middle = outer.pop().unwrap_or(one);
        Layout { outer, middle, inner }
    }

    /// Whether all elements lie together.
    fn is_dense(&self) -> bool {
        self.inner.stride == 1 && self.middle.size == 1
    }

    /// Whether all elements are one.
    fn is_constant(&self) -> bool {
        self.inner.stride == 0 && self.middle.size == 1
    }

    /// The place of an element: the offset of its pair of inner axes, and its indices in them.
    #[inline(always)]
    fn locate(&self, position: usize) -> (usize, usize, usize) {
        if position < self.inner.size {
            return (0, 0, position);
        }
        let (mut row, column) = (position / self.inner.size, position % self.inner.size);
        if row < self.middle.size {
            return (0, row, column);
        }
        let middle = row % self.middle.size;
        row /= self.middle.size;
        let mut offset = 0;
        for axis in self.outer.iter().rev() {
            offset += row % axis.size * axis.stride;
            row /= axis.size;
        }
        (offset, middle, column)
    }

    /// Calls `run(offset, at, count)` for each stretch of `length` elements from `start` on that lies in one
    /// inner axis: `count` elements from `offset` on, a stride apart, are those from `at` on of the block.
    #[inline(always)]
    fn for_each_run(&self, start: usize, length: usize, mut run: impl FnMut(usize, usize, usize)) {
        let mut done = 0;
        while done < length {
            let (offset, first, mut column) = self.locate(start + done);
            for middle in first..self.middle.size {
                let count = (self.inner.size - column).min(length - done);
                run(offset + middle * self.middle.stride + column * self.inner.stride, done, count);
                column = 0;
                done += count;
                if done == length {
                    return;
                }
            }
        }
    }
}

/// How elements change on the way from an operand to a block.
pub(crate) trait Transfer: 'static {
    type From: Pod;
    type To: Pod;
    fn convert(from: Self::From) -> Self::To;
}

/// Elements become f32.
struct Widened<T>(PhantomData<T>);

impl<T: Scalar> Transfer for Widened<T> {
    type From = T;
    type To = f32;
    #[inline(always)]
    fn convert(from: T) -> f32 {
        from.to_f32()
    }
}

/// Elements keep their bits.
struct Verbatim<T>(PhantomData<T>);

impl<T: Pod> Transfer for Verbatim<T> {
    type From = T;
    type To = T;
    #[inline(always)]
    fn convert(from: T) -> T {
        from
    }
}

/// Bytes from which on a result is written past the caches. With results of 12 and 16 MB of a last-level cache of
/// 32 MB that others use too, products of large models took up to 20 % less time. One of 4096 x 1024 bf16, 8 MB, took 5
/// to 10 % more so, and a training step with such products no less.
const STREAM_FROM: usize = 10 << 20;

/// Reads an operand in the order of its axes, block by block.
pub(crate) struct Reader<To> {
    first: In<u8>,
    element_bytes: usize,
    layout: Layout,
    body: unsafe fn(*const u8, &Layout, usize, &mut [To]),
}

impl<T: Pod> Reader<T> {
    /// Reads the elements' bits.
    pub fn verbatim(isa: Isa, elements: In<T>, axes: impl IntoIterator<Item = Axis>) -> Reader<T> {
        Reader::of::<Verbatim<T>>(isa, elements.as_ptr().cast(), elements.len() * size_of::<T>(), axes)
    }
}

impl Reader<f32> {
    /// Reads the elements as f32.
    pub fn widened<T: Scalar>(isa: Isa, elements: In<T>, axes: impl IntoIterator<Item = Axis>) -> Reader<f32> {
        Reader::of::<Widened<T>>(isa, elements.as_ptr().cast(), elements.len() * size_of::<T>(), axes)
    }
}

impl<To: Pod> Reader<To> {
    fn of<X: Transfer<To = To>>(
        isa: Isa,
        first: *const u8,
        bytes: usize,
        axes: impl IntoIterator<Item = Axis>,
    ) -> Reader<To> {
        let (first, element_bytes) = (In::new(first, bytes), size_of::<X::From>());
        Reader { first, element_bytes, layout: Layout::new(axes), body: transfer::select::<X>(isa) }
    }

    /// Whether all elements lie together.
    pub fn is_dense(&self) -> bool {
        self.layout.is_dense()
    }

    /// Whether all elements are one.
    pub fn is_constant(&self) -> bool {
        self.layout.is_constant()
    }

    /// Whether some byte of the operand is also the target's.
    pub fn overlaps(&self, target: &Writer) -> bool {
        self.first.overlaps(&target.first)
    }

    /// The bytes of so many elements from `start` on, if all elements lie together.
    pub fn dense_bytes(&self, start: usize, elements: usize) -> Option<Range<*const u8>> {
        let first = self.first.as_ptr().wrapping_add(start * self.element_bytes);
        self.is_dense().then(|| first..first.wrapping_add(elements * self.element_bytes))
    }

    /// Fills `to` with the elements from `start` on.
    ///
    /// # Safety
    /// The operand must be alive and hold those elements, and nothing may write to them meanwhile.
    #[inline(always)]
    pub unsafe fn read(&self, start: usize, to: &mut [To]) {
        // SAFETY: the caller's promise; the machine has the level the reader was built for.
        unsafe { (self.body)(self.first.as_ptr(), &self.layout, start, to) }
    }
}

/// Reads blocks of f32, in place where they already lie as such.
pub(crate) struct BlockReader {
    reader: Reader<f32>,
    /// The elements are f32, and neighbours on the inner axis lie together.
    direct: bool,
}

impl BlockReader {
    pub fn new<T: Scalar>(isa: Isa, elements: In<T>, axes: impl IntoIterator<Item = Axis>) -> BlockReader {
        let reader = Reader::widened(isa, elements, axes);
        let direct = std::any::TypeId::of::<T>() == std::any::TypeId::of::<f32>() && reader.layout.inner.stride == 1;
        BlockReader { reader, direct }
    }

    /// `length` numbers from `start` on, where they lie or else in `room`.
    ///
    /// # Safety
    /// As for [`Reader::read`], for as long as the result is used.
    #[inline(always)]
    pub unsafe fn block<'a>(&self, start: usize, length: usize, room: &'a mut [f32]) -> &'a [f32] {
        let layout = &self.reader.layout;
        if self.direct {
            let (offset, middle, column) = layout.locate(start);
            if column + length <= layout.inner.size {
                let first = offset + middle * layout.middle.stride + column;
                // SAFETY: the elements are f32 (`direct`), lie together, and are the caller's promise.
                return unsafe {
                    std::slice::from_raw_parts(self.reader.first.as_ptr().cast::<f32>().add(first), length)
                };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.reader.read(start, &mut room[..length]) };
        &room[..length]
    }
}

multiversion! {
    /// Brings the elements from `start` on into a block.
    fn transfer<X: Transfer>(first: *const u8, layout: &Layout, start: usize, to: &mut [X::To]) {
        let first = first.cast::<X::From>();
        let stride = layout.inner.stride;
        layout.for_each_run(start, to.len(), |offset, at, count| {
            let to = &mut to[at..at + count];
            // SAFETY: the run lies inside the operand, and nothing writes to it: the caller's promise.
            let from = unsafe { std::slice::from_raw_parts(first.add(offset), (count - 1) * stride + 1) };
            match stride {
                1 => to.iter_mut().zip(from).for_each(|(to, from)| *to = X::convert(*from)),
                0 => to.fill(X::convert(from[0])),
                _ => to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, from)| *to = X::convert(*from)),
            }
        });
    }
}

/// Writes blocks of f32 to a dense target of any element type.
pub(crate) struct Writer {
    first: Out<u8>,
    body: unsafe fn(*mut u8, usize, &[f32]),
    streaming: Option<streaming::Store>,
}

impl Writer {
    pub fn new<T: Scalar>(isa: Isa, target: Out<T>) -> Writer {
        let first = Out::new(target.as_ptr().cast(), target.len() * size_of::<T>());
        Writer { first, body: store::select::<T>(isa), streaming: streaming::select::<T>(isa) }
    }

    /// Whether the target is so large that it is better written past the caches, and there is a way to do so.
    pub fn should_stream(&self) -> bool {
        self.first.len() >= STREAM_FROM && self.streaming.is_some()
    }

    /// Writes the numbers past the caches. Before another thread reads them, this one must [`streaming::fence`].
    ///
    /// # Safety
    /// As for [`Writer::write`].
    #[inline(always)]
    pub unsafe fn stream(&self, start: usize, from: &[f32]) {
        // SAFETY: the caller's promise; the machine has the level the writer was built for.
        unsafe { (self.streaming.unwrap_or(self.body))(self.first.as_ptr(), start, from) }
    }

    /// Writes the numbers to the elements from `start` on.
    ///
    /// # Safety
    /// The target must be alive and have those elements, and nothing else may touch them meanwhile.
    #[inline(always)]
    pub unsafe fn write(&self, start: usize, from: &[f32]) {
        // SAFETY: the caller's promise; the machine has the level the writer was built for.
        unsafe { (self.body)(self.first.as_ptr(), start, from) }
    }
}

multiversion! {
    /// Stores a block with conversion.
    fn store<T: Scalar>(first: *mut u8, start: usize, from: &[f32]) {
        // SAFETY: the elements are the target's and this call's alone: the caller's promise.
        let to = unsafe { std::slice::from_raw_parts_mut(first.cast::<T>().add(start), from.len()) };
        for (to, from) in to.iter_mut().zip(from) {
            *to = T::from_f32(*from);
        }
    }
}

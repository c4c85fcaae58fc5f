//! Looks at the same bytes: reshape, permute, slice, broadcast. They cost nothing; where strides cannot say what
//! a reshape asks for, or a kernel needs dense rows, the planner puts one copy in.

use super::*;
use crate::Shape;
use std::ops::Range;

/// The same elements in another shape.
#[derive(Debug)]
pub struct Reshape {
    shape: Shape,
}

/// The same elements with the axes in another order: result axis `i` is operand axis `order[i]`.
#[derive(Debug)]
pub struct Permute {
    order: Vec<usize>,
}

/// Every `step`-th element of a range along one axis.
#[derive(Debug)]
pub struct Slice {
    axis: usize,
    start: usize,
    end: usize,
    step: usize,
}

/// Pieces of these sizes along one axis, which together are the operand.
#[derive(Debug)]
pub struct Split {
    axis: usize,
    sizes: Vec<usize>,
}

/// The operand repeated along new axes and along axes of size 1, aligned at the last axis.
#[derive(Debug)]
pub struct Broadcast {
    shape: Shape,
}

/// The operand, taken as a constant by gradients.
#[derive(Debug)]
pub struct StopGradient;

/// What all views share: no arithmetic, no bytes moved, and a meaning that follows from the layout.
macro_rules! view_operation {
    () => {
        fn output_count(&self) -> usize {
            1
        }
        view_operation!(of any number of results);
    };
    (of any number of results) => {
        fn cost(&self, _inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
            Cost { work: Work::Elements, operations: 0, bytes: 0 }
        }
        fn in_place(&self) -> Vec<(usize, usize)> {
            vec![]
        }
        fn effect(&self, _inputs: &[TensorType]) -> Effect {
            Effect::Pure
        }
        fn accumulates(&self) -> Vec<usize> {
            vec![]
        }
        fn form(&self) -> Form<'_> {
            Form::Opaque
        }
        fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
            let dense = Layout::dense(&inputs[0].shape);
            let layout = |output: usize| self.view(output, &dense).expect("a dense operand can be viewed");
            (0..outputs.len()).map(|output| inputs[0].picked(&layout(output))).collect()
        }
        fn lowering(&self) -> Lowering<'_> {
            Lowering::View(self)
        }
    };
}

impl ViewRule for Reshape {
    fn view(&self, _output: usize, input: &Layout) -> Option<Layout> {
        input.reshaped(&self.shape)
    }
}

impl Operation for Reshape {
    fn name(&self) -> &'static str {
        "reshape"
    }
    fn attributes(&self) -> String {
        self.shape.to_string()
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        if inputs[0].shape.elements() != self.shape.elements() {
            let (have, want) = (inputs[0].shape.elements(), self.shape.elements());
            return Err(Mismatch::Shape(format!("{have} elements cannot be reshaped to {} ({want})", self.shape)));
        }
        Ok(vec![TensorType::new(inputs[0].dtype, &self.shape)])
    }
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.gradient(0).reshape(at.inputs[0].shape()))]
    }
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent.reshape(&self.shape))]
    }
    fn cases() -> Vec<Case> {
        let mut cases = vec![
            Case::new("split and join axes", &[&[4, 6]], |x| vec![x[0].reshape([2, 2, 3, 2])]),
            Case::new("of a permuted operand", &[&[3, 4, 5]], |x| vec![x[0].permute(&[2, 0, 1]).reshape([15, 4])]),
            Case::new("to one number", &[&[1, 1]], |x| vec![x[0].reshape([])]),
            Case::new("empty", &[&[0, 3]], |x| vec![x[0].reshape([3, 0])]),
        ];
        cases.extend(super::axes::cases());
        cases
    }
    view_operation!();
}

impl ViewRule for Permute {
    fn view(&self, _output: usize, input: &Layout) -> Option<Layout> {
        Some(Layout {
            shape: self.order.iter().map(|&axis| input.shape[axis]).collect(),
            strides: self.order.iter().map(|&axis| input.strides[axis]).collect(),
            offset: input.offset,
        })
    }
}

impl Operation for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }
    fn attributes(&self) -> String {
        format!("{:?}", self.order)
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let rank = inputs[0].shape.rank();
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..rank) {
            let problem = format!("{:?} is not an order of the axes 0..{rank}; name each axis once", self.order);
            return Err(Mismatch::Parameter(problem));
        }
        let shape: Shape = self.order.iter().map(|&axis| inputs[0].shape[axis]).collect();
        Ok(vec![TensorType::new(inputs[0].dtype, shape)])
    }
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let mut inverse = vec![0; self.order.len()];
        for (to, &from) in self.order.iter().enumerate() {
            inverse[from] = to;
        }
        let g = at.gradient(0);
        vec![Some(before_permuting_back(&g, &inverse).unwrap_or_else(|| g.permuted(inverse)))]
    }
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent.permuted(self.order.clone()))]
    }
    fn cases() -> Vec<Case> {
        vec![
            Case::new("three axes", &[&[2, 3, 5]], |x| vec![x[0].permute(&[1, 2, 0]), x[0].permute(&[-1, 0, -2])]),
            Case::new("no axes", &[&[]], |x| vec![x[0].permute(&[])]),
        ]
    }
    view_operation!();
}

impl ViewRule for Slice {
    fn view(&self, _output: usize, input: &Layout) -> Option<Layout> {
        let mut layout = input.clone();
        layout.shape = input.shape.with(self.axis, (self.end - self.start).div_ceil(self.step));
        layout.strides[self.axis] = input.strides[self.axis] * self.step;
        layout.offset = input.offset + self.start * input.strides[self.axis];
        Some(layout)
    }
}

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }
    fn attributes(&self) -> String {
        format!("axis {}, {}..{} by {}", self.axis, self.start, self.end, self.step)
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let size = inputs[0].shape[self.axis];
        if self.step == 0 || self.start > self.end || self.end > size {
            let range = format!("{}..{} by {}", self.start, self.end, self.step);
            return Err(Mismatch::Parameter(format!("{range} is not inside 0..{size} of axis {}", self.axis)));
        }
        let count = (self.end - self.start).div_ceil(self.step);
        Ok(vec![TensorType::new(inputs[0].dtype, inputs[0].shape.with(self.axis, count))])
    }
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let mut gradient = at.gradient(0);
        let size = at.inputs[0].shape()[self.axis];
        let (axis, mut count) = (self.axis as isize, gradient.shape()[self.axis]);
        if self.step > 1 && count > 0 {
            // Spread the elements apart: a new axis of size `step` with zeros behind each element.
            let mut spread: Vec<usize> = gradient.shape().to_vec();
            spread.insert(self.axis + 1, 1);
            gradient = gradient.reshape(spread.clone()).pad(axis + 1, [0, self.step - 1], 0.0);
            spread.remove(self.axis + 1);
            count *= self.step;
            spread[self.axis] = count;
            gradient = gradient.reshape(spread);
            let excess = (self.start + count).saturating_sub(size);
            count -= excess;
            gradient = gradient.slice(axis, 0..count);
        }
        vec![Some(gradient.pad(axis, [self.start, size - self.start - count], 0.0))]
    }
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent.slice_by(self.axis as isize, self.start..self.end, self.step))]
    }
    fn cases() -> Vec<Case> {
        vec![
            Case::new("middle of an inner axis", &[&[3, 7, 2]], |x| vec![x[0].slice(1, 2..5)]),
            Case::new("every third", &[&[10, 2]], |x| vec![x[0].slice_by(0, 1..10, 3)]),
            Case::new("every second to the end", &[&[2, 8]], |x| vec![x[0].slice_by(-1, 1..8, 2)]),
            Case::new("nothing", &[&[3, 4]], |x| vec![x[0].slice(0, 2..2)]),
        ]
    }
    view_operation!();
}

impl ViewRule for Split {
    fn view(&self, output: usize, input: &Layout) -> Option<Layout> {
        let start: usize = self.sizes[..output].iter().sum();
        Some(Layout {
            shape: input.shape.with(self.axis, self.sizes[output]),
            strides: input.strides.clone(),
            offset: input.offset + start * input.strides[self.axis],
        })
    }
}

impl Operation for Split {
    fn name(&self) -> &'static str {
        "split"
    }
    fn attributes(&self) -> String {
        format!("axis {}, {:?}", self.axis, self.sizes)
    }
    fn output_count(&self) -> usize {
        self.sizes.len()
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let TensorType { dtype, shape } = &inputs[0];
        let total = self.sizes.iter().fold(0usize, |total, &size| total.saturating_add(size));
        if total != shape[self.axis] {
            let problem = format!("sizes {:?} add up to {total}, not to {}", self.sizes, shape[self.axis]);
            return Err(Mismatch::Parameter(problem));
        }
        Ok(self.sizes.iter().map(|&size| TensorType::new(*dtype, shape.with(self.axis, size))).collect())
    }
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let pieces: Vec<Tensor> = (0..self.sizes.len()).map(|output| at.gradient(output)).collect();
        vec![Some(Tensor::concat(&pieces.iter().collect::<Vec<_>>(), self.axis as isize))]
    }
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.tangent_or_zeros(0).split(self.axis as isize, &self.sizes).into_iter().map(Some).collect()
    }
    fn cases() -> Vec<Case> {
        vec![
            Case::new("inner axis", &[&[2, 6, 3]], |x| x[0].split(1, &[1, 3, 2])),
            Case::new("last axis, one piece empty", &[&[2, 5]], |x| x[0].split(-1, &[2, 0, 3])),
            Case::new("one piece is not used", &[&[6, 2]], |x| x[0].split(0, &[2, 4])[1..].to_vec()),
        ]
    }
    view_operation!(of any number of results);
}

impl ViewRule for Broadcast {
    fn view(&self, _output: usize, input: &Layout) -> Option<Layout> {
        let added = self.shape.rank() - input.shape.rank();
        let stride = |axis: usize| match axis.checked_sub(added) {
            Some(old) if input.shape[old] == self.shape[axis] => input.strides[old],
            _ => 0,
        };
        let strides = (0..self.shape.rank()).map(stride).collect();
        Some(Layout { shape: self.shape.clone(), strides, offset: input.offset })
    }
}

impl Operation for Broadcast {
    fn name(&self) -> &'static str {
        "broadcast"
    }
    fn attributes(&self) -> String {
        self.shape.to_string()
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        if inputs[0].shape.broadcast(&self.shape).as_ref() != Some(&self.shape) {
            let problem = format!("{} cannot be repeated to {}; sizes must be equal or 1", inputs[0].shape, self.shape);
            return Err(Mismatch::Shape(problem));
        }
        Ok(vec![TensorType::new(inputs[0].dtype, &self.shape)])
    }
    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.gradient(0).sum_to(&at.inputs[0].shape()))]
    }
    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent.broadcast(&self.shape))]
    }
    fn cases() -> Vec<Case> {
        vec![
            Case::new("new axes and size 1", &[&[3, 1]], |x| vec![x[0].broadcast([2, 3, 4])]),
            Case::new("one number", &[&[]], |x| vec![x[0].broadcast([5])]),
            Case::new("to nothing", &[&[1, 3]], |x| vec![x[0].broadcast([0, 3])]),
        ]
    }
    view_operation!();
}

impl ViewRule for StopGradient {
    fn view(&self, _output: usize, input: &Layout) -> Option<Layout> {
        Some(input.clone())
    }
}

impl Operation for StopGradient {
    fn name(&self) -> &'static str {
        "stop_gradient"
    }
    fn attributes(&self) -> String {
        String::new()
    }
    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Ok(inputs.to_vec())
    }
    fn gradient(&self, _at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn tangent(&self, _at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![None]
    }
    fn cases() -> Vec<Case> {
        let input = CaseInput::uniform([2, 3], -2.0, 2.0).without_gradient();
        vec![Case::with_inputs("identity", vec![input], |x| vec![x[0].stop_gradient()])]
    }
    view_operation!();
}

/// What a tensor was permuted from, if this order of its axes is that one's.
fn before_permuting_back(x: &Tensor, order: &[usize]) -> Option<Tensor> {
    let node = x.trace().graph().nodes()[x.handle().ok()?.node].clone();
    let before = &(node.op()?.as_ref() as &dyn Any).downcast_ref::<Permute>()?.order;
    let same = before.len() == order.len() && order.iter().enumerate().all(|(to, &at)| before[at] == to);
    same.then(|| x.trace().tensor(node.inputs[0]))
}

impl Tensor {
    /// The same elements in another shape, last axis fastest.
    #[track_caller]
    pub fn reshape(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if shape == self.shape() {
            return self.clone();
        }
        self.trace().apply_one(Reshape { shape }, &[self])
    }

    /// The axes in another order: result axis `i` is axis `order[i]`; negative ones count from the last.
    #[track_caller]
    pub fn permute(&self, order: &[isize]) -> Tensor {
        let mut axes = Vec::with_capacity(order.len());
        for &axis in order {
            let Some(axis) = self.axis("permute", axis) else { return self.trace().poisoned() };
            axes.push(axis);
        }
        self.permuted(axes)
    }

    #[track_caller]
    fn permuted(&self, order: Vec<usize>) -> Tensor {
        self.trace().apply_one(Permute { order }, &[self])
    }

    /// Two axes swapped; negative ones count from the last.
    #[track_caller]
    pub fn transpose(&self, first: isize, second: isize) -> Tensor {
        let (Some(first), Some(second)) = (self.axis("transpose", first), self.axis("transpose", second)) else {
            return self.trace().poisoned();
        };
        let mut order: Vec<usize> = (0..self.shape().rank()).collect();
        order.swap(first, second);
        self.permuted(order)
    }

    /// A range along one axis.
    #[track_caller]
    pub fn slice(&self, axis: isize, range: Range<usize>) -> Tensor {
        self.slice_by(axis, range, 1)
    }

    /// Every `step`-th element of a range along one axis.
    #[track_caller]
    pub fn slice_by(&self, axis: isize, range: Range<usize>, step: usize) -> Tensor {
        let Some(axis) = self.axis("slice", axis) else { return self.trace().poisoned() };
        // A step past the end picks one element, however long it is.
        let step = step.min(self.shape()[axis].max(1));
        self.trace().apply_one(Slice { axis, start: range.start, end: range.end, step }, &[self])
    }

    /// Cut along one axis into pieces of these sizes, which must add up.
    #[track_caller]
    pub fn split(&self, axis: isize, sizes: &[usize]) -> Vec<Tensor> {
        match self.axis("split", axis) {
            Some(axis) => self.trace().apply(Split { axis, sizes: sizes.to_vec() }, &[self]),
            None => sizes.iter().map(|_| self.trace().poisoned()).collect(),
        }
    }

    /// Repeated along new axes and axes of size 1.
    #[track_caller]
    pub fn broadcast(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if shape == self.shape() {
            return self.clone();
        }
        self.trace().apply_one(Broadcast { shape }, &[self])
    }

    /// The same values, which gradients take for constants.
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        self.trace().apply_one(StopGradient, &[self])
    }
}

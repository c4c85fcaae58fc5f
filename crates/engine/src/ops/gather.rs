//! Elements picked along an axis, each by an index of its own; and elements added along it.

use super::*;
use gradus_cuda::{Operand, Source, sources};
use gradus_kernels::gather as kernel;

/// `y[.., i, ..] = x[.., index[.., i, ..], ..]`.
#[derive(Debug)]
pub struct Gather {
    axis: usize,
}

/// `x` with `updates[.., i, ..]` added at `[.., index[.., i, ..], ..]`; where an index occurs twice, both are added.
#[derive(Debug)]
pub struct ScatterAdd {
    axis: usize,
}

/// Checks that the index is made of integers and has the operand's sizes, except along the axis.
fn check_index(axis: usize, x: &TensorType, index: &TensorType) -> Result<(), Mismatch> {
    Mismatch::unless_integer(index)?;
    let same = index.shape.rank() == x.shape.rank() && index.shape.with(axis, x.shape[axis]) == x.shape;
    if same {
        return Ok(());
    }
    Err(Mismatch::Shape(format!(
        "the index must have the operand's axes, and its sizes or less on every one but {axis}; broadcast or slice it"
    )))
}

/// The sizes around the axis, as the kernels take them.
fn sizes(axis: usize, x: &crate::Shape, index: &crate::Shape) -> kernel::Sizes {
    let (outer, inner) = (x[..axis].iter().product(), x[axis + 1..].iter().product());
    kernel::Sizes { outer, axis: x[axis], index_axis: index[axis], inner }
}

/// Threads of a block of the CUDA kernel.
pub(super) const THREADS: usize = 256;

/// The same as the CUDA kernels take them: the elements along the axis, those of the index, and all after it.
fn cuda_sizes(axis: usize, x: &Operand, index: &Operand) -> [usize; 3] {
    [x.shape[axis], index.shape[axis], x.shape[axis + 1..].iter().product()]
}

/// The CUDA kernel that gathers dense elements; `FAULTS` is for the caller to say.
pub(super) fn cuda_gather(x: &Operand, index: &Operand, y: &Operand, [axis, index_axis, inner]: [usize; 3]) -> Source {
    let source = Source::new("gather", sources::GATHER).operand("x", x).operand("ids", index).operand("y", y);
    let source = source.size("COUNT", y.elements()).size("AXIS", axis).size("INDEX_AXIS", index_axis);
    source.size("INNER", inner).constant("THREADS", THREADS)
}

/// Where an element of the index points to; `None` if it is out of range.
fn target(axis: usize, at: &[usize], index: &Reals, bound: usize) -> Option<Vec<usize>> {
    let number = index.at(at);
    let mut target = at.to_vec();
    target[axis] = number as usize;
    (0.0..bound as f64).contains(&number).then_some(target)
}

impl Operation for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn attributes(&self) -> String {
        format!("axis {}", self.axis)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        check_index(self.axis, &inputs[0], &inputs[1])?;
        Ok(vec![TensorType::new(inputs[0].dtype, &inputs[1].shape)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let (x, index) = (&at.inputs[0], &at.inputs[1]);
        vec![Some(x.zeros_like().scatter_add(self.axis as isize, index, &at.gradient(0))), None]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent.gather(self.axis as isize, &at.inputs[1]))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        // Only the elements that are picked are read.
        Cost { work: Work::Elements, operations: 0, bytes: (inputs[1].bytes() + 2 * outputs[0].bytes()) as u64 }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::indices(1, inputs[0].shape[self.axis]))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (x, index) = (inputs[0], inputs[1]);
        vec![Reals::from_fn(&outputs[0].shape, |at| {
            target(self.axis, at, index, x.shape[self.axis]).map_or(0.0, |target| x.at(&target))
        })]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |name: &str, shape: &[usize], axis: usize, count: usize| {
            let index = crate::Shape::from(shape).with(axis, count);
            let inputs =
                vec![CaseInput::uniform(shape, -2.0, 2.0), CaseInput::integers(crate::DType::U32, index, shape[axis])];
            Case::with_inputs(name, inputs, move |x| vec![x[0].gather(axis as isize, &x[1])])
        };
        let signed = vec![CaseInput::uniform([4, 3], -2.0, 2.0), CaseInput::integers(crate::DType::I32, [4, 1], 3)];
        let fewer =
            vec![CaseInput::uniform([4, 3, 5], -2.0, 2.0), CaseInput::integers(crate::DType::I32, [2, 6, 4], 3)];
        let slices = vec![CaseInput::uniform([3, 4, 2], -2.0, 2.0), CaseInput::integers(crate::DType::U32, [5], 2)];
        let classes = vec![CaseInput::integers(crate::DType::I32, [3, 2], 4)];
        vec![
            case("one of each row", &[6, 9], 1, 1),
            case("first axis, more than there are", &[3, 5], 0, 7),
            case("inner axis", &[2, 4, 3], 1, 2),
            case("one element", &[1], 0, 1),
            case("no elements", &[2, 3], 1, 0),
            case("no rows", &[0, 3], 1, 2),
            case("large", &[3, 11, 130], 1, 60),
            Case::with_inputs("last axis, signed index", signed, |x| vec![x[0].gather(-1, &x[1])]),
            Case::with_inputs("an index of fewer rows", fewer, |x| vec![x[0].gather(1, &x[1])]),
            Case::with_inputs("whole slices", slices, |x| {
                vec![x[0].index_select(1, &x[1]), x[0].index_select(-1, &x[1].slice(0, 0..1))]
            }),
            Case::with_inputs("one-hot", classes, |x| vec![x[0].one_hot(4)]),
        ]
    }
}

impl Kernels for Gather {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, index, y) = (linker.input(0), linker.input(1), linker.output(0));
        let sizes = sizes(self.axis, x.shape(), index.shape());
        let fault = linker.fault();
        // Indices below zero, read as unsigned, are above every bound.
        with_bits!(x.dtype, T => {
            linker.job(kernel::Gather::<T>::new(x.bits(), index.bits(), y.bits_mut(), sizes, fault));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (x, index, y) = (linker.input(0), linker.input(1), linker.output(0));
        let sizes = cuda_sizes(self.axis, &x, &index);
        let source = linker.with_fault(cuda_gather(&x, &index, &y, sizes).constant("FAULTS", 1));
        linker.launch(source.launch(y.elements().div_ceil(THREADS), THREADS));
        Ok(())
    }
}

impl Operation for ScatterAdd {
    fn name(&self) -> &'static str {
        "scatter_add"
    }

    fn attributes(&self) -> String {
        format!("axis {}", self.axis)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let (x, index, updates) = (&inputs[0], &inputs[1], &inputs[2]);
        Mismatch::unless_same_float(&[x.clone(), updates.clone()])?;
        check_index(self.axis, x, index)?;
        Mismatch::unless_shape("the updates, like the index,", updates, &index.shape)?;
        Ok(vec![x.clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let g = at.gradient(0);
        let to_updates = at.wants(2).then(|| g.gather(self.axis as isize, &at.inputs[1]));
        vec![Some(g), None, to_updates]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let (x, index) = (at.tangent_or_zeros(0), &at.inputs[1]);
        vec![Some(match at.tangent(2) {
            Some(updates) => x.scatter_add(self.axis as isize, index, updates),
            None => x,
        })]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::Elements,
            operations: inputs[2].shape.elements() as u64,
            bytes: Cost::traffic(inputs, outputs),
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::indices(1, inputs[0].shape[self.axis]))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        let (index, updates) = (inputs[1], inputs[2]);
        let mut y = inputs[0].clone();
        for at in super::reals::indices(&index.shape) {
            if let Some(target) = target(self.axis, &at, index, y.shape[self.axis]) {
                *y.at_mut(&target) += updates.at(&at);
            }
        }
        vec![y]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |name: &str, shape: &[usize], axis: usize, count: usize| {
            let picked = crate::Shape::from(shape).with(axis, count);
            let inputs = vec![
                CaseInput::uniform(shape, -2.0, 2.0),
                CaseInput::integers(crate::DType::U32, &picked, shape[axis]),
                CaseInput::uniform(&picked, -2.0, 2.0),
            ];
            Case::with_inputs(name, inputs, move |x| vec![x[0].scatter_add(axis as isize, &x[1], &x[2])])
        };
        vec![
            case("one in each row", &[6, 9], 1, 1),
            case("first axis, indices occur again", &[3, 5], 0, 7),
            case("inner axis", &[2, 4, 3], 1, 2),
            case("one element", &[1], 0, 1),
            case("nothing is added", &[2, 3], 1, 0),
            case("no rows", &[0, 3], 1, 2),
            case("large", &[3, 21, 130], 1, 40),
            case("long lines", &[4, 4500], 1, 17),
        ]
    }
}

impl Kernels for ScatterAdd {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, index, updates, y) = (linker.input(0), linker.input(1), linker.input(2), linker.output(0));
        let sizes = sizes(self.axis, x.shape(), index.shape());
        let fault = linker.fault();
        with_float!(x.dtype, T => {
            let (x, updates, y) = (x.read::<T>(), updates.read::<T>(), y.write::<T>());
            linker.job(kernel::ScatterAdd::new(linker.isa(), x, index.bits(), updates, y, sizes, fault));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (x, index, updates, y) = (linker.input(0), linker.input(1), linker.input(2), linker.output(0));
        if x.address != y.address {
            linker.launch(gradus_cuda::copy(&x, &y));
        }
        let [axis, index_axis, inner] = cuda_sizes(self.axis, &x, &index);
        let at = gradus_cuda::ScatterAdd { index: &index, updates: &updates, y: &y, axis, index_axis, inner };
        let faulting = linker.faulting();
        for launch in gradus_cuda::scatter_add(&at, Some(faulting), |bytes| linker.scratch(bytes)) {
            linker.launch(launch);
        }
        Ok(())
    }
}

impl Tensor {
    /// Elements picked along an axis: `y[.., i, ..] = x[.., index[.., i, ..], ..]`. The index has as many axes as this
    /// tensor, and on the others at most its sizes; what is beyond them is not looked at.
    #[track_caller]
    pub fn gather(&self, axis: isize, index: &Tensor) -> Tensor {
        let Some(axis) = self.axis("gather", axis) else { return self.trace().poisoned() };
        let (own, sizes) = (self.shape(), index.shape());
        let mut from = self.clone();
        if own.rank() == sizes.rank() {
            for at in (0..own.rank()).filter(|&at| at != axis && sizes[at] < own[at]) {
                from = from.slice(at as isize, 0..sizes[at]);
            }
        }
        self.trace().apply_one(Gather { axis }, &[&from, index])
    }

    /// The slices along an axis that the numbers `[n]` pick: the axis has n of them.
    #[track_caller]
    pub fn index_select(&self, axis: isize, index: &Tensor) -> Tensor {
        let Some(axis) = self.axis("index_select", axis) else { return self.trace().poisoned() };
        let (own, picked) = (self.shape(), index.shape());
        let &[count] = &picked[..] else {
            if index.is_poisoned() {
                return index.clone();
            }
            return index.parameter_error("index_select", format!("takes an index of 1 axis, not {}", picked.rank()));
        };
        let along = (0..own.rank()).map(|at| if at == axis { count } else { 1 }).collect::<crate::Shape>();
        self.gather(axis as isize, &index.reshape(along).broadcast(own.with(axis, count)))
    }

    /// Each of these classes as a row [..., classes] with a one at its place and zeros else, in f32. A number that is no
    /// class is an error of the replay.
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> Tensor {
        let index = self.unsqueeze(-1); // [..., 1]
        let ones = self.trace().full(1.0, crate::DType::F32, index.shape());
        let rows = [&self.shape()[..], &[classes]].concat();
        self.trace().full(0.0, crate::DType::F32, rows).scatter_add(-1, &index, &ones)
    }

    /// This tensor with updates added along an axis, each at its index; where an index occurs again, all its
    /// updates are added.
    #[track_caller]
    pub fn scatter_add(&self, axis: isize, index: &Tensor, updates: &Tensor) -> Tensor {
        let Some(axis) = self.axis("scatter_add", axis) else { return self.trace().poisoned() };
        self.trace().apply_one(ScatterAdd { axis }, &[self, index, updates])
    }
}

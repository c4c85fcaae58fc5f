//! Tensors side by side along an axis; and padding, which is a tensor beside constants.

use super::*;

/// Operands side by side along an axis.
#[derive(Debug)]
pub struct Concat {
    axis: usize,
}

impl Operation for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn attributes(&self) -> String {
        format!("axis {}", self.axis)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let total = inputs.iter().map(|input| input.shape.get(self.axis).copied().unwrap_or(0)).sum();
        for input in inputs {
            if input.shape.rank() != inputs[0].shape.rank()
                || input.shape.with(self.axis, total) != inputs[0].shape.with(self.axis, total)
            {
                let problem = format!("all axes but {} must be of the same size", self.axis);
                return Err(Mismatch::Shape(problem));
            }
            if input.dtype != inputs[0].dtype {
                return Err(Mismatch::DType("the operands are of different types; cast some".to_string()));
            }
        }
        Ok(vec![TensorType::new(inputs[0].dtype, inputs[0].shape.with(self.axis, total))])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let g = at.gradient(0);
        let mut start = 0;
        let mut piece = |input: &Tensor| {
            let size = input.shape()[self.axis];
            start += size;
            Some(g.slice(self.axis as isize, start - size..start))
        };
        at.inputs.iter().map(&mut piece).collect()
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let pieces: Vec<Tensor> = (0..at.inputs.len()).map(|input| at.tangent_or_zeros(input)).collect();
        vec![Some(Tensor::concat(&pieces.iter().collect::<Vec<_>>(), self.axis as isize))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost { work: Work::Elements, operations: 0, bytes: Cost::traffic(inputs, outputs) }
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
        vec![Reals::from_fn(&outputs[0].shape, |index| {
            let mut index = index.to_vec();
            for input in inputs {
                let size = input.shape[self.axis];
                if index[self.axis] < size {
                    return input.at(&index);
                }
                index[self.axis] -= size;
            }
            unreachable!("the operands' sizes add up to the result's")
        })]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::SideBySide(self.axis, self)
    }

    fn cases() -> Vec<Case> {
        let join = |axis: isize| move |x: &[Tensor]| vec![Tensor::concat(&x.iter().collect::<Vec<_>>(), axis)];
        let integers = |size: usize| CaseInput::integers(crate::DType::U32, [2, size], 9);
        vec![
            Case::new("inner axis", &[&[2, 3, 4], &[2, 5, 4], &[2, 1, 4]], join(1)),
            Case::new("last axis", &[&[3, 2], &[3, 7]], join(-1)),
            Case::new("first axis, one empty", &[&[0, 3], &[2, 3]], join(0)),
            Case::new("another axis empty", &[&[2, 0], &[3, 0]], join(0)),
            Case::new("an outer axis empty", &[&[0, 2], &[0, 3]], join(1)),
            Case::new("one operand twice", &[&[2, 3]], |x| {
                vec![Tensor::concat(&[&x[0], &x[0].transpose(0, 1).reshape([2, 3])], 0)]
            }),
            Case::with_inputs("integers", vec![integers(2), integers(3)], join(1)),
            Case::new("large", &[&[70, 300], &[70, 200]], join(1)),
            Case::new("all parts of one tensor", &[&[2, 6, 3]], |x| {
                let parts = x[0].split(1, &[1, 3, 2]);
                let turned = parts.iter().map(|part| part.transpose(0, 1)).collect::<Vec<_>>();
                vec![Tensor::concat(&turned.iter().collect::<Vec<_>>(), 0)]
            }),
            Case::new("some parts of one tensor, in another order", &[&[2, 6]], |x| {
                let part = |range: std::ops::Range<usize>| x[0].slice(1, range);
                let (first, second) = (part(1..3), part(3..6));
                vec![Tensor::concat(&[&first, &second], 1), Tensor::concat(&[&second, &first], 1)]
            }),
            Case::new("padding", &[&[2, 3]], |x| vec![x[0].pad(1, [2, 1], 0.0).pad(0, [0, 1], -1.5)]),
        ]
    }
}

impl Kernels for Concat {
    fn takes(&self, _input: usize, _layout: &Layout) -> bool {
        true
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        use gradus_kernels::copy::{self, StridedCopy};
        let output = linker.output(0);
        let target = Layout::dense(output.shape());
        let mut start = 0;
        for index in 0..linker.input_count() {
            let input = linker.input(index);
            let axes: Vec<copy::Axis> = (0..target.shape.rank())
                .map(|axis| copy::Axis {
                    size: input.layout.shape[axis],
                    from_stride: input.layout.strides[axis],
                    to_stride: target.strides[axis],
                })
                .collect();
            let offset = start * target.strides[self.axis];
            start += input.layout.shape[self.axis];
            if input.layout.shape.elements() == 0 {
                continue;
            }
            with_bits!(input.dtype, T => {
                linker.job(StridedCopy::<T>::new(linker.isa(), input.bits(), output.bits_mut().offset(offset), &axes));
            });
        }
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let output = linker.output(0);
        let mut start = 0;
        for index in 0..linker.input_count() {
            let input = linker.input(index);
            let offset = start * output.strides[self.axis] * output.element.size();
            start += input.shape[self.axis];
            let piece = gradus_cuda::Operand {
                shape: input.shape.clone(),
                address: output.address + offset as u64,
                ..output.clone()
            };
            linker.launch(gradus_cuda::copy(&input, &piece));
        }
        Ok(())
    }
}

/// The axis and the pieces of a tensor that is put together of several.
pub(super) fn pieces_of(x: &Tensor) -> Option<(usize, Vec<Tensor>)> {
    let node = x.trace().graph().nodes()[x.handle().ok()?.node].clone();
    let axis = (node.op()?.as_ref() as &dyn Any).downcast_ref::<Concat>()?.axis;
    Some((axis, node.inputs.iter().map(|&input| x.trace().tensor(input)).collect()))
}

impl Tensor {
    /// Tensors side by side along an axis.
    #[track_caller]
    pub fn concat(tensors: &[&Tensor], axis: isize) -> Tensor {
        let Some(first) = tensors.first() else { return Tensor::of_nothing("concat") };
        let Some(axis) = first.axis("concat", axis) else { return first.trace().poisoned() };
        first.trace().apply_one(Concat { axis }, tensors)
    }

    /// With so many elements of a number before and after, along an axis.
    #[track_caller]
    pub fn pad(&self, axis: isize, [before, after]: [usize; 2], number: f32) -> Tensor {
        let Some(index) = self.axis("pad", axis) else { return self.trace().poisoned() };
        // In no closure, whose line would be taken for the caller's.
        let first = self.trace().full(number, self.dtype(), self.shape().with(index, before));
        let last = self.trace().full(number, self.dtype(), self.shape().with(index, after));
        let all = [(before, &first), (1, self), (after, &last)];
        let pieces: Vec<&Tensor> = all.into_iter().filter(|(count, _)| *count > 0).map(|(_, piece)| piece).collect();
        if pieces.len() == 1 { self.clone() } else { Tensor::concat(&pieces, axis) }
    }
}

//! Sorting along an axis, and the first few of what is sorted.

use super::*;
use crate::DType;
use gradus_kernels::top_k as kernel;
use std::cmp::Ordering;

/// From the smallest to the largest, or the other way. NaN counts as the largest, and equal elements stay in the order
/// they had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Order {
    Ascending,
    Descending,
}

/// The first elements of each row in order, and their indices in the row.
#[derive(Debug)]
pub struct TopK {
    count: usize,
    order: Order,
}

/// What [`Tensor::sort`] and [`Tensor::top_k`] give.
#[derive(Clone, Debug)]
pub struct Sorted {
    /// The elements in order.
    pub values: Tensor,
    /// Where they were along the axis, i32.
    pub indices: Tensor,
}

impl TopK {
    fn compare(&self, a: f64, b: f64) -> Ordering {
        let rising = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
        if self.order == Order::Ascending { rising } else { rising.reverse() }
    }
}

impl Operation for TopK {
    fn name(&self) -> &'static str {
        "top_k"
    }

    fn attributes(&self) -> String {
        format!("{}, {:?}", self.count, self.order)
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let x = &inputs[0];
        Mismatch::unless_rank("the operand", x, 1)?;
        let (last, columns) = (x.shape.rank() - 1, x.shape[x.shape.rank() - 1]);
        if self.count > columns {
            return Err(Mismatch::Parameter(format!(
                "there are {columns} elements along the axis, not {}",
                self.count
            )));
        }
        if i32::try_from(columns).is_err() {
            return Err(Mismatch::Shape(format!("{columns} elements along the axis are more than an i32 counts")));
        }
        let shape = x.shape.with(last, self.count);
        Ok(vec![TensorType::new(x.dtype, &shape), TensorType::new(DType::I32, &shape)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.inputs[0].zeros_like().scatter_add(-1, &at.outputs[1], &at.gradient(0)))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|tangent| tangent.gather(-1, &at.outputs[1])), None]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        // What is kept is sorted, the rest looked at.
        let (_, columns) = inputs[0].shape.rows_and_columns();
        let sorted = (outputs[0].shape.elements() as u64).saturating_mul(columns.max(2).ilog2() as u64);
        let operations = sorted.saturating_add(inputs[0].shape.elements() as u64).saturating_mul(4);
        Cost { work: Work::Elements, operations, bytes: Cost::traffic(inputs, outputs) }
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
        let first = |row: &[f64]| {
            let mut places: Vec<usize> = (0..row.len()).collect();
            places.sort_by(|&a, &b| self.compare(row[a], row[b]));
            places.truncate(self.count);
            places
        };
        let picked = |row: &[f64]| first(row).into_iter().map(|place| row[place]).collect::<Vec<f64>>();
        let places = |row: &[f64]| first(row).into_iter().map(|place| place as f64).collect::<Vec<f64>>();
        let values = inputs[0].rows().flat_map(picked).collect();
        let indices = inputs[0].rows().flat_map(places).collect();
        vec![Reals::new(&outputs[0].shape, values), Reals::new(&outputs[1].shape, indices)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let distinct = |shape: &[usize]| vec![CaseInput::filled(shape, Fill::Distinct)];
        fn both(Sorted { values, indices }: Sorted) -> Vec<Tensor> {
            vec![values, indices]
        }
        let mut cases = vec![];
        for (shape, axis, count) in
            [(&[3, 7][..], -1, 2), (&[5], 0, 5), (&[4, 3, 2], 1, 1), (&[2, 3], 0, 0), (&[0, 4], 1, 3)]
        {
            for order in [Order::Ascending, Order::Descending] {
                let name = format!("{count} of {shape:?} along {axis}, {order:?}");
                cases.push(Case::with_inputs(&name, distinct(shape), move |x| both(x[0].top_k(axis, count, order))));
            }
        }
        let falling = |x: &[Tensor]| both(x[0].sort(-1, Order::Descending));
        cases.push(Case::with_inputs("sorted", distinct(&[6, 9]), falling));
        cases.push(Case::with_inputs("more than one part", distinct(&[3, 300]), falling));
        let alike = CaseInput::integers(DType::F32, [4, 40], 5);
        cases.push(Case::with_inputs("equal elements", vec![alike], falling));
        let integers =
            vec![CaseInput::integers(DType::I32, [3, 30], 1 << 30), CaseInput::integers(DType::U32, [2, 9], 4)];
        cases.push(Case::with_inputs("integers", integers, |x| {
            vec![
                x[0].argsort(0, Order::Ascending),
                x[0].argmin(-1),
                x[1].argmax_keep(0),
                x[1].sort(-1, Order::Ascending).values,
            ]
        }));
        cases.push(Case::with_inputs(
            "arg-max and arg-min",
            vec![distinct(&[4, 6]).remove(0).without_gradient()],
            |x| vec![x[0].argmax(0), x[0].argmin(1), x[0].argmax_keep(-1), x[0].argmin_keep(0)],
        ));
        cases
    }
}

impl Kernels for TopK {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        match linker.input(0).dtype {
            DType::F32 => self.link::<f32>(linker),
            DType::Bf16 => self.link::<gradus_kernels::bf16>(linker),
            DType::F16 => self.link::<gradus_kernels::f16>(linker),
            DType::I32 => self.link::<i32>(linker),
            DType::U32 => self.link::<u32>(linker),
            DType::F64 => return Err(Unsupported(DType::F64)),
        }
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let operands = gradus_cuda::TopK {
            x: &linker.input(0),
            values: &linker.output(0),
            indices: &linker.output(1),
            descending: self.order == Order::Descending,
        };
        for launch in gradus_cuda::top_k(&operands, |bytes| linker.scratch(bytes)) {
            linker.launch(launch);
        }
        Ok(())
    }
}

impl TopK {
    fn link<T: crate::Native + kernel::Sortable>(&self, linker: &mut Linker<'_>) {
        let (x, values, indices) = (linker.input(0), linker.output(0), linker.output(1));
        let (_, columns) = x.layout.shape.rows_and_columns();
        let descending = self.order == Order::Descending;
        let (x, values, indices) = (x.read::<T>(), values.write(), indices.write());
        linker.job(kernel::TopK::new(x, values, indices, columns, self.count, descending));
    }
}

impl Tensor {
    /// The elements along an axis in order, and where they were.
    #[track_caller]
    pub fn sort(&self, axis: isize, order: Order) -> Sorted {
        let count = self.axis("sort", axis).map_or(0, |axis| self.shape()[axis]);
        self.top_k(axis, count, order)
    }

    /// Where along an axis the elements were that are there in order, i32.
    #[track_caller]
    pub fn argsort(&self, axis: isize, order: Order) -> Tensor {
        self.sort(axis, order).indices
    }

    /// The first `count` of the elements along an axis in order, and where they were: the largest if descending.
    #[track_caller]
    pub fn top_k(&self, axis: isize, count: usize, order: Order) -> Sorted {
        let Some(axis) = self.axis("top_k", axis) else {
            return Sorted { values: self.trace().poisoned(), indices: self.trace().poisoned() };
        };
        let rows = self.transpose(axis as isize, -1);
        let results = self.trace().apply(TopK { count, order }, &[&rows]);
        let [values, indices] = [0, 1].map(|result: usize| results[result].transpose(axis as isize, -1));
        Sorted { values, indices }
    }

    /// Where the largest element along an axis is, i32: the first of equal ones, the first NaN if there is one.
    #[track_caller]
    pub fn argmax(&self, axis: isize) -> Tensor {
        self.argmax_keep(axis).squeeze(axis)
    }

    /// As [`Tensor::argmax`]; the axis stays with size 1.
    #[track_caller]
    pub fn argmax_keep(&self, axis: isize) -> Tensor {
        self.first_along("argmax", axis, Order::Descending)
    }

    /// Where the smallest element along an axis is, i32: the first of equal ones, the first NaN if there is one.
    #[track_caller]
    pub fn argmin(&self, axis: isize) -> Tensor {
        self.argmin_keep(axis).squeeze(axis)
    }

    /// As [`Tensor::argmin`]; the axis stays with size 1.
    #[track_caller]
    pub fn argmin_keep(&self, axis: isize) -> Tensor {
        // NaN is the largest in either direction.
        match self.dtype().is_float() {
            true => (-self).first_along("argmin", axis, Order::Descending),
            false => self.first_along("argmin", axis, Order::Ascending),
        }
    }

    /// Where the first element in order is along an axis, which must have one.
    #[track_caller]
    fn first_along(&self, op: &str, axis: isize, order: Order) -> Tensor {
        match self.axis_to_choose_from(op, axis) {
            Some(_) => self.top_k(axis, 1, order).indices,
            None => self.trace().poisoned(),
        }
    }

    /// As [`Tensor::axis`], of an axis that has elements.
    #[track_caller]
    pub(super) fn axis_to_choose_from(&self, op: &str, axis: isize) -> Option<usize> {
        let index = self.axis(op, axis)?;
        if self.shape()[index] > 0 {
            return Some(index);
        }
        self.parameter_error(op, format!("axis {index} has no elements to choose from"));
        None
    }
}

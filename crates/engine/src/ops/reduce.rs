//! Reductions over any axes: sums of numbers, squares and absolute values, counts of zeros, maximum; and what is made of them.

use super::*;
use crate::{DType, Shape};
use gradus_cuda::ReduceOptions;
use gradus_kernels::reduce as kernel;
pub use gradus_kernels::reduce::Reduction;

/// A reduction over some axes, which the result does not have.
#[derive(Debug)]
pub struct Reduce {
    reduction: Reduction,
    /// In rising order.
    axes: Vec<usize>,
    /// Whether the result of 16-bit numbers is in f32: for a result that is worked on before it is rounded.
    wide: bool,
    /// Whether numbers are added one after another, in f32: a sum over leading axes that can go on from an earlier one.
    in_order: bool,
}

impl Reduce {
    fn kept(&self, rank: usize) -> impl Iterator<Item = usize> {
        (0..rank).filter(|axis| !self.axes.contains(axis))
    }
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn attributes(&self) -> String {
        let wide = if self.wide { ", wide" } else { "" };
        let order = if self.in_order { ", in order" } else { "" };
        format!("{:?} over {:?}{wide}{order}", self.reduction, self.axes)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        let shape = &inputs[0].shape;
        if self.reduction == Reduction::Max && self.axes.iter().any(|&axis| shape[axis] == 0) {
            return Err(Mismatch::Shape("there is no maximum of no numbers".to_string()));
        }
        let kept: Shape = self.kept(shape.rank()).map(|axis| shape[axis]).collect();
        let dtype = if self.wide { widened(inputs[0].dtype) } else { inputs[0].dtype };
        Ok(vec![TensorType::new(dtype, kept)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let x = &at.inputs[0].cast(at.outputs[0].dtype());
        let spread = |kept: &Tensor| {
            let shape = at.inputs[0].shape();
            let with_axes = self.axes.iter().fold(shape.clone(), |shape, &axis| shape.with(axis, 1));
            kept.reshape(with_axes).broadcast(shape)
        };
        let g = spread(&at.gradient(0));
        let gradient = match self.reduction {
            Reduction::Sum => g,
            Reduction::SumOfSquares => g * x * 2.0,
            Reduction::SumOfAbs => {
                let zero = x.zeros_like();
                g * (x.greater(&zero) - x.less(&zero))
            }
            Reduction::Zeros => return vec![None],
            Reduction::Max => {
                // Equal largest numbers share the gradient.
                let largest = x.equal(&spread(&at.outputs[0]));
                let axes: Vec<isize> = self.axes.iter().map(|&axis| axis as isize).collect();
                g * &largest / spread(&largest.sum(&axes))
            }
        };
        vec![Some(gradient.cast(at.inputs[0].dtype()))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let Some(tangent) = at.tangent(0) else { return vec![None] };
        let sum = |x: &Tensor| {
            let (reduction, axes, in_order) = (Reduction::Sum, self.axes.clone(), self.in_order);
            x.trace().apply_one(Reduce { reduction, axes, wide: self.wide, in_order }, &[x])
        };
        let (x, dtype) = (&at.inputs[0], at.outputs[0].dtype());
        let wide = |x: &Tensor| x.cast(dtype);
        vec![match self.reduction {
            Reduction::Sum => Some(sum(tangent)),
            Reduction::SumOfSquares => Some(sum(&(wide(tangent) * wide(x) * 2.0))),
            Reduction::SumOfAbs => {
                let zero = x.zeros_like();
                Some(sum(&wide(&(tangent * (x.greater(&zero) - x.less(&zero))))))
            }
            Reduction::Zeros => None,
            Reduction::Max => {
                // Equal largest numbers share what changes.
                let axes: Vec<isize> = self.axes.iter().map(|&axis| axis as isize).collect();
                let largest = &wide(x).equal(&wide(x).keep_axes(at.outputs[0].clone(), &axes));
                Some((largest * wide(tangent)).sum(&axes) / largest.sum(&axes))
            }
        }]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::Elements,
            operations: inputs[0].shape.elements() as u64,
            bytes: Cost::traffic(inputs, outputs),
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        if self.in_order { vec![0] } else { vec![] }
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let start = if self.reduction == Reduction::Max { f64::NEG_INFINITY } else { 0.0 };
        let mut y = Reals { shape: outputs[0].shape.clone(), data: vec![start; outputs[0].shape.elements()] };
        for index in super::reals::indices(&inputs[0].shape) {
            let kept: Vec<usize> = self.kept(index.len()).map(|axis| index[axis]).collect();
            let (x, y) = (inputs[0].at(&index), y.at_mut(&kept));
            *y = match self.reduction {
                Reduction::Sum => *y + x,
                Reduction::SumOfSquares => *y + x * x,
                Reduction::SumOfAbs => *y + x.abs(),
                Reduction::Zeros => *y + f64::from(x == 0.0),
                Reduction::Max if *y > x || y.is_nan() => *y,
                Reduction::Max => x,
            };
        }
        vec![y]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        let shapes: [(&[usize], &[isize]); 8] = [
            (&[3, 5], &[-1]),
            (&[3, 5], &[0]),
            (&[3, 5], &[0, 1]),
            (&[2, 3, 4, 5], &[1, 3]),
            (&[2, 3, 4, 5], &[0, 2]),
            (&[4, 1], &[1]),
            (&[1, 700], &[1]),
            (&[300, 130], &[0]),
        ];
        for (shape, axes) in shapes {
            let name = format!("{shape:?} over {axes:?}");
            cases.push(Case::new(&name, &[shape], move |x| vec![x[0].sum(axes), x[0].sum_of_squares(axes)]));
            cases.push(Case::new(&name, &[shape], move |x| vec![x[0].mean(axes), x[0].variance(axes)]));
            let distinct = CaseInput::filled(shape, Fill::Distinct);
            cases.push(Case::with_inputs(&name, vec![distinct], move |x| vec![x[0].max(axes), x[0].min(axes)]));
        }
        cases.push(Case::new("that stay", &[&[2, 3, 4]], |x| {
            vec![x[0].sum_keep(&[1]), x[0].mean_keep(&[-1, 0]), x[0].variance_keep(&[2]), x[0].sum_of_squares_keep(&[])]
        }));
        let distinct = || CaseInput::filled([3, 4], Fill::Distinct);
        cases.push(Case::with_inputs("the largest, that stay", vec![distinct()], |x| {
            vec![x[0].max_keep(&[0]), x[0].min_keep(&[1]), x[0].log_sum_exp(&[1]), x[0].log_sum_exp_keep(&[0, 1])]
        }));
        let far = CaseInput::filled([2, 3], Fill::Numbers(vec![-400.0, -401.0, -400.5, 90.0, 91.0, 90.5]));
        cases.push(Case::with_inputs("log-sum-exp of large numbers", vec![far], |x| vec![x[0].log_sum_exp(&[-1])]));
        for order in [0.5, 1.0, 2.0, 3.0, -1.0, f32::INFINITY, f32::NEG_INFINITY] {
            let apart = CaseInput::filled(
                [3, 4],
                Fill::Numbers((0..12).map(|at| (at as f64 * 0.37 + 0.2) * [1.0, -1.0][at % 2]).collect()),
            );
            cases.push(Case::with_inputs(&format!("norm of order {order}"), vec![apart], move |x| {
                vec![x[0].norm(order, &[1]), x[0].norm_keep(order, &[0, 1])]
            }));
        }
        let sparse = CaseInput::integers(DType::F32, [3, 5], 2);
        cases.push(Case::with_inputs("norms of zeros", vec![sparse], |x| {
            let zeros = &(&x[0] * 0.0);
            let orders = [0.0, 0.5, 1.0, 2.0, 2.5, f32::INFINITY];
            orders.iter().flat_map(|&order| [x[0].norm(order, &[1]), zeros.norm(order, &[0])]).collect()
        }));
        cases.push(Case::new("standard deviation", &[&[3, 5]], |x| {
            vec![x[0].standard_deviation(&[1]), x[0].standard_deviation_keep(&[0])]
        }));
        // Long enough to be cut. Finite differences of so many elements would be slow, and the others show them.
        let long: [(&[usize], &[isize]); 2] = [(&[2100, 6], &[0]), (&[1, 8200], &[0, 1])];
        for (shape, axes) in long {
            let inputs = vec![CaseInput::uniform(shape, -2.0, 2.0).without_gradient()];
            cases.push(Case::with_inputs(&format!("{shape:?} over {axes:?}"), inputs, move |x| {
                vec![x[0].sum(axes), x[0].sum_of_squares(axes), x[0].max(axes)]
            }));
        }
        let counted: [(&[usize], &[isize]); 4] =
            [(&[3, 5], &[0]), (&[3, 5], &[0, 1]), (&[4], &[]), (&[2100, 9], &[0, 1])];
        for (shape, axes) in counted {
            let sparse = CaseInput::integers(DType::F32, shape, 2);
            cases.push(Case::with_inputs(&format!("zeros of {shape:?} over {axes:?}"), vec![sparse], move |x| {
                vec![x[0].count_zeros(axes)]
            }));
        }
        let apart = CaseInput::filled([3, 5], Fill::Numbers((0..15).map(|at| at as f64 * 0.5 - 3.75).collect()));
        cases.push(Case::with_inputs("absolute", vec![apart], |x| vec![x[0].sum_of_abs(&[0]), x[0].sum_of_abs(&[])]));
        cases.push(Case::new("in order", &[&[3, 2, 5]], |x| vec![x[0].sum_in_order(&[0]), x[0].sum_in_order(&[1, 0])]));
        cases.push(Case::new("all in order", &[&[7]], |x| vec![x[0].sum_in_order(&[0])]));
        cases.push(Case::new("many in order", &[&[9, 1100]], |x| vec![x[0].sum_in_order(&[0])]));
        cases.push(Case::new("no axes", &[&[3]], |x| vec![x[0].sum(&[])]));
        cases.push(Case::new("of nothing", &[&[0, 3]], |x| vec![x[0].sum(&[0])]));
        cases.push(Case::new("all of nothing", &[&[2, 0]], |x| vec![x[0].sum_of_squares(&[0, 1])]));
        cases.push(Case::new("norm of several", &[&[3, 2], &[7]], |x| vec![Tensor::global_norm(&[&x[0], &x[1]])]));
        cases
    }
}

impl Kernels for Reduce {
    fn takes(&self, _input: usize, _layout: &Layout) -> bool {
        true
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let axis = |axis: usize| (x.layout.shape[axis], x.layout.strides[axis]);
        let kept: Vec<(usize, usize)> = self.kept(x.layout.shape.rank()).map(axis).collect();
        let reduced: Vec<(usize, usize)> = self.axes.iter().map(|&at| axis(at)).collect();
        if self.in_order {
            let continued = linker.accumulates(0);
            with_float!(x.dtype, T => {
                with_float!(y.dtype, Y => {
                    let (x, y) = (x.read::<T>(), y.write::<Y>());
                    linker.job(kernel::OrderedSum::new(linker.isa(), &kept, &reduced, x, y, continued));
                });
            });
            return Ok(());
        }
        let plan = kernel::Shape::new(&kept, &reduced);
        let partials = linker.scratch::<f32>(plan.partials());
        with_float!(x.dtype, T => {
            with_float!(y.dtype, Y => {
                let (x, y) = (x.read::<T>(), y.write::<Y>());
                for job in kernel::jobs(linker.isa(), self.reduction, plan, x, partials, y) {
                    linker.job(job);
                }
            });
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let reduction = match self.reduction {
            Reduction::Sum => gradus_cuda::Reduction::Sum,
            Reduction::SumOfSquares => gradus_cuda::Reduction::SumOfSquares,
            Reduction::SumOfAbs => gradus_cuda::Reduction::SumOfAbs,
            Reduction::Zeros => gradus_cuda::Reduction::Zeros,
            Reduction::Max => gradus_cuda::Reduction::Max,
        };
        let options = ReduceOptions { reduction, in_order: self.in_order, accumulates: linker.accumulates(0) };
        linker.reduce(&linker.input(0), &self.axes, &linker.output(0), options);
        Ok(())
    }
}

/// The type in which results that are worked on are held.
fn widened(dtype: DType) -> DType {
    if dtype.size() == 2 { DType::F32 } else { dtype }
}

/// The form of a reduction whose axes stay with size 1.
macro_rules! keep_forms {
    ($($name:ident of $reduction:ident($($argument:ident: $ty:ty)?);)*) => {
        impl Tensor {$(
            #[doc = concat!("As [`Tensor::", stringify!($reduction), "`]; the axes stay with size 1.")]
            #[track_caller]
            pub fn $name(&self, $($argument: $ty,)? axes: &[isize]) -> Tensor {
                let reduced = self.$reduction($($argument,)? axes);
                self.keep_axes(reduced, axes)
            }
        )*}
    };
}

keep_forms! {
    sum_keep of sum();
    sum_of_squares_keep of sum_of_squares();
    max_keep of max();
    min_keep of min();
    mean_keep of mean();
    variance_keep of variance();
    standard_deviation_keep of standard_deviation();
    log_sum_exp_keep of log_sum_exp();
    norm_keep of norm(order: f32);
}

impl Tensor {
    /// The sum over these axes; negative ones count from the last.
    #[track_caller]
    pub fn sum(&self, axes: &[isize]) -> Tensor {
        self.reduce(Reduction::Sum, axes, false)
    }

    /// The sum of all elements.
    #[track_caller]
    pub fn sum_all(&self) -> Tensor {
        self.sum(&self.all_axes())
    }

    /// The sum of squares over these axes.
    #[track_caller]
    pub fn sum_of_squares(&self, axes: &[isize]) -> Tensor {
        self.reduce(Reduction::SumOfSquares, axes, false)
    }

    /// The sum of absolute values over these axes.
    #[track_caller]
    pub fn sum_of_abs(&self, axes: &[isize]) -> Tensor {
        self.reduce(Reduction::SumOfAbs, axes, false)
    }

    /// How many numbers are zero over these axes. It has no gradient.
    #[track_caller]
    pub fn count_zeros(&self, axes: &[isize]) -> Tensor {
        self.reduce(Reduction::Zeros, axes, false)
    }

    /// The largest number over these axes; equal ones share the gradient.
    #[track_caller]
    pub fn max(&self, axes: &[isize]) -> Tensor {
        self.reduce(Reduction::Max, axes, false)
    }

    /// The smallest number over these axes.
    #[track_caller]
    pub fn min(&self, axes: &[isize]) -> Tensor {
        -(-self).max(axes)
    }

    /// The mean over these axes; the sum is not rounded to 16 bits before it is divided. NaN of no numbers.
    #[track_caller]
    pub fn mean(&self, axes: &[isize]) -> Tensor {
        let count = self.count_over(axes);
        (self.reduce(Reduction::Sum, axes, true) * (1.0 / count as f32)).cast(self.dtype())
    }

    /// The mean of all elements.
    #[track_caller]
    pub fn mean_all(&self) -> Tensor {
        self.mean(&self.all_axes())
    }

    /// The variance over these axes, divided by the count; in two passes, so that it is stable, and of 16-bit numbers
    /// in f32.
    #[track_caller]
    pub fn variance(&self, axes: &[isize]) -> Tensor {
        self.wide_variance(axes).cast(self.dtype())
    }

    /// The variance, not rounded to 16 bits yet.
    #[track_caller]
    fn wide_variance(&self, axes: &[isize]) -> Tensor {
        let (x, count) = (self.cast(widened(self.dtype())), self.count_over(axes));
        (&x - x.mean_keep(axes)).sum_of_squares(axes) * (1.0 / count as f32)
    }

    /// The square root of the variance over these axes, divided by the count. Its gradient at 0 is 0.
    #[track_caller]
    pub fn standard_deviation(&self, axes: &[isize]) -> Tensor {
        self.wide_variance(axes).root(2.0).cast(self.dtype())
    }

    /// The logarithm of the sum of exponentials over these axes, without overflow; of 16-bit numbers in f32.
    #[track_caller]
    pub fn log_sum_exp(&self, axes: &[isize]) -> Tensor {
        let x = self.cast(widened(self.dtype()));
        // Whatever is subtracted and added again changes nothing; infinities would.
        let largest = x.max(axes).stop_gradient();
        let finite = largest.abs().less(&largest.full_like(f32::INFINITY));
        let shift = finite.select(&largest, &largest.zeros_like());
        let below = &x - x.keep_axes(shift.clone(), axes);
        (below.exp().sum(axes).log() + shift).cast(self.dtype())
    }

    /// The norm of this order over these axes: `(sum of |x|^p)^(1/p)`. Order 0 counts what is not zero, infinity is the
    /// largest absolute value, minus infinity the smallest. Its gradient where all is zero is 0. Of 16-bit numbers it is
    /// computed in f32.
    #[track_caller]
    pub fn norm(&self, order: f32, axes: &[isize]) -> Tensor {
        if order.is_nan() {
            return self
                .parameter_error("norm", "there is no norm of order NaN; take a number or infinity".to_string());
        }
        let x = self.cast(widened(self.dtype()));
        let size = x.abs();
        let norm = match order {
            0.0 => x.not_equal(&x.zeros_like()).sum(axes),
            1.0 => x.sum_of_abs(axes),
            2.0 => x.sum_of_squares(axes).root(2.0),
            f32::INFINITY => size.max(axes),
            f32::NEG_INFINITY => size.min(axes),
            _ => size.power(order).sum(axes).root(order),
        };
        norm.cast(self.dtype())
    }

    /// To a power, of numbers that are not negative; where they are zero, the gradient is 0.
    #[track_caller]
    fn power(&self, exponent: f32) -> Tensor {
        let is_zero = self.equal(&self.zeros_like());
        let elsewhere = is_zero.select(&self.ones_like(), self).powf(exponent);
        is_zero.select(&self.full_like(0f32.powf(exponent)), &elsewhere)
    }

    /// The root of this order, of numbers that are not negative; where they are zero, the gradient is 0.
    #[track_caller]
    fn root(&self, order: f32) -> Tensor {
        self.power(1.0 / order)
    }

    /// The square root of the sum of all squares of several tensors, in f32.
    #[track_caller]
    pub fn global_norm(tensors: &[&Tensor]) -> Tensor {
        let mut total: Option<Tensor> = None;
        for tensor in tensors {
            let squares = tensor.reduce(Reduction::SumOfSquares, &tensor.all_axes(), true).cast(DType::F32);
            total = Some(match total {
                Some(total) => total + squares,
                None => squares,
            });
        }
        let Some(total) = total else { return Tensor::of_nothing("global_norm") };
        total.sqrt()
    }

    /// The sum over whatever axes were repeated to come from `shape` to this shape.
    #[track_caller]
    pub(crate) fn sum_to(&self, shape: &Shape) -> Tensor {
        if self.is_poisoned() {
            return self.clone();
        }
        let own = self.shape();
        let added = own.rank() - shape.rank();
        let repeated = |&axis: &usize| axis < added || shape[axis - added] != own[axis];
        let axes: Vec<isize> = (0..own.rank()).filter(repeated).map(|axis| axis as isize).collect();
        // With as many sums as terms, they are shared out well without cutting any.
        let many = shape.elements().saturating_mul(shape.elements()) >= own.elements();
        let sum = if many { self.sum_in_order(&axes) } else { self.sum(&axes) };
        sum.reshape(shape)
    }

    /// The sum over these axes, if they are the first ones, as one chain of additions in f32 for each result, which
    /// [`accumulated`] can go on with; else [`Tensor::sum`].
    #[track_caller]
    pub fn sum_in_order(&self, axes: &[isize]) -> Tensor {
        let Some(sorted) = self.sorted_axes(axes) else { return self.trace().poisoned() };
        if sorted.is_empty() || sorted.iter().enumerate().any(|(index, &axis)| index != axis) {
            return self.sum(axes);
        }
        self.trace().apply_one(Reduce { reduction: Reduction::Sum, axes: sorted, wide: false, in_order: true }, &[self])
    }

    /// Every axis.
    pub fn all_axes(&self) -> Vec<isize> {
        (0..self.shape().rank() as isize).collect()
    }

    #[track_caller]
    fn reduce(&self, reduction: Reduction, axes: &[isize], wide: bool) -> Tensor {
        let Some(axes) = self.sorted_axes(axes) else { return self.trace().poisoned() };
        // Only where it makes a difference, so that equal reductions stay equal.
        let wide = wide && widened(self.dtype()) != self.dtype();
        if axes.is_empty() && matches!(reduction, Reduction::Sum | Reduction::Max) && !wide {
            return self.clone();
        }
        self.trace().apply_one(Reduce { reduction, axes, wide, in_order: false }, &[self])
    }

    /// What was reduced over these axes, with them: of size 1.
    #[track_caller]
    pub(crate) fn keep_axes(&self, reduced: Tensor, axes: &[isize]) -> Tensor {
        let Some(axes) = self.sorted_axes(axes) else { return self.trace().poisoned() };
        reduced.reshape(axes.iter().fold(self.shape(), |shape, &axis| shape.with(axis, 1)))
    }

    #[track_caller]
    fn count_over(&self, axes: &[isize]) -> usize {
        let shape = self.shape();
        self.sorted_axes(axes).map_or(1, |axes| axes.iter().map(|&axis| shape[axis]).product())
    }

    #[track_caller]
    fn sorted_axes(&self, axes: &[isize]) -> Option<Vec<usize>> {
        let mut sorted = Vec::with_capacity(axes.len());
        for &axis in axes {
            sorted.push(self.axis("reduce", axis)?);
        }
        sorted.sort_unstable();
        sorted.dedup();
        Some(sorted)
    }
}

//! Keys and values of new tokens, written into caches at a place that is only known when the program runs.

use super::attention::{by_head, has_dense_rows};
use super::*;
use crate::{DType, Shape};
use gradus_cuda as device;
use gradus_kernels::attention as kernel;
use gradus_kernels::copy::{Axis, StridedCopy};

/// A cache [n, g, places, d] with rows [n, g, t, d] written over its places from `position`, one i32, on. Rows whose place is
/// not there are left out. Over the cache's own bytes, nothing but these rows is touched.
#[derive(Clone, Copy, Debug)]
pub struct Append;

/// The jobs that make a result a cache with new rows, from these operands.
pub(super) fn append_jobs(
    linker: &mut Linker<'_>,
    [cache, new, position]: [usize; 3],
    output: usize,
) -> Result<(), Unsupported> {
    let [cache, new, position] = [cache, new, position].map(|index| linker.input(index));
    let result = linker.output(output);
    let &[batch, heads, rows, depth] = &new.shape()[..] else { unreachable!("rows have four axes") };
    let places = cache.shape()[2];
    with_float!(cache.dtype, C => {
        let (from, to) = (cache.read::<C>(), result.write::<C>());
        if from.as_ptr() != to.as_in().as_ptr() {
            let all = Axis { size: from.len(), from_stride: 1, to_stride: 1 };
            linker.job(StridedCopy::new(linker.isa(), from, to, &[all]));
        }
        with_float!(new.dtype, N => {
            let new = by_head::<N>(&new);
            linker.job(kernel::Append::new(new, [batch, heads, rows, depth], position.read(), to, places));
        });
    });
    Ok(())
}

/// The result from plain operations: each place has the row that it is to have, or what it had.
pub(super) fn appended(cache: &Tensor, new: &Tensor, position: &Tensor) -> Tensor {
    let [places, rows] = [cache, new].map(|x| cache.trace().arange(x.size(2), DType::F32));
    let here = places.unsqueeze(-1).equal(&(rows + position.cast(DType::F32))); // [places, t]
    let written = here.matmul(&new.cast(DType::F32)); // [n, g, places, d]
    here.sum_keep(&[-1]).select(&written, &cache.cast(DType::F32)).cast(cache.dtype())
}

/// What the result means.
pub(super) fn appended_reals(cache: &Reals, new: &Reals, position: &Reals) -> Reals {
    Reals::from_fn(&cache.shape, |at| {
        let row = at[2] as f64 - position.data[0];
        match (0.0..new.shape[2] as f64).contains(&row) {
            true => new.at(&[at[0], at[1], row as usize, at[3]]),
            false => cache.at(at),
        }
    })
}

/// That rows can be written into a cache.
pub(super) fn unless_rows_of(cache: &TensorType, new: &TensorType) -> Result<(), Mismatch> {
    Mismatch::unless_float(cache)?;
    Mismatch::unless_float(new)?;
    let fits = cache.shape.rank() == 4 && new.shape.rank() == 4 && new.shape[2] <= cache.shape[2];
    if !fits || new.shape.with(2, cache.shape[2]) != cache.shape {
        return Err(Mismatch::Shape(format!(
            "the cache is {} and the rows are {}; both must have the axes [batch, heads, places, depth], of the same \
             sizes but for the places, of which the rows have no more",
            cache.shape, new.shape
        )));
    }
    Ok(())
}

/// That an operand is one number by which places are counted.
pub(super) fn unless_place(what: &str, input: &TensorType) -> Result<(), Mismatch> {
    if input.dtype != DType::I32 {
        return Err(Mismatch::DType(format!("{what} must be i32, not {}; cast it", input.dtype)));
    }
    Mismatch::unless_shape(what, input, &Shape::from([1]))
}

impl Operation for Append {
    fn name(&self) -> &'static str {
        "append"
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let [cache, new, position] = inputs else { unreachable!("three operands") };
        unless_place("the position", position)?;
        unless_rows_of(cache, new)?;
        Ok(vec![cache.clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| vec![appended(&x[0], &x[1], &x[2])])
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| vec![appended(&x[0], &x[1], &x[2])])
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        // A cache is a state that is written over: only the rows are moved.
        Cost { work: Work::Elements, operations: 0, bytes: 2 * inputs[1].bytes() as u64 }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
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

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        vec![appended_reals(inputs[0], inputs[1], inputs[2])]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let inputs = |cache: [usize; 4], rows: usize, position: f64| {
            let new = Shape::from(cache).with(2, rows);
            vec![CaseInput::uniform(cache, -2.0, 2.0), CaseInput::uniform(new, -2.0, 2.0), CaseInput::place(position)]
        };
        let case = |name: &str, cache: [usize; 4], rows: usize, position: f64| {
            Case::with_inputs(name, inputs(cache, rows, position), |x| vec![x[0].append(&x[1], &x[2])])
        };
        vec![
            case("one row", [2, 3, 5, 4], 1, 2.0),
            case("the first rows", [1, 2, 7, 3], 3, 0.0),
            case("the last row", [3, 1, 4, 5], 1, 3.0),
            case("every row", [1, 1, 3, 2], 3, 0.0),
            case("rows that reach past the end", [2, 1, 5, 3], 3, 4.0),
            case("rows from before the start", [1, 2, 5, 3], 4, -2.0),
            case("none of the rows", [1, 2, 4, 3], 2, 9.0),
            case("no rows", [2, 1, 3, 4], 0, 1.0),
            case("no sequences", [0, 2, 3, 4], 1, 1.0),
            case("several parts", [3, 5, 40, 66], 30, 7.0),
            Case::with_inputs("the same row for every sequence", inputs([3, 2, 5, 4], 1, 3.0), |x| {
                vec![x[0].append(&x[1].slice(0, 0..1).broadcast([3, 2, 1, 4]), &x[2])]
            }),
            Case::with_inputs("rows of a wider type", inputs([2, 2, 5, 6], 2, 1.0), |x| {
                vec![x[0].cast(DType::Bf16).append(&x[1].cast(DType::F32), &x[2]).cast(DType::F32)]
            })
            .within(1.0 / 256.0),
        ]
    }
}

impl Kernels for Append {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input == 1 { has_dense_rows(layout) } else { layout.is_dense() }
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        append_jobs(linker, [0, 1, 2], 0)
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let [cache, new, position] = [0, 1, 2].map(|index| linker.input(index));
        let output = linker.output(0);
        linker.launch(device::Append { cache: &cache, new: &new, output: &output }.launch(&position));
        Ok(())
    }
}

impl Tensor {
    /// This cache [n, g, places, d] with rows [n, g, t, d] written over its places from `position`, one i32, on: in the
    /// cache's element type. Rows whose place is not there are left out.
    #[track_caller]
    pub fn append(&self, new: &Tensor, position: &Tensor) -> Tensor {
        self.trace().apply_one(Append, &[self, new, position])
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Error, Trace};

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let problem = |cache: &[usize], new: &[usize], position: (DType, &[usize])| {
            let trace = Trace::new();
            let input = |name: &str, shape: &[usize]| trace.input(name, DType::F32, shape);
            input("cache", cache).append(&input("new", new), &trace.input("position", position.0, position.1));
            match trace.check() {
                Err(Error::Shape { problem, .. } | Error::DType { problem, .. }) => problem,
                other => panic!("{other:?}"),
            }
        };
        let one = (DType::I32, &[1][..]);
        assert!(problem(&[2, 3, 5, 4], &[2, 3, 6, 4], one).contains("of which the rows have no more"));
        assert!(problem(&[2, 3, 5, 4], &[1, 3, 1, 4], one).contains("the rows are [1, 3, 1, 4]"));
        assert!(problem(&[5, 4], &[1, 4], one).contains("[batch, heads, places, depth]"));
        assert!(problem(&[2, 3, 5, 4], &[2, 3, 1, 4], (DType::U32, &[1])).contains("must be i32"));
        assert!(problem(&[2, 3, 5, 4], &[2, 3, 1, 4], (DType::I32, &[2])).contains("the position"));
    }
}

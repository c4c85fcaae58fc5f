//! Keys and values of new tokens, written into caches at a place that is only known when the program runs.

use super::attention::{by_head, has_dense_rows};
use super::*;
use crate::{DType, Shape};
use gradus_cuda as device;
use gradus_kernels::attention as kernel;
use gradus_kernels::copy::{Axis, StridedCopy};

/// Caches [n, g, places, d] with rows [n, g, t, d] written over their places from `position`, one i32, on. Rows whose place is
/// not there are left out. Over a cache's own bytes, nothing but these rows is touched. The operands are the caches, the rows of
/// each and the position.
#[derive(Clone, Copy, Debug)]
pub struct Append {
    caches: usize,
}

impl Append {
    /// Of operands, the caches and the rows of each.
    fn pairs<'a, T>(&self, operands: &'a [T]) -> [&'a [T]; 2] {
        [&operands[..self.caches], &operands[self.caches..2 * self.caches]]
    }

    /// The jobs of the cache of this number.
    fn link_cpu(&self, linker: &mut Linker<'_>, number: usize) -> Result<(), Unsupported> {
        let (cache, new, result) = (linker.input(number), linker.input(self.caches + number), linker.output(number));
        let position = linker.input(2 * self.caches);
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
    fn decomposed(&self, cache: &Tensor, new: &Tensor, position: &Tensor) -> Tensor {
        let [places, rows] = [cache, new].map(|x| cache.trace().arange(x.size(2), DType::F32));
        let here = places.unsqueeze(-1).equal(&(rows + position.cast(DType::F32))); // [places, t]
        let written = here.matmul(&new.cast(DType::F32)); // [n, g, places, d]
        here.sum_keep(&[-1]).select(&written, &cache.cast(DType::F32)).cast(cache.dtype())
    }

    /// The results made of plain operations.
    fn all_decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let ([caches, rows], position) = (self.pairs(x), &x[2 * self.caches]);
        caches.iter().zip(rows).map(|(cache, new)| self.decomposed(cache, new, position)).collect()
    }
}

/// That rows can be written into a cache.
fn unless_rows_of(cache: &TensorType, new: &TensorType) -> Result<(), Mismatch> {
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
        self.caches
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_count(inputs, 2 * self.caches + 1)?;
        let (caches, others) = inputs.split_at(self.caches);
        let (rows, position) = others.split_at(self.caches);
        unless_place("the position", &position[0])?;
        caches.iter().zip(rows).try_for_each(|(cache, new)| unless_rows_of(cache, new))?;
        Ok(caches.to_vec())
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.all_decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.all_decomposed(x))
    }

    fn cost(&self, inputs: &[TensorType], _outputs: &[TensorType]) -> Cost {
        // A cache is a state that is written over: only the rows are moved.
        let bytes = self.pairs(inputs)[1].iter().map(|rows| 2 * rows.bytes() as u64).sum();
        Cost { work: Work::Elements, operations: 0, bytes }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        (0..self.caches).map(|cache| (cache, cache)).collect()
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
        let ([caches, rows], position) = (self.pairs(inputs), inputs[2 * self.caches]);
        let appended = |(output, (cache, new)): (&TensorType, (&&Reals, &&Reals))| {
            Reals::from_fn(&output.shape, |at| {
                let row = at[2] as f64 - position.data[0];
                match (0.0..new.shape[2] as f64).contains(&row) {
                    true => new.at(&[at[0], at[1], row as usize, at[3]]),
                    false => cache.at(at),
                }
            })
        };
        outputs.iter().zip(caches.iter().zip(rows)).map(appended).collect()
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
        let both = |name: &str, rows: fn(Tensor) -> Tensor| {
            let mut inputs = inputs([3, 2, 5, 8], 1, 3.0);
            inputs.insert(2, CaseInput::uniform([2, 3, 1, 8], -2.0, 2.0));
            Case::with_inputs(name, inputs, move |x| {
                let (second, values) = (&x[0] * 2.0, rows(x[2].transpose(0, 1)));
                x[0].append_both(&second, [&x[1], &values], &x[3]).to_vec()
            })
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
            both("two caches", |x| x * 3.0),
            both("two caches, rows that lie otherwise", |x| x),
            both("two caches, in one of them the same row", |x| x.slice(0, 0..1).broadcast([3, 2, 1, 8])),
        ]
    }
}

impl Kernels for Append {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if (self.caches..2 * self.caches).contains(&input) { has_dense_rows(layout) } else { layout.is_dense() }
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        (0..self.caches).try_for_each(|number| self.link_cpu(linker, number))
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let operands: Vec<_> = (0..linker.input_count()).map(|index| linker.input(index)).collect();
        let outputs: Vec<_> = (0..self.caches).map(|index| linker.output(index)).collect();
        let [caches, rows] = self.pairs(&operands);
        let all = caches.iter().zip(rows).zip(&outputs);
        let all: Vec<_> = all.map(|((cache, new), output)| device::Append { cache, new, output }).collect();
        let launches = device::append(&all, &operands[2 * self.caches]);
        launches.into_iter().for_each(|launch| linker.launch(launch));
        Ok(())
    }
}

impl Tensor {
    /// This cache [n, g, places, d] with rows [n, g, t, d] written over its places from `position`, one i32, on: in the
    /// cache's element type. Rows whose place is not there are left out.
    #[track_caller]
    pub fn append(&self, new: &Tensor, position: &Tensor) -> Tensor {
        self.trace().apply_one(Append { caches: 1 }, &[self, new, position])
    }

    /// [`Tensor::append`] to this cache and another, each with rows of its own, at one position.
    #[track_caller]
    pub fn append_both(&self, other: &Tensor, new: [&Tensor; 2], position: &Tensor) -> [Tensor; 2] {
        let appended = self.trace().apply(Append { caches: 2 }, &[self, other, new[0], new[1], position]);
        appended.try_into().expect("as many results as caches")
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

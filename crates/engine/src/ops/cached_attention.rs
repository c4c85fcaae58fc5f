//! Attention of the last tokens over a cache of keys and values, of which only the first places are filled.

use super::append::unless_place;
use super::attention::{Attention, by_group, by_head, for_all_heads, has_dense_rows, swap_heads};
use super::*;
use crate::DType;
use gradus_cuda::{self as device, Element};
use gradus_kernels::attention as kernel;

/// Causal attention of queries [n, h, t, d] over the first `length` places, one i32, of keys and values [n, g, places, d],
/// whose element type may be another: as [n, t, h, d], in the queries' type. The queries are those of the last places that
/// are filled; a length that is less than t counts as t, one above the places as the places. What is behind the length is
/// not touched.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention {
    attention: Attention,
}

impl CachedAttention {
    /// The result from plain operations.
    fn decomposed(&self, x: &[Tensor]) -> Tensor {
        let [q, k, v, length] = x else { unreachable!("four operands") };
        let scores = by_group(q, k).matmul(&for_all_heads(k).transpose(-1, -2)) * self.attention.scale;
        let scores = self.seen(q, k, length).select(&scores, &scores.full_like(-1e30));
        let found = scores.softmax(-1).matmul(&for_all_heads(v));
        swap_heads(&found.reshape(q.shape())).cast(q.dtype())
    }

    /// 1 where a query sees a key: [t, places].
    fn seen(&self, q: &Tensor, k: &Tensor, length: &Tensor) -> Tensor {
        let (queries, places) = (q.size(2), k.size(2));
        let keys = q.trace().arange(places, DType::F32); // [places]
        let length = length.cast(DType::F32).clamp(queries as f32, places as f32); // [1]
        let behind = q.trace().arange(queries, DType::F32) + (1.0 - queries as f32); // [t]
        let end = (length + behind).unsqueeze(-1); // [t, 1]
        let seen = keys.less(&end); // [t, places]
        match self.attention.window.filter(|&window| window < places) {
            Some(window) => seen * (end - window as f32).less_equal(&keys),
            None => seen,
        }
    }
}

impl Operation for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn attributes(&self) -> String {
        self.attention.text()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let [q, k, v, length] = inputs else { unreachable!("four operands") };
        Mismatch::unless_float(q)?;
        Mismatch::unless_same_float(&inputs[1..3])?;
        unless_place("the length", length)?;
        self.attention.problem(&q.shape, &k.shape, &v.shape)?;
        Ok(vec![TensorType::new(q.dtype, [q.shape[0], q.shape[2], q.shape[1], q.shape[3]])])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| vec![self.decomposed(x)])
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| vec![self.decomposed(x)])
    }

    /// As if every place were filled.
    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let (q, k) = (&inputs[0].shape, &inputs[1].shape);
        let operations = self.attention.pairs(q, k) * (4 * q[3] as u64 + 16);
        Cost { work: Work::Attention, operations, bytes: Cost::traffic(inputs, outputs) }
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

    /// That of attention over the places that are filled.
    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let [q, k, v, length] = inputs else { unreachable!("four operands") };
        let filled = length.data[0].clamp(q.shape[2] as f64, k.shape[2] as f64) as usize;
        let [k, v] = [k, v].map(|x| Reals::from_fn(&x.shape.with(2, filled), |at| x.at(at)));
        let log_sums = TensorType::new(DType::F32, q.shape.without_last(1));
        let mut results = self.attention.reference(&[q, &k, &v], &[outputs[0].clone(), log_sums]);
        vec![results.swap_remove(0)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let inputs = |q: [usize; 4], k: [usize; 4], length: f64| {
            let numbers = |shape: [usize; 4]| CaseInput::uniform(shape, -1.0, 1.0);
            vec![numbers(q), numbers(k), numbers(k), CaseInput::place(length)]
        };
        let case = |name: &str, q: [usize; 4], k: [usize; 4], length: f64, window: Option<usize>| {
            let build = move |x: &[Tensor]| vec![x[0].cached_attention(&x[1], &x[2], &x[3], window)];
            Case::with_inputs(name, inputs(q, k, length), build)
        };
        vec![
            case("the first token", [2, 3, 1, 4], [2, 3, 5, 4], 1.0, None),
            case("some places", [2, 2, 1, 3], [2, 2, 7, 3], 4.0, None),
            case("every place", [1, 2, 1, 5], [1, 2, 6, 5], 6.0, None),
            case("several queries", [1, 2, 3, 2], [1, 2, 9, 2], 5.0, None),
            case("grouped heads", [2, 6, 1, 7], [2, 2, 5, 7], 3.0, None),
            case("one head of keys, several queries", [1, 3, 2, 4], [1, 1, 8, 4], 7.0, None),
            case("a window", [1, 4, 2, 3], [1, 2, 9, 3], 7.0, Some(3)),
            case("a window larger than the places", [1, 1, 1, 2], [1, 1, 4, 2], 3.0, Some(9)),
            case("a length below the queries", [1, 1, 3, 2], [1, 1, 6, 2], 0.0, None),
            case("a length beyond the places", [1, 2, 1, 2], [1, 1, 4, 2], 9.0, Some(2)),
            case("several shares of keys", [1, 2, 1, 2], [1, 1, 140, 2], 135.0, None),
            case("a window over two shares", [1, 1, 2, 3], [1, 1, 150, 3], 140.0, Some(20)),
            case("a depth of 64", [2, 4, 1, 64], [2, 2, 20, 64], 13.0, None),
            case("a depth of 128", [1, 2, 1, 128], [1, 1, 9, 128], 8.0, None),
            case("no queries", [1, 2, 0, 3], [1, 2, 4, 3], 2.0, None),
            case("no sequences", [0, 2, 1, 4], [0, 1, 3, 4], 2.0, None),
            Case::with_inputs("keys of a narrower type", inputs([2, 4, 1, 8], [2, 2, 6, 8], 5.0), |x| {
                let [k, v] = [&x[1], &x[2]].map(|x| x.cast(DType::Bf16));
                vec![x[0].cast(DType::F32).cached_attention(&k, &v, &x[3], None)]
            })
            .within(1.0 / 256.0),
        ]
    }
}

impl Kernels for CachedAttention {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input == 0 { has_dense_rows(layout) } else { layout.is_dense() }
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let [q, k, v, length] = [0, 1, 2, 3].map(|index| linker.input(index));
        let (o, isa) = (linker.output(0), linker.isa());
        let problem = self.attention.checked_problem([q.shape(), k.shape(), v.shape()]);
        let found = linker.scratch(kernel::share_numbers(&problem));
        with_float!(q.dtype, Q => {
            with_float!(k.dtype, K => {
                let operands = (by_head::<Q>(&q), [k.read::<K>(), v.read()]);
                linker.job(kernel::Shares::new(isa, problem, operands.0, operands.1, length.read(), found));
            });
            linker.job(kernel::Combination::<Q>::new(isa, problem, length.read(), found.as_in(), o.write()));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let [q, k, v, length] = [0, 1, 2, 3].map(|index| linker.input(index));
        let o = linker.output(0);
        let &[batch, heads, queries, depth] = &q.shape[..] else { unreachable!("queries have four axes") };
        let (key_heads, places) = (k.shape[1], k.shape[2]);
        let Attention { window, scale, .. } = self.attention;
        let window = window.unwrap_or(usize::MAX);
        let attention = device::CachedAttention { batch, heads, key_heads, queries, places, depth, window, scale };
        let scratch = |shape: &[usize]| linker.scratch_operand(Element::F32, shape);
        let launches = attention.launches([&q, &k, &v], &length, &o, scratch);
        launches.into_iter().for_each(|launch| linker.launch(launch));
        Ok(())
    }
}

impl Tensor {
    /// Attention of these queries [n, h, t, d], of the last t of the first `length` places, one i32, over keys and values
    /// [n, g, places, d], scores divided by the square root of d; h is a multiple of g. Each query sees its own place and
    /// those before it; with a window, so many at most. Keys and values may be of another element type.
    #[track_caller]
    pub fn cached_attention(&self, k: &Tensor, v: &Tensor, length: &Tensor, window: Option<usize>) -> Tensor {
        let depth = self.shape().last().copied().unwrap_or(1).max(1);
        let attention = Attention { causal: true, window, scale: 1.0 / (depth as f32).sqrt() };
        swap_heads(&self.trace().apply_one(CachedAttention { attention }, &[self, k, v, length]))
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Error, Trace};

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let problem = |q: &[usize], keys: (DType, &[usize]), length: (DType, &[usize])| {
            let trace = Trace::new();
            let [k, v] = [(keys.0, "k"), (DType::F32, "v")].map(|(dtype, name)| trace.input(name, dtype, keys.1));
            let length = trace.input("length", length.0, length.1);
            trace.input("q", DType::F32, q).cached_attention(&k, &v, &length, None);
            match trace.check() {
                Err(Error::Shape { problem, .. } | Error::DType { problem, .. }) => problem,
                other => panic!("{other:?}"),
            }
        };
        let (keys, one) = ((DType::F32, &[2, 2, 5, 8][..]), (DType::I32, &[1][..]));
        assert!(problem(&[2, 4, 6, 8], keys, one).contains("there are 5 keys"));
        assert!(problem(&[2, 3, 1, 8], keys, one).contains("cannot share 2 heads"));
        assert!(problem(&[2, 4, 1, 8], keys, (DType::I32, &[2])).contains("the length"));
        assert!(problem(&[2, 4, 1, 8], keys, (DType::F32, &[1])).contains("must be i32"));
        assert!(problem(&[2, 4, 1, 8], (DType::Bf16, &[2, 2, 5, 8]), one).contains("bf16"));
    }
}

//! Attention of the last tokens over caches of keys and values, to which theirs are appended first.

use super::append::{append_jobs, appended, appended_reals, unless_place, unless_rows_of};
use super::attention::{Attention, by_group, by_head, for_all_heads, has_dense_rows, swap_heads};
use super::*;
use crate::DType;
use gradus_cuda::{self as device, Element};
use gradus_kernels::attention as kernel;

/// Causal attention of queries [n, h, t, d] over caches of keys and values [n, g, places, d], in which the keys and values
/// [n, g, t, d] of their own tokens are written from `position`, one i32, on: as [n, t, h, d], in the queries' type, and the
/// two caches with these rows. Operands are the queries, the caches, the rows and the position; caches and rows may be of other
/// element types. The last query is at the last place that is filled, which is that of the last row: there are as many filled
/// places as queries at least, and as many as places at most. Rows whose place is not there are left out. What is behind the
/// filled places is not touched, and over the caches' own bytes, nothing but the rows is written.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention {
    attention: Attention,
}

/// Of operands, those of the caches, and the rows that each is given; and the results that they become.
const CACHES: [usize; 2] = [1, 2];
const ROWS: [usize; 2] = [3, 4];
const POSITION: usize = 5;
const APPENDED: [usize; 2] = [1, 2];

impl CachedAttention {
    /// The results from plain operations.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let (q, position) = (&x[0], &x[POSITION]);
        let [k, v] = [0, 1].map(|of| appended(&x[CACHES[of]], &x[ROWS[of]], position));
        let scores = by_group(q, &k).matmul(&for_all_heads(&k).transpose(-1, -2)) * self.attention.scale;
        let scores = self.seen(q, &k, position).select(&scores, &scores.full_like(-1e30));
        let found = scores.softmax(-1).matmul(&for_all_heads(&v));
        vec![swap_heads(&found.reshape(q.shape())).cast(q.dtype()), k, v]
    }

    /// 1 where a query sees a key: [t, places].
    fn seen(&self, q: &Tensor, k: &Tensor, position: &Tensor) -> Tensor {
        let (queries, places) = (q.size(2), k.size(2));
        let keys = q.trace().arange(places, DType::F32); // [places]
        let filled = (position.cast(DType::F32) + queries as f32).clamp(queries as f32, places as f32); // [1]
        let behind = q.trace().arange(queries, DType::F32) + (1.0 - queries as f32); // [t]
        let end = (filled + behind).unsqueeze(-1); // [t, 1]
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
        3
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let [q, k, v, new_k, new_v, position] = inputs else { unreachable!("six operands") };
        Mismatch::unless_float(q)?;
        Mismatch::unless_same_float(&inputs[1..3])?;
        unless_place("the position", position)?;
        self.attention.problem(&q.shape, &k.shape, &v.shape)?;
        [(k, new_k), (v, new_v)].into_iter().try_for_each(|(cache, new)| unless_rows_of(cache, new))?;
        if new_k.shape[2] != q.shape[2] {
            return Err(Mismatch::Shape(format!(
                "the queries are {} and the rows are {}; there must be a row for each query",
                q.shape, new_k.shape
            )));
        }
        let found = TensorType::new(q.dtype, [q.shape[0], q.shape[2], q.shape[1], q.shape[3]]);
        Ok(vec![found, k.clone(), v.clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    /// As if every place were filled. The caches are states that are written over: of them, only the rows are moved.
    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let (q, k) = (&inputs[0].shape, &inputs[1].shape);
        let operations = self.attention.pairs(q, k) * (4 * q[3] as u64 + 16);
        let rows: u64 = ROWS.iter().map(|&new| 2 * inputs[new].bytes() as u64).sum();
        Cost { work: Work::Attention, operations, bytes: Cost::traffic(&inputs[..3], &outputs[..1]) + rows }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        CACHES.into_iter().zip(APPENDED).collect()
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
        let (q, position) = (inputs[0], inputs[POSITION]);
        let caches = [0, 1].map(|of| appended_reals(inputs[CACHES[of]], inputs[ROWS[of]], position));
        let [queries, places] = [q.shape[2], caches[0].shape[2]];
        let filled = (position.data[0] + queries as f64).clamp(queries as f64, places as f64) as usize;
        let [k, v] = caches.each_ref().map(|x| Reals::from_fn(&x.shape.with(2, filled), |at| x.at(at)));
        let log_sums = TensorType::new(DType::F32, q.shape.without_last(1));
        let mut results = self.attention.reference(&[q, &k, &v], &[outputs[0].clone(), log_sums]);
        results.truncate(1);
        results.extend(caches);
        results
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let inputs = |q: [usize; 4], k: [usize; 4], filled: f64| {
            let numbers = |shape: [usize; 4]| CaseInput::uniform(shape, -1.0, 1.0);
            let rows = [k[0], k[1], q[2], k[3]];
            let position = CaseInput::place(filled - q[2] as f64);
            vec![numbers(q), numbers(k), numbers(k), numbers(rows), numbers(rows), position]
        };
        let apply = |x: &[Tensor], window: Option<usize>| {
            let (found, [k, v]) = x[0].cached_attention([&x[1], &x[2]], [&x[3], &x[4]], &x[5], window);
            vec![found, k, v]
        };
        let case = |name: &str, q: [usize; 4], k: [usize; 4], filled: f64, window: Option<usize>| {
            Case::with_inputs(name, inputs(q, k, filled), move |x| apply(x, window))
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
            case("rows from before the start", [1, 1, 3, 2], [1, 1, 6, 2], 1.0, None),
            case("a row behind the places", [1, 2, 1, 2], [1, 1, 4, 2], 9.0, Some(2)),
            case("several shares of keys", [1, 2, 1, 2], [1, 1, 140, 2], 135.0, None),
            case("a window over two shares", [1, 1, 2, 3], [1, 1, 150, 3], 140.0, Some(20)),
            case("a depth of 64", [2, 4, 1, 64], [2, 2, 20, 64], 13.0, None),
            case("a depth of 128", [1, 2, 1, 128], [1, 1, 9, 128], 8.0, None),
            case("no queries", [1, 2, 0, 3], [1, 2, 4, 3], 2.0, None),
            case("no sequences", [0, 2, 1, 4], [0, 1, 3, 4], 2.0, None),
            Case::with_inputs("caches of a narrower type", inputs([2, 4, 1, 8], [2, 2, 6, 8], 5.0), move |x| {
                let [k, v] = [&x[1], &x[2]].map(|x| x.cast(DType::Bf16));
                let [q, new_k, new_v] = [&x[0], &x[3], &x[4]].map(|x| x.cast(DType::F32));
                let results = apply(&[q, k, v, new_k, new_v, x[5].clone()], None);
                results.into_iter().map(|x| x.cast(DType::F32)).collect()
            })
            .within(1.0 / 256.0),
            Case::with_inputs("rows that lie otherwise", inputs([3, 2, 2, 8], [3, 2, 7, 8], 5.0), move |x| {
                let mut x = x.to_vec();
                x[3] = x[3].reshape([3, 2, 2, 8]).transpose(1, 2);
                x[4] = x[4].slice(0, 0..1).broadcast([3, 2, 2, 8]);
                apply(&x, None)
            }),
        ]
    }
}

impl Kernels for CachedAttention {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input == 0 || ROWS.contains(&input) { has_dense_rows(layout) } else { layout.is_dense() }
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        for of in [0, 1] {
            append_jobs(linker, [CACHES[of], ROWS[of], POSITION], APPENDED[of])?;
        }
        let (q, position) = (linker.input(0), linker.input(POSITION));
        let [k, v] = APPENDED.map(|of| linker.output(of));
        let (o, isa) = (linker.output(0), linker.isa());
        let problem = self.attention.checked_problem([q.shape(), k.shape(), v.shape()]);
        let found = linker.scratch(kernel::share_numbers(&problem));
        with_float!(q.dtype, Q => {
            with_float!(k.dtype, K => {
                let caches = [&k, &v].map(|cache| cache.write::<K>().as_in());
                linker.job(kernel::Shares::new(isa, problem, by_head::<Q>(&q), caches, position.read(), found));
            });
            linker.job(kernel::Combination::<Q>::new(isa, problem, position.read(), found.as_in(), o.write()));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (q, position, o) = (linker.input(0), linker.input(POSITION), linker.output(0));
        let [caches, rows] = [CACHES, ROWS].map(|all| all.map(|index| linker.input(index)));
        let outputs = APPENDED.map(|index| linker.output(index));
        let &[batch, heads, queries, depth] = &q.shape[..] else { unreachable!("queries have four axes") };
        let (key_heads, places) = (caches[0].shape[1], caches[0].shape[2]);
        let Attention { window, scale, .. } = self.attention;
        let window = window.unwrap_or(usize::MAX);
        let attention = device::CachedAttention { batch, heads, key_heads, queries, places, depth, window, scale };
        let appended = [0, 1].map(|of| device::Append { cache: &caches[of], new: &rows[of], output: &outputs[of] });
        let scratch = |shape: &[usize]| linker.scratch_operand(Element::F32, shape);
        let launches = attention.launches(&q, appended, &position, &o, scratch);
        launches.into_iter().for_each(|launch| linker.launch(launch));
        Ok(())
    }
}

impl Tensor {
    /// Attention of these queries [n, h, t, d] over caches of keys and values [n, g, places, d], after the keys and values of the
    /// same t tokens [n, g, t, d] were written over their places from `position`, one i32, on: that, as [n, h, t, d], and the caches
    /// so. Scores are divided by the square root of d; h is a multiple of g. Each query sees its own place and those before it;
    /// with a window, so many at most. The caches may be of another element type; rows whose place is not there are left out.
    #[track_caller]
    pub fn cached_attention(
        &self,
        caches: [&Tensor; 2],
        new: [&Tensor; 2],
        position: &Tensor,
        window: Option<usize>,
    ) -> (Tensor, [Tensor; 2]) {
        let depth = self.shape().last().copied().unwrap_or(1).max(1);
        let attention = Attention { causal: true, window, scale: 1.0 / (depth as f32).sqrt() };
        let operands = [self, caches[0], caches[1], new[0], new[1], position];
        let results = self.trace().apply(CachedAttention { attention }, &operands);
        let [found, keys, values]: [Tensor; 3] = results.try_into().expect("attention and two caches");
        (swap_heads(&found), [keys, values])
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Error, Trace};

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let problem = |q: &[usize], keys: (DType, &[usize]), rows: &[usize], position: (DType, &[usize])| {
            let trace = Trace::new();
            let [k, v] = [(keys.0, "k"), (DType::F32, "v")].map(|(dtype, name)| trace.input(name, dtype, keys.1));
            let rows = ["new k", "new v"].map(|name| trace.input(name, DType::F32, rows));
            let position = trace.input("position", position.0, position.1);
            trace.input("q", DType::F32, q).cached_attention([&k, &v], [&rows[0], &rows[1]], &position, None);
            match trace.check() {
                Err(Error::Shape { problem, .. } | Error::DType { problem, .. }) => problem,
                other => panic!("{other:?}"),
            }
        };
        let (keys, row, one) = ((DType::F32, &[2, 2, 5, 8][..]), &[2, 2, 1, 8][..], (DType::I32, &[1][..]));
        assert!(problem(&[2, 4, 6, 8], keys, &[2, 2, 6, 8], one).contains("there are 5 keys"));
        assert!(problem(&[2, 3, 1, 8], keys, row, one).contains("cannot share 2 heads"));
        assert!(problem(&[2, 4, 1, 8], keys, row, (DType::I32, &[2])).contains("the position"));
        assert!(problem(&[2, 4, 1, 8], keys, row, (DType::F32, &[1])).contains("must be i32"));
        assert!(problem(&[2, 4, 1, 8], (DType::Bf16, &[2, 2, 5, 8]), row, one).contains("bf16"));
        assert!(problem(&[2, 4, 1, 8], keys, &[2, 3, 1, 8], one).contains("the rows are [2, 3, 1, 8]"));
        assert!(problem(&[2, 4, 1, 8], keys, &[2, 2, 2, 8], one).contains("a row for each query"));
    }
}

//! Scaled dot-product attention and its gradient, of which the matrix of scores is never held.

mod blocks;

use super::*;
use crate::backend::LinkedOperand;
use crate::{Array, DType, Native, Shape};
use gradus_cuda::{self as device, Element};
use gradus_kernels::attention as kernel;
use std::f64::consts::{LN_2, LOG2_E};
use std::ops::Range;

/// `softmax(scale * q k^T) v` of queries [b, h, t, d] with keys and values [b, g, s, d], where h is a multiple of
/// g: query head `i` uses key head `i / (h / g)`. Its results are that as [b, t, h, d], so that heads can be joined
/// without a copy, and, in f32, the binary logarithms of the sums of exponentials [b, h, t]. If causal, query `i` sees the
/// keys `0..=s - t + i`; with a window of w, the last w of these.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
    pub(super) scale: f32,
}

/// Which keys a query sees, and how scores are scaled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AttentionOptions {
    /// Whether the last query sees all keys, and each one before it one key fewer.
    pub causal: bool,
    /// How many keys a query of a causal attention sees at most: its own and those before it.
    pub window: Option<usize>,
    /// What scores are multiplied by, if not one over the square root of the depth.
    pub scale: Option<f32>,
}

/// The gradients of queries, keys and values, from those, the result, the logarithms of the sums, and the gradient
/// of the result. They are one tensor [b, max(t, s), h + 2 g, d], heads of queries, keys and values side by side, as
/// a joint projection makes them; it is zero at places that have no query or no key.
#[derive(Clone, Copy, Debug)]
pub struct AttentionGradient {
    attention: Attention,
}

impl Attention {
    pub(super) fn text(&self) -> String {
        let causal = if self.causal { ", causal" } else { "" };
        let window = self.window.map_or(String::new(), |window| format!(", window {window}"));
        format!("scale {}{causal}{window}", self.scale)
    }

    /// The sizes, if the operands fit together.
    pub(super) fn problem(&self, q: &Shape, k: &Shape, v: &Shape) -> Result<kernel::Problem, Mismatch> {
        let &[batch, heads, queries, depth] = &q[..] else {
            let problem = format!("queries must have the axes [batch, heads, places, depth], not {q}; reshape them");
            return Err(Mismatch::Shape(problem));
        };
        let &[key_batch, key_heads, keys, key_depth] = &k[..] else {
            let problem = format!("keys must have the axes [batch, heads, places, depth], not {k}; reshape them");
            return Err(Mismatch::Shape(problem));
        };
        let problem = if k != v {
            format!("keys are {k} and values are {v}; they must be of one shape")
        } else if (key_batch, key_depth) != (batch, depth) {
            format!("queries are {q} and keys are {k}; the first and the last axis must be of the same size")
        } else if depth == 0 || keys == 0 {
            format!("keys are {k}; there must be at least one key of at least one number")
        } else if heads.checked_rem(key_heads).unwrap_or(heads) != 0 {
            format!("{heads} heads of queries cannot share {key_heads} heads of keys; use a multiple")
        } else if self.causal && keys < queries {
            format!("{queries} queries see no further than themselves, but there are {keys} keys; give as many or more")
        } else if !(self.scale.is_finite() && self.scale > 0.0) {
            return Err(Mismatch::Parameter(format!("the scale is {}; it must be above 0 and finite", self.scale)));
        } else if self.window.is_some_and(|window| window == 0 || !self.causal) {
            let problem =
                "a window must have at least one key, and belongs to causal attention; leave it out otherwise";
            return Err(Mismatch::Parameter(problem.to_string()));
        } else {
            let Attention { causal, scale, .. } = *self;
            let window = self.window.unwrap_or(usize::MAX);
            return Ok(kernel::Problem { batch, heads, key_heads, queries, keys, depth, causal, window, scale });
        };
        Err(Mismatch::Shape(problem))
    }

    pub(super) fn checked_problem(&self, [q, k, v]: [&Shape; 3]) -> kernel::Problem {
        self.problem(q, k, v).expect("the shapes were checked when the operation was traced")
    }

    /// The problem as the device's kernels take it.
    fn on_device(&self, q: &device::Operand, k: &device::Operand) -> device::Attention {
        let &[batch, heads, queries, depth] = &q.shape[..] else { unreachable!("queries have four axes") };
        let (key_heads, keys, window) = (k.shape[1], k.shape[2], self.window.unwrap_or(usize::MAX));
        let Attention { causal, scale, .. } = *self;
        device::Attention { batch, heads, key_heads, queries, keys, depth, causal, window, scale }
    }

    /// The keys that a query at a place sees.
    fn seen(&self, query: usize, queries: usize, keys: usize) -> Range<usize> {
        let end = if self.causal { keys - queries + query + 1 } else { keys };
        end.saturating_sub(self.window.unwrap_or(usize::MAX))..end
    }

    /// Pairs of a query and a key that it sees.
    pub(super) fn pairs(&self, q: &Shape, k: &Shape) -> u64 {
        let (sequences, queries, keys) = (q[0] * q[1], q[2], k[2]);
        let behind = if self.causal { queries * queries.saturating_sub(1) / 2 } else { 0 };
        // The last query has most keys before its window, each one before it one fewer.
        let most = keys.saturating_sub(self.window.unwrap_or(usize::MAX));
        let with_any = most.min(queries);
        let before = with_any * most - with_any * with_any.saturating_sub(1) / 2;
        (sequences * (queries * keys - behind - before)) as u64
    }

    /// The results from plain operations.
    fn decomposed(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Vec<Tensor> {
        let scores = self.scores(q, k);
        // The result does not depend on what is subtracted.
        let largest = scores.keep_axes(scores.max(&[-1]).stop_gradient(), &[-1]);
        let exponentials = (scores - &largest).exp();
        let total = exponentials.sum_keep(&[-1]);
        let o = (exponentials / &total).matmul(&for_all_heads(v));
        let log_sum = total.log() * LOG2_E as f32 + largest * LOG2_E as f32;
        vec![swap_heads(&o.reshape(q.shape())).cast(q.dtype()), log_sum.reshape(q.shape().without_last(1))]
    }

    /// Scores [b, g, h / g, t, s] in f32, very low where a key is hidden.
    fn scores(&self, q: &Tensor, k: &Tensor) -> Tensor {
        let scores = by_group(q, k).matmul(&for_all_heads(k).transpose(-1, -2)) * self.scale;
        if !self.causal {
            return scores;
        }
        let (queries, keys) = (q.shape()[2], k.shape()[2]);
        let place = |index: usize| (index / keys, index % keys);
        let seen = |(query, key)| if self.seen(query, queries, keys).contains(&key) { 1.0f32 } else { 0.0 };
        let mask: Vec<f32> = (0..queries * keys).map(place).map(seen).collect();
        let mask = Array::new([queries, keys], &mask).expect("a number for each pair");
        q.trace().constant(mask).select(&scores, &scores.full_like(-1e30))
    }
}

/// [b, h, t, d] as [b, t, h, d], or back.
pub(super) fn swap_heads(x: &Tensor) -> Tensor {
    x.permute(&[0, 2, 1, 3])
}

/// Queries' heads [b, h, t, d] as [b, g, h / g, t, d] in f32, for keys [b, g, s, d].
pub(super) fn by_group(q: &Tensor, k: &Tensor) -> Tensor {
    let (shape, key_heads) = (q.shape(), k.shape()[1]);
    let group = shape[1].checked_div(key_heads).unwrap_or(0);
    q.cast(DType::F32).reshape([shape[0], key_heads, group, shape[2], shape[3]])
}

/// Keys or values [b, g, s, d] as [b, g, 1, s, d] in f32.
pub(super) fn for_all_heads(k: &Tensor) -> Tensor {
    let shape = k.shape();
    k.cast(DType::F32).reshape([shape[0], shape[1], 1, shape[2], shape[3]])
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn attributes(&self) -> String {
        self.text()
    }

    fn output_count(&self) -> usize {
        2
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let dtype = Mismatch::unless_same_float(inputs)?;
        let q = &inputs[0].shape;
        self.problem(q, &inputs[1].shape, &inputs[2].shape)?;
        let o = [q[0], q[2], q[1], q[3]];
        Ok(vec![TensorType::new(dtype, o), TensorType::new(DType::F32, q.without_last(1))])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        if at.has_gradient(1) {
            return at.through(|x| self.decomposed(&x[0], &x[1], &x[2]));
        }
        let [q, k, v] = [0, 1, 2].map(|index| &at.inputs[index]);
        let [o, log_sum] = [0, 1].map(|index| &at.outputs[index]);
        let op = AttentionGradient { attention: *self };
        let joint = q.trace().apply_one(op, &[q, k, v, o, log_sum, &at.gradient(0)]);
        let (heads, key_heads) = (q.size(1), k.size(1));
        let part = |first: usize, of: &Tensor| {
            let part = joint.slice(1, 0..of.size(2)).slice(2, first..first + of.size(1));
            Some(swap_heads(&part))
        };
        vec![part(0, q), part(heads, k), part(heads + key_heads, v)]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through_blocks(|x, follow| self.in_blocks(x, blocks::BLOCK_SCORES, follow))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let (q, k) = (&inputs[0].shape, &inputs[1].shape);
        let operations = self.pairs(q, k) * (4 * q[3] as u64 + 16);
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

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (mut o, mut log_sum) = (Reals::zeros(&outputs[0]), Reals::zeros(&outputs[1]));
        for row in super::reals::indices(&outputs[1].shape) {
            let scores = self.reference_scores(inputs[0], inputs[1], &row);
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
            *log_sum.at_mut(&row) = largest * LOG2_E + total.log2();
            for (key, score) in self.reference_keys(inputs, &row).zip(&scores) {
                let probability = (score - largest).exp() / total;
                let value = key_row(inputs[2], inputs[0], &row, key);
                reference_row(&mut o, &[row[0], row[2], row[1]])
                    .iter_mut()
                    .zip(value)
                    .for_each(|(o, v)| *o += probability * v);
            }
        }
        vec![o, log_sum]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for (name, q, k, causal, window) in SIZES {
            let options = AttentionOptions { causal, window, scale: None };
            let build = move |x: &[Tensor]| vec![x[0].attention_with(&x[1], &x[2], options)];
            cases.push(Case::new(name, &[&q, &k, &k], build));
        }
        let both = |causal: bool| {
            let op = Attention { causal, window: causal.then_some(2), scale: 0.7 };
            move |x: &[Tensor]| x[0].trace().apply(op, &[&x[0], &x[1], &x[2]])
        };
        let (q, k): (&[usize], &[usize]) = (&[1, 4, 3, 2], &[1, 2, 5, 2]);
        cases.push(Case::new("with the logarithms of the sums", &[q, k, k], both(false)));
        cases.push(Case::new("causal with a window, with the logarithms of the sums", &[q, k, k], both(true)));
        let options = AttentionOptions { scale: Some(8.0), ..AttentionOptions::default() };
        let far_apart = move |x: &[Tensor]| vec![x[0].attention_with(&x[1], &x[2], options)];
        cases.push(
            Case::new("scores far apart", &[&[1, 1, 3, 2], &[1, 1, 4, 2], &[1, 1, 4, 2]], far_apart).within(2e-4),
        );
        let joint = |x: &[Tensor]| {
            let parts = x[0].reshape([2, 5, 3, 2, 4]).permute(&[2, 0, 3, 1, 4]);
            let part = |index: usize| parts.slice(0, index..index + 1).reshape([2, 2, 5, 4]);
            vec![part(0).attention(&part(1), &part(2), true)]
        };
        cases.push(Case::new("of a joint projection", &[&[2, 5, 24]], joint));
        cases
    }
}

/// Sizes of a case: queries, keys, whether causal, and the window.
type Sizes = (&'static str, [usize; 4], [usize; 4], bool, Option<usize>);

const SIZES: [Sizes; 17] = [
    ("one of everything", [1, 1, 1, 1], [1, 1, 1, 1], true, None),
    ("all see all", [2, 2, 3, 4], [2, 2, 5, 4], false, None),
    ("more queries than keys", [1, 2, 6, 3], [1, 2, 4, 3], false, None),
    ("causal", [1, 2, 5, 3], [1, 2, 5, 3], true, None),
    ("causal behind a prefix", [2, 1, 3, 2], [2, 1, 7, 2], true, None),
    ("grouped heads", [1, 4, 3, 2], [1, 2, 4, 2], false, None),
    ("one key head, causal", [2, 3, 4, 5], [2, 1, 4, 5], true, None),
    ("no queries", [1, 2, 0, 3], [1, 2, 4, 3], false, None),
    ("no sequences", [0, 2, 3, 4], [0, 1, 3, 4], true, None),
    ("several blocks of queries", [1, 1, 67, 2], [1, 1, 70, 2], true, None),
    ("several segments of keys", [1, 2, 5, 2], [1, 1, 133, 2], false, None),
    ("a window", [1, 2, 5, 3], [1, 1, 5, 3], true, Some(2)),
    ("a window larger than the keys", [1, 1, 4, 2], [1, 1, 4, 2], true, Some(9)),
    ("a window behind a prefix", [2, 1, 3, 2], [2, 1, 7, 2], true, Some(4)),
    ("a window that begins in a later block", [1, 1, 2, 1], [1, 1, 140, 1], true, Some(66)),
    ("a depth of 16, a window behind a prefix", [1, 2, 18, 16], [1, 1, 20, 16], true, Some(9)),
    ("a depth of 64", [1, 2, 3, 64], [1, 2, 3, 64], true, None),
];

impl Attention {
    /// The scores of one query (batch, head, place) with the keys that it sees.
    fn reference_scores(&self, q: &Reals, k: &Reals, row: &[usize]) -> Vec<f64> {
        let query = &q.data[row_start(q, row)..][..q.shape[3]];
        let score = |key: usize| self.scale as f64 * dot(query, key_row(k, q, row, key));
        self.reference_keys(&[q, k], row).map(score).collect()
    }

    /// The keys that one query (batch, head, place) sees.
    fn reference_keys(&self, inputs: &[&Reals], row: &[usize]) -> Range<usize> {
        self.seen(row[2], inputs[0].shape[2], inputs[1].shape[2])
    }
}

/// Where the numbers of the first three axes' indices begin.
fn row_start(x: &Reals, row: &[usize]) -> usize {
    ((row[0] * x.shape[1] + row[1]) * x.shape[2] + row[2]) * x.shape[3]
}

fn reference_row<'a>(x: &'a mut Reals, row: &[usize]) -> &'a mut [f64] {
    let (start, depth) = (row_start(x, row), x.shape[3]);
    &mut x.data[start..start + depth]
}

/// The row of a key head that a row of the queries uses.
fn shared_row(k: &Reals, q: &Reals, row: &[usize], key: usize) -> [usize; 3] {
    [row[0], row[1] / (q.shape[1] / k.shape[1]), key]
}

fn key_row<'a>(k: &'a Reals, q: &Reals, row: &[usize], key: usize) -> &'a [f64] {
    &k.data[row_start(k, &shared_row(k, q, row, key))..][..k.shape[3]]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The kernel's view of an operand [b, h, t, d].
pub(super) fn by_head<T: Native>(operand: &LinkedOperand) -> kernel::Heads<T> {
    let strides = &operand.layout.strides;
    kernel::Heads { elements: operand.read(), strides: [strides[0], strides[1], strides[2]] }
}

/// The kernel's view of an operand [b, t, h, d].
fn by_place<T: Native>(operand: &LinkedOperand) -> kernel::Heads<T> {
    let strides = &operand.layout.strides;
    kernel::Heads { elements: operand.read(), strides: [strides[0], strides[2], strides[1]] }
}

/// Whether the last axis is dense.
pub(super) fn has_dense_rows(layout: &Layout) -> bool {
    layout.is_dense_from(3)
}

impl Kernels for Attention {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        has_dense_rows(layout)
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let operands = [0, 1, 2].map(|index| linker.input(index));
        let (o, log_sum) = (linker.output(0), linker.output(1));
        let problem = self.checked_problem(operands.each_ref().map(|operand| operand.shape()));
        with_float!(o.dtype, T => {
            let operands = operands.each_ref().map(by_head::<T>);
            let result = kernel::HeadsMut { elements: o.write(), strides: by_place::<T>(&o).strides };
            linker.job(kernel::Attention::new(linker.isa(), problem, operands, result, log_sum.write()));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let [q, k, v] = [0, 1, 2].map(|index| linker.input(index));
        let (o, log_sum) = (linker.output(0), linker.output(1));
        linker.launch(self.on_device(&q, &k).forward([&q, &k, &v], &o, &log_sum));
        Ok(())
    }
}

impl AttentionGradient {
    /// The results from plain operations.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        self.side_by_side(x, self.parts(x))
    }

    /// The gradients of queries, keys and values from plain operations, each as these lie.
    fn parts(&self, x: &[Tensor]) -> [Tensor; 3] {
        let [q, k, v, o, log_sum, g] = x else { unreachable!("six operands") };
        let (queries, g, o) = (by_group(q, k), by_group(&swap_heads(g), k), by_group(&swap_heads(o), k));
        let (keys, values) = (for_all_heads(k), for_all_heads(v));
        let scores = self.attention.scores(q, k);
        // The difference is small where a probability is not: it is taken before anything is turned to nats.
        let powers = &scores * LOG2_E as f32 - scores.keep_axes(log_sum.clone(), &[-1]);
        let probabilities = (powers * LN_2 as f32).exp();
        let slopes = g.matmul(&values.transpose(-1, -2)) - (&g * &o).sum_keep(&[-1]);
        let scores_gradient = &probabilities * slopes * self.attention.scale;
        let to_keys = |weights: &Tensor, rows: &Tensor| weights.transpose(-1, -2).matmul(rows).sum(&[2]);
        [
            scores_gradient.matmul(&keys).reshape(q.shape()),
            to_keys(&scores_gradient, &queries),
            to_keys(&probabilities, &g),
        ]
    }

    /// The gradients of the first operands as one tensor.
    fn side_by_side(&self, x: &[Tensor], parts: [Tensor; 3]) -> Vec<Tensor> {
        let (q, k) = (&x[0], &x[1]);
        let places = q.size(2).max(k.size(2));
        let parts = parts.each_ref().map(|part| swap_heads(part).pad(1, [0, places - part.size(2)], 0.0));
        vec![Tensor::concat(&parts.each_ref(), 2).cast(q.dtype())]
    }
}

impl Operation for AttentionGradient {
    fn name(&self) -> &'static str {
        "attention_gradient"
    }

    fn attributes(&self) -> String {
        self.attention.text()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let expected = self.attention.outputs(&inputs[..3])?;
        for (what, given, expected) in [
            ("the result", &inputs[3], &expected[0]),
            ("the logarithms of the sums", &inputs[4], &expected[1]),
            ("the gradient of the result", &inputs[5], &expected[0]),
        ] {
            Mismatch::unless_shape(what, given, &expected.shape)?;
            if given.dtype != expected.dtype {
                return Err(Mismatch::DType(format!(
                    "{what} must be {}, not {}; cast it",
                    expected.dtype, given.dtype
                )));
            }
        }
        let (q, k) = (&inputs[0].shape, &inputs[1].shape);
        Ok(vec![TensorType::new(inputs[0].dtype, [q[0], q[2].max(k[2]), q[1] + 2 * k[1], q[3]])])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through_blocks_instead(|x, follow| self.in_blocks(x, blocks::BLOCK_SCORES, follow))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let (q, k) = (&inputs[0].shape, &inputs[1].shape);
        let operations = self.attention.pairs(q, k) * (10 * q[3] as u64 + 16);
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

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let [q, k, v, o, log_sum, g] = inputs else { unreachable!("six operands") };
        let mut joint = Reals::zeros(&outputs[0]);
        let (heads, key_heads) = (q.shape[1], k.shape[1]);
        for row in super::reals::indices(&log_sum.shape) {
            let at = |x: &Reals, row: &[usize]| x.data[row_start(x, row)..][..x.shape[3]].to_vec();
            let by_place = [row[0], row[2], row[1]];
            let (q_row, g_row) = (at(q, &row), at(g, &by_place));
            let through_sum = dot(&g_row, &at(o, &by_place));
            let scores = self.attention.reference_scores(q, k, &row);
            for (key, score) in self.attention.reference_keys(inputs, &row).zip(scores) {
                let probability = (score * LOG2_E - log_sum.at(&row)).exp2();
                let slope = dot(&g_row, key_row(v, q, &row, key)) - through_sum;
                let score_gradient = probability * slope * self.attention.scale as f64;
                let k_row = key_row(k, q, &row, key);
                let shared = shared_row(k, q, &row, key);
                let mut add = |first_head: usize, row: &[usize], factor: f64, numbers: &[f64]| {
                    let target = reference_row(&mut joint, &[row[0], row[2], first_head + row[1]]);
                    target.iter_mut().zip(numbers).for_each(|(to, x)| *to += factor * x);
                };
                add(0, &row, score_gradient, k_row);
                add(heads, &shared, score_gradient, &q_row);
                add(heads + key_heads, &shared, probability, &g_row);
            }
        }
        vec![joint]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |(name, q, k, causal, window): Sizes| {
            let numbers = |shape: &[usize]| CaseInput::uniform(shape, -1.0, 1.0);
            // About as large as the logarithms of the sums are, so that the probabilities are not far from such.
            let log_sums = CaseInput::uniform(&q[..3], 1.5, 6.0);
            let o = [q[0], q[2], q[1], q[3]];
            let inputs = vec![numbers(&q), numbers(&k), numbers(&k), numbers(&o), log_sums, numbers(&o)];
            Case::with_inputs(name, inputs, move |x| {
                let op = AttentionGradient { attention: Attention { causal, window, scale: 0.7 } };
                let log_sum = x[4].cast(DType::F32);
                x[0].trace().apply(op, &[&x[0], &x[1], &x[2], &x[3], &log_sum, &x[5]])
            })
        };
        SIZES.into_iter().map(case).collect()
    }
}

impl Kernels for AttentionGradient {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input == 4 { layout.is_dense() } else { has_dense_rows(layout) }
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let [q, k, v, o, log_sum, g] = [0, 1, 2, 3, 4, 5].map(|index| linker.input(index));
        let joint = linker.output(0);
        let problem = self.attention.checked_problem([q.shape(), k.shape(), v.shape()]);
        let shares = linker.scratch::<f32>(kernel::Segments::new(&problem).shares());
        let isa = linker.isa();
        with_float!(q.dtype, T => {
            let operands = [by_head(&q), by_head(&k), by_head(&v), by_place(&o), by_place(&g)];
            linker.job(kernel::Gradient::<T>::new(isa, problem, operands, log_sum.read(), shares, joint.write()));
            linker.job(kernel::QueryGradient::<T>::new(isa, problem, shares.as_in(), joint.write()));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let [q, k, v, o, log_sum, g] = [0, 1, 2, 3, 4, 5].map(|index| linker.input(index));
        let attention = self.attention.on_device(&q, &k);
        let operands = device::AttentionGradient { q, k, v, o, log_sum, g, joint: linker.output(0) };
        let launches = attention.gradient(&operands, |shape| linker.scratch_operand(Element::F32, shape));
        launches.into_iter().for_each(|launch| linker.launch(launch));
        Ok(())
    }
}

impl Tensor {
    /// Attention of these queries [b, h, t, d] over keys and values [b, g, s, d], scores divided by the square root
    /// of d; h is a multiple of g. If causal, the last query sees all keys, and each one before it one key fewer.
    #[track_caller]
    pub fn attention(&self, k: &Tensor, v: &Tensor, causal: bool) -> Tensor {
        self.attention_with(k, v, AttentionOptions { causal, ..AttentionOptions::default() })
    }

    /// As [`Tensor::attention`], with all that can be chosen.
    #[track_caller]
    pub fn attention_with(&self, k: &Tensor, v: &Tensor, options: AttentionOptions) -> Tensor {
        let AttentionOptions { causal, window, scale } = options;
        let depth = self.shape().last().copied().unwrap_or(1).max(1);
        let scale = scale.unwrap_or(1.0 / (depth as f32).sqrt());
        swap_heads(&self.trace().apply(Attention { causal, window, scale }, &[self, k, v]).swap_remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::{Attention, AttentionOptions};
    use crate::{DType, Error, Shape, Trace};

    /// What is said of queries, keys and values of these shapes.
    fn problem(q: &[usize], k: &[usize], v: &[usize], causal: bool) -> String {
        let trace = Trace::new();
        let input = |name: &str, shape: &[usize]| trace.input(name, DType::F32, shape);
        input("q", q).attention(&input("k", k), &input("v", v), causal);
        match trace.check() {
            Err(Error::Shape { problem, .. }) => problem,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pairs_are_counted_as_they_are_seen() {
        for (queries, keys) in [(1, 1), (5, 5), (3, 9), (7, 8), (0, 4)] {
            for window in [None, Some(1), Some(2), Some(6), Some(8), Some(20)] {
                let attention = Attention { causal: true, window, scale: 1.0 };
                let counted: usize = (0..queries).map(|query| attention.seen(query, queries, keys).len()).sum();
                let pairs = attention.pairs(&Shape::from([2, 3, queries, 4]), &Shape::from([2, 1, keys, 4]));
                assert_eq!(pairs, 6 * counted as u64, "{queries} queries, {keys} keys, window {window:?}");
            }
        }
    }

    #[test]
    fn windows_that_see_nothing_or_are_not_causal_are_refused() {
        for (causal, window) in [(true, 0), (false, 3)] {
            let trace = Trace::new();
            let x = trace.input("x", DType::F32, [1, 1, 4, 2]);
            x.attention_with(&x, &x, AttentionOptions { causal, window: Some(window), scale: None });
            assert!(
                matches!(trace.check(), Err(Error::Parameter { problem, .. }) if problem.contains("a window must"))
            );
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let q = &[2, 4, 3, 8];
        assert!(problem(&[3, 8], q, q, true).contains("queries must have the axes"));
        assert!(problem(q, &[4, 3, 8], q, true).contains("keys must have the axes"));
        assert!(problem(q, q, &[2, 4, 3, 4], false).contains("values are [2, 4, 3, 4]"));
        assert!(problem(q, &[1, 4, 3, 8], &[1, 4, 3, 8], false).contains("first and the last axis"));
        assert!(problem(q, &[2, 4, 0, 8], &[2, 4, 0, 8], false).contains("at least one key"));
        assert!(problem(q, &[2, 3, 3, 8], &[2, 3, 3, 8], false).contains("cannot share 3 heads"));
        assert!(problem(q, &[2, 0, 3, 8], &[2, 0, 3, 8], false).contains("cannot share 0 heads"));
        assert!(problem(q, &[2, 4, 2, 8], &[2, 4, 2, 8], true).contains("there are 2 keys"));
    }
}

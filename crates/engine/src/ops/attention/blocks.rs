//! Attention and its gradient made of plain operations, a block of queries at a time: what tangents go through, so that the
//! scores of one block are held and not those of all.

use super::*;

/// Scores that a block has, at most, unless one query of every head has more.
pub(super) const BLOCK_SCORES: usize = 1 << 22;
/// Causal queries that a block has, at most: keys that none of them sees are left out. Products and chains of the blocks of GPT-2 124M
/// over 256 tokens took 69 ms of a Hessian-vector product instead of 73, while all else took 8 % longer.
const BLOCK_QUERIES: usize = 128;

impl Attention {
    /// Blocks of queries, each with the keys that one of them sees, of so many scores at most.
    fn blocks(&self, q: &Shape, k: &Shape, scores: usize) -> Vec<[Range<usize>; 2]> {
        let (queries, keys) = (q[2], k[2]);
        let most = scores.checked_div(q[0] * q[1] * keys).unwrap_or(queries).clamp(1, queries.max(1));
        let most = if self.causal { most.min(BLOCK_QUERIES) } else { most };
        // Of nearly one size.
        let count = queries.div_ceil(most).max(1);
        let block = |index: usize| {
            let rows = queries * index / count..queries * (index + 1) / count;
            let last = self.seen(rows.end.max(1) - 1, queries.max(1), keys.max(queries));
            let seen = self.seen(rows.start, queries.max(1), keys.max(queries)).start..last.end.min(keys);
            [rows, seen]
        };
        if count == 1 { vec![[0..queries, 0..keys]] } else { (0..count).map(block).collect() }
    }

    /// As [`Attention::decomposed`], in blocks of so many scores; `follow` is called after each.
    pub(super) fn in_blocks(&self, x: &[Tensor], scores: usize, follow: &mut dyn FnMut()) -> Vec<Tensor> {
        let [q, k, v] = x else { unreachable!("three operands") };
        let mut pieces = [vec![], vec![]];
        for [rows, seen] in self.blocks(&q.shape(), &k.shape(), scores) {
            let [k, v] = [k, v].map(|x| x.slice(2, seen.clone()));
            let results = self.decomposed(&q.slice(2, rows), &k, &v);
            pieces.iter_mut().zip(results).for_each(|(pieces, result)| pieces.push(result));
            follow();
        }
        let [o, log_sum] = pieces;
        vec![joined(o, 1), joined(log_sum, 2)]
    }
}

impl AttentionGradient {
    /// As [`AttentionGradient::decomposed`], in blocks of so many scores; `follow` is called after each.
    pub(super) fn in_blocks(&self, x: &[Tensor], scores: usize, follow: &mut dyn FnMut()) -> Vec<Tensor> {
        let [q, k, v, o, log_sum, g] = x else { unreachable!("six operands") };
        let mut to_queries = vec![];
        let mut to_keys: [Option<Tensor>; 2] = [None, None];
        for [rows, seen] in self.attention.blocks(&q.shape(), &k.shape(), scores) {
            let [k_seen, v_seen] = [k, v].map(|x| x.slice(2, seen.clone()));
            let [o, g] = [o, g].map(|x| x.slice(1, rows.clone()));
            let [q, log_sum] = [q, log_sum].map(|x| x.slice(2, rows.clone()));
            let [dq, dk, dv] = self.parts(&[q, k_seen, v_seen, o, log_sum, g]);
            to_queries.push(dq);
            for (sum, part) in to_keys.iter_mut().zip([dk, dv]) {
                let part = part.pad(2, [seen.start, k.size(2) - seen.end], 0.0);
                *sum = Some(match sum.take() {
                    Some(sum) => sum + part,
                    None => part,
                });
            }
            follow();
        }
        let [Some(dk), Some(dv)] = to_keys else { unreachable!("there is a block") };
        self.side_by_side(x, [joined(to_queries, 2), dk, dv])
    }
}

/// Pieces side by side; one by itself is the whole.
fn joined(pieces: Vec<Tensor>, axis: isize) -> Tensor {
    match &pieces[..] {
        [whole] => whole.clone(),
        _ => Tensor::concat(&pieces.iter().collect::<Vec<_>>(), axis),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GradientTape, jacobian_vector_product};

    /// Numbers between -1 and 1.
    fn watched(tape: &GradientTape, shape: [usize; 4], seed: usize) -> Tensor {
        let count = shape.iter().product();
        let numbers: Vec<f32> = (0..count).map(|at| ((at * 37 + seed * 101) as f32 * 0.61).sin()).collect();
        tape.watch(Array::new(shape, &numbers).unwrap())
    }

    fn largest_difference(tape: &GradientTape, a: &[Tensor], b: &[Tensor]) -> f64 {
        let read = tape.read_all(&a.iter().chain(b).collect::<Vec<_>>()).unwrap();
        let (a, b) = read.split_at(a.len());
        let pairs = a.iter().zip(b).flat_map(|(a, b)| a.to_f64().into_iter().zip(b.to_f64()));
        pairs.fold(0.0, |most, (a, b)| f64::max(most, (a - b).abs()))
    }

    #[test]
    fn blocks_make_the_whole() {
        for (causal, window, queries, keys) in
            [(false, None, 5, 7), (true, None, 5, 5), (true, None, 4, 9), (true, Some(3), 7, 8)]
        {
            let tape = GradientTape::new().unwrap();
            let attention = Attention { causal, window, scale: 0.7 };
            let shapes = [[2, 4, queries, 3], [2, 2, keys, 3], [2, 2, keys, 3]];
            let x: Vec<Tensor> = shapes.into_iter().enumerate().map(|(at, shape)| watched(&tape, shape, at)).collect();
            let v: Vec<Tensor> =
                shapes.into_iter().enumerate().map(|(at, shape)| watched(&tape, shape, at + 5)).collect();
            let [whole, blocks] = [BLOCK_SCORES, 2 * 4 * keys * 2].map(|scores| {
                let mut count = 0;
                let results = attention.in_blocks(&x, scores, &mut || count += 1);
                assert_eq!(count > 1, scores < BLOCK_SCORES);
                results
            });
            assert!(largest_difference(&tape, &whole, &blocks) < 1e-6, "{attention:?}");
            let along = |outputs: &[Tensor]| {
                let [inputs, vectors] = [&x, &v].map(|tensors| tensors.iter().collect::<Vec<_>>());
                jacobian_vector_product(&outputs.iter().collect::<Vec<_>>(), &inputs, &vectors).unwrap()
            };
            let fused = tape.trace().apply(attention, &x.iter().collect::<Vec<_>>());
            assert!(largest_difference(&tape, &along(&fused), &along(&blocks)) < 1e-5, "{attention:?}");

            let gradient = AttentionGradient { attention };
            let operands: Vec<Tensor> =
                x.iter().chain(&fused).cloned().chain([watched(&tape, [2, queries, 4, 3], 9)]).collect();
            let fused = tape.trace().apply(gradient, &operands.iter().collect::<Vec<_>>());
            let blocks = gradient.in_blocks(&operands, 2 * 4 * keys * 2, &mut || {});
            assert!(largest_difference(&tape, &fused, &blocks) < 1e-5, "{gradient:?}");
            assert!(largest_difference(&tape, &along(&fused), &along(&blocks)) < 1e-4, "{gradient:?}");
        }
    }
}

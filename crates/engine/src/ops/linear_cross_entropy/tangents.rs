//! The loss and its gradient made of plain operations, a block of rows at a time: what tangents go through, so that the logits
//! of one block are held and not all.

use super::*;

/// Logits that a block has, at most, unless one row has more.
pub(super) const BLOCK_LOGITS: usize = 1 << 24;

/// Rows in blocks of nearly one size, of so many logits at most.
fn row_blocks(x: &[Tensor], logits: usize) -> Vec<Range<usize>> {
    let (rows, classes) = (x[0].size(0), x[1].size(0));
    let most = (logits / classes.max(1)).clamp(1, rows.max(1));
    let count = rows.div_ceil(most).max(1);
    (0..count).map(|index| rows * index / count..rows * (index + 1) / count).collect()
}

/// The operands of a block: some rows of all but the weight.
fn of_rows(x: &[Tensor], rows: &Range<usize>) -> Vec<Tensor> {
    let part = |(at, x): (usize, &Tensor)| if at == 1 { x.clone() } else { x.slice(0, rows.clone()) };
    x.iter().enumerate().map(part).collect()
}

/// Pieces one under another; one by itself is the whole.
fn joined(pieces: Vec<Tensor>) -> Tensor {
    match &pieces[..] {
        [whole] => whole.clone(),
        _ => Tensor::concat(&pieces.iter().collect::<Vec<_>>(), 0),
    }
}

impl LinearCrossEntropy {
    /// As [`LinearCrossEntropy::decomposed`], in blocks of so many logits; `follow` is called after each.
    pub(super) fn in_blocks(&self, x: &[Tensor], logits: usize, follow: &mut dyn FnMut()) -> Vec<Tensor> {
        let mut pieces = [vec![], vec![]];
        for rows in row_blocks(x, logits) {
            let results = self.decomposed(&of_rows(x, &rows));
            pieces.iter_mut().zip(results).for_each(|(pieces, result)| pieces.push(result));
            follow();
        }
        pieces.map(joined).into()
    }
}

impl LinearCrossEntropyGradient {
    /// As [`LinearCrossEntropyGradient::decomposed`], in blocks of so many logits; `follow` is called after each.
    pub(super) fn in_blocks(&self, x: &[Tensor], logits: usize, follow: &mut dyn FnMut()) -> Vec<Tensor> {
        let (mut to_rows, mut to_weight) = (vec![], None);
        for rows in row_blocks(x, logits) {
            let [dx, dweight] = &self.decomposed(&of_rows(x, &rows))[..] else { unreachable!("two results") };
            to_rows.push(dx.clone());
            to_weight = Some(match to_weight {
                Some(sum) => sum + dweight,
                None => dweight.clone(),
            });
            follow();
        }
        vec![joined(to_rows), to_weight.expect("there is a block")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Array, GradientTape, jacobian_vector_product};

    #[test]
    fn blocks_make_the_whole() {
        let tape = GradientTape::new().unwrap();
        let watched = |shape: &[usize], seed: usize| {
            let count = shape.iter().product();
            let numbers: Vec<f32> = (0..count).map(|at| ((at * 37 + seed * 101) as f32 * 0.61).sin()).collect();
            tape.watch(Array::new(shape, &numbers).unwrap())
        };
        let targets = tape.watch(Array::new([7], &[0i32, 4, 2, -100, 1, 3, 4]).unwrap());
        let shapes: [&[usize]; 2] = [&[7, 3], &[5, 3]];
        let [x, v] = [0, 5].map(|seed| [watched(shapes[0], seed), watched(shapes[1], seed + 1)]);
        let options = LinearCrossEntropyOptions { ignored: Some(-100), ..LinearCrossEntropyOptions::default() };
        let along = |outputs: &[Tensor]| {
            let [inputs, vectors] = [&x, &v].map(|tensors| tensors.iter().collect::<Vec<_>>());
            jacobian_vector_product(&outputs.iter().collect::<Vec<_>>(), &inputs, &vectors).unwrap()
        };
        let differ = |a: &[Tensor], b: &[Tensor]| {
            let read = tape.read_all(&a.iter().chain(b).collect::<Vec<_>>()).unwrap();
            let (a, b) = read.split_at(a.len());
            let pairs = a.iter().zip(b).flat_map(|(a, b)| a.to_f64().into_iter().zip(b.to_f64()));
            pairs.fold(0.0, |most, (a, b)| f64::max(most, (a - b).abs()))
        };
        let loss = LinearCrossEntropy { options };
        let operands = [x[0].clone(), x[1].clone(), targets.clone()];
        let fused = tape.trace().apply(LinearCrossEntropy { options }, &operands.each_ref());
        let mut count = 0;
        let blocks = loss.in_blocks(&operands, 11, &mut || count += 1);
        assert_eq!(count, 4);
        assert!(differ(&fused, &blocks) < 1e-6 && differ(&along(&fused), &along(&blocks)) < 1e-5);

        let operands = [&x[0], &x[1], &targets, &fused[1], &watched(&[7], 3)].map(Tensor::clone);
        let fused = tape.trace().apply(LinearCrossEntropyGradient { options }, &operands.each_ref());
        let blocks = LinearCrossEntropyGradient { options }.in_blocks(&operands, 11, &mut || {});
        assert!(differ(&fused, &blocks) < 1e-5 && differ(&along(&fused), &along(&blocks)) < 1e-5);
    }
}

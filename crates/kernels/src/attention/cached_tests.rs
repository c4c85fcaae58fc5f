//! The cache appended to, and attention over what is filled of it, beside a straightforward computation in f64.

use super::{Append, Combination, Heads, Problem, Shares, share_numbers};
use crate::{Element, In, Isa, Out, bf16, run_alone};

/// Numbers between -1 and 1, the same in every run.
fn numbers<T: Element>(seed: usize, count: usize) -> Vec<T> {
    (0..count).map(|index| T::from_f32(((index * 37 + seed * 11) % 211) as f32 / 105.0 - 1.0)).collect()
}

fn read<T>(numbers: &[T]) -> In<T> {
    In::new(numbers.as_ptr(), numbers.len())
}

/// What a query finds.
fn expected<Q: Element, K: Element>(
    problem: &Problem,
    [batch, head, query]: [usize; 3],
    q: &[Q],
    [k, v]: [&[K]; 2],
    length: usize,
) -> Vec<f64> {
    let Problem { heads, key_heads, queries, keys, depth, window, scale, .. } = *problem;
    let end = length - queries + query + 1;
    // Queries lie as (batch, query, head).
    let q = &q[((batch * queries + query) * heads + head) * depth..][..depth];
    let row = |x: &[K], key: usize| -> Vec<f64> {
        let start = ((batch * key_heads + head / (heads / key_heads)) * keys + key) * depth;
        x[start..start + depth].iter().map(|x| x.to_f32() as f64).collect()
    };
    let dot = |key: Vec<f64>| q.iter().zip(key).map(|(q, k)| q.to_f32() as f64 * k).sum::<f64>();
    let seen = end.saturating_sub(window)..end;
    let weights: Vec<f64> = seen.clone().map(|key| (scale as f64 * dot(row(k, key))).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut found = vec![0.0; depth];
    for (key, weight) in seen.zip(weights) {
        found.iter_mut().zip(row(v, key)).for_each(|(found, value)| *found += weight / total * value);
    }
    found
}

fn check<Q: Element, K: Element>(tolerance: f64) {
    for ([batch, heads, key_heads], queries, keys, depth, window) in [
        ([1, 1, 1], 1, 1, 1, usize::MAX),
        ([2, 6, 2], 1, 300, 20, usize::MAX),
        ([1, 2, 1], 3, 140, 64, 130),
        ([1, 4, 4], 2, 257, 7, 5),
        ([3, 2, 2], 1, 128, 80, usize::MAX),
    ] {
        let problem = Problem { batch, heads, key_heads, queries, keys, depth, causal: true, window, scale: 0.3 };
        let q: Vec<Q> = numbers(1, batch * queries * heads * depth);
        for length in [queries, keys / 2, keys - 1, keys].map(|length| length.max(queries)) {
            let [mut k, mut v]: [Vec<K>; 2] = [2, 3].map(|seed| numbers(seed, batch * key_heads * keys * depth));
            // What is behind the filled places must not matter.
            for (place, row) in k.chunks_exact_mut(depth).zip(v.chunks_exact_mut(depth)).enumerate() {
                if place % keys >= length {
                    row.0.fill(K::from_f32(f32::NAN));
                    row.1.fill(K::from_f32(f32::NAN));
                }
            }
            for isa in Isa::available() {
                let mut found = vec![f32::NAN; share_numbers(&problem)];
                let mut o = vec![Q::from_f32(f32::NAN); q.len()];
                let heads_of_q = Heads { elements: read(&q), strides: [queries * heads * depth, depth, heads * depth] };
                let (found, position) = (Out::new(found.as_mut_ptr(), found.len()), [(length - queries) as i32]);
                run_alone(&Shares::new(isa, problem, heads_of_q, [read(&k), read(&v)], read(&position), found));
                let to = Out::new(o.as_mut_ptr(), o.len());
                run_alone(&Combination::new(isa, problem, read(&position), found.as_in(), to));
                for (row, o) in o.chunks_exact(depth).enumerate() {
                    let (place, head) = (row / heads, row % heads);
                    let at = [place / queries, head, place % queries];
                    for (o, expected) in o.iter().zip(expected(&problem, at, &q, [&k, &v], length)) {
                        let error = (o.to_f32() as f64 - expected).abs();
                        assert!(error <= tolerance, "{problem:?}, length {length}, {isa}: {error}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_found_in_the_filled_places_equals_the_f64_computation() {
    check::<f32, f32>(2e-6);
    check::<f32, bf16>(2e-6);
    check::<bf16, bf16>(1.0 / 256.0);
}

#[test]
fn rows_are_written_to_their_places_alone() {
    let (batch, heads, rows, depth, places) = (2, 3, 4, 5, 7);
    let new: Vec<f32> = numbers(4, batch * rows * heads * depth);
    for position in [-9, -2, 0, 3, 5, 7, i32::MAX, i32::MIN] {
        let before: Vec<bf16> = numbers(5, batch * heads * places * depth);
        let mut cache = before.clone();
        let from = Heads { elements: read(&new), strides: [rows * heads * depth, depth, heads * depth] };
        let to = Out::new(cache.as_mut_ptr(), cache.len());
        run_alone(&Append::new(from, [batch, heads, rows, depth], read(&[position]), to, places));
        for (index, (number, before)) in cache.iter().zip(&before).enumerate() {
            let (element, place, head) = (index % depth, index / depth % places, index / depth / places);
            let expected = match usize::try_from(place as i64 - position as i64) {
                Ok(row) if row < rows => {
                    let (batch, head) = (head / heads, head % heads);
                    Element::from_f32(new[((batch * rows + row) * heads + head) * depth + element])
                }
                _ => *before,
            };
            assert_eq!(*number, expected, "position {position}, place {place}");
        }
    }
}

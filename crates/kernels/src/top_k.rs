//! The first few of each row in rising or falling order, and where they were.

use crate::{In, Job, Out, chunk, parts_of};
use bytemuck::Pod;
use half::{bf16, f16};

/// Elements of a part, roughly: whole rows.
const PART_ELEMENTS: usize = 16 * 1024;

/// Elements that can be sorted.
pub trait Sortable: Pod + Send + Sync + 'static {
    /// A number that rises with the element. NaN is the largest, and the two zeros are equal.
    fn rank(self) -> u32;
}

impl Sortable for f32 {
    #[inline(always)]
    fn rank(self) -> u32 {
        // The bits of positive numbers rise with them, those of negative ones fall.
        let bits = (self + 0.0).to_bits();
        match (self.is_nan(), self < 0.0) {
            (true, _) => u32::MAX,
            (_, true) => !bits,
            _ => bits | 1 << 31,
        }
    }
}

impl Sortable for bf16 {
    fn rank(self) -> u32 {
        self.to_f32().rank()
    }
}

impl Sortable for f16 {
    fn rank(self) -> u32 {
        self.to_f32().rank()
    }
}

impl Sortable for i32 {
    fn rank(self) -> u32 {
        self as u32 ^ 1 << 31
    }
}

impl Sortable for u32 {
    fn rank(self) -> u32 {
        self
    }
}

/// The first `count` elements of each row in order, and their places in the row; of equal elements, the first comes
/// first.
pub struct TopK<T> {
    x: In<T>,
    values: Out<T>,
    indices: Out<i32>,
    columns: usize,
    count: usize,
    descending: bool,
}

impl<T: Sortable> TopK<T> {
    /// Of dense rows of `columns` elements, at least `count` of them.
    pub fn new(x: In<T>, values: Out<T>, indices: Out<i32>, columns: usize, count: usize, descending: bool) -> TopK<T> {
        TopK { x, values, indices, columns, count, descending }
    }

    fn rows(&self) -> usize {
        self.values.len().checked_div(self.count).unwrap_or(0)
    }

    fn rows_per_part(&self) -> usize {
        (PART_ELEMENTS / self.columns.max(1)).max(1)
    }

    /// Rank and place in one number: no two are equal, and they are in the order of the result.
    fn key(&self, place: usize, element: T) -> u64 {
        let rank = element.rank();
        (if self.descending { !rank } else { rank } as u64) << 32 | place as u64
    }

    /// The keys of the first elements in order.
    fn first<'a>(&self, row: &[T], scratch: &'a mut [u64]) -> &'a [u64] {
        let keys = row.iter().enumerate().map(|(place, &element)| self.key(place, element));
        if self.count == 1 {
            scratch[0] = keys.min().expect("a row has as many elements as are asked for");
            return &scratch[..1];
        }
        scratch.iter_mut().zip(keys).for_each(|(to, key)| *to = key);
        if self.count < self.columns {
            scratch.select_nth_unstable(self.count - 1);
        }
        let first = &mut scratch[..self.count];
        first.sort_unstable();
        first
    }
}

impl<T: Sortable> Job for TopK<T> {
    fn parts(&self) -> usize {
        parts_of(self.rows(), self.rows_per_part())
    }

    fn worker_scratch(&self) -> usize {
        (if self.count == 1 { 1 } else { self.columns }) * size_of::<u64>()
    }

    unsafe fn run(&self, part: usize, scratch: &mut [u8]) {
        let scratch = &mut bytemuck::cast_slice_mut(scratch)[..self.worker_scratch() / size_of::<u64>()];
        for row in chunk(part, self.rows_per_part(), self.rows()) {
            let results = row * self.count..(row + 1) * self.count;
            // SAFETY: the caller's promise; the row's results are this part's own and lie over no operand.
            let (x, values, indices) = unsafe {
                let x = self.x.slice(row * self.columns..(row + 1) * self.columns);
                (x, self.values.slice(results.clone()), self.indices.slice(results))
            };
            for ((key, value), index) in self.first(x, scratch).iter().zip(values).zip(indices) {
                let place = *key as u32 as usize;
                (*value, *index) = (x[place], place as i32);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_alone;

    fn sorted<T: Sortable>(x: &[T], columns: usize, count: usize, descending: bool) -> (Vec<T>, Vec<i32>) {
        let results = x.len() / columns * count;
        let (mut values, mut indices) = (vec![T::zeroed(); results], vec![-1; results]);
        let (to, at) = (Out::new(values.as_mut_ptr(), results), Out::new(indices.as_mut_ptr(), results));
        run_alone(&TopK::new(In::new(x.as_ptr(), x.len()), to, at, columns, count, descending));
        (values, indices)
    }

    #[test]
    fn zeros_are_equal_and_nan_is_the_largest() {
        let x = [0.0, f32::NAN, -0.0, f32::INFINITY, -1.0, f32::NEG_INFINITY, -f32::NAN, 1e-45, -1e-45];
        assert_eq!(sorted(&x, 9, 9, false).1, [5, 4, 8, 0, 2, 7, 3, 1, 6]);
        assert_eq!(sorted(&x, 9, 9, true).1, [1, 6, 3, 7, 0, 2, 8, 4, 5]);
        assert_eq!(sorted(&x, 9, 1, true).1, [1]);
    }

    #[test]
    fn integers_are_compared_as_such() {
        let x = [i32::MAX, -1, 0, i32::MIN, 16_777_217, 16_777_216];
        assert_eq!(sorted(&x, 6, 4, false), (vec![i32::MIN, -1, 0, 16_777_216], vec![3, 1, 2, 5]));
        let x = [u32::MAX, 1, 0, 1 << 31];
        assert_eq!(sorted(&x, 2, 1, true), (vec![u32::MAX, 1 << 31], vec![0, 1]));
    }

    #[test]
    fn the_first_few_are_those_of_the_whole_order() {
        let x: Vec<bf16> = (0..90_000u64).map(|i| bf16::from_f32((i * i % 257) as f32 - 100.0)).collect();
        for descending in [false, true] {
            let (values, indices) = sorted(&x, 900, 900, descending);
            for count in [1, 2, 7, 899] {
                let (few, at) = sorted(&x, 900, count, descending);
                for row in 0..100 {
                    let (all, first) = (row * 900..row * 900 + count, row * count..(row + 1) * count);
                    assert_eq!((&few[first.clone()], &at[first]), (&values[all.clone()], &indices[all]));
                }
            }
        }
        assert_eq!(sorted::<f32>(&[], 3, 2, true), (vec![], vec![]));
        assert_eq!(sorted(&[1.0f32, 2.0], 2, 0, true), (vec![], vec![]));
    }
}

//! A stable sort of keys, with a position beside each: eight bits after another, the lowest first.

use crate::{Launch, Source, sources};

/// Keys that are counted together.
const TILE: usize = 1024;
const DIGITS: usize = 256;

/// What is sorted: so many keys, none larger than the bound.
#[derive(Clone, Copy, Debug)]
pub struct Sort {
    /// How many.
    pub count: usize,
    /// The largest key there may be.
    pub bound: u64,
}

impl Sort {
    /// Whether keys and positions are of 64 bits.
    fn is_wide(&self) -> bool {
        self.bound > u32::MAX as u64 || self.count > u32::MAX as usize
    }

    /// The bytes of all keys, or of all positions.
    pub fn bytes(&self) -> usize {
        self.count * if self.is_wide() { 8 } else { 4 }
    }

    /// A kernel that uses keys and positions: `word_t` is their type.
    pub fn source(&self, source: Source) -> Source {
        source.code(if self.is_wide() { "typedef u64 word_t;" } else { "typedef u32 word_t;" })
    }

    fn passes(&self) -> usize {
        (u64::BITS - self.bound.leading_zeros()).div_ceil(DIGITS.ilog2()) as usize
    }
}

/// The kernels that sort keys at one address and positions at the other, and where the sorted ones are; `scratch` gives the
/// address of so many bytes.
pub fn sort(sort: Sort, unsorted: [u64; 2], mut scratch: impl FnMut(usize) -> u64) -> (Vec<Launch>, [u64; 2]) {
    let tiles = sort.count.div_ceil(TILE);
    let mut from = unsorted;
    let mut to = [(); 2].map(|()| scratch(sort.bytes()));
    let totals = scratch(DIGITS * tiles * size_of::<u64>());
    let mut launches = vec![];
    for pass in 0..sort.passes() {
        let kernel = |entry: &'static str, addresses: &[u64], blocks: usize| {
            let source = sort.source(Source::new(entry, sources::SORT)).size("COUNT", sort.count);
            let source = source.size("TILES", tiles).constant("SHIFT", pass * DIGITS.ilog2() as usize);
            addresses.iter().fold(source, |source, &address| source.address(address)).launch(blocks, TILE)
        };
        launches.push(kernel("sort_count", &[from[0], totals], tiles));
        launches.push(kernel("sort_scan", &[totals], tiles.min(1)));
        launches.push(kernel("sort_move", &[from[0], from[1], totals, to[0], to[1]], tiles));
        std::mem::swap(&mut from, &mut to);
    }
    (launches, from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_the_largest_key_is_sorted_by() {
        for (bound, passes) in [(0, 0), (1, 1), (255, 1), (256, 2), (50_257, 2), (u32::MAX as u64, 4), (1 << 32, 5)] {
            let mut given = 1000;
            let (launches, [keys, positions]) = sort(Sort { count: 5000, bound }, [1, 2], |_| {
                given += 1;
                given
            });
            assert_eq!(launches.len(), 3 * passes, "up to {bound}");
            let expected = if passes % 2 == 0 { [1, 2] } else { [1001, 1002] };
            assert_eq!([keys, positions], expected, "up to {bound}");
        }
    }
}

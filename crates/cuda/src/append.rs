//! Rows put into a cache.

use crate::{Launch, Operand, Source, common_vector, sources};

const THREADS: usize = 256;

/// What is put into a cache.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The cache [n, g, places, d], dense.
    pub cache: &'a Operand,
    /// The new rows [n, g, t, d], in any float type, rounded to the cache's.
    pub new: &'a Operand,
    /// The cache with the new rows. If it lies where the cache does, only the new rows are written.
    pub output: &'a Operand,
}

impl Append<'_> {
    /// Whether only the new rows are written.
    pub(crate) fn is_in_place(&self) -> bool {
        self.cache.address == self.output.address
    }

    /// Elements that a thread moves at once.
    pub(crate) fn width(&self) -> usize {
        let depth = self.cache.shape.last().copied().unwrap_or(1);
        common_vector(depth, &[self.cache, self.new, self.output])
    }

    /// The kernel that puts the new rows there from `position` on, one i32. Rows whose place is not in the cache are left out.
    pub fn launch(&self, position: &Operand) -> Launch {
        let &[.., places, depth] = &self.cache.shape[..] else { panic!("a cache of places: {:?}", self.cache.shape) };
        let (in_place, width) = (self.is_in_place(), self.width());
        let count = if in_place { self.new.elements() } else { self.cache.elements() };
        let source = Source::new("append", sources::APPEND).address(position.address).early(position.address, 4);
        let source = source.operand("cache", self.cache).operand("x", self.new).address(self.output.address);
        let source = source.constant("IN_PLACE", in_place as u8).constant("PLACES", places).size("DEPTH", depth);
        let source = source.constant("NEW", self.new.shape[self.new.shape.len() - 2]).size("COUNT", count);
        let source = source.constant("WIDTH", width).constant("THREADS", THREADS);
        source.launch(count.div_ceil(width * THREADS), THREADS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    const CACHE: [usize; 4] = [2, 3, 100, 64];

    fn cache(address: u64) -> Operand {
        Operand::dense(Element::Bf16, &CACHE, address)
    }

    fn rows(element: Element) -> Operand {
        Operand::dense(element, &[2, 3, 1, 64], 1 << 21)
    }

    #[test]
    fn in_place_only_the_new_rows_are_written() {
        let (cache, new, position) = (cache(1 << 20), rows(Element::F32), Operand::dense(Element::I32, &[1], 1 << 22));
        let blocks = |output: &Operand| Append { cache: &cache, new: &new, output }.launch(&position).grid[0] as usize;
        // Four numbers of f32 at once.
        assert_eq!(blocks(&cache), (6 * 64usize).div_ceil(4 * THREADS));
        assert_eq!(blocks(&Operand { address: 1 << 23, ..cache.clone() }), (600 * 64usize).div_ceil(4 * THREADS));
    }
}

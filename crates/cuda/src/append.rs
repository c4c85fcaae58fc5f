//! Rows put into a cache.

use crate::{Launch, Operand, Source, common_vector, sources};

const THREADS: usize = 256;

/// What is put into a cache, and where.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The cache [n, g, places, d], dense.
    pub cache: &'a Operand,
    /// The new rows [n, g, t, d], in any float type, rounded to the cache's.
    pub new: &'a Operand,
    /// The place of the first of them: one i32. Rows whose place is not in the cache are left out.
    pub position: &'a Operand,
    /// The cache with the new rows. If it lies where the cache does, only the new rows are written.
    pub output: &'a Operand,
}

/// The kernel that puts new rows into a cache.
pub fn append(at: &Append<'_>) -> Launch {
    let &[.., places, depth] = &at.cache.shape[..] else { panic!("a cache of places: {:?}", at.cache.shape) };
    let in_place = at.cache.address == at.output.address;
    let width = common_vector(depth, &[at.cache, at.new, at.output]);
    let count = if in_place { at.new.elements() } else { at.cache.elements() };
    let source = Source::new("append", sources::APPEND).operand("cache", at.cache).operand("x", at.new);
    let source = source.address(at.position.address).address(at.output.address);
    let source = source.constant("IN_PLACE", in_place as u8).constant("PLACES", places).size("DEPTH", depth);
    let source = source.constant("NEW", at.new.shape[at.new.shape.len() - 2]).size("COUNT", count);
    let source = source.constant("WIDTH", width).constant("THREADS", THREADS);
    source.launch(count.div_ceil(width * THREADS), THREADS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    #[test]
    fn in_place_only_the_new_rows_are_written() {
        let cache = Operand::dense(Element::Bf16, &[2, 3, 100, 64], 1 << 20);
        let new = Operand::dense(Element::F32, &[2, 3, 1, 64], 1 << 21);
        let position = Operand::dense(Element::I32, &[1], 1 << 22);
        let blocks = |output: &Operand| {
            append(&Append { cache: &cache, new: &new, position: &position, output }).grid[0] as usize
        };
        // Four numbers of f32 at once.
        assert_eq!(blocks(&cache), (6 * 64usize).div_ceil(4 * THREADS));
        assert_eq!(blocks(&Operand { address: 1 << 23, ..cache.clone() }), (600 * 64usize).div_ceil(4 * THREADS));
    }
}

//! Rows put into caches.

use crate::{Element, Launch, Operand, Source, common_vector, sources};

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
    fn in_place(&self) -> bool {
        self.cache.address == self.output.address
    }

    /// Elements that a thread moves at once.
    fn width(&self) -> usize {
        let depth = self.cache.shape.last().copied().unwrap_or(1);
        common_vector(depth, &[self.cache, self.new, self.output])
    }

    /// All that a kernel depends on but for where the new rows lie.
    fn kind(&self) -> (Element, &[usize], Element, &[usize], bool, usize) {
        let Append { cache, new, .. } = self;
        (cache.element, &cache.shape, new.element, &new.shape, self.in_place(), self.width())
    }
}

/// The kernels that put new rows into caches from `position` on, one i32: two caches of one kind have one between them. Rows
/// whose place is not in the cache are left out.
pub fn append(all: &[Append<'_>], position: &Operand) -> Vec<Launch> {
    match all {
        [] => vec![],
        [first, second, rest @ ..] if first.kind() == second.kind() => {
            [vec![launch(first, Some(second), position)], append(rest, position)].concat()
        }
        [first, rest @ ..] => [vec![launch(first, None, position)], append(rest, position)].concat(),
    }
}

fn launch(at: &Append<'_>, second: Option<&Append<'_>>, position: &Operand) -> Launch {
    let &[.., places, depth] = &at.cache.shape[..] else { panic!("a cache of places: {:?}", at.cache.shape) };
    let (in_place, width) = (at.in_place(), at.width());
    let count = if in_place { at.new.elements() } else { at.cache.elements() };
    let source = Source::new("append", sources::APPEND).address(position.address).early(position.address, 4);
    let source = source.operand("cache", at.cache);
    let mut source = source.operand("x", at.new).address(at.output.address);
    if let Some(second) = second {
        source = source.address(second.cache.address).address(second.new.address).address(second.output.address);
        source = source.places("second_x", second.new);
    }
    let source = source.constant("IN_PLACE", in_place as u8).constant("PLACES", places).size("DEPTH", depth);
    let source = source.constant("NEW", at.new.shape[at.new.shape.len() - 2]).size("COUNT", count);
    let source = source.constant("WIDTH", width).constant("THREADS", THREADS);
    let (blocks, caches) = (count.div_ceil(width * THREADS), 1 + second.is_some() as usize);
    source.constant("BOTH", second.is_some() as u8).launch_on([blocks, caches, 1], THREADS, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let blocks =
            |output: &Operand| append(&[Append { cache: &cache, new: &new, output }], &position)[0].grid[0] as usize;
        // Four numbers of f32 at once.
        assert_eq!(blocks(&cache), (6 * 64usize).div_ceil(4 * THREADS));
        assert_eq!(blocks(&Operand { address: 1 << 23, ..cache.clone() }), (600 * 64usize).div_ceil(4 * THREADS));
    }

    #[test]
    fn two_caches_of_one_kind_have_one_kernel() {
        let (caches, position) = ([cache(1 << 20), cache(1 << 24)], Operand::dense(Element::I32, &[1], 1 << 22));
        let launches = |elements: [Element; 2]| {
            let new = elements.map(rows);
            let at = |i: usize| Append { cache: &caches[i], new: &new[i], output: &caches[i] };
            append(&[at(0), at(1)], &position)
        };
        let both = launches([Element::Bf16; 2]);
        assert_eq!((both.len(), both[0].grid, both[0].arguments.len()), (1, [1, 2, 1], 7));
        assert_eq!(launches([Element::Bf16, Element::F32]).len(), 2, "rows of two types");
    }
}

//! The first elements of each row in order: of one, by looking; of more, by sorting all rows at once.

use crate::{Launch, Operand, Sort, Source, sort, sources, threads_for};

/// What is looked for; all of it is dense.
#[derive(Clone, Copy, Debug)]
pub struct TopK<'a> {
    /// [..., columns].
    pub x: &'a Operand,
    /// The first elements [..., count].
    pub values: &'a Operand,
    /// Where they were [..., count], i32.
    pub indices: &'a Operand,
    /// Whether the largest come first.
    pub descending: bool,
}

const THREADS: usize = 256;

/// The kernels; `scratch` gives the address of so many bytes.
pub fn top_k(at: &TopK<'_>, mut scratch: impl FnMut(usize) -> u64) -> Vec<Launch> {
    let last = |operand: &Operand| operand.shape.last().copied().unwrap_or(1);
    let (columns, first, elements) = (last(at.x), last(at.values), at.x.elements());
    let (rows, count) = (elements / columns.max(1), at.values.elements());
    if count == 0 {
        return vec![];
    }
    let source = |entry: &'static str| {
        let source = Source::new(entry, sources::TOP_K).code(sources::RANK).operand("x", at.x).size("COLUMNS", columns);
        let source = source.constant("DESCENDING", at.descending as u8).constant("FIRST_ONLY", (first == 1) as u8);
        source.size("ELEMENTS", elements).size("COUNT", count).size("FIRST", first)
    };
    if first == 1 {
        let threads = threads_for(columns);
        let source = source("top_one").constant("THREADS", threads);
        return vec![source.address(at.values.address).address(at.indices.address).launch(rows, threads)];
    }
    // By row, and in it by rank, which has 32 bits.
    let by_rank = Sort { count: elements, bound: ((rows as u64 - 1) << 32) | u32::MAX as u64 };
    let unsorted = [(); 2].map(|()| scratch(by_rank.bytes()));
    let keys = by_rank.source(source("top_keys")).address(unsorted[0]).address(unsorted[1]);
    let mut launches = vec![keys.constant("THREADS", THREADS).launch(elements.div_ceil(THREADS), THREADS)];
    let (sorting, [_, positions]) = sort(by_rank, unsorted, scratch);
    launches.extend(sorting);
    let values = by_rank.source(source("top_values")).address(positions).address(at.values.address);
    let values = values.address(at.indices.address).constant("THREADS", THREADS);
    launches.push(values.launch(count.div_ceil(THREADS), THREADS));
    launches
}

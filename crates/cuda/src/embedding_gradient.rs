//! The gradient of a table whose rows were picked by number: each row is the sum of the gradients of its uses, from the
//! first to the last. The numbers are sorted, so that nothing is added by two blocks at once.

use crate::{Element, Launch, Operand, Sort, Source, common_vector, sort, sources};

/// What it reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddingGradient<'a> {
    /// Integers.
    pub ids: &'a Operand,
    /// A row for each number.
    pub gradient: &'a Operand,
    /// [rows, columns], all zero unless the sums go on from what is there.
    pub table: &'a Operand,
    /// Whether they do.
    pub accumulates: bool,
}

/// Sorted numbers that one block adds up.
const CHUNK: usize = 64;
const THREADS: usize = 256;

/// The kernels; `with_fault` adds the cell of faults as the next parameter, and `scratch` gives the address of so many bytes.
pub fn embedding_gradient(
    at: &EmbeddingGradient<'_>,
    with_fault: impl FnOnce(Source) -> Source,
    mut scratch: impl FnMut(usize) -> u64,
) -> Vec<Launch> {
    let (count, columns) = (at.ids.elements(), at.table.shape[1]);
    let numbers = Sort { count, bound: at.table.shape[0] as u64 };
    let source = |entry: &'static str| {
        let source = numbers.source(Source::new(entry, sources::EMBEDDING_GRADIENT)).size("COUNT", count);
        let source = source.size("TABLE_ROWS", at.table.shape[0]).constant("KEYS", (entry == "embedding_keys") as u8);
        source.places("table", at.table).places("gradient", at.gradient)
    };
    let unsorted = [(); 2].map(|()| scratch(numbers.bytes()));
    let keys = source("embedding_keys").constant("THREADS", THREADS).operand("ids", at.ids);
    let keys = with_fault(keys.address(unsorted[0]).address(unsorted[1]));
    let mut launches = vec![keys.launch(count.div_ceil(THREADS), THREADS)];
    let (sorting, [keys, positions]) = sort(numbers, unsorted, &mut scratch);
    launches.extend(sorting);
    let chunks = count.div_ceil(CHUNK);
    let shares = scratch(chunks * 2 * columns * Element::F32.size());
    let vector = common_vector(columns, &[at.gradient, at.table]);
    let threads = columns.div_ceil(vector).next_multiple_of(32).clamp(32, THREADS);
    let sums = |entry: &'static str, addresses: &[u64]| {
        let source = source(entry).element("y_t", at.table.element).size("COLUMNS", columns).size("CHUNK", CHUNK);
        let source = source.constant("THREADS", threads).constant("VECTOR", vector);
        let source = source.constant("ACCUMULATES", at.accumulates as u8);
        let source = addresses.iter().fold(source, |source, &address| source.address(address));
        source.launch_on([chunks, columns.div_ceil(threads * vector), 1], threads, 0)
    };
    launches.push(sums("embedding_sums", &[at.gradient.address, keys, positions, at.table.address, shares]));
    launches.push(sums("embedding_joins", &[keys, at.table.address, shares]));
    launches
}

//! Elements added along an axis, each at an index of its own. Where they go is sorted by, so that nothing is added by two
//! threads at once, and each sum is in the order of the index.

use crate::{Launch, Operand, Sort, Source, sort, sources};

/// What is added where: dense operands seen as [outer, axis, inner].
#[derive(Clone, Copy, Debug)]
pub struct ScatterAdd<'a> {
    /// Integers [outer, index_axis, inner].
    pub index: &'a Operand,
    /// [outer, index_axis, inner].
    pub updates: &'a Operand,
    /// [outer, axis, inner]: holds what is added to.
    pub y: &'a Operand,
    /// Elements of y along the axis.
    pub axis: usize,
    /// Elements of the index along it.
    pub index_axis: usize,
    /// Elements of all axes after it.
    pub inner: usize,
}

const THREADS: usize = 256;

/// The kernels; `with_fault`, if an index out of range is a fault, adds the cell of faults as the next parameter, and
/// `scratch` gives the address of so many bytes.
pub fn scatter_add<F: FnOnce(Source) -> Source>(
    at: &ScatterAdd<'_>,
    with_fault: Option<F>,
    mut scratch: impl FnMut(usize) -> u64,
) -> Vec<Launch> {
    let (count, elements) = (at.index.elements(), at.y.elements());
    let places = Sort { count, bound: elements as u64 };
    let source = |entry: &'static str| {
        let source = places.source(Source::new(entry, sources::SCATTER)).size("COUNT", count);
        let source = source.size("ELEMENTS", elements).constant("KEYS", (entry == "scatter_keys") as u8);
        source.constant("THREADS", THREADS)
    };
    let unsorted = [(); 2].map(|()| scratch(places.bytes()));
    let keys = source("scatter_keys").operand("ids", at.index).address(unsorted[0]).address(unsorted[1]);
    let keys = keys.size("AXIS", at.axis).size("INDEX_AXIS", at.index_axis).size("INNER", at.inner);
    let keys = keys.constant("FAULTS", with_fault.is_some() as u8);
    let keys = match with_fault {
        Some(with_fault) => with_fault(keys),
        None => keys,
    };
    let mut launches = vec![keys.launch(count.div_ceil(THREADS), THREADS)];
    let (sorting, [keys, positions]) = sort(places, unsorted, scratch);
    launches.extend(sorting);
    let sums = source("scatter_sums").element("y_t", at.y.element).address(at.updates.address);
    let sums = sums.address(keys).address(positions).address(at.y.address);
    launches.push(sums.launch(count.div_ceil(THREADS), THREADS));
    launches
}

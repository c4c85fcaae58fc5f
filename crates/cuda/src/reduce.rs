//! Reductions over any axes. Where results are few and much is reduced, the reduced places are cut into parts, by the
//! shapes alone; what these give is reduced by a second kernel.

use crate::operand::widest;
use crate::{Element, Launch, Operand, Source, sources};

/// What is reduced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Reduction {
    Sum,
    SumOfSquares,
    SumOfAbs,
    Zeros,
    Max,
}

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceOptions {
    /// What is reduced to.
    pub reduction: Reduction,
    /// Whether numbers are joined one after another: the first along the reduced axes, then the second, ….
    pub in_order: bool,
    /// Whether sums go on from what the result holds.
    pub accumulates: bool,
}

impl ReduceOptions {
    /// A sum over the rows of partial sums.
    pub fn partial_sums(accumulates: bool) -> ReduceOptions {
        ReduceOptions { reduction: Reduction::Sum, in_order: false, accumulates }
    }
}

/// Blocks that keep a device busy.
const BLOCKS: usize = 1024;
/// The most parts where kept elements lie together, and the fewest reduced places of one.
const COLUMN_PARTS: usize = 256;
const COLUMN_PART: usize = 128;
/// The fewest reduced places of a part where these lie together.
const ROW_PART: usize = 4096;

/// The kernels that reduce `x` over these axes to the dense `y`; `scratch` gives the address of so many bytes.
pub fn reduce(
    x: &Operand,
    axes: &[usize],
    y: &Operand,
    options: ReduceOptions,
    scratch: impl FnOnce(usize) -> u64,
) -> Vec<Launch> {
    let pass = Pass::new(x, axes, options.in_order);
    let (kept, parts) = (pass.kept.elements(), pass.parts());
    if kept == 0 {
        return vec![];
    }
    if parts <= 1 {
        return vec![pass.launch(y, options)];
    }
    let shape = if pass.by_columns { [parts, kept] } else { [kept, parts] };
    let partials = Operand::dense(Element::F32, &shape, scratch(parts * kept * Element::F32.size()));
    let reduction = if options.reduction == Reduction::Max { Reduction::Max } else { Reduction::Sum };
    let last = Pass {
        by_columns: pass.by_columns,
        part: parts,
        ..Pass::new(&partials, &[if pass.by_columns { 0 } else { 1 }], false)
    };
    vec![
        pass.launch(&partials, ReduceOptions { accumulates: false, ..options }),
        last.launch(y, ReduceOptions { reduction, ..options }),
    ]
}

/// One kernel.
struct Pass {
    /// The operand along the axes that stay,
    kept: Operand,
    /// and along those that do not.
    reduced: Operand,
    by_columns: bool,
    in_order: bool,
    /// Reduced places of a block.
    part: usize,
}

impl Pass {
    fn new(x: &Operand, axes: &[usize], in_order: bool) -> Pass {
        let (reduced, kept): (Vec<usize>, Vec<usize>) = (0..x.shape.len()).partition(|axis| axes.contains(axis));
        let (kept, reduced) = (x.along(&kept), x.along(&reduced));
        let (results, terms) = (kept.elements(), reduced.elements());
        let nearest = |operand: &Operand| operand.axes().iter().map(|axis| axis.1).filter(|&stride| stride > 0).min();
        let reduced_lie_together =
            nearest(&reduced).is_some_and(|step| nearest(&kept).is_none_or(|other| step < other));
        let by_columns = in_order || !reduced_lie_together || terms < 16;
        let parts = match by_columns {
            _ if in_order => 1,
            true if terms < 8 * COLUMN_PART => 1,
            true => (BLOCKS / results.div_ceil(256).max(1)).min(terms / COLUMN_PART).min(COLUMN_PARTS),
            false => (BLOCKS / results.max(1)).min(terms / ROW_PART),
        };
        // Parts begin where vectors do.
        let part = terms.div_ceil(parts.max(1)).next_multiple_of(8).max(8);
        Pass { kept, reduced, by_columns, in_order, part }
    }

    fn parts(&self) -> usize {
        self.reduced.elements().div_ceil(self.part)
    }

    /// How many elements are read at once: side by side along what lies together, and begun at a multiple along all else.
    fn vector(&self) -> usize {
        let (together, other) = if self.by_columns { (&self.kept, &self.reduced) } else { (&self.reduced, &self.kept) };
        let mut vector = together.vector(widest(self.kept.element));
        while other.axes().iter().any(|&(_, stride)| !stride.is_multiple_of(vector)) {
            vector /= 2;
        }
        vector
    }

    fn launch(&self, y: &Operand, options: ReduceOptions) -> Launch {
        let (kept, reduced, vector) = (self.kept.elements(), self.reduced.elements(), self.vector());
        let parts = self.parts().max(1);
        let (entry, lanes, rows) = match (self.by_columns, reduced) {
            (true, _) if self.in_order => ("reduce_columns", 128, 1),
            (true, 256..) if parts == 1 => ("reduce_columns", 32, 32),
            (true, 32..) => ("reduce_columns", 32, 8),
            (true, _) => ("reduce_columns", 128, 1),
            (false, ..=1024) => ("reduce_rows", 32, 8),
            (false, _) => ("reduce_rows", 256, 1),
        };
        let blocks = if self.by_columns { kept.div_ceil(lanes * vector) } else { kept.div_ceil(rows) };
        Source::new(entry, sources::REDUCE)
            .element("x_t", self.kept.element)
            .address(self.kept.address)
            .operand("y", y)
            .places("kept", &self.kept)
            .places("reduced", &self.reduced)
            .size("KEPT", kept)
            .size("REDUCED", reduced)
            .size("PART", self.part)
            .size("ALL", kept * reduced)
            .constant("VECTOR", vector)
            .constant("LANES", lanes)
            .constant("ROWS", rows)
            .constant("MAXIMUM", (options.reduction == Reduction::Max) as u8)
            .constant("SQUARES", (options.reduction == Reduction::SumOfSquares) as u8)
            .constant("ABSOLUTE", (options.reduction == Reduction::SumOfAbs) as u8)
            .constant("ZEROS", (options.reduction == Reduction::Zeros) as u8)
            .constant("ACCUMULATES", options.accumulates as u8)
            .launch_on([blocks, parts, 1], lanes * rows, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launches(shape: &[usize], axes: &[usize], in_order: bool) -> Vec<(&'static str, [u32; 3], u32)> {
        let x = Operand::dense(Element::Bf16, shape, 0);
        let kept: Vec<usize> = (0..shape.len()).filter(|axis| !axes.contains(axis)).map(|axis| shape[axis]).collect();
        let y = Operand::dense(Element::F32, &kept, 0);
        let options = ReduceOptions { reduction: Reduction::Sum, in_order, accumulates: false };
        let launches = reduce(&x, axes, &y, options, |_| 0);
        launches.into_iter().map(|launch| (launch.entry, launch.grid, launch.block)).collect()
    }

    #[test]
    fn long_sums_are_cut_by_their_shapes() {
        let columns = launches(&[65_536, 768], &[0], false);
        assert_eq!(columns, [("reduce_columns", [3, 256, 1], 256), ("reduce_columns", [6, 1, 1], 1024)]);
        let all = launches(&[50_257, 768], &[0, 1], false);
        assert_eq!(all, [("reduce_rows", [1, 1024, 1], 256), ("reduce_rows", [1, 1, 1], 256)]);
        assert_eq!(launches(&[64, 1000], &[1], false), [("reduce_rows", [8, 1, 1], 256)]);
        assert_eq!(launches(&[65_536, 768], &[0], true), [("reduce_columns", [1, 1, 1], 128)]);
        assert_eq!(launches(&[0, 3], &[0], false), [("reduce_columns", [1, 1, 1], 128)], "sums of nothing are zero");
        assert!(launches(&[3, 0], &[0], false).is_empty());
    }
}

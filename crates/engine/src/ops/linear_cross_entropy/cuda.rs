//! On a CUDA device: blocks of rows, each with all classes, whose logits are in the type that products have.

use super::*;
use gradus_cuda::{Element, Logits, MULTIPROCESSORS, Matrix, Operand, Product};

/// Bytes of a block of logits at most: its products are large enough to fill a GPU, and the scratch is a small part of it.
const BLOCK: usize = 540 << 20;
/// Classes are taken for a multiple of so many, in scratch: products are far slower where one of their sizes is odd. What is
/// beyond the classes has a weight of zero, and a gradient of zero.
const CLASS_MULTIPLE: usize = 64;
/// Where a size is a multiple of this, products are fast enough.
const FAST_MULTIPLE: usize = 8;
/// Rows and columns of the tiles that products are made of. Rows of a block are whole tiles.
const TILE: [usize; 2] = [128, 256];

/// The operands, as products take them, and how rows are cut into blocks.
struct Blocked {
    x: Operand,
    weight: Operand,
    targets: Operand,
    options: LinearCrossEntropyOptions,
    logits: Operand,
}

impl Blocked {
    fn new(linker: &mut CudaLinker<'_>, options: LinearCrossEntropyOptions) -> Blocked {
        let element = linker.input(0).element;
        let (x, weight) = (dense(linker, element), padded(linker, element));
        let (rows, classes) = (x.shape[0], linker.input(1).shape[0]);
        let stride = weight.shape[0];
        let block = block_rows(rows, x.shape[1], BLOCK / (stride * element.size()));
        let address = linker.scratch(block * stride * element.size());
        let logits = Operand { element, shape: vec![block, classes], strides: vec![stride, 1], address };
        Blocked { x, weight, targets: linker.input(2), options, logits }
    }

    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let (rows, block) = (self.x.shape[0], self.logits.shape[0].max(1));
        (0..rows.div_ceil(block)).map(move |index| chunk(index, block, rows))
    }

    /// Adds the product that gives the logits of these rows, and says where they lie.
    fn logits(&self, linker: &mut CudaLinker<'_>, rows: &Range<usize>) -> Operand {
        let logits = rows_from(&self.logits, &(0..rows.len()));
        let matrices = [matrix(&rows_from(&self.x, rows), false), matrix(&self.weight, true), matrix(&logits, false)];
        self.product(linker, matrices, [rows.len(), self.x.shape[1], self.weight.shape[0]], false);
        logits
    }

    /// Adds the product of `a` [rows, depth] with `b` [depth, columns] into `d`.
    fn product(
        &self,
        linker: &mut CudaLinker<'_>,
        [a, b, d]: [Matrix; 3],
        [rows, depth, columns]: [usize; 3],
        accumulates: bool,
    ) {
        if rows == 0 || columns == 0 {
            return;
        }
        if depth == 0 {
            // A sum of nothing, which the library refuses.
            let bytes = if accumulates { 0 } else { rows * d.stride * d.element.size() };
            return linker.zero(d.address, bytes);
        }
        linker.product(Product {
            rows,
            columns,
            depth,
            batch: 1,
            a,
            b,
            d,
            bias: None,
            added: accumulates.then_some(d),
            gelu: None,
            tf32: self.options.allow_tf32 && a.element == Element::F32,
            workspace: (0, 0),
        });
    }

    fn targets(&self, rows: &Range<usize>) -> Operand {
        rows_from(&self.targets, rows)
    }
}

/// The rows of a block, `most` about at most: blocks are equal, and as many as leave the GPU idle least in the product that has
/// fewest tiles, the one for the gradient of the rows.
fn block_rows(rows: usize, channels: usize, most: usize) -> usize {
    let of = |blocks: usize| rows.div_ceil(blocks).next_multiple_of(TILE[0]);
    let idle = |&blocks: &usize| {
        let tiles = of(blocks) / TILE[0] * channels.div_ceil(TILE[1]);
        let waves = tiles.div_ceil(MULTIPROCESSORS).max(1);
        // In thousandths, so that a difference that does not count does not decide.
        1000 * (waves * MULTIPROCESSORS - tiles) / (waves * MULTIPROCESSORS) / 20
    };
    let fewest = rows.div_ceil(most.max(TILE[0]) / TILE[0] * TILE[0]).max(1);
    (fewest..fewest + 3).min_by_key(idle).map_or(rows, of).min(rows)
}

/// The rows of x in this type, densely: as they lie, or a copy in scratch.
fn dense(linker: &mut CudaLinker<'_>, element: Element) -> Operand {
    let operand = linker.input(0);
    if operand.element == element && operand.is_dense() {
        let strides = vec![operand.shape[1], 1];
        return Operand { strides, ..operand };
    }
    let copy = linker.scratch_operand(element, &operand.shape);
    linker.launch(gradus_cuda::copy(&operand, &copy));
    copy
}

/// The weight in this type, with rows of zeros up to a multiple that products are fast for.
fn padded(linker: &mut CudaLinker<'_>, element: Element) -> Operand {
    let operand = linker.input(1);
    let [classes, channels] = [operand.shape[0], operand.shape[1]];
    let more = classes.next_multiple_of(CLASS_MULTIPLE) - classes;
    if more == 0 && operand.element == element && operand.is_dense() {
        return Operand { strides: vec![channels, 1], ..operand };
    }
    let padded = linker.scratch_operand(element, &[classes + more, channels]);
    linker.launch(gradus_cuda::copy(&operand, &rows_from(&padded, &(0..classes))));
    let rest = rows_from(&padded, &(classes..classes + more));
    linker.zero(rest.address, rest.elements() * element.size());
    padded
}

/// Some of the rows.
fn rows_from(operand: &Operand, rows: &Range<usize>) -> Operand {
    let address = operand.address + (rows.start * operand.strides[0] * operand.element.size()) as u64;
    let mut part = Operand { address, ..operand.clone() };
    part.shape[0] = rows.len();
    part
}

/// Some of the columns.
fn columns_from(operand: &Operand, columns: &Range<usize>) -> Operand {
    let address = operand.address + (columns.start * operand.strides[1] * operand.element.size()) as u64;
    let mut part = Operand { address, ..operand.clone() };
    part.shape[1] = columns.len();
    part
}

/// The classes in parts that products are fast for, but for a few at the end: gradients have no room for more classes.
fn well_sized(classes: usize) -> impl Iterator<Item = Range<usize>> {
    let most = if classes.is_multiple_of(FAST_MULTIPLE) { classes } else { classes - classes % CLASS_MULTIPLE };
    [0..most, most..classes].into_iter().filter(|part| !part.is_empty())
}

/// A matrix, looked at the other way round if asked.
fn matrix(of: &Operand, transposed: bool) -> Matrix {
    Matrix { element: of.element, address: of.address, stride: of.strides[0], transposed, batch_stride: 0 }
}

/// Adds the commands of the losses.
pub(super) fn link(op: &LinearCrossEntropy, linker: &mut CudaLinker<'_>) {
    let blocked = Blocked::new(linker, op.options);
    let (loss, total) = (linker.output(0), linker.output(1));
    for rows in blocked.blocks() {
        let logits = blocked.logits(linker, &rows);
        let logits = Logits { logits: &logits, targets: &blocked.targets(&rows), ignored: blocked.options.ignored };
        let (source, threads) =
            gradus_cuda::cross_entropy(&logits, &rows_from(&loss, &rows), &rows_from(&total, &rows));
        linker.launch(linker.with_fault(source).launch(rows.len(), threads));
    }
}

/// Adds the commands of the gradients.
pub(super) fn link_gradient(op: &LinearCrossEntropyGradient, linker: &mut CudaLinker<'_>) {
    let blocked = Blocked::new(linker, op.options);
    let gradients = Gradients::new(linker, &blocked, 0);
    for rows in blocked.blocks() {
        let logits = blocked.logits(linker, &rows);
        let [total, row_gradient] = [3, 4].map(|input| rows_from(&linker.input(input), &rows));
        let of = Logits { logits: &logits, targets: &blocked.targets(&rows), ignored: blocked.options.ignored };
        let (source, threads) = gradus_cuda::cross_entropy_gradient(&of, &total, &row_gradient, &logits);
        linker.launch(linker.with_fault(source).launch(rows.len(), threads));
        gradients.add(linker, &blocked, &logits, &rows);
    }
    gradients.finish(linker);
}

/// Adds the commands of the losses and the gradients: what is seen of the logits is seen once.
pub(super) fn link_with_gradient(options: LinearCrossEntropyOptions, linker: &mut CudaLinker<'_>) {
    let blocked = Blocked::new(linker, options);
    let gradients = Gradients::new(linker, &blocked, 2);
    let (loss, total, row_gradient) = (linker.output(0), linker.output(1), linker.input(3));
    for rows in blocked.blocks() {
        let logits = blocked.logits(linker, &rows);
        let of = Logits { logits: &logits, targets: &blocked.targets(&rows), ignored: blocked.options.ignored };
        let [loss, total, row_gradient] = [&loss, &total, &row_gradient].map(|operand| rows_from(operand, &rows));
        let (source, threads, shared) = gradus_cuda::cross_entropy_with_gradient(&of, &loss, &total, &row_gradient);
        linker.launch(linker.with_fault(source).launch_on([rows.len(), 1, 1], threads, shared));
        gradients.add(linker, &blocked, &logits, &rows);
    }
    gradients.finish(linker);
}

/// The gradients of x and the weight, which come block by block.
struct Gradients {
    dx: Operand,
    result: Operand,
    /// Sums over blocks of rows are in f32, and rounded to the result at the end.
    sums: Operand,
    /// Whether they go on from what is there.
    accumulates: bool,
}

impl Gradients {
    /// The results from the number `first` on.
    fn new(linker: &mut CudaLinker<'_>, blocked: &Blocked, first: usize) -> Gradients {
        let (dx, result) = (linker.output(first), linker.output(first + 1));
        let sums = match result.element {
            Element::F32 => result.clone(),
            _ => linker.scratch_operand(Element::F32, &result.shape),
        };
        let accumulates = linker.accumulates(first + 1);
        if blocked.x.shape[0] == 0 && !accumulates {
            linker.zero(sums.address, sums.elements() * sums.element.size());
        }
        Gradients { dx, result, sums, accumulates }
    }

    /// Adds the products of some rows with the gradients of their logits.
    fn add(&self, linker: &mut CudaLinker<'_>, blocked: &Blocked, logits: &Operand, rows: &Range<usize>) {
        let [classes, channels] = [self.result.shape[0], self.result.shape[1]];
        let to = matrix(&rows_from(&self.dx, rows), false);
        let sizes = [rows.len(), blocked.weight.shape[0], channels];
        blocked.product(linker, [matrix(logits, false), matrix(&blocked.weight, false), to], sizes, false);
        let accumulates = rows.start > 0 || self.accumulates;
        for part in well_sized(classes) {
            let (a, b) = (columns_from(logits, &part), rows_from(&blocked.x, rows));
            let matrices = [matrix(&a, true), matrix(&b, false), matrix(&rows_from(&self.sums, &part), false)];
            blocked.product(linker, matrices, [part.len(), rows.len(), channels], accumulates);
        }
    }

    fn finish(self, linker: &mut CudaLinker<'_>) {
        if self.sums.element != self.result.element {
            linker.launch(gradus_cuda::copy(&self.sums, &self.result));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_equal_and_fill_the_device() {
        let most = BLOCK / (50_304 * 2);
        for (rows, channels, blocks) in [(65_536, 768, 12), (32_768, 768, 6), (32_768, 1024, 8), (4096, 256, 1)] {
            let block = block_rows(rows, channels, most);
            assert_eq!(rows.div_ceil(block), blocks, "{rows} rows of {channels}");
            assert!(block <= most && block.is_multiple_of(TILE[0]), "{block} rows");
        }
        assert_eq!((block_rows(7, 64, most), block_rows(0, 64, most), block_rows(300, 64, 1)), (7, 0, 128));
    }
}

//! Layer norm and RMS norm: one kernel serves both.

use crate::{Element, Launch, MULTIPROCESSORS, Operand, Source, common_vector, sources};

/// What a norm reads and writes; all of it is dense.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// [..., columns].
    pub x: &'a Operand,
    /// A factor for each column.
    pub gain: &'a Operand,
    /// For layer norm: what is added to each column, and the mean of each row.
    pub bias_and_mean: Option<(&'a Operand, &'a Operand)>,
    /// The normalized rows, in any type; may be `x`.
    pub y: &'a Operand,
    /// For each row: one over its standard deviation, or over its root mean square.
    pub inverse_deviation: &'a Operand,
}

/// What the gradient of a norm reads and writes; all of it is dense.
#[derive(Clone, Copy, Debug)]
pub struct NormGradient<'a> {
    /// The rows that were normalized.
    pub x: &'a Operand,
    /// The factor of each column.
    pub gain: &'a Operand,
    /// For layer norm: the mean of each row.
    pub mean: Option<&'a Operand>,
    /// For each row: one over its standard deviation, or over its root mean square.
    pub inverse_deviation: &'a Operand,
    /// The gradient of the normalized rows, in any type.
    pub y_gradient: &'a Operand,
    /// What is added to the gradient of the rows.
    pub added: Option<&'a Operand>,
    /// The gradient of the rows; may be `x`, `y_gradient` or `added`.
    pub x_gradient: &'a Operand,
    /// The gradient of the rows again, in another type.
    pub copy: Option<&'a Operand>,
    /// Whether the copy is summed over the rows too.
    pub sums_copy: bool,
}

/// Numbers of a row that each lane of a warp holds at most; of longer rows, a block holds them.
const HELD: usize = 24;
/// Numbers of a row that each thread of a block holds, unless the row is very long.
const HELD_BY_BLOCK: usize = 16;
/// Of so few rows, each warp has one: what it multiplies them with is asked for before they are there.
const FEW_ROWS: usize = 1024;

/// How rows are shared out: so many threads a row, so many rows a block. By the columns alone.
fn sharing(columns: usize) -> (usize, usize) {
    match columns <= 32 * HELD {
        true => (32, 4),
        false => (columns.div_ceil(HELD_BY_BLOCK).next_power_of_two().clamp(64, 1024), 1),
    }
}

/// How many blocks compute the gradient, and sum those of gain and bias: as many as fit side by side, by their registers, so
/// that all have rows from the first moment to the last.
fn blocks(columns: usize, rows_of_all: usize) -> usize {
    let (lanes, rows) = sharing(columns);
    let resident = if columns.div_ceil(lanes) > HELD_BY_BLOCK { 384 } else { 512 };
    rows_of_all.div_ceil(rows).min(MULTIPROCESSORS * (resident / (lanes * rows)).max(1))
}

/// A kernel over rows of `x`, read as many elements at once as all of these allow.
fn source(entry: &'static str, x: &Operand, operands: &[&Operand], centered: bool) -> Source {
    let columns = x.shape.last().copied().unwrap_or(1);
    let (lanes, rows) = sharing(columns);
    let vector = common_vector(columns, operands);
    Source::new(entry, sources::NORM)
        .operand("x", x)
        .size("COUNT", x.elements() / columns.max(1))
        .size("COLUMNS", columns)
        .constant("LANES", lanes)
        .constant("ROWS", rows)
        .constant("VECTOR", vector)
        .constant("ITEMS", columns.div_ceil(lanes * vector))
        .constant("CENTERED", centered as u8)
        .constant("FORWARD", (entry == "norm_rows") as u8)
}

/// The norm of every row.
pub fn norm(at: &Norm<'_>, epsilon: f32) -> Launch {
    let (lanes, rows) = sharing(at.x.shape.last().copied().unwrap_or(1));
    let mut operands = vec![at.x, at.gain, at.y];
    operands.extend(at.bias_and_mean.map(|(bias, _)| bias));
    let source = source("norm_rows", at.x, &operands, at.bias_and_mean.is_some()).number("EPSILON", epsilon);
    let source = source.element("y_t", at.y.element).address(at.gain.address).address(at.y.address);
    let mut source = source.address(at.inverse_deviation.address);
    if let Some((bias, mean)) = at.bias_and_mean {
        source = source.address(bias.address).address(mean.address);
    }
    let holds = lanes == 32 && at.inverse_deviation.elements() <= FEW_ROWS;
    let read_early = [Some(at.gain), at.bias_and_mean.map(|(bias, _)| bias)].into_iter().flatten().filter(|_| holds);
    let source = read_early.fold(source.constant("HOLDS", holds as u8), |source, operand| {
        source.early(operand.address, operand.elements() * operand.element.size())
    });
    source.launch(at.inverse_deviation.elements().div_ceil(rows), lanes * rows)
}

/// The gradient of every row; and the shares [blocks, sums, columns] whose sums over the blocks are the gradients of gain, of
/// bias for layer norm, and the sums of the copy where it is summed, in what `scratch` gives of so many bytes.
pub fn norm_gradient(at: &NormGradient<'_>, scratch: impl FnOnce(usize) -> u64) -> (Launch, Operand) {
    let columns = at.x.shape.last().copied().unwrap_or(1);
    let (lanes, rows) = sharing(columns);
    let blocks = blocks(columns, at.inverse_deviation.elements());
    let sums = 1 + at.mean.is_some() as usize + at.sums_copy as usize;
    let address = scratch(blocks * sums * columns * Element::F32.size());
    let shares = Operand::dense(Element::F32, &[blocks, sums, columns], address);
    let mut operands = vec![at.x, at.gain, at.y_gradient, at.x_gradient];
    operands.extend(at.added.into_iter().chain(at.copy));
    let source = source("norm_gradient", at.x, &operands, at.mean.is_some()).element("g_t", at.y_gradient.element);
    let source = source.constant("ADDS", at.added.is_some() as u8).constant("COPIES", at.copy.is_some() as u8);
    let source = source.constant("SUMS_COPY", at.sums_copy as u8);
    let source = source.element("copy_t", at.copy.unwrap_or(at.x).element).address(at.gain.address);
    let source = source.address(at.inverse_deviation.address).address(at.y_gradient.address);
    let mut source = source.address(at.x_gradient.address).address(address);
    for operand in at.mean.into_iter().chain(at.added).chain(at.copy) {
        source = source.address(operand.address);
    }
    (source.launch(blocks, lanes * rows), shares)
}

/// Adds up the shares of sums, each to a result of its own, and to what that holds where it is said to.
pub fn share_sums(shares: &Operand, results: &[(Operand, bool)]) -> Launch {
    let &[blocks, sums, columns] = &shares.shape[..] else { unreachable!("shares [blocks, sums, columns]") };
    let source = Source::new("share_sums", sources::SHARE_SUMS).address(shares.address).size("ALL", shares.elements());
    let source = source.size("SHARES", blocks).size("COLUMNS", columns).constant("SUMS", sums);
    let named = ["a_t", "b_t", "c_t"].into_iter().zip(results);
    let source =
        named.fold(source, |source, (name, (result, _))| source.element(name, result.element).address(result.address));
    let accumulates = results.iter().enumerate().map(|(index, (_, accumulates))| (*accumulates as usize) << index);
    let source = source.constant("ACCUMULATES", accumulates.sum::<usize>());
    source.launch_on([columns.div_ceil(32), sums, 1], 32 * 16, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_the_gradient_run_side_by_side() {
        let found =
            [512, 768, 1024, 2048, 4096, 16384, 100_000].map(|columns| blocks(columns, 1 << 16) / MULTIPROCESSORS);
        assert_eq!(found, [4, 3, 8, 4, 2, 1, 1]);
        assert_eq!([blocks(768, 5), blocks(1024, 5), blocks(768, 0)], [2, 5, 0], "no more than there are rows for");
    }
}

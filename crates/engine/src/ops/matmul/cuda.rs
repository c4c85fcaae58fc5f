//! Products on a CUDA device: by cuBLASLt, or kernels of our own where rows are few or something follows, with the sums of
//! columns beside them.

use super::*;
use gradus_cuda::{Bias, Epilogue, Gelu, Matrix, Operand, Product, ReduceOptions};

/// What the library does to a product besides.
#[derive(Clone, Debug, Default)]
pub(super) struct After {
    /// What is added to it: a dense operand of its shape and type.
    pub added: Option<Operand>,
    pub gelu: Option<Gelu>,
}

/// Adds the commands that put the product into `result`.
pub(super) fn link(matmul: &Matmul, linker: &mut CudaLinker<'_>, result: &Operand, after: After) {
    let (a, b) = (linker.input(0), linker.input(1));
    let bias = matmul.has_bias.then(|| linker.input(2));
    let added = if linker.accumulates(0) { Some(result.clone()) } else { after.added };
    let after = After { added, ..after };
    match b.shape[b.shape.len() - 2] {
        0 => link_nothing(linker, bias.as_ref(), result, after.added.is_some()),
        _ => link_products(linker, matmul.types, (&a, &b), bias.as_ref(), result, after),
    }
    if matmul.column_sums {
        let options = ReduceOptions::partial_sums(linker.accumulates(1));
        linker.reduce(&b, &[0], &linker.output(1), options);
    }
}

fn described(bias: &Operand) -> Bias {
    Bias { element: bias.element, address: bias.address }
}

/// An operand in this type: itself, or a copy in scratch.
fn in_type(linker: &mut CudaLinker<'_>, operand: Operand, element: gradus_cuda::Element) -> Operand {
    if operand.element == element {
        return operand;
    }
    let copy = linker.scratch_operand(element, &operand.shape);
    linker.launch(gradus_cuda::copy(&operand, &copy));
    copy
}

/// A product of no depth: the bias, or zeros.
fn link_nothing(linker: &mut CudaLinker<'_>, bias: Option<&Operand>, result: &Operand, accumulates: bool) {
    match bias {
        Some(bias) => {
            let rank = result.shape.len();
            let strides = (0..rank).map(|axis| if axis + 1 == rank { bias.strides[0] } else { 0 }).collect();
            let repeated = Operand { shape: result.shape.clone(), strides, ..bias.clone() };
            linker.launch(gradus_cuda::copy(&repeated, result));
        }
        None if accumulates => {}
        None => linker.zero(result.address, result.elements() * result.element.size()),
    }
}

fn link_products(
    linker: &mut CudaLinker<'_>,
    types: ProductTypes,
    operands: (&Operand, &Operand),
    bias: Option<&Operand>,
    result: &Operand,
    after: After,
) {
    if result.elements() == 0 {
        return;
    }
    let (product, batch) = described_product(types, operands, bias, result, after);
    let followed = || gradus_cuda::followed_product(&product, product.gelu.and_then(Epilogue::of)?);
    let own = || gradus_cuda::rows_product(&product).or_else(followed);
    if let Some(launch) = batch.is_empty().then(own).flatten() {
        return linker.launch(launch);
    }
    let bias = bias.map(|bias| in_type(linker, bias.clone(), result.element)).map(|bias| described(&bias));
    for product in batched(Product { bias, ..product }, &batch) {
        linker.product(product);
    }
}

/// A product, and the batch that it is of.
fn described_product(
    types: ProductTypes,
    (a, b): (&Operand, &Operand),
    bias: Option<&Operand>,
    result: &Operand,
    after: After,
) -> (Product, Vec<kernel::BatchAxis>) {
    let (depth, columns) = (b.shape[b.shape.len() - 2], b.shape[b.shape.len() - 1]);
    let [a_layout, b_layout] = [a, b].map(layout);
    let shape = Shape::from(result.shape.clone());
    let column_stride = stride(&a_layout, 1);
    let allowed = |rows: usize, stride: usize| lies([rows, depth], [stride, column_stride]).is_some();
    let Arrangement { rows, row_stride, batch } = Arrangement::new(&a_layout, &b_layout, &shape, allowed);
    let matrix = |of: &Operand, sizes: [usize; 2], strides: [usize; 2]| {
        let (stride, transposed) = lies(sizes, strides).expect("what the library does not read was copied");
        Matrix { element: of.element, address: of.address, stride, transposed, batch_stride: 0 }
    };
    let product = Product {
        rows,
        columns,
        depth,
        batch: 1,
        a: matrix(a, [rows, depth], [row_stride, column_stride]),
        b: matrix(b, [depth, columns], [stride(&b_layout, 2), stride(&b_layout, 1)]),
        d: matrix(result, [rows, columns], [columns, 1]),
        bias: bias.map(described),
        added: after.added.map(|added| matrix(&added, [rows, columns], [columns, 1])),
        gelu: after.gelu,
        tf32: types.is_tf32(),
        workspace: (0, 0),
    };
    (product, batch)
}

/// The product for every index of the batch: the innermost axis in one call, the others in a call for each index.
fn batched(product: Product, batch: &[kernel::BatchAxis]) -> Vec<Product> {
    let Some((inner, outer)) = batch.split_last() else { return vec![product] };
    let with = |matrix: Matrix, batch_stride: usize| Matrix { batch_stride, ..matrix };
    let mut products = vec![Product {
        batch: inner.size,
        a: with(product.a, inner.a_stride),
        b: with(product.b, inner.b_stride),
        d: with(product.d, inner.c_stride),
        added: product.added.map(|added| with(added, inner.c_stride)),
        ..product
    }];
    let moved = |matrix: Matrix, elements: usize| Matrix {
        address: matrix.address + (elements * matrix.element.size()) as u64,
        ..matrix
    };
    for axis in outer.iter().rev() {
        let at = |index: usize, product: &Product| Product {
            a: moved(product.a, index * axis.a_stride),
            b: moved(product.b, index * axis.b_stride),
            d: moved(product.d, index * axis.c_stride),
            added: product.added.map(|added| moved(added, index * axis.c_stride)),
            ..product.clone()
        };
        products = (0..axis.size)
            .flat_map(|index| products.iter().map(move |product| (index, product)))
            .map(|(index, product)| at(index, product))
            .collect();
    }
    products
}

/// What can be done of a program that follows a product, before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follows {
    /// An operand is added.
    Add,
    /// GELU.
    Gelu,
    /// Times the slope of GELU at an operand.
    GeluSlope,
    /// Times an operand.
    Times,
}

/// What a program is that follows a product, if the library or a kernel of ours can do it: its first operand is the product. As the
/// product is rounded to be stored, programs round it before they use it; the library does not. Nothing else that is rounded is
/// left out.
fn follows(matmul: &Matmul, epilogue: &Elementwise) -> Option<Follows> {
    use Argument::Input;
    let ProductTypes { computed, stored, .. } = matmul.types;
    let is_half = stored == computed && stored != DType::F32;
    if matmul.column_sums || epilogue.dtype != stored {
        return None;
    }
    let program = &epilogue.program;
    let (function, [first, second]) = applied(program, program.result)?;
    match function {
        Function::Add if stored == DType::F32 && is_pair([first, second], [Input(0), Input(1)]) => Some(Follows::Add),
        Function::GeluTanh if is_half && is_product(program, first, stored) => Some(Follows::Gelu),
        Function::Mul if is_half && !matmul.has_bias => {
            let others = [[first, second], [second, first]];
            let factor = others.iter().find(|pair| is_product(program, pair[0], stored))?[1];
            if factor == Input(1) {
                return is_large(epilogue).then_some(Follows::Times);
            }
            let slope = applied(program, rounded_from(program, factor, stored)?)?;
            matches!(slope, (Function::GeluTanhSlope, [Input(1), _])).then_some(Follows::GeluSlope)
        }
        _ => None,
    }
}

/// Whether the result is as large as our kernel for products that are followed wants them.
fn is_large(epilogue: &Elementwise) -> bool {
    let (rows, columns) = epilogue.shape.rows_and_columns();
    gradus_cuda::are_followed(rows, columns)
}

/// Whether GELU follows a product, and this program is its slope there: a kernel of ours gives both.
pub(super) fn gives_aside(matmul: &Matmul, epilogue: &Elementwise, aside: &Elementwise) -> bool {
    let slope = applied(&aside.program, aside.program.result);
    let is_slope = matches!(slope, Some((Function::GeluTanhSlope, [Argument::Input(0), _])));
    let is_gelu = follows(matmul, epilogue) == Some(Follows::Gelu);
    is_gelu && is_slope && aside.dtype == matmul.types.stored && is_large(epilogue)
}

/// Whether a kernel of ours sums the columns of what follows a product.
pub(super) fn sums_columns(matmul: &Matmul, epilogue: &Elementwise) -> bool {
    follows(matmul, epilogue) == Some(Follows::Times)
}

fn is_pair(pair: [Argument; 2], wanted: [Argument; 2]) -> bool {
    pair == wanted || pair == [wanted[1], wanted[0]]
}

/// The function whose value an argument is, and its first two arguments.
fn applied(program: &ScalarProgram, argument: Argument) -> Option<(Function, [Argument; 2])> {
    let Argument::Result(index) = argument else { return None };
    let Instruction { function, arguments } = program.instructions[index];
    Some((function, [arguments[0], arguments[1]]))
}

/// What an argument is that is rounded to this type.
fn rounded_from(program: &ScalarProgram, argument: Argument, dtype: DType) -> Option<Argument> {
    let wanted = if dtype == DType::Bf16 { Function::RoundBf16 } else { Function::RoundF16 };
    applied(program, argument).filter(|(function, _)| *function == wanted).map(|(_, arguments)| arguments[0])
}

/// Whether an argument is the product, as it is stored.
fn is_product(program: &ScalarProgram, argument: Argument, stored: DType) -> bool {
    argument == Argument::Input(0) || rounded_from(program, argument, stored) == Some(Argument::Input(0))
}

/// Whether a product takes a program as its epilogue.
pub(super) fn absorbs(matmul: &Matmul, epilogue: &Elementwise) -> bool {
    follows(matmul, epilogue).is_some()
}

/// A product and the program that follows it.
pub(super) struct Fused<'a> {
    pub matmul: &'a Matmul,
    pub epilogue: &'a Elementwise,
    /// The program's further operands.
    pub others: Vec<Operand>,
    /// Where the product goes, or what `aside` makes of it.
    pub kept: Option<Operand>,
    pub aside: Option<&'a Elementwise>,
    pub result: Operand,
    /// Which result the sums of columns are.
    pub column_sums: Option<usize>,
}

/// Adds the commands of a product and the program that follows it.
pub(super) fn link_fused(fused: Fused<'_>, linker: &mut CudaLinker<'_>) {
    if link_own(&fused, linker) {
        return;
    }
    let Fused { matmul, result, kept, .. } = &fused;
    match after(&fused, linker) {
        Some(after) => link(matmul, linker, result, after),
        None => link_apart(&fused, linker),
    }
    if let (Some(aside), Some(kept)) = (fused.aside, kept) {
        linker.launch(gradus_cuda::elementwise(&aside.program, std::slice::from_ref(kept), kept));
    }
    if let Some(index) = fused.column_sums {
        let rows = rows_of(result);
        linker.reduce(&rows, &[0], &linker.output(index), ReduceOptions::partial_sums(linker.accumulates(index)));
    }
}

/// A dense operand as a matrix.
fn rows_of(operand: &Operand) -> Operand {
    let columns = operand.shape.last().copied().unwrap_or(1);
    Operand::dense(operand.element, &[operand.elements() / columns.max(1), columns], operand.address)
}

/// Adds the kernel of ours for what only it does, if it takes the product.
fn link_own(fused: &Fused<'_>, linker: &mut CudaLinker<'_>) -> bool {
    let Fused { matmul, epilogue, others, kept, aside, result, column_sums } = fused;
    let (a, b) = (linker.input(0), linker.input(1));
    let bias = matmul.has_bias.then(|| linker.input(2));
    let whole = is_one_product(fused, linker);
    let launched = |epilogue: Epilogue| {
        let (product, batch) = described_product(matmul.types, (&a, &b), bias.as_ref(), result, After::default());
        batch.is_empty().then(|| gradus_cuda::followed_product(&product, epilogue)).flatten()
    };
    match (follows(matmul, epilogue), kept, aside, &others[..]) {
        (Some(Follows::Gelu), Some(kept), Some(_), []) if whole => {
            let Some(launch) = launched(Epilogue::GeluKeepingSlope(kept.address)) else { return false };
            linker.launch(launch);
        }
        (Some(Follows::Times), None, None, [factors]) if whole && lies_like(factors, result) => {
            let times = |column_sums| Epilogue::Times { factors: factors.address, column_sums };
            if launched(times(None)).is_none() {
                return false;
            }
            let partials = column_sums.map(|_| {
                let matrix = rows_of(result);
                let parts = gradus_cuda::column_sum_rows(matrix.shape[0]);
                linker.scratch_operand(gradus_cuda::Element::F32, &[parts, matrix.shape[1]])
            });
            let launch = launched(times(partials.as_ref().map(|partials| partials.address)));
            linker.launch(launch.expect("it is taken with sums where it is without"));
            if let (Some(partials), Some(index)) = (partials, *column_sums) {
                let options = ReduceOptions::partial_sums(linker.accumulates(index));
                linker.reduce(&partials, &[0], &linker.output(index), options);
            }
        }
        _ => return false,
    }
    true
}

/// Whether a further operand lies as the result does, aligned.
fn lies_like(operand: &Operand, result: &Operand) -> bool {
    let alike = operand.is_dense() && operand.shape == result.shape && operand.element == result.element;
    alike && operand.address.is_multiple_of(16)
}

/// Whether it is one product, not a batch: rows of all leading axes lie at equal distances.
fn is_one_product(fused: &Fused<'_>, linker: &CudaLinker<'_>) -> bool {
    let (a, b) = (layout(&linker.input(0)), linker.input(1));
    let columns = fused.result.shape.last().copied().unwrap_or(1);
    let rows = Shape::from([fused.result.elements() / columns.max(1), b.shape[0]]);
    let is_one = b.shape.len() == 2 && a.reshaped(&rows).is_some();
    is_one && columns.is_multiple_of(8) && b.shape[0] > 0
}

/// What the library does after the product, if it does all of it; an `aside` is taken of the product that it keeps.
fn after(fused: &Fused<'_>, linker: &CudaLinker<'_>) -> Option<After> {
    let plain = |operand: &Operand| lies_like(operand, &fused.result);
    if !is_one_product(fused, linker) {
        return None;
    }
    match (follows(fused.matmul, fused.epilogue)?, &fused.kept, &fused.others[..]) {
        (Follows::Add, None, [added]) if plain(added) => Some(After { added: Some(added.clone()), gelu: None }),
        (Follows::Gelu, None, []) => Some(After { added: None, gelu: Some(Gelu::Of) }),
        (Follows::Gelu, Some(kept), []) => Some(After { added: None, gelu: Some(Gelu::Keeping(kept.address)) }),
        (Follows::GeluSlope, None, [at]) if plain(at) => {
            Some(After { added: None, gelu: Some(Gelu::SlopeAt(at.address)) })
        }
        _ => None,
    }
}

/// The product, and then the program, which takes the sums before they are rounded.
fn link_apart(fused: &Fused<'_>, linker: &mut CudaLinker<'_>) {
    let Fused { matmul, epilogue, others, kept, result, .. } = fused;
    let product = linker.scratch_operand(gradus_cuda::Element::F32, &result.shape);
    link(matmul, linker, &product, After::default());
    if let Some(kept) = kept {
        linker.launch(gradus_cuda::copy(&product, kept));
    }
    let operands: Vec<_> = [&product].into_iter().chain(others).cloned().collect();
    linker.launch(gradus_cuda::elementwise(&epilogue.program, &operands, result));
}

/// How a matrix of these sizes and strides lies, if the library reads it: the distance of its rows, or of its columns where
/// it is transposed.
fn lies([rows, columns]: [usize; 2], [row_stride, column_stride]: [usize; 2]) -> Option<(usize, bool)> {
    let by = |outer: usize, inner: usize, outer_stride: usize, inner_stride: usize| {
        let fits = (inner <= 1 || inner_stride == 1) && (outer <= 1 || outer_stride >= inner);
        fits.then(|| if outer <= 1 { inner.max(1) } else { outer_stride })
    };
    let by_rows = by(rows, columns, row_stride, column_stride).map(|stride| (stride, false));
    by_rows.or_else(|| by(columns, rows, column_stride, row_stride).map(|stride| (stride, true)))
}

/// Whether the library reads an operand that lies so.
pub(super) fn is_read(layout: &Layout) -> bool {
    lies(last_two(&layout.shape).into(), [stride(layout, 2), stride(layout, 1)]).is_some()
}

fn layout(operand: &Operand) -> Layout {
    Layout { shape: operand.shape.clone().into(), strides: operand.strides.clone(), offset: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_lie_by_rows_or_by_columns_or_are_copied() {
        assert_eq!(lies([4, 6], [6, 1]), Some((6, false)));
        assert_eq!(lies([4, 6], [9, 1]), Some((9, false)), "a slice");
        assert_eq!(lies([4, 6], [1, 4]), Some((4, true)), "transposed");
        assert_eq!(lies([4, 6], [12, 2]), None, "every second number");
        assert_eq!(lies([4, 6], [0, 1]), None, "repeated rows");
        assert_eq!(lies([1, 6], [0, 1]), Some((6, false)), "one row");
        assert_eq!(lies([4, 1], [7, 0]), Some((7, false)), "one column");
        assert_eq!(lies([1, 6], [0, 3]), Some((3, true)), "a row out of a column");
    }
}

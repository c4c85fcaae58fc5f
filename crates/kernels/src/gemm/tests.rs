use super::microkernel::{Panels, Results, TRANSPOSE_SIDE, Word};
use super::pack::{Lines, pack_line_major, words_of};
use super::*;
use crate::{bf16, run_alone};

/// Repeatable numbers between -1 and 1, few enough bits that every element type holds them.
pub(crate) fn numbers<T: Element>(count: usize, seed: usize) -> Vec<T> {
    (0..count).map(|i| T::from_f32(((i * 31 + seed * 17 + i * i % 89) % 127) as f32 / 64.0 - 1.0)).collect()
}

fn matrix<T>(elements: &[T], row_stride: usize, column_stride: usize) -> Matrix<T> {
    Matrix { elements: In::new(elements.as_ptr(), elements.len()), row_stride, column_stride }
}

/// One product in every transpose, with and without a bias, against the sum in f64.
fn check<T: Element>(sizes: Sizes, tolerance: f64) {
    let Sizes { rows, columns, depth } = sizes;
    let (a, b) = (numbers::<T>(rows * depth, 1), numbers::<T>(depth * columns, 2));
    let bias = numbers::<T>(columns, 3);
    for isa in Isa::available() {
        for transposes in 0..4 {
            let a_strides = if transposes & 1 == 0 { (depth, 1) } else { (1, rows) };
            let b_strides = if transposes & 2 == 0 { (columns, 1) } else { (1, depth) };
            let with_bias = transposes < 2;
            // The result's rows lie apart; what is between them must not be touched.
            let stride = columns + 3;
            let mut c = vec![T::from_f32(9.0); rows * stride];
            let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: stride };
            let (left, right) = (matrix(&a, a_strides.0, a_strides.1), matrix(&b, b_strides.0, b_strides.1));
            let job = Gemm::new(isa, sizes, left, right, to).bias(with_bias.then(|| In::new(bias.as_ptr(), columns)));
            run_alone(&job);
            for row in 0..rows {
                for column in 0..columns {
                    let product = |step: usize| {
                        let a = a[row * a_strides.0 + step * a_strides.1].to_f32() as f64;
                        a * b[step * b_strides.0 + column * b_strides.1].to_f32() as f64
                    };
                    let bias = if with_bias { bias[column].to_f32() as f64 } else { 0.0 };
                    let expected = (0..depth).map(product).sum::<f64>() + bias;
                    let found = c[row * stride + column].to_f32() as f64;
                    let error = (found - expected).abs() / expected.abs().max(1.0);
                    assert!(
                        error < tolerance,
                        "{isa} {sizes:?} {transposes} [{row}, {column}]: {found}, not {expected}"
                    );
                }
                assert!(c[row * stride + columns..][..3].iter().all(|x| x.to_f32() == 9.0), "wrote beside a row");
            }
        }
    }
}

fn sizes(rows: usize, columns: usize, depth: usize) -> Sizes {
    Sizes { rows, columns, depth }
}

#[test]
fn products_of_many_sizes() {
    let all = [(1, 1, 1), (1, 33, 7), (3, 1, 20), (12, 32, 8), (13, 31, 9), (25, 70, 300), (40, 64, 17), (2, 3, 0)];
    for (rows, columns, depth) in all {
        check::<f32>(sizes(rows, columns, depth), 1e-5);
        check::<bf16>(sizes(rows, columns, depth), 5e-3);
        check::<crate::f16>(sizes(rows, columns, depth), 1e-3);
    }
}

#[test]
fn products_of_several_tiles_and_depth_blocks() {
    check::<f32>(sizes(200, 300, 280), 2e-5);
    check::<bf16>(sizes(290, 270, 64), 5e-3);
    check::<bf16>(sizes(40, 70, 3200), 5e-3);
}

#[test]
fn large_products_have_parts_for_many_threads_and_small_ones_few() {
    let parts = |rows, columns, depth, products| {
        let layout = Layout {
            rows_are_dense: true,
            rows_in_place: true,
            columns: Columns::Beside,
            columns_in_place: true,
            columns_stay: false,
            column_bytes: size_of::<f32>(),
        };
        let cut = Cut::new(
            sizes(rows, columns, depth),
            Shares { products, lefts: 1, workers: 16 },
            Panel::of::<Portable>(),
            layout,
        );
        parts_of(cut.tiles(), cut.tiles_per_part)
    };
    for (rows, columns, depth) in [(4096, 256, 256), (4096, 1024, 1024), (256, 1024, 4096), (256, 256, 4096)] {
        assert!(parts(rows, columns, depth, 1) >= 32, "{rows} {columns} {depth}");
    }
    assert_eq!(parts(64, 64, 64, 1), 1);
    assert_eq!(parts(0, 64, 64, 1) + parts(64, 0, 64, 1) + parts(64, 64, 64, 0), 0);
    assert!((512..4096).contains(&parts(64, 64, 64, 12_000)));
}

#[test]
fn batches_repeat_and_stride_their_operands() {
    // Two axes: a has both, b only the inner one.
    let (outer, inner, Sizes { rows, columns, depth }) = (3, 5, sizes(7, 9, 11));
    let a = numbers::<f32>(outer * inner * rows * depth, 1);
    let b = numbers::<f32>(inner * depth * columns, 2);
    for isa in Isa::available() {
        let mut c = vec![0.0f32; outer * inner * rows * columns];
        let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: columns };
        let (a_size, b_size, c_size) = (rows * depth, depth * columns, rows * columns);
        let batch = [
            BatchAxis { size: outer, a_stride: inner * a_size, b_stride: 0, c_stride: inner * c_size },
            BatchAxis { size: inner, a_stride: a_size, b_stride: b_size, c_stride: c_size },
        ];
        run_alone(
            &Gemm::new(isa, sizes(rows, columns, depth), matrix(&a, depth, 1), matrix(&b, columns, 1), to)
                .batched(&batch),
        );
        for (index, found) in c.iter().enumerate() {
            let (product, row, column) = (index / c_size, index / columns % rows, index % columns);
            let term =
                |step| a[product * a_size + row * depth + step] * b[product % inner * b_size + step * columns + column];
            let expected: f32 = (0..depth).map(term).sum();
            assert!((found - expected).abs() < 1e-5, "{isa} {index}: {found}, not {expected}");
        }
    }
}

#[test]
fn accumulates_over_calls_as_over_the_depth() {
    let (a, b) = (numbers::<f32>(30 * 40, 1), numbers::<f32>(40 * 50, 2));
    for isa in Isa::available() {
        let mut c = vec![1.0f32; 30 * 50];
        let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: 50 };
        run_alone(&Gemm::new(isa, sizes(30, 50, 40), matrix(&a, 40, 1), matrix(&b, 50, 1), to).accumulating(true));
        for (index, found) in c.iter().enumerate() {
            let expected: f32 = 1.0 + (0..40).map(|k| a[index / 50 * 40 + k] * b[k * 50 + index % 50]).sum::<f32>();
            assert!((found - expected).abs() < 1e-4, "{isa} {index}");
        }
    }
}

#[test]
fn every_number_of_threads_gives_the_same_bits() {
    let Sizes { rows, columns, depth } = sizes(150, 190, 300);
    let (a, b) = (numbers::<f32>(rows * depth, 1), numbers::<f32>(depth * columns, 2));
    for isa in Isa::available() {
        let product = |threads: usize| {
            let mut c = vec![0.0f32; rows * columns];
            let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: columns };
            let job = Gemm::new(isa, sizes(rows, columns, depth), matrix(&a, depth, 1), matrix(&b, columns, 1), to)
                .workers(threads);
            assert!(threads == 1 || job.parts() > 1);
            let bytes = job.worker_scratch().next_multiple_of(64);
            let mut scratch = vec![0u8; threads * bytes + 64];
            let start = scratch.as_ptr().align_offset(64);
            let pool = crate::Pool::new(threads).unwrap();
            // SAFETY: the operands and the scratch live in this function, and only the job uses them.
            unsafe { pool.run(&job, scratch[start..].as_mut_ptr(), bytes) };
            c.iter().map(|x| x.to_bits()).collect::<Vec<u32>>()
        };
        let alone = product(1);
        assert!((2..=4).all(|threads| product(threads) == alone), "{isa}");
    }
}

/// The results of products of the same columns, one by one or with the columns packed once for all.
fn several<T: Element>(isa: Isa, sizes: Sizes, lefts: usize, transposes: usize, together: bool) -> Vec<Vec<T>> {
    let Sizes { rows, columns, depth } = sizes;
    let b = numbers::<T>(depth * columns, 2);
    let b_strides = if transposes & 2 == 0 { (columns, 1) } else { (1, depth) };
    let a_strides = if transposes & 1 == 0 { (depth, 1) } else { (1, rows) };
    let operands: Vec<_> =
        (0..lefts).map(|left| (numbers::<T>(rows * depth, 3 + left), numbers::<T>(columns, left))).collect();
    let mut results = vec![vec![T::from_f32(9.0); rows * columns]; lefts];
    let jobs = operands.iter().zip(&mut results).enumerate().map(|(left, ((a, bias), c))| {
        let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: columns };
        let (a, b) = (matrix(a, a_strides.0, a_strides.1), matrix(&b, b_strides.0, b_strides.1));
        let job = Gemm::new(isa, sizes, a, b, to).workers(2).sharing(if together { lefts } else { 1 });
        job.bias((left > 0).then(|| In::new(bias.as_ptr(), columns)))
    });
    match together {
        true => run_alone(&jobs.reduce(Gemm::beside).unwrap()),
        false => jobs.for_each(|job| run_alone(&job)),
    }
    results
}

#[test]
fn products_that_share_their_columns_have_the_bits_of_each() {
    let all = [(1, 33, 7), (7, 99, 40), (13, 31, 9), (70, 300, 280), (90, 70, 1100), (2, 3, 0), (300, 600, 64)];
    for isa in Isa::available() {
        for (rows, columns, depth) in all {
            for transposes in 0..4 {
                let of = |together| several::<f32>(isa, sizes(rows, columns, depth), 3, transposes, together);
                assert_eq!(of(true), of(false), "{isa} {rows} x {depth} x {columns}, {transposes}");
                let of = |together| several::<bf16>(isa, sizes(rows, columns, depth), 2, transposes, together);
                assert_eq!(of(true), of(false), "{isa} {rows} x {depth} x {columns}, {transposes}, bf16");
            }
        }
    }
}

#[test]
fn columns_are_summed_beside_the_product() {
    let Sizes { rows, columns, depth } = sizes(20, 75, 700);
    let (a, b) = (numbers::<bf16>(rows * depth, 1), numbers::<bf16>(depth * columns, 2));
    for isa in Isa::available() {
        let (mut c, mut sums) = (vec![0.0f32; rows * columns], vec![9.0f32; columns]);
        let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: columns };
        let job = Gemm::new(isa, sizes(rows, columns, depth), matrix(&a, 1, rows), matrix(&b, columns, 1), to);
        run_alone(&job.column_sums(Some(Out::new(sums.as_mut_ptr(), columns))));
        for (column, found) in sums.iter().enumerate() {
            let expected: f32 = (0..depth).map(|step| Element::to_f32(b[step * columns + column])).sum();
            assert!((found - expected).abs() < 1e-3, "{isa} {column}: {found}, not {expected}");
        }
    }
}

/// Pairs of steps in lines one after another, as matrix registers take them; here they are only packed.
struct Pairs;

impl Microkernel for Pairs {
    const ROWS: usize = 16;
    const COLUMNS: usize = 16;
    const STEPS: usize = 2;
    const WORDS: usize = 4;
    const LINE_MAJOR: bool = true;
    const LINES: usize = Portable::LINES;

    unsafe fn multiply(_panels: Panels, _results: Results, _rows: usize) {
        unreachable!("nothing is multiplied")
    }

    unsafe fn shape(_rows: usize) {}

    unsafe fn transpose(lines: [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE]) -> [[Word; TRANSPOSE_SIDE]; TRANSPOSE_SIDE] {
        // SAFETY: every machine has the level.
        unsafe { Portable::transpose(lines) }
    }

    unsafe fn transpose_words(from: *const Word, line_bytes: usize, to: *mut Word, to_stride: usize) {
        // SAFETY: the caller's promise; every machine has the level.
        unsafe { Portable::transpose_words(from, line_bytes, to, to_stride) }
    }

    unsafe fn pairs<const N: usize>(steps: [f32; N], next: [f32; N]) -> [Word; N] {
        // SAFETY: as above.
        unsafe { Portable::pairs(steps, next) }
    }

    unsafe fn line(numbers: [f32; 2 * TRANSPOSE_SIDE]) -> [Word; TRANSPOSE_SIDE] {
        // SAFETY: as above.
        unsafe { Portable::line(numbers) }
    }

    fn prefetch(_address: *const u8) {}

    fn prefetch_far(_address: *const u8) {}
}

#[test]
fn lines_of_every_stride_are_packed_in_pairs_and_padded() {
    for (count, depth) in [(1, 1), (3, 40), (16, 16), (21, 37)] {
        for (line_stride, step_stride) in [(depth, 1), (1, count), (2 * depth, 2)] {
            let elements = numbers::<f32>(2 * count * depth, 1);
            let words = words_of::<Pairs>(depth);
            let mut packed = vec![Word::MAX; count * words];
            let lines = Lines { first: elements.as_ptr(), count, line_stride, depth, step_stride };
            // SAFETY: the elements live in this function, and every machine has the level.
            unsafe { pack_line_major::<f32, Pairs>(lines, &mut packed) };
            let half = |line: usize, step: usize| match step < depth {
                true => bf16::from_f32(elements[line * line_stride + step * step_stride]).to_bits() as Word,
                false => 0,
            };
            for (index, &found) in packed.iter().enumerate() {
                let (line, word) = (index / words, index % words);
                let expected = half(line, 2 * word) | half(line, 2 * word + 1) << 16;
                assert_eq!(found, expected, "{count} x {depth} by {line_stride}, {step_stride}: {line}, {word}");
            }
        }
    }
}

/// Results so large that they are written past the caches, with odd sizes so that rows start anywhere in a line.
fn check_streamed<T: Element + PartialEq + std::fmt::Debug>(rows: usize, columns: usize, tolerance: f64) {
    use crate::elementwise::{InputElements, OutputElements};
    use gradus_scalar::{Argument, Function, Instruction, ScalarProgram};
    let depth = 5;
    let (a, b, bias) =
        (numbers::<f32>(rows * depth, 1), numbers::<f32>(depth * columns, 2), numbers::<f32>(columns, 3));
    let other = numbers::<f32>(rows * columns, 4);
    let unused = Argument::Constant(0.0);
    let program = ScalarProgram {
        instructions: vec![Instruction {
            function: Function::Mul,
            arguments: [Argument::Input(0), Argument::Input(1), unused],
        }],
        result: Argument::Result(0),
    };
    for isa in Isa::available() {
        for kept in [None, Some(true), Some(false)] {
            for threads in [1, 3] {
                let mut c = vec![T::from_f32(9.0); rows * columns + 1];
                let mut finished = vec![9.0f32; rows * columns + 1];
                let out = Out::new(c.as_mut_ptr(), rows * columns);
                let result = Out::new(finished.as_mut_ptr(), rows * columns);
                let base = || (matrix(&a, depth, 1), matrix(&b, columns, 1));
                let size = sizes(rows, columns, depth);
                let (left, right) = base();
                let job = match kept {
                    Some(false) => {
                        Gemm::new(isa, size, left, right, MatrixMut { elements: result, row_stride: columns })
                    }
                    _ => Gemm::new(isa, size, left, right, MatrixMut { elements: out, row_stride: columns }),
                };
                let mut job = job.workers(threads).bias(Some(In::new(bias.as_ptr(), columns)));
                if let Some(kept) = kept {
                    let source = InputElements::F32(In::new(other.as_ptr(), other.len()));
                    let sources = [None, Some((source, vec![columns, 1]))];
                    let width = job.width();
                    let epilogue = crate::elementwise::Epilogue::new(
                        isa,
                        &program,
                        &sources,
                        (OutputElements::F32(result), !kept),
                        &[rows, columns],
                        width,
                    );
                    job = job.with_epilogue(epilogue, kept);
                }
                let bytes = job.worker_scratch().next_multiple_of(64);
                let mut scratch = vec![0xa5u8; threads * bytes + 64];
                let start = scratch.as_ptr().align_offset(64);
                let pool = crate::Pool::new(threads).unwrap();
                // SAFETY: the operands and the scratch live in this function, and only the job uses them.
                unsafe { pool.run(&job, scratch[start..].as_mut_ptr(), bytes) };
                assert!(c[rows * columns] == T::from_f32(9.0) && finished[rows * columns] == 9.0);
                for index in 0..rows * columns {
                    let (row, column) = (index / columns, index % columns);
                    let product: f64 =
                        (0..depth).map(|k| a[row * depth + k] as f64 * b[k * columns + column] as f64).sum::<f64>()
                            + bias[column] as f64;
                    if kept != Some(false) {
                        let found = c[index].to_f32() as f64;
                        assert!(
                            (found - product).abs() <= tolerance * product.abs().max(1.0),
                            "{isa} {kept:?} {threads} [{row}, {column}]: {found}, not {product}"
                        );
                    }
                    if kept.is_some() {
                        let expected = product * other[index] as f64;
                        let found = finished[index] as f64;
                        assert!(
                            (found - expected).abs() <= 1e-5 * product.abs().max(1.0),
                            "{isa} {kept:?} {threads} [{row}, {column}] finished: {found}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn large_results_are_streamed_rightly() {
    check_streamed::<f32>(1301, 1303, 1e-5);
    check_streamed::<bf16>(1801, 1803, 5e-3);
}

#[test]
fn every_number_of_threads_gives_the_same_bits_in_bf16() {
    for (rows, columns, depth, transposed) in
        [(150, 190, 2100, false), (150, 190, 2112, false), (161, 200, 1999, true), (70, 45, 4100, true)]
    {
        let (a, b) = (numbers::<bf16>(rows * depth, 1), numbers::<f32>(depth * columns, 2));
        for isa in Isa::available() {
            let product = |threads: usize| {
                let mut c = vec![0.0f32; rows * columns];
                let mut sums = vec![0.0f32; columns];
                let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: columns };
                let left = if transposed { matrix(&a, 1, rows) } else { matrix(&a, depth, 1) };
                let job = Gemm::new(isa, sizes(rows, columns, depth), left, matrix(&b, columns, 1), to)
                    .workers(threads)
                    .column_sums(Some(Out::new(sums.as_mut_ptr(), columns)));
                let bytes = job.worker_scratch().next_multiple_of(64);
                let mut scratch = vec![0xa5u8; threads * bytes + 64];
                let start = scratch.as_ptr().align_offset(64);
                let pool = crate::Pool::new(threads).unwrap();
                // SAFETY: the operands and the scratch live in this function, and only the job uses them.
                unsafe { pool.run(&job, scratch[start..].as_mut_ptr(), bytes) };
                c.iter().chain(&sums).map(|x| x.to_bits()).collect::<Vec<u32>>()
            };
            let alone = product(1);
            for (index, &bits) in alone[..rows * columns].iter().enumerate() {
                let (row, column) = (index / columns, index % columns);
                let at =
                    |k: usize| Element::to_f32(if transposed { a[k * rows + row] } else { a[row * depth + k] }) as f64;
                let expected: f64 = (0..depth).map(|k| at(k) * b[k * columns + column] as f64).sum();
                let found = f32::from_bits(bits) as f64;
                assert!(
                    (found - expected).abs() < 1e-3 * expected.abs().max(10.0),
                    "{isa} {row} {column}: {found} {expected}"
                );
            }
            assert!((2..=16).all(|threads| product(threads) == alone), "{isa}");
        }
    }
}

/// Repeatable numbers between -1 and 1 whose products and sums have to be rounded.
fn rough<T: Element>(count: usize, seed: usize) -> Vec<T> {
    (0..count).map(|i| T::from_f32(((i * 7919 + seed * 104_729) % 65_537) as f32 / 32_771.0 - 1.0)).collect()
}

/// The bits of a product and of its column sums, computed in pieces of the depth that end at these steps.
fn in_pieces<A: Element, B: Element>(
    isa: Isa,
    threads: usize,
    sizes: Sizes,
    transposed: bool,
    ends: &[usize],
) -> Vec<u32> {
    let Sizes { rows, columns, depth } = sizes;
    let (a, b) = (rough::<A>(rows * depth, 1), rough::<B>(depth * columns, 2));
    let (mut c, mut sums) = (vec![9.0f32; rows * columns], vec![9.0f32; columns]);
    let (row_stride, column_stride) = if transposed { (1, rows) } else { (depth, 1) };
    let pool = crate::Pool::new(threads).unwrap();
    let mut start = 0;
    for &end in ends {
        let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: columns };
        let left = matrix(&a[start * column_stride..], row_stride, column_stride);
        let right = matrix(&b[start * columns..], columns, 1);
        let job = Gemm::new(isa, Sizes { depth: end - start, ..sizes }, left, right, to)
            .in_bf16(is::<A, bf16>())
            .workers(threads)
            .column_sums(Some(Out::new(sums.as_mut_ptr(), columns)))
            .accumulating(start > 0);
        let bytes = job.worker_scratch().next_multiple_of(64);
        let mut scratch = vec![0xa5u8; threads * bytes + 64];
        let aligned = scratch.as_ptr().align_offset(64);
        // SAFETY: the operands and the scratch live in this function, and only the job uses them.
        unsafe { pool.run(&job, scratch[aligned..].as_mut_ptr(), bytes) };
        start = end;
    }
    c.iter().chain(&sums).map(|x| x.to_bits()).collect()
}

#[test]
fn a_depth_in_pieces_gives_the_bits_of_the_whole() {
    for (rows, columns, depth) in [(1, 1, 64), (8, 32, 96), (13, 45, 384), (70, 100, 1600), (150, 70, 2112)] {
        let size = sizes(rows, columns, depth);
        // All levels keep their bits where the depth is cut at multiples of 32; all but one, at any whole word.
        let pieces = [vec![32, depth], vec![depth / 2 / 32 * 32, depth], (32..=depth).step_by(32).collect()];
        for isa in Isa::available() {
            for transposed in [false, true] {
                let f32_whole = in_pieces::<f32, f32>(isa, 1, size, transposed, &[depth]);
                let bf16_whole = in_pieces::<bf16, f32>(isa, 1, size, transposed, &[depth]);
                for (threads, pieces) in (1..=4).flat_map(|threads| pieces.iter().map(move |ends| (threads, ends))) {
                    let found = in_pieces::<f32, f32>(isa, threads, size, transposed, pieces);
                    assert!(found == f32_whole, "{isa}, {size:?}, {threads} threads, transposed: {transposed}");
                    let found = in_pieces::<bf16, f32>(isa, threads, size, transposed, pieces);
                    assert!(
                        found == bf16_whole,
                        "{isa}, {size:?} in bf16, {threads} threads, transposed: {transposed}"
                    );
                }
                let odd: Vec<usize> = vec![7, 20, depth];
                assert!(in_pieces::<f32, f32>(isa, 2, size, transposed, &odd) == f32_whole, "{isa}, {size:?}");
                let even: Vec<usize> = vec![6, 20, depth];
                let found = in_pieces::<bf16, f32>(isa, 2, size, transposed, &even);
                assert!(isa == Isa::Amx || found == bf16_whole, "{isa}, {size:?} in bf16");
            }
        }
    }
}

/// How the operands of a product lie, and what is asked of it.
#[derive(Clone, Copy, Debug)]
struct Asked {
    sizes: Sizes,
    a_transposed: bool,
    b_transposed: bool,
    in_bf16: bool,
    /// A bias, and a program that follows, beside the product itself.
    followed: bool,
}

/// The bits of the first rows of a product, as `C`, and of what follows it. Operands have more rows than are asked for.
fn bits_of<A: Element, B: Element, C: Element>(isa: Isa, threads: usize, rows: usize, asked: Asked) -> Vec<u32> {
    use crate::elementwise::{Epilogue, InputElements, OutputElements};
    use gradus_scalar::{Argument, Function, Instruction, ScalarProgram};
    let Sizes { rows: all_rows, columns, depth } = asked.sizes;
    let (a, b) = (rough::<A>(all_rows * depth, 1), rough::<B>(depth * columns, 2));
    let (bias, other) = (rough::<f32>(columns, 3), rough::<f32>(rows * columns, 4));
    let (mut c, mut finished) = (vec![C::from_f32(9.0); rows * columns], vec![9.0f32; rows * columns]);
    let a_strides = if asked.a_transposed { (1, all_rows) } else { (depth, 1) };
    let b_strides = if asked.b_transposed { (1, depth) } else { (columns, 1) };
    let (left, right) = (matrix(&a, a_strides.0, a_strides.1), matrix(&b, b_strides.0, b_strides.1));
    let to = MatrixMut { elements: Out::new(c.as_mut_ptr(), c.len()), row_stride: columns };
    let mut job = Gemm::new(isa, sizes(rows, columns, depth), left, right, to).in_bf16(asked.in_bf16).workers(threads);
    if asked.followed {
        let arguments = [Argument::Input(0), Argument::Input(1), Argument::Constant(0.0)];
        let instructions = vec![Instruction { function: Function::Mul, arguments }];
        let program = ScalarProgram { instructions, result: Argument::Result(0) };
        let source = InputElements::F32(In::new(other.as_ptr(), other.len()));
        let target = OutputElements::F32(Out::new(finished.as_mut_ptr(), finished.len()));
        job = job.bias(Some(In::new(bias.as_ptr(), columns)));
        let sources = [None, Some((source, vec![columns, 1]))];
        let epilogue = Epilogue::new(isa, &program, &sources, (target, false), &[rows, columns], job.width());
        job = job.with_epilogue(epilogue, true);
    }
    let bytes = job.worker_scratch().next_multiple_of(64);
    let mut scratch = vec![0xa5u8; threads * bytes + 64];
    let aligned = scratch.as_ptr().align_offset(64);
    // SAFETY: the operands and the scratch live in this function, and only the job uses them.
    unsafe { crate::Pool::new(threads).unwrap().run(&job, scratch[aligned..].as_mut_ptr(), bytes) };
    c.iter().map(|x| x.to_f32().to_bits()).chain(finished.iter().map(|x| x.to_bits())).collect()
}

/// Few rows of a product, on every number of threads, against as many of a product of many rows, which is cut otherwise.
fn check_few_rows<A: Element, B: Element, C: Element>(in_bf16: bool) {
    for (columns, depth) in [(205, 704), (205, 333), (70, 1), (3, 40)] {
        for layout in 0..8 {
            let [a_transposed, b_transposed, followed] = [1, 2, 4].map(|bit| layout & bit != 0);
            let asked = Asked { sizes: sizes(97, columns, depth), a_transposed, b_transposed, in_bf16, followed };
            for isa in Isa::available() {
                let many = bits_of::<A, B, C>(isa, 1, 97, asked);
                let (product, finished) = many.split_at(97 * columns);
                for (rows, threads) in
                    [(1, 1), (1, 3), (2, 2), (3, 1), (5, 3), (7, 1), (8, 2), (9, 1), (16, 3), (17, 2), (31, 1), (64, 3)]
                {
                    let few = bits_of::<A, B, C>(isa, threads, rows, asked);
                    let (few_product, few_finished) = few.split_at(rows * columns);
                    assert!(
                        few_product == &product[..rows * columns],
                        "{isa}, {rows} rows, {threads} threads, {asked:?}"
                    );
                    assert!(
                        few_finished == &finished[..rows * columns],
                        "{isa}, {rows} rows, {threads} threads, {asked:?}, after it"
                    );
                }
            }
        }
    }
}

#[test]
fn few_rows_have_the_bits_that_they_have_among_many() {
    check_few_rows::<f32, f32, f32>(false);
    check_few_rows::<f32, f16, f32>(false);
    check_few_rows::<f16, f16, f16>(false);
}

#[test]
fn few_rows_have_the_bits_that_they_have_among_many_in_bf16() {
    check_few_rows::<bf16, bf16, bf16>(true);
    check_few_rows::<f32, bf16, f32>(true);
    check_few_rows::<bf16, f32, f32>(true);
}

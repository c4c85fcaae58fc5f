use super::*;
use crate::{bf16, run_alone};

/// Axes as (size, stride).
type Axes<'a> = &'a [(usize, usize)];

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919 + 13) % 8009) as f32 / 1001.0 - 3.7).collect()
}

/// Runs the jobs on an operand with these kept and reduced axes.
fn run<T: Element>(isa: Isa, reduction: Reduction, x: &[T], kept: Axes, reduced: Axes) -> Vec<T> {
    let shape = Shape::new(kept, reduced);
    let mut partials = vec![f32::NAN; shape.partials()];
    let mut y = vec![T::from_f32(f32::NAN); kept.iter().map(|axis| axis.0).product()];
    let (partials, result) = (Out::new(partials.as_mut_ptr(), partials.len()), Out::new(y.as_mut_ptr(), y.len()));
    for job in jobs(isa, reduction, shape, In::new(x.as_ptr(), x.len()), partials, result) {
        run_alone(&job);
    }
    y
}

/// The offsets of all indices of the axes, the last fastest.
fn offsets(axes: Axes) -> Vec<usize> {
    axes.iter().fold(vec![0], |offsets, &(size, stride)| {
        offsets.into_iter().flat_map(|offset| (0..size).map(move |i| offset + i * stride)).collect()
    })
}

fn check<T: Element>(kept: Axes, reduced: Axes, tolerance: f64) {
    let end = kept.iter().chain(reduced).map(|&(size, stride)| size.saturating_sub(1) * stride).sum::<usize>() + 1;
    let x: Vec<T> = numbers(end).into_iter().map(T::from_f32).collect();
    let within = offsets(reduced);
    for reduction in [Reduction::Sum, Reduction::SumOfSquares, Reduction::SumOfAbs, Reduction::Zeros, Reduction::Max] {
        let baseline = run(Isa::Baseline, reduction, &x, kept, reduced);
        for (index, offset) in offsets(kept).into_iter().enumerate() {
            let values = || within.iter().map(|&at| x[offset + at].to_f32() as f64);
            let (want, scale) = match reduction {
                Reduction::Sum => (values().sum::<f64>(), values().map(f64::abs).sum()),
                Reduction::SumOfSquares => (values().map(|x| x * x).sum(), values().map(|x| x * x).sum::<f64>()),
                Reduction::SumOfAbs => (values().map(f64::abs).sum(), values().map(f64::abs).sum::<f64>()),
                Reduction::Zeros => (values().filter(|x| *x == 0.0).count() as f64, 0.0),
                Reduction::Max => (values().fold(f64::NEG_INFINITY, f64::max), 1.0),
            };
            let got = baseline[index].to_f32() as f64;
            let close = (got - want).abs() <= 1e-6 * scale + tolerance * want.abs();
            assert!(close || got == want, "{reduction:?} {kept:?} over {reduced:?}, result {index}: {got}, not {want}");
        }
        for isa in Isa::available() {
            let got = run(isa, reduction, &x, kept, reduced);
            assert!(bytemuck::cast_slice::<T, u8>(&got) == bytemuck::cast_slice::<T, u8>(&baseline), "{isa} differs");
        }
    }
}

#[test]
fn all_kinds_of_axes() {
    let cases: &[(Axes, Axes)] = &[
        (&[], &[]),
        (&[], &[(1, 1)]),
        (&[(3, 1)], &[]),
        (&[(1, 1)], &[(17, 1)]),
        // Rows: short, long, dense and apart.
        (&[(5, 3)], &[(3, 1)]),
        (&[(2500, 7)], &[(7, 1)]),
        (&[(3, 40_001)], &[(40_001, 1)]),
        (&[(70, 20_000)], &[(16_500, 1)]),
        (&[], &[(100_003, 1)]),
        (&[], &[(100_003, 3)]),
        // Columns: narrow, wide, few rows and many.
        (&[(3, 1)], &[(1001, 3)]),
        (&[(9, 1)], &[(5000, 9)]),
        (&[(130, 1)], &[(300, 130)]),
        (&[(700, 1)], &[(201, 700)]),
        (&[(700, 1)], &[(3, 701)]),
        (&[(2000, 64), (16, 1)], &[(4, 16)]),
        // Axes in turn, repeated and transposed ones.
        (&[(2, 60), (4, 5)], &[(3, 20), (5, 1)]),
        (&[(3, 20), (5, 1)], &[(2, 60), (4, 5)]),
        (&[(3, 20), (20, 1)], &[(2, 60), (40, 600)]),
        (&[(30, 1), (20, 30)], &[(11, 600)]),
        (&[(30, 0), (20, 1)], &[(11, 0), (5, 20)]),
        (&[(13, 2)], &[(11, 26), (9, 0)]),
    ];
    for (kept, reduced) in cases {
        check::<f32>(kept, reduced, 0.0);
        check::<bf16>(kept, reduced, 4e-3);
    }
}

#[test]
fn nothing_to_reduce_and_nothing_kept() {
    assert_eq!(run::<f32>(Isa::detect(), Reduction::Sum, &[], &[(3, 1)], &[(0, 3)]), [0.0; 3]);
    assert_eq!(run::<f32>(Isa::detect(), Reduction::SumOfSquares, &[], &[(30, 1)], &[(0, 3)]), [0.0; 30]);
    assert_eq!(run::<f32>(Isa::detect(), Reduction::Sum, &[], &[(0, 3)], &[(3, 1)]), []);
}

#[test]
fn largest_keeps_a_nan() {
    for (length, at) in [(5, 3), (5, 0), (70_000, 41_234)] {
        let mut x = numbers(length);
        x[at] = f32::NAN;
        for isa in Isa::available() {
            assert!(run(isa, Reduction::Max, &x, &[], &[(length, 1)])[0].is_nan());
            assert!(run(isa, Reduction::Max, &x, &[(1, 1)], &[(length, 1)])[0].is_nan());
        }
    }
    let x = vec![f32::NEG_INFINITY; 3000];
    assert_eq!(run(Isa::detect(), Reduction::Max, &x, &[], &[(3000, 1)]), [f32::NEG_INFINITY]);
}

#[test]
fn ten_million_elements_sum_to_a_millionth() {
    let x = vec![0.1f32; 10_000_000];
    let want = 0.1f32 as f64 * 1e7;
    for (kept, reduced) in [(vec![], vec![(10_000_000, 1)]), (vec![(10, 1)], vec![(1_000_000, 10)])] {
        for got in run(Isa::detect(), Reduction::Sum, &x, &kept, &reduced) {
            let want = if kept.is_empty() { want } else { want / 10.0 };
            assert!((got as f64 / want - 1.0).abs() < 1e-6, "{got} is not {want}");
        }
    }
}

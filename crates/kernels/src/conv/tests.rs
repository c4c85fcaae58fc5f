//! The kernels against the bilinear form written out in f64.

use super::*;
use crate::{Element, In, Isa, Job, Out, bf16, run_alone};
use std::sync::Arc;

/// Calls `visit` with the positions in input, weights and output of every product of the convolution.
fn every_product(g: &Geometry, mut visit: impl FnMut(usize, usize, usize)) {
    let [h, w] = g.input;
    let [oh, ow] = g.output;
    let [kh, kw] = g.kernel;
    for image in 0..g.images {
        for filter in 0..g.groups * g.filters {
            for channel in 0..g.channels {
                let plane = (image * g.groups + filter / g.filters) * g.channels + channel;
                for (oy, ox) in (0..oh).flat_map(|oy| (0..ow).map(move |ox| (oy, ox))) {
                    for (ky, kx) in (0..kh).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))) {
                        let y = (oy * g.stride[0] + ky * g.dilation[0]).wrapping_sub(g.padding[0]);
                        let x = (ox * g.stride[1] + kx * g.dilation[1]).wrapping_sub(g.padding[1]);
                        if y < h && x < w {
                            let weight = ((filter * g.channels + channel) * kh + ky) * kw + kx;
                            let output = ((image * g.groups * g.filters + filter) * oh + oy) * ow + ox;
                            visit((plane * h + y) * w + x, weight, output);
                        }
                    }
                }
            }
        }
    }
}

struct Sizes {
    input: usize,
    weights: usize,
    output: usize,
}

fn sizes(g: &Geometry) -> Sizes {
    Sizes {
        input: g.images * g.groups * g.channels * g.input[0] * g.input[1],
        weights: g.groups * g.filters * g.channels * g.taps(),
        output: g.images * g.groups * g.filters * g.output[0] * g.output[1],
    }
}

/// Repeatable numbers between -1 and 1 that bf16 holds without rounding.
fn numbers<T: Element>(count: usize, seed: usize) -> Vec<T> {
    let number = |index: usize| ((index * 7919 + seed * 104_729) % 129) as f32 / 64.0 - 1.0;
    (0..count).map(|index| T::from_f32(number(index))).collect()
}

fn output_size(input: usize, kernel: usize, stride: usize, padding: usize, dilation: usize) -> usize {
    (input + 2 * padding - (kernel - 1) * dilation - 1) / stride + 1
}

/// Images, groups, channels, filters, input, kernel, stride, padding, dilation.
type Row = (usize, [usize; 3], [usize; 2], [usize; 2], [usize; 2], [usize; 2], [usize; 2]);

fn geometries() -> Vec<Geometry> {
    let rows: [Row; 52] = [
        (1, [1, 1, 1], [1, 1], [1, 1], [1, 1], [0, 0], [1, 1]),
        (2, [1, 3, 5], [7, 6], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [1, 2, 9], [9, 11], [3, 2], [2, 3], [1, 2], [1, 1]),
        (1, [2, 3, 2], [8, 9], [2, 3], [1, 2], [2, 0], [3, 2]),
        (2, [5, 1, 1], [10, 9], [3, 3], [1, 1], [1, 1], [1, 1]),
        (1, [3, 1, 2], [5, 70], [5, 1], [2, 1], [2, 0], [1, 1]),
        (3, [1, 4, 3], [5, 5], [1, 1], [2, 2], [0, 0], [1, 1]),
        (1, [1, 2, 3], [2, 2], [2, 2], [5, 5], [3, 3], [1, 1]),
        (1, [1, 1, 2], [1, 300], [1, 9], [1, 4], [0, 4], [1, 2]),
        (0, [1, 2, 3], [4, 4], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [1, 0, 3], [4, 4], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [1, 3, 0], [4, 4], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [1, 36, 70], [13, 11], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [1, 70, 20], [9, 15], [3, 3], [2, 2], [1, 1], [1, 1]),
        (5, [1, 3, 16], [24, 21], [5, 5], [1, 1], [2, 2], [1, 1]),
        (3, [40, 1, 1], [19, 23], [3, 3], [2, 2], [1, 1], [1, 1]),
        (2, [1, 33, 35], [10, 75], [3, 3], [1, 1], [0, 1], [1, 1]),
        (3, [2, 32, 32], [7, 7], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [1, 140, 150], [3, 4], [3, 3], [1, 1], [2, 2], [1, 1]),
        (1, [1, 3, 9], [40, 33], [7, 7], [2, 2], [3, 3], [1, 1]),
        (1, [1, 2, 3], [3, 700], [3, 3], [1, 1], [1, 1], [1, 1]),
        (1, [1, 2, 3], [4, 5], [3, 3], [1, 1], [50, 40], [50, 40]),
        (2, [1, 64, 72], [5, 6], [1, 1], [1, 1], [0, 0], [1, 1]),
        (1, [1, 2, 9], [30, 31], [3, 3], [3, 4], [2, 1], [2, 3]),
        (2, [2, 9, 17], [7, 9], [1, 1], [1, 1], [0, 0], [1, 1]),
        (0, [1, 3, 4], [7, 9], [1, 1], [1, 1], [0, 0], [1, 1]),
        (2, [1, 0, 4], [7, 9], [1, 1], [1, 1], [0, 0], [1, 1]),
        (2, [1, 4, 0], [7, 9], [1, 1], [1, 1], [0, 0], [1, 1]),
        (1, [1, 70, 1], [40, 1], [1, 1], [1, 1], [0, 0], [1, 1]),
        (2, [1, 37, 90], [14, 13], [3, 3], [1, 1], [1, 1], [1, 1]),
        (1, [2, 70, 33], [11, 140], [3, 3], [1, 1], [0, 2], [1, 1]),
        (1, [1, 5, 7], [40, 1], [3, 1], [2, 1], [1, 0], [1, 1]),
        // Frames of both residues that end below the plane, and not with a whole vector.
        (1, [1, 1, 1], [7, 7], [3, 3], [2, 2], [1, 1], [1, 1]),
        (2, [1, 2, 3], [11, 9], [3, 3], [2, 2], [1, 1], [1, 1]),
        (1, [1, 1, 2], [224, 224], [7, 7], [2, 2], [3, 3], [1, 1]),
        // Tiles of two phases, with every padding.
        (2, [1, 36, 40], [13, 15], [3, 3], [2, 2], [1, 1], [1, 1]),
        (2, [1, 33, 35], [24, 25], [3, 3], [2, 2], [0, 1], [1, 1]),
        (1, [2, 32, 34], [30, 29], [3, 3], [2, 2], [1, 0], [1, 1]),
        (1, [1, 40, 36], [40, 141], [3, 3], [2, 2], [2, 2], [1, 1]),
        (5, [1, 34, 33], [4, 4], [3, 3], [2, 2], [1, 1], [1, 1]),
        // Filters that slide over one plane.
        (1, [3, 1, 1], [1, 1], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [2, 1, 1], [5, 70], [3, 3], [1, 1], [1, 1], [1, 1]),
        (1, [2, 1, 1], [40, 600], [3, 3], [1, 1], [1, 1], [1, 1]),
        (1, [2, 1, 1], [7, 16], [3, 3], [1, 1], [0, 2], [1, 1]),
        (2, [2, 2, 3], [9, 20], [3, 3], [1, 1], [1, 1], [1, 1]),
        (2, [3, 1, 1], [3, 33], [3, 3], [1, 1], [2, 0], [1, 1]),
        // And such as do not, though their sources are neighbours in a frame, or meet in one that is narrower than the filter.
        (1, [3, 1, 1], [9, 9], [3, 3], [2, 2], [0, 0], [2, 2]),
        (2, [2, 1, 1], [10, 9], [3, 3], [2, 2], [1, 1], [2, 2]),
        (1, [2, 1, 1], [9, 20], [3, 3], [1, 2], [1, 0], [1, 2]),
        (1, [2, 1, 1], [3, 3], [3, 3], [3, 3], [0, 0], [1, 1]),
        (1, [2, 1, 1], [3, 4], [3, 3], [1, 3], [0, 0], [1, 1]),
        // Tiles of which some rows lie beside the plane altogether.
        (2, [1, 32, 32], [6, 6], [3, 3], [1, 1], [5, 5], [1, 1]),
    ];
    let geometry = |(images, [groups, channels, filters], input, kernel, stride, padding, dilation): Row| {
        let size = |axis: usize| output_size(input[axis], kernel[axis], stride[axis], padding[axis], dilation[axis]);
        let output = [size(0), size(1)];
        Geometry { images, groups, channels, filters, input, kernel, output, stride, padding, dilation }
    };
    rows.map(geometry).to_vec()
}

fn reads<T>(numbers: &[T]) -> In<T> {
    In::new(numbers.as_ptr(), numbers.len())
}

fn writes<T>(numbers: &mut [T]) -> Out<T> {
    Out::new(numbers.as_mut_ptr(), numbers.len())
}

fn correlate<T: Element>(plan: &Arc<CorrelationPlan>, source: &[T], weights: &[T], target: &mut [T]) {
    let mut packed = vec![f32::NAN; plan.packed()];
    let packed = writes(&mut packed);
    run_alone(&PackWeights::new(plan, reads(weights), packed));
    run_alone(&Correlation::new(plan, reads(source), packed.as_in(), writes(target)));
}

/// Compares to a rounding of the result and the sum's own error, both relative to the largest number.
fn compare<T: Element>(what: &str, found: &[T], expected: &[f64], tolerance: f64) {
    let scale = expected.iter().fold(1.0f64, |largest, x| largest.max(x.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let found = found.to_f32() as f64;
        assert!((found - expected).abs() <= tolerance * scale, "{what}: element {index}: {found}, not {expected}");
    }
}

fn check<T: Element>(tolerance: f64) {
    for g in geometries() {
        let Sizes { input, weights, output } = sizes(&g);
        let (x, w, gradient) = (numbers::<T>(input, 1), numbers::<T>(weights, 2), numbers::<T>(output, 3));
        let (mut y, mut dx, mut dw) = (vec![0.0; output], vec![0.0; input], vec![0.0; weights]);
        let product = |a: T, b: T| a.to_f32() as f64 * b.to_f32() as f64;
        every_product(&g, |at_x, at_w, at_y| {
            y[at_y] += product(x[at_x], w[at_w]);
            dx[at_x] += product(gradient[at_y], w[at_w]);
            dw[at_w] += product(x[at_x], gradient[at_y]);
        });
        let mut bits: Option<Vec<u32>> = None;
        for isa in Isa::available() {
            let fused = isa != Isa::Baseline;
            let wrong = T::from_f32(f32::NAN);
            let what = format!("{g:?} on {isa}");
            let mut found_y = vec![wrong; output];
            let pointwise = Pointwise::of(isa, &g, 2);
            match pointwise {
                Some(pointwise) => run_alone(&pointwise.forward(reads(&x), reads(&w), writes(&mut found_y))),
                None => correlate(&CorrelationPlan::forward(isa, &g), &x, &w, &mut found_y),
            }
            compare(&format!("{what}: result"), &found_y, &y, tolerance);

            let mut found_dx = vec![wrong; input];
            match pointwise {
                Some(pointwise) => run_alone(&pointwise.backward(reads(&gradient), reads(&w), writes(&mut found_dx))),
                None => correlate(&CorrelationPlan::backward(isa, &g), &gradient, &w, &mut found_dx),
            }
            compare(&format!("{what}: gradient of the input"), &found_dx, &dx, tolerance);

            let mut found_dw = vec![wrong; weights];
            let plan = WeightGradientPlan::new(isa, &g);
            let mut partials = vec![f32::NAN; plan.partials()];
            let partials = writes(&mut partials);
            match pointwise {
                Some(pointwise) => pointwise
                    .weight_gradient([reads(&x), reads(&gradient)], partials, partials, false)
                    .iter()
                    .for_each(|job| run_alone(job)),
                None => {
                    run_alone(&WeightGradient::new(&plan, reads(&x), reads(&gradient), partials, writes(&mut found_dw)))
                }
            }
            if plan.partials() > 0 {
                let (partials, dw) = (partials.as_in(), writes(&mut found_dw));
                run_alone(&match pointwise {
                    Some(pointwise) => pointwise.sum_images(partials, dw),
                    None => SumImages::new(isa, partials, dw),
                });
            }
            compare(&format!("{what}: gradient of the weights"), &found_dw, &dw, tolerance);

            let all = found_y.iter().chain(&found_dx).chain(&found_dw).map(|x| x.to_f32().to_bits()).collect();
            // Matrix products of 16 bits have the sums of their own level.
            if fused && (pointwise.is_none() || size_of::<T>() == size_of::<f32>()) {
                let first = bits.get_or_insert_with(|| Vec::clone(&all));
                assert_eq!(*first, all, "{what}: levels that fuse products and sums agree to the bit");
            }
        }
    }
}

#[test]
fn f32_equals_the_written_out_form() {
    check::<f32>(2e-6);
}

#[test]
fn bf16_equals_the_written_out_form() {
    check::<bf16>(4e-3);
}

#[test]
fn large_problems_have_several_parts() {
    let large = geometries()[12];
    for isa in Isa::available() {
        for plan in [CorrelationPlan::forward(isa, &large), CorrelationPlan::backward(isa, &large)] {
            let job = Correlation::<f32>::new(&plan, reads(&[]), reads(&[]), writes(&mut []));
            assert!(job.parts() > 1, "{isa}: the correlation");
        }
        let plan = WeightGradientPlan::new(isa, &large);
        assert!(plan.partials() > sizes(&large).weights, "{isa}: the gradient of the weights");
    }
}

/// The largest error of a result relative to the sum of the products' magnitudes, in roundings of f32.
fn roundings(g: &Geometry) -> f64 {
    let Sizes { input, weights, output } = sizes(g);
    let (x, w) = (uniform(input, 5), uniform(weights, 19));
    let (mut exact, mut magnitudes) = (vec![0.0f64; output], vec![0.0f64; output]);
    every_product(g, |at_x, at_w, at_y| {
        let product = x[at_x] as f64 * w[at_w] as f64;
        exact[at_y] += product;
        magnitudes[at_y] += product.abs();
    });
    let mut found = vec![f32::NAN; output];
    correlate(&CorrelationPlan::forward(Isa::detect(), g), &x, &w, &mut found);
    largest_error(&found, &exact, &magnitudes)
}

/// The same of the gradient of the input.
fn roundings_of_inputs(g: &Geometry) -> f64 {
    let Sizes { input, weights, output } = sizes(g);
    let (gradient, w) = (uniform(output, 5), uniform(weights, 19));
    let (mut exact, mut magnitudes) = (vec![0.0f64; input], vec![0.0f64; input]);
    every_product(g, |at_x, at_w, at_y| {
        let product = gradient[at_y] as f64 * w[at_w] as f64;
        exact[at_x] += product;
        magnitudes[at_x] += product.abs();
    });
    let mut found = vec![f32::NAN; input];
    correlate(&CorrelationPlan::backward(Isa::detect(), g), &gradient, &w, &mut found);
    largest_error(&found, &exact, &magnitudes)
}

/// The same of the gradient of the weights.
fn roundings_of_weights(g: &Geometry) -> f64 {
    let Sizes { input, weights, output } = sizes(g);
    let (x, gradient) = (uniform(input, 5), uniform(output, 19));
    let (mut exact, mut magnitudes) = (vec![0.0f64; weights], vec![0.0f64; weights]);
    every_product(g, |at_x, at_w, at_y| {
        let product = x[at_x] as f64 * gradient[at_y] as f64;
        exact[at_w] += product;
        magnitudes[at_w] += product.abs();
    });
    let plan = WeightGradientPlan::new(Isa::detect(), g);
    let (mut found, mut partials) = (vec![f32::NAN; weights], vec![f32::NAN; plan.partials()]);
    let partials = writes(&mut partials);
    run_alone(&WeightGradient::new(&plan, reads(&x), reads(&gradient), partials, writes(&mut found)));
    run_alone(&SumImages::new(Isa::detect(), partials.as_in(), writes(&mut found)));
    largest_error(&found, &exact, &magnitudes)
}

fn uniform(count: usize, seed: u64) -> Vec<f32> {
    let bits = |index: u64| (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(seed as u32) >> 32;
    (0..count as u64).map(|index| bits(index) as i32 as f32 / (1u32 << 31) as f32).collect()
}

fn largest_error(found: &[f32], exact: &[f64], magnitudes: &[f64]) -> f64 {
    let error = |((found, exact), magnitude): ((&f32, &f64), &f64)| (*found as f64 - exact).abs() / magnitude;
    found.iter().zip(exact).zip(magnitudes).map(error).fold(0.0, f64::max) * 2f64.powi(24)
}

/// The same products by the definition, which a dilation has, and in fewer.
#[test]
fn fewer_products_cost_little_of_the_accuracy() {
    for stride in [1, 2] {
        let plain = Geometry {
            images: 1,
            groups: 1,
            channels: 64,
            filters: 32,
            input: [16 * stride; 2],
            kernel: [3, 3],
            output: [16, 16],
            stride: [stride; 2],
            padding: [1, 1],
            dilation: [1, 1],
        };
        let dilated = Geometry { padding: [2, 2], dilation: [2, 2], ..plain };
        let all: [fn(&Geometry) -> f64; 3] = [roundings, roundings_of_inputs, roundings_of_weights];
        for (what, roundings) in ["result", "input", "weights"].into_iter().zip(all) {
            let (fewer, defined) = (roundings(&plain), roundings(&dilated));
            let told = format!("{what}, stride {stride}: {fewer} roundings, {defined} by the definition");
            assert!(fewer < 8.0 && fewer < 4.0 * defined, "{told}");
        }
    }
}

/// A batch, and its images one at a time. The last is written past the caches, where there is a way, and its images are not.
#[test]
fn an_images_bits_do_not_depend_on_its_batch() {
    for (channels, filters, size, stride) in [(36, 40, 9, 1), (36, 40, 18, 2), (3, 5, 12, 1), (1, 1, 941, 1)] {
        let batch = Geometry {
            images: 3,
            groups: 1,
            channels,
            filters,
            input: [size; 2],
            kernel: [3; 2],
            output: [size / stride; 2],
            stride: [stride; 2],
            padding: [1; 2],
            dilation: [1; 2],
        };
        let single = Geometry { images: 1, ..batch };
        let Sizes { input, weights, output } = sizes(&single);
        let (x, w) = (numbers::<f32>(3 * input, 1), numbers::<f32>(weights, 2));
        let x: Vec<f32> = x.iter().map(|x| x / 3.0).collect();
        let mut whole = vec![f32::NAN; 3 * output];
        correlate(&CorrelationPlan::forward(Isa::detect(), &batch), &x, &w, &mut whole);
        for (x, expected) in x.chunks_exact(input).zip(whole.chunks_exact(output)) {
            let mut found = vec![f32::NAN; output];
            correlate(&CorrelationPlan::forward(Isa::detect(), &single), x, &w, &mut found);
            assert_eq!(found, expected);
        }
    }
}

#[test]
fn a_batch_in_pieces_gives_the_gradient_of_the_whole() {
    for (channels, filters, size, stride) in [
        (5, 9, [5, 4], 1),
        (110, 100, [5, 4], 1),
        (110, 100, [12, 13], 1),
        (40, 33, [13, 12], 1),
        (110, 100, [7, 7], 1),
        (110, 100, [24, 25], 2),
    ] {
        let batch = |images| Geometry {
            images,
            groups: 1,
            channels,
            filters,
            input: size,
            kernel: [3, 3],
            output: size.map(|size: usize| size.div_ceil(stride)),
            stride: [stride; 2],
            padding: [1, 1],
            dilation: [1, 1],
        };
        let Sizes { input, weights, output } = sizes(&batch(1));
        let x: Vec<f32> = numbers::<f32>(3 * input, 1).iter().map(|x| x / 3.0).collect();
        let g = numbers::<f32>(3 * output, 2);
        let add = |images: std::ops::Range<usize>, dw: &mut [f32], accumulate: bool| {
            let plan = WeightGradientPlan::new(Isa::detect(), &batch(images.len()));
            let mut partials = vec![f32::NAN; plan.partials()];
            let (partials, dw) = (writes(&mut partials), writes(dw));
            let (x, g) = (&x[images.start * input..images.end * input], &g[images.start * output..images.end * output]);
            run_alone(&WeightGradient::new(&plan, reads(x), reads(g), partials, dw).accumulating(accumulate));
            if !partials.is_empty() {
                run_alone(&SumImages::new(Isa::detect(), partials.as_in(), dw).accumulating(accumulate));
            }
        };
        let (mut whole, mut pieces) = (vec![f32::NAN; weights], vec![f32::NAN; weights]);
        add(0..3, &mut whole, false);
        add(0..1, &mut pieces, false);
        add(1..3, &mut pieces, true);
        assert_eq!(whole, pieces, "{filters} filters of {channels} channels");
    }
}

/// An infinite input, in planes whose rows are shorter than a vector: only weights that meet it have no finite gradient.
#[test]
fn an_infinite_input_concerns_its_own_weights_alone() {
    for side in [2, 3] {
        let g = Geometry {
            images: 1,
            groups: 1,
            channels: 1,
            filters: 2,
            input: [6, 5],
            kernel: [side; 2],
            output: [7 - side, 6 - side],
            stride: [1, 1],
            padding: [0, 0],
            dilation: [1, 1],
        };
        let taps = g.taps();
        for (corner, met) in [(0, 0), (4, side - 1), (25, taps - side), (29, taps - 1)] {
            for isa in Isa::available() {
                for (index, found) in weights_with_infinity(isa, &g, corner).iter().enumerate() {
                    let expected = if index % taps == met { *found == f32::INFINITY } else { found.is_finite() };
                    assert!(expected, "corner {corner} on {isa}: weight {index} is {found}");
                }
            }
        }
    }
}

/// The gradient of the weights where this input is infinite.
fn weights_with_infinity(isa: Isa, g: &Geometry, at: usize) -> Vec<f32> {
    let Sizes { input, weights, output } = sizes(g);
    let (mut x, gradient) = (numbers::<f32>(input, 1), vec![0.5f32; output]);
    x[at] = f32::INFINITY;
    let plan = WeightGradientPlan::new(isa, g);
    let (mut dw, mut partials) = (vec![f32::NAN; weights], vec![f32::NAN; plan.partials()]);
    let partials = writes(&mut partials);
    run_alone(&WeightGradient::new(&plan, reads(&x), reads(&gradient), partials, writes(&mut dw)));
    run_alone(&SumImages::new(isa, partials.as_in(), writes(&mut dw)));
    dw
}

/// Large weights' gradients are summed from image to image, and a batch in pieces gives the bits of the whole.
#[test]
fn gradients_of_filters_of_one_element_go_on() {
    let batch = |images| Geometry {
        images,
        groups: 2,
        channels: 192,
        filters: 260,
        input: [6, 7],
        kernel: [1, 1],
        output: [6, 7],
        stride: [1, 1],
        padding: [0, 0],
        dilation: [1, 1],
    };
    let Sizes { input, weights, output } = sizes(&batch(1));
    let x: Vec<f32> = numbers::<f32>(3 * input, 1).iter().map(|x| x / 3.0).collect();
    let g = numbers::<f32>(3 * output, 2);
    let add = |images: std::ops::Range<usize>, dw: &mut [f32], accumulate: bool| {
        let pointwise = Pointwise::of(Isa::detect(), &batch(images.len()), 2).expect("filters of one element");
        assert_eq!(pointwise.partials(), 0);
        let (x, g) = (&x[images.start * input..images.end * input], &g[images.start * output..images.end * output]);
        let jobs = pointwise.weight_gradient([reads(x), reads(g)], writes(&mut []), writes(dw), accumulate);
        jobs.iter().for_each(|job| run_alone(job));
    };
    let (mut whole, mut pieces) = (vec![f32::NAN; weights], vec![f32::NAN; weights]);
    add(0..3, &mut whole, false);
    add(0..1, &mut pieces, false);
    add(1..3, &mut pieces, true);
    assert_eq!(whole, pieces);
    let mut exact = vec![0.0f64; weights];
    every_product(&batch(3), |at_x, at_w, at_y| exact[at_w] += x[at_x] as f64 * g[at_y] as f64);
    compare("sums of images", &whole, &exact, 2e-6);
}

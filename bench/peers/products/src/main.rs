//! Square products of f32 matrices by the crates `gemm` and `faer`: gradus-peer-products CRATE SECONDS THREADS.
//!
//! Operands and results are there before the time is taken. The names are those of `gradus bench --list`.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};
use std::time::{Duration, Instant};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, library, seconds, threads] = &arguments[..] else { panic!("give a crate, seconds and threads") };
    let time = Duration::from_secs_f64(seconds.parse().expect("seconds"));
    let threads: usize = threads.parse().expect("threads");
    for size in [128, 256, 512, 1024, 2048] {
        let (a, b, mut c) = (numbers(size * size), numbers(size * size), vec![0.0f32; size * size]);
        let seconds = match library.as_str() {
            "gemm" => rounds(time, || product_by_gemm(size, &a, &b, &mut c, threads)),
            "faer" => rounds(time, || product_by_faer(size, &a, &b, &mut c, threads)),
            other => panic!("there is no crate {other:?} here"),
        };
        println!("{}", serde_json::json!({"name": format!("matmul/f32/{size}"), "seconds": seconds}));
    }
}

/// Rows lie together, as in Gradus; gemm takes any strides.
fn product_by_gemm(size: usize, a: &[f32], b: &[f32], c: &mut [f32], threads: usize) {
    let (stride, parallelism) = (size as isize, gemm::Parallelism::Rayon(threads));
    let (a, b, c) = (a.as_ptr(), b.as_ptr(), c.as_mut_ptr());
    // SAFETY: all three are square matrices of this size.
    unsafe {
        gemm::gemm(
            size,
            size,
            size,
            c,
            stride,
            1,
            false,
            a,
            stride,
            1,
            b,
            stride,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Columns lie together, as the crate has it; of random numbers the product is as good.
fn product_by_faer(size: usize, a: &[f32], b: &[f32], c: &mut [f32], threads: usize) {
    let (a, b) = (MatRef::from_column_major_slice(a, size, size), MatRef::from_column_major_slice(b, size, size));
    matmul(MatMut::from_column_major_slice_mut(c, size, size), Accum::Replace, a, b, 1.0, Par::rayon(threads));
}

/// Numbers between -1 and 1, in no order.
fn numbers(count: usize) -> Vec<f32> {
    let scattered = (1..=count as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32);
    scattered.map(|bits| bits as i32 as f32 / (1u32 << 31) as f32).collect()
}

/// Seconds of one run of `work`, over rounds of two milliseconds or one run that take `time` together, after a warm-up.
fn rounds(time: Duration, mut work: impl FnMut()) -> Vec<f64> {
    let begin = Instant::now();
    while begin.elapsed() < time / 10 {
        work();
    }
    let start = Instant::now();
    work();
    let repeats = (0.002 / start.elapsed().as_secs_f64()).max(1.0) as usize;
    let (begin, mut seconds) = (Instant::now(), vec![]);
    while seconds.len() < 5 || begin.elapsed() < time {
        let start = Instant::now();
        (0..repeats).for_each(|_| work());
        seconds.push(start.elapsed().as_secs_f64() / repeats as f64);
    }
    seconds
}

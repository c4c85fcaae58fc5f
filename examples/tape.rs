//! Gradients with no ceremony, and loops on a tape: Newton's method on a function of one number, with exact first and
//! second derivatives; then a small network trained for a thousand turns, recorded anew in each and compiled once.

use gradus::{Array, GradientTape, Result, Tensor};
use std::sync::Arc;
use std::time::Instant;

fn main() -> Result<()> {
    newton()?;
    network()
}

fn newton() -> Result<()> {
    let tape = GradientTape::new()?;
    let mut at = 2.0f32;
    for round in 1..=6 {
        let x = tape.watch(Array::scalar(at));
        let y = (&x * &x - 2.0) * &x - 2.0; // x^3 - 2x - 2
        let objective = &y * &y;
        let slope = &tape.gradient(&objective, &[&x])?[0];
        let bend = &tape.gradient(slope, &[&x])?[0];
        let numbers: Vec<f64> = tape.read_all(&[&y, slope, bend])?.iter().map(|read| read.to_f64()[0]).collect();
        at -= (numbers[1] / numbers[2]) as f32;
        println!("round {round}: x = {at:.6}, y = {:+.2e}", numbers[0]);
    }
    assert!((at - 1.769_292).abs() < 1e-4, "the root of x^3 - 2x - 2");
    Ok(())
}

const TURNS: usize = 1000;
const ROWS: usize = 16;
const HIDDEN: usize = 16;

/// Learns `sin(3 a) b` by plain gradient descent with a rate that falls, everything written out.
fn network() -> Result<()> {
    let spread = |index: usize| (index * 37 % 101) as f32 / 50.5 - 1.0;
    let points: Vec<f32> = (0..2 * ROWS).map(spread).collect();
    let wanted: Vec<f32> = points.chunks(2).map(|point| (3.0 * point[0]).sin() * point[1]).collect();
    let (points, wanted) = (Arc::new(Array::new([ROWS, 2], &points)?), Arc::new(Array::new([ROWS, 1], &wanted)?));
    let mut weights = [
        Array::new([2, HIDDEN], &(0..2 * HIDDEN).map(spread).collect::<Vec<_>>())?,
        Array::new([HIDDEN], &[0f32; HIDDEN])?,
        Array::new([HIDDEN, 1], &(0..HIDDEN).map(|i| spread(i + 7) * 0.5).collect::<Vec<_>>())?,
    ];
    let tape = GradientTape::new()?;
    let (mut first, mut last, mut started) = (0.0, 0.0, Instant::now());
    for turn in 0..TURNS {
        // Two turns compile: the second finds that the rate is not a constant.
        if turn == 2 {
            started = Instant::now();
        }
        let rate = 0.3 - 0.2 * turn as f32 / TURNS as f32;
        let w: Vec<Tensor> = weights.iter().map(|weight| tape.watch(weight.clone())).collect();
        let (x, y) = (tape.watch(points.clone()), tape.watch(wanted.clone()));
        let hidden = (x.matmul(&w[0]) + &w[1]).tanh(); // [rows, hidden]
        let error = hidden.matmul(&w[2]) - &y; // [rows, 1]
        let loss = (&error * &error).mean_all();
        let slopes = tape.gradient(&loss, &[&w[0], &w[1], &w[2]])?;
        let new: Vec<Tensor> = w.iter().zip(&slopes).map(|(weight, slope)| weight - slope * rate).collect();
        let mut read = tape.read_all(&[&loss, &new[0], &new[1], &new[2]])?;
        last = read.remove(0).to_f64()[0];
        if turn == 0 {
            first = last;
        }
        weights = read.try_into().expect("three weights");
    }
    let each = started.elapsed().as_secs_f64() * 1e6 / (TURNS - 2) as f64;
    println!(
        "{TURNS} turns: loss {first:.4} to {last:.4}; {} programs, {each:.0} microseconds a turn",
        tape.compiled()
    );
    assert!(last < first / 10.0 && tape.compiled() == 2, "it learns, and nothing is compiled in a turn");
    Ok(())
}

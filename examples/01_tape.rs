//! Gradients with no ceremony: Newton's method on a function of one number, with exact first and second derivatives.

use gradus::{Array, GradientTape, Result};

fn main() -> Result<()> {
    let mut at = 2.0f32;
    for round in 1..=6 {
        let tape = GradientTape::new()?;
        let x = tape.watch(Array::scalar(at));
        let y = (&x * &x - 2.0) * &x - 2.0; // x^3 - 2x - 2
        let objective = &y * &y;
        let slope = tape.gradient(&objective, &[&x])?.remove(0);
        let bend = tape.gradient(&slope, &[&x])?.remove(0);
        let number = |tensor| Ok::<f64, gradus::Error>(tape.read(tensor)?.to_f64()[0]);
        at -= (number(&slope)? / number(&bend)?) as f32;
        println!("round {round}: x = {at:.6}, y = {:+.2e}", number(&y)?);
    }
    assert!((at - 1.769_292).abs() < 1e-4, "the root of x^3 - 2x - 2");
    Ok(())
}

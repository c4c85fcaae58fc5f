//! What each function computes, and the vector loop that computes it for a block.

use crate::isa::multiversion;
use crate::lanes::{LANES, larger};
use crate::math;
use crate::{Element, Isa, bf16, f16};
use gradus_scalar::Function;

/// A function of up to three numbers, known when the loop around it is compiled.
trait Formula {
    /// Where the formula does not hold, and what does.
    const FAR: Option<Far>;

    fn of(x: f32, y: f32, z: f32) -> f32;
}

/// Arguments beyond this magnitude are so rare that each is seen to by itself.
struct Far {
    beyond: f32,
    of: fn(f32) -> f32,
}

/// A loop that computes a function for a block. All slices have the same length, a multiple of [`LANES`].
pub(super) type Loop = unsafe fn(&mut [f32], &[f32], &[f32], &[f32]);

macro_rules! formulas {
    (@far) => { None };
    (@far $beyond:path, $far:path) => { Some(Far { beyond: $beyond, of: $far }) };
    ($($name:ident = |$x:pat_param, $y:pat_param, $z:pat_param| $value:expr
       $(, beyond $beyond:path => $far:path)?;)*) => {
        $(struct $name;

        impl Formula for $name {
            const FAR: Option<Far> = formulas!(@far $($beyond, $far)?);

            #[inline(always)]
            fn of($x: f32, $y: f32, $z: f32) -> f32 {
                $value
            }
        })*

        /// The loop of a function at a level.
        pub(super) fn select(function: Function, isa: Isa) -> Loop {
            match function {
                $(Function::$name => block::select::<$name>(isa),)*
            }
        }
    };
}

formulas! {
    Neg = |x, _, _| -x;
    Abs = |x, _, _| x.abs();
    Exp = |x, _, _| math::exp(x);
    Log = |x, _, _| math::log(x);
    Sqrt = |x, _, _| x.sqrt();
    Tanh = |x, _, _| math::tanh(x);
    TanhSlope = |x, _, _| math::tanh_slope(x);
    Sigmoid = |x, _, _| math::sigmoid(x);
    Erf = |x, _, _| math::erf(x);
    Sin = |x, _, _| math::sin_near(x), beyond math::NEAR => math::sin_far;
    Cos = |x, _, _| math::cos_near(x), beyond math::NEAR => math::cos_far;
    Relu = |x, _, _| math::relu(x);
    Silu = |x, _, _| math::silu(x);
    GeluTanh = |x, _, _| math::gelu_tanh(x);
    GeluTanhSlope = |x, _, _| math::gelu_tanh_slope(x);
    GeluErf = |x, _, _| math::gelu_erf(x);
    RoundBf16 = |x, _, _| Element::to_f32(<bf16 as Element>::from_f32(x));
    RoundF16 = |x, _, _| Element::to_f32(<f16 as Element>::from_f32(x));
    Add = |x, y, _| x + y;
    Sub = |x, y, _| x - y;
    Mul = |x, y, _| x * y;
    Div = |x, y, _| x / y;
    Minimum = |x, y, _| if x < y || x.is_nan() { x } else { y };
    Maximum = |x, y, _| larger(x, y);
    Pow = |x, y, _| math::pow(x, y);
    Less = |x, y, _| truth(x < y);
    LessEqual = |x, y, _| truth(x <= y);
    Equal = |x, y, _| truth(x == y);
    NotEqual = |x, y, _| truth(x != y);
    Select = |x, y, z| if x != 0.0 { y } else { z };
}

#[inline(always)]
fn truth(condition: bool) -> f32 {
    if condition { 1.0 } else { 0.0 }
}

multiversion! {
    /// One function on a block. Whole vectors only: no element is left to a slow scalar tail.
    fn block<F: Formula>(to: &mut [f32], x: &[f32], y: &[f32], z: &[f32]) {
        let length = to.len() / LANES * LANES;
        let (to, x, y, z) = (&mut to[..length], &x[..length], &y[..length], &z[..length]);
        for i in 0..length {
            to[i] = F::of(x[i], y[i], z[i]);
        }
        if let Some(far) = F::FAR {
            let largest = x.iter().fold(0.0, |largest, x| if x.abs() > largest { x.abs() } else { largest });
            if largest > far.beyond {
                to.iter_mut().zip(x).filter(|(_, x)| x.abs() > far.beyond).for_each(|(to, &x)| *to = (far.of)(x));
            }
        }
    }
}

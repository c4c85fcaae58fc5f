//! What each function computes, and the vector loop that computes it for a block.

use super::Function;
use crate::isa::multiversion;
use crate::lanes::{LANES, larger};
use crate::math;
use crate::{Element, Isa, bf16, f16};

/// A function of up to three numbers, known when the loop around it is compiled.
trait Formula {
    fn of(x: f32, y: f32, z: f32) -> f32;
}

/// A loop that computes a function for a block. All slices have the same length, a multiple of [`LANES`].
pub(super) type Loop = unsafe fn(&mut [f32], &[f32], &[f32], &[f32]);

macro_rules! formulas {
    ($($name:ident = |$x:pat_param, $y:pat_param, $z:pat_param| $value:expr;)*) => {
        $(struct $name;

        impl Formula for $name {
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
    Sigmoid = |x, _, _| math::sigmoid(x);
    Erf = |x, _, _| math::erf(x);
    Sin = |x, _, _| math::sin(x);
    Cos = |x, _, _| math::cos(x);
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
    }
}

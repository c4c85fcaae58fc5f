//! Element-wise functions of one's own: written down on a number that stands for every element.

use super::*;
use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

/// A number in an element-wise function that is being written down ([`Tensor::elementwise`]).
#[derive(Clone, Copy)]
pub struct Scalar<'a> {
    recorded: &'a RefCell<Vec<Instruction>>,
    argument: Argument,
}

impl Tensor {
    /// A function of one's own of every element of these operands, which broadcast to one shape. It is computed in one
    /// pass, and its gradient is derived.
    ///
    /// ```
    /// use gradus_engine::{Array, GradientTape, Tensor};
    ///
    /// let tape = GradientTape::new()?;
    /// let x = tape.watch(Array::new([2], &[0.0f32, 1.0])?);
    /// let mish = Tensor::elementwise([&x], |[x]| x * (x.exp() + 1.0).log().tanh());
    /// let slope = &tape.gradient(&mish, &[&x])?[0];
    /// let read = tape.read_all(&[&mish, slope])?;
    /// assert!((read[0].to_f64()[1] - 0.865098).abs() < 1e-6);
    /// assert!((read[1].to_f64()[0] - 0.6).abs() < 1e-6);
    /// # Ok::<(), gradus_engine::Error>(())
    /// ```
    #[track_caller]
    pub fn elementwise<const N: usize>(
        operands: [&Tensor; N],
        function: impl for<'a> FnOnce([Scalar<'a>; N]) -> Scalar<'a>,
    ) -> Tensor {
        let Some(trace) = operands.first().map(|first| first.trace()) else {
            return Tensor::of_nothing("elementwise");
        };
        let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
        let shape = match Mismatch::unless_same_float(&types).and_then(|_| methods::joined_shape(&types)) {
            Ok(shape) => shape,
            Err(mismatch) => {
                return trace.fail(crate::Error::mismatch("elementwise", types, mismatch, trace.location()));
            }
        };
        let recorded = RefCell::new(vec![]);
        let result =
            function(std::array::from_fn(|input| Scalar { recorded: &recorded, argument: Argument::Input(input) }));
        let (result, ty) = (result.argument, TensorType::new(types[0].dtype, &shape));
        let mut repeated = Vec::with_capacity(N);
        for operand in operands {
            repeated.push(operand.broadcast(&shape));
        }
        match result {
            Argument::Input(input) => repeated.swap_remove(input),
            Argument::Constant(number) => trace.full(number, ty.dtype, &shape),
            Argument::Result(_) => {
                let program = ScalarProgram { instructions: recorded.into_inner(), result };
                let op = Elementwise { program, input_count: N, shape, dtype: ty.dtype };
                trace.apply_one(op, &repeated.iter().collect::<Vec<_>>())
            }
        }
    }
}

impl<'a> Scalar<'a> {
    fn apply(self, function: Function, others: &[Argument]) -> Scalar<'a> {
        let mut arguments = [Argument::Constant(0.0); 3];
        arguments[0] = self.argument;
        arguments[1..=others.len()].copy_from_slice(others);
        self.record(Instruction { function, arguments })
    }

    fn record(self, instruction: Instruction) -> Scalar<'a> {
        let mut recorded = self.recorded.borrow_mut();
        recorded.push(instruction);
        Scalar { recorded: self.recorded, argument: Argument::Result(recorded.len() - 1) }
    }

    /// A function of a number and this one.
    fn after(self, function: Function, number: f32) -> Scalar<'a> {
        self.record(Instruction {
            function,
            arguments: [Argument::Constant(number), self.argument, Argument::Constant(0.0)],
        })
    }

    /// A fixed number.
    pub fn constant(self, number: f32) -> Scalar<'a> {
        Scalar { recorded: self.recorded, argument: Argument::Constant(number) }
    }

    /// This number to the power of another.
    pub fn pow(self, exponent: Scalar<'a>) -> Scalar<'a> {
        self.apply(Function::Pow, &[exponent.argument])
    }

    /// This number to a fixed power.
    pub fn powf(self, exponent: f32) -> Scalar<'a> {
        self.pow(self.constant(exponent))
    }

    /// The second number where this is not zero, else the third.
    pub fn select(self, yes: Scalar<'a>, no: Scalar<'a>) -> Scalar<'a> {
        self.apply(Function::Select, &[yes.argument, no.argument])
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {
        impl<'a> Scalar<'a> {
            $($(#[$doc])*
            pub fn $name(self) -> Scalar<'a> {
                self.apply(Function::$function, &[])
            })*
        }
    };
}

functions! {
    /// The absolute value; its gradient at 0 is 0.
    abs = Abs;
    /// The exponential.
    exp = Exp;
    /// The natural logarithm.
    log = Log;
    /// The square root.
    sqrt = Sqrt;
    /// The hyperbolic tangent.
    tanh = Tanh;
    /// `1 / (1 + exp(-x))`.
    sigmoid = Sigmoid;
    /// The error function.
    erf = Erf;
    /// The sine.
    sin = Sin;
    /// The cosine.
    cos = Cos;
    /// `max(x, 0)`; its gradient at 0 is 0.
    relu = Relu;
}

macro_rules! functions_of_two {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {
        impl<'a> Scalar<'a> {
            $($(#[$doc])*
            pub fn $name(self, other: Scalar<'a>) -> Scalar<'a> {
                self.apply(Function::$function, &[other.argument])
            })*
        }
    };
}

functions_of_two! {
    /// The smaller of two.
    minimum = Minimum;
    /// The larger of two.
    maximum = Maximum;
    /// 1 where `self < other`, else 0.
    less = Less;
    /// 1 where `self <= other`, else 0.
    less_equal = LessEqual;
    /// 1 where both are equal, else 0.
    equal = Equal;
}

macro_rules! operators {
    ($($trait:ident $method:ident $function:ident;)*) => {$(
        impl<'a> $trait for Scalar<'a> {
            type Output = Scalar<'a>;
            fn $method(self, other: Scalar<'a>) -> Scalar<'a> {
                self.apply(Function::$function, &[other.argument])
            }
        }
        impl<'a> $trait<f32> for Scalar<'a> {
            type Output = Scalar<'a>;
            fn $method(self, number: f32) -> Scalar<'a> {
                self.apply(Function::$function, &[Argument::Constant(number)])
            }
        }
        impl<'a> $trait<Scalar<'a>> for f32 {
            type Output = Scalar<'a>;
            fn $method(self, other: Scalar<'a>) -> Scalar<'a> {
                other.after(Function::$function, self)
            }
        }
    )*};
}

operators! {
    Add add Add;
    Sub sub Sub;
    Mul mul Mul;
    Div div Div;
}

impl<'a> Neg for Scalar<'a> {
    type Output = Scalar<'a>;
    fn neg(self) -> Scalar<'a> {
        self.apply(Function::Neg, &[])
    }
}

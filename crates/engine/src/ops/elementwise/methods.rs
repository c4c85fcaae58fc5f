//! The element-wise functions as methods and operators of [`Tensor`].

use super::*;
use crate::ops::integers::{Integers, of_integers};
use crate::{Array, Shape, Trace};
use std::ops::{Add, Div, Mul, Neg, Sub};

impl Trace {
    /// A function of operands that broadcast to one shape.
    #[track_caller]
    pub fn function(&self, function: Function, operands: &[&Tensor]) -> Tensor {
        let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty()).collect();
        let shape = match taken_shape(function, &types) {
            Ok(shape) => shape,
            Err(mismatch) => {
                let name = format!("{function:?}").to_lowercase();
                return self.fail(crate::Error::mismatch(&name, types, mismatch, self.location()));
            }
        };
        let mut repeated = Vec::with_capacity(operands.len());
        for operand in operands {
            repeated.push(operand.broadcast(&shape));
        }
        let inputs: Vec<&Tensor> = repeated.iter().collect();
        let ty = TensorType::new(types[0].dtype, &shape);
        if let (true, Some(function)) = (ty.dtype.is_integer(), of_integers(function)) {
            return self.apply_one(Integers { function }, &inputs);
        }
        let arguments: Vec<Argument> = (0..operands.len()).map(Argument::Input).collect();
        self.apply_one(Elementwise::of(function, &arguments, inputs.len(), ty), &inputs)
    }

    /// A tensor with the same number everywhere.
    #[track_caller]
    pub fn full(&self, number: f32, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if let Err(mismatch) = unless_of_type(number, dtype) {
            let ty = TensorType::new(dtype, shape);
            return self.fail(crate::Error::mismatch("full", vec![ty], mismatch, self.location()));
        }
        let one = Elementwise::copy(Argument::Constant(number), TensorType::new(dtype, []));
        self.apply_one(one, &[]).broadcast(shape)
    }
}

/// Checks that a type has a number: any, if it is floating point; else those that are whole and in its range.
fn unless_of_type(number: f32, dtype: DType) -> Result<(), Mismatch> {
    let (least, most) = if dtype == DType::U32 { (0.0, 2f64.powi(32)) } else { (-2f64.powi(31), 2f64.powi(31)) };
    if dtype.is_float() || (number.fract() == 0.0 && (least..most).contains(&(number as f64))) {
        return Ok(());
    }
    Err(Mismatch::DType(format!("{number} is no {dtype}; give a number of that type, or cast to f32 first")))
}

/// The shape that the operands of a function broadcast to, or why it does not take them.
fn taken_shape(function: Function, types: &[TensorType]) -> Result<Shape, Mismatch> {
    if types.len() != function.arity() {
        return Err(Mismatch::Parameter(format!("takes {} operands, not {}", function.arity(), types.len())));
    }
    let shape = joined_shape(types)?;
    if of_integers(function).is_none() || types.iter().any(|ty| ty.dtype.is_float()) {
        types.iter().try_for_each(Mismatch::unless_float)?;
    }
    Mismatch::unless_same_type(types)?;
    Ok(shape)
}

/// The shape that operands broadcast to.
pub(super) fn joined_shape(types: &[TensorType]) -> Result<Shape, Mismatch> {
    let mut shape = Shape::default();
    for ty in types {
        let Some(joined) = shape.broadcast(&ty.shape) else {
            let problem = "the shapes do not broadcast: aligned at the last axis, sizes must be equal or 1";
            return Err(Mismatch::Shape(problem.to_string()));
        };
        shape = joined;
    }
    Ok(shape)
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident = $function:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Tensor {
                self.trace().function(Function::$function, &[self])
            })*
        }
    };
}

unary! {
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
    /// `x * sigmoid(x)`.
    silu = Silu;
    /// GELU in its tanh form, as GPT-2 uses it.
    gelu = GeluTanh;
    /// GELU in its exact form.
    gelu_erf = GeluErf;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident = $function:ident $swapped:literal;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $name(&self, other: &Tensor) -> Tensor {
                let operands = if $swapped { [other, self] } else { [self, other] };
                self.trace().function(Function::$function, &operands)
            })*
        }
    };
}

binary! {
    /// The smaller of two.
    minimum = Minimum false;
    /// The larger of two.
    maximum = Maximum false;
    /// `self` to the power of `other`.
    pow = Pow false;
    /// 1 where `self < other`, else 0.
    less = Less false;
    /// 1 where `self <= other`, else 0.
    less_equal = LessEqual false;
    /// 1 where `self > other`, else 0.
    greater = Less true;
    /// 1 where `self >= other`, else 0.
    greater_equal = LessEqual true;
    /// 1 where both are equal, else 0.
    equal = Equal false;
    /// 1 where they differ, else 0.
    not_equal = NotEqual false;
}

impl Tensor {
    /// The absolute value; its gradient at 0 is 0.
    #[track_caller]
    pub fn abs(&self) -> Tensor {
        if self.dtype() == DType::I32 { self.maximum(&-self) } else { self.trace().function(Function::Abs, &[self]) }
    }

    /// `yes` where this is not zero, else `no`: what others call `where`. The condition may be of any type.
    #[track_caller]
    pub fn select(&self, yes: &Tensor, no: &Tensor) -> Tensor {
        let dtype = yes.dtype();
        if self.dtype() == dtype {
            return self.trace().function(Function::Select, &[self, yes, no]);
        }
        // Ones and zeros are the same in every type.
        let condition = self.not_equal(&self.full_like(0.0)).cast(DType::F32).cast(dtype);
        self.trace().function(Function::Select, &[&condition, yes, no])
    }

    /// To a fixed power; small whole powers and the square root are made of products.
    #[track_caller]
    pub fn powf(&self, exponent: f32) -> Tensor {
        match exponent {
            1.0 => self.clone(),
            2.0 => self * self,
            3.0 => self * self * self,
            0.5 => self.sqrt(),
            -1.0 => 1.0 / self,
            _ => self.with_constant(Function::Pow, exponent, false),
        }
    }

    /// `x` where it is positive, `slope * x` where not.
    #[track_caller]
    pub fn leaky_relu(&self, slope: f32) -> Tensor {
        self.greater(&self.full_like(0.0)).select(self, &(self * slope))
    }

    /// No less than `low`, no more than `high`; its gradient at the bounds is 1.
    #[track_caller]
    pub fn clamp(&self, low: f32, high: f32) -> Tensor {
        self.with_constant(Function::Maximum, low, false).with_constant(Function::Minimum, high, false)
    }

    /// The same numbers in another element type, rounded to nearest; integers are cut towards zero.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Tensor {
        if dtype == self.dtype() {
            return self.clone();
        }
        let ty = TensorType::new(dtype, self.shape());
        self.trace().apply_one(Elementwise::copy(Argument::Input(0), ty), &[self])
    }

    /// The same number everywhere, in this tensor's type and shape.
    #[track_caller]
    pub fn full_like(&self, number: f32) -> Tensor {
        self.trace().full(number, self.dtype(), self.shape())
    }

    /// Zeros in this tensor's type and shape.
    #[track_caller]
    pub fn zeros_like(&self) -> Tensor {
        self.full_like(0.0)
    }

    /// Ones in this tensor's type and shape.
    #[track_caller]
    pub fn ones_like(&self) -> Tensor {
        self.full_like(1.0)
    }

    /// A function of this tensor and a number.
    #[track_caller]
    fn with_constant(&self, function: Function, number: f32, number_first: bool) -> Tensor {
        if self.dtype().is_integer() {
            return self.with_whole_constant(function, number, number_first);
        }
        let mut arguments = [Argument::Input(0), Argument::Constant(number)];
        if number_first {
            arguments.reverse();
        }
        self.trace().apply_one(Elementwise::of(function, &arguments, 1, self.ty()), &[self])
    }

    /// A function of this tensor of integers and a number, which must be one of its type.
    #[track_caller]
    fn with_whole_constant(&self, function: Function, number: f32, number_first: bool) -> Tensor {
        if let Err(mismatch) = unless_of_type(number, self.dtype()) {
            let (name, at) = (format!("{function:?}").to_lowercase(), self.trace().location());
            return self.trace().fail(crate::Error::mismatch(&name, vec![self.ty()], mismatch, at));
        }
        let number = Array::from_f64(TensorType::new(self.dtype(), []), &[number as f64]).expect("a single number");
        let number = self.trace().constant(number);
        self.trace().function(function, &if number_first { [&number, self] } else { [self, &number] })
    }
}

macro_rules! operators {
    ($($trait:ident $method:ident $function:ident;)*) => {$(
        impl $trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                self.trace().function(Function::$function, &[self, other])
            }
        }
        impl $trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                $trait::$method(self, &other)
            }
        }
        impl $trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                $trait::$method(&self, other)
            }
        }
        impl $trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                $trait::$method(&self, &other)
            }
        }
        impl $trait<f32> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, number: f32) -> Tensor {
                self.with_constant(Function::$function, number, false)
            }
        }
        impl $trait<f32> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, number: f32) -> Tensor {
                $trait::$method(&self, number)
            }
        }
        impl $trait<&Tensor> for f32 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                other.with_constant(Function::$function, self, true)
            }
        }
        impl $trait<Tensor> for f32 {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                $trait::$method(self, &other)
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

impl Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        if self.dtype().is_integer() { 0.0 - self } else { self.trace().function(Function::Neg, &[self]) }
    }
}

impl Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        -&self
    }
}

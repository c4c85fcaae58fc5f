//! Element-wise functions of integers, exactly; what does not fit wraps around.

use crate::{In, Job, Out, chunk, parts_of};
use bytemuck::Pod;

/// Elements of a part.
const PART_ELEMENTS: usize = 16 * 1024;

/// A function of integers. Truth is 1, else 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum IntegerFunction {
    Add,
    Sub,
    Mul,
    Minimum,
    Maximum,
    Less,
    LessEqual,
    Equal,
    NotEqual,
    /// The second where the first is not zero, else the third.
    Select,
}

impl IntegerFunction {
    /// All of them.
    pub const ALL: [IntegerFunction; 10] = {
        use IntegerFunction::*;
        [Add, Sub, Mul, Minimum, Maximum, Less, LessEqual, Equal, NotEqual, Select]
    };

    /// How many operands it has.
    pub fn arity(self) -> usize {
        if self == IntegerFunction::Select { 3 } else { 2 }
    }

    /// Its value.
    #[inline(always)]
    pub fn apply<T: Integer>(self, a: T, b: T, c: T) -> T {
        match self {
            IntegerFunction::Add => a.add(b),
            IntegerFunction::Sub => a.sub(b),
            IntegerFunction::Mul => a.mul(b),
            IntegerFunction::Minimum => a.min(b),
            IntegerFunction::Maximum => a.max(b),
            IntegerFunction::Less => T::truth(a < b),
            IntegerFunction::LessEqual => T::truth(a <= b),
            IntegerFunction::Equal => T::truth(a == b),
            IntegerFunction::NotEqual => T::truth(a != b),
            IntegerFunction::Select if a != T::truth(false) => b,
            IntegerFunction::Select => c,
        }
    }
}

/// An integer type. What does not fit wraps around.
#[allow(missing_docs)]
pub trait Integer: Pod + Ord + Send + Sync + 'static {
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn truth(condition: bool) -> Self;
}

macro_rules! integer {
    ($($ty:ident)*) => {$(
        impl Integer for $ty {
            #[inline(always)]
            fn add(self, other: $ty) -> $ty {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: $ty) -> $ty {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: $ty) -> $ty {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn truth(condition: bool) -> $ty {
                condition as $ty
            }
        }
    )*};
}

integer!(i32 u32);

/// A function of every element.
pub struct Integers<T> {
    function: IntegerFunction,
    operands: [In<T>; 3],
    y: Out<T>,
}

impl<T: Integer> Integers<T> {
    /// Of dense operands; a function of two ignores the third.
    pub fn new(function: IntegerFunction, operands: [In<T>; 3], y: Out<T>) -> Integers<T> {
        Integers { function, operands, y }
    }
}

impl<T: Integer> Job for Integers<T> {
    fn parts(&self) -> usize {
        parts_of(self.y.len(), PART_ELEMENTS)
    }

    fn worker_scratch(&self) -> usize {
        0
    }

    unsafe fn run(&self, part: usize, _scratch: &mut [u8]) {
        let range = chunk(part, PART_ELEMENTS, self.y.len());
        // SAFETY: the caller's promise; parts are disjoint, and the result lies over no operand.
        let ([a, b, c], y) =
            unsafe { (self.operands.map(|operand| operand.slice(range.clone())), self.y.slice(range.clone())) };
        for (((y, &a), &b), &c) in y.iter_mut().zip(a).zip(b).zip(c) {
            *y = self.function.apply(a, b, c);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_alone;

    fn applied<T: Integer>(function: IntegerFunction, a: &[T], b: &[T]) -> Vec<T> {
        let mut y = vec![T::zeroed(); a.len()];
        let operand = |x: &[T]| In::new(x.as_ptr(), x.len());
        run_alone(&Integers::new(function, [operand(a), operand(b), operand(a)], Out::new(y.as_mut_ptr(), y.len())));
        y
    }

    #[test]
    fn integers_beyond_f32_are_exact_and_wrap_around() {
        use IntegerFunction::*;
        let (a, b) = ([16_777_217, i32::MAX, -1, i32::MIN], [16_777_216, 2, 1, -1]);
        assert_eq!(applied(Add, &a, &b), [33_554_433, i32::MIN + 1, 0, i32::MAX]);
        assert_eq!(applied(Mul, &a, &b)[..3], [16_777_216, -2, -1]);
        assert_eq!(applied(Less, &a, &b), [0, 0, 1, 1]);
        assert_eq!(applied(Equal, &a, &b), [0; 4]);
        let (a, b) = ([0u32, u32::MAX, 5], [1, 1 << 31, 5]);
        assert_eq!(applied(Sub, &a, &b), [u32::MAX, (1 << 31) - 1, 0]);
        assert_eq!(applied(Less, &a, &b), [1, 0, 0]);
        assert_eq!(applied(Maximum, &a, &b), [1, u32::MAX, 5]);
        assert_eq!(applied(Select, &a, &b), [0, 1 << 31, 5]);
    }
}

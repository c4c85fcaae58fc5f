//! Element-wise functions of integers, exactly: element-wise programs compute in f32, which does not hold every integer.

use super::*;
use crate::DType;
use gradus_cuda::{Source, sources};
use gradus_kernels::integers as kernel;
use gradus_kernels::integers::IntegerFunction;

/// A function of every element of integer operands of one type and shape. What does not fit wraps around.
#[derive(Debug)]
pub struct Integers {
    pub(super) function: IntegerFunction,
}

impl Operation for Integers {
    fn name(&self) -> &'static str {
        "integers"
    }

    fn attributes(&self) -> String {
        format!("{:?}", self.function)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_integer(&inputs[0])?;
        if inputs.len() != self.function.arity() || inputs.iter().any(|input| *input != inputs[0]) {
            let problem = format!("takes {} operands of one type and shape", self.function.arity());
            return Err(Mismatch::Shape(problem));
        }
        Ok(vec![inputs[0].clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.inputs.iter().map(|_| None).collect()
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.outputs.iter().map(|_| None).collect()
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(1, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let number = |operand: usize, index: usize| inputs.get(operand).map_or(0.0, |input| input.data[index]);
        let element = |index: usize| {
            let [a, b, c] = [0, 1, 2].map(|operand| number(operand, index));
            match outputs[0].dtype {
                DType::U32 => self.function.apply(a as u32, b as u32, c as u32) as f64,
                _ => self.function.apply(a as i32, b as i32, c as i32) as f64,
            }
        };
        vec![Reals::new(&outputs[0].shape, (0..outputs[0].shape.elements()).map(element).collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |function: IntegerFunction, dtype: DType, shape: &[usize], bound: usize| {
            // Small numbers for the first, so that some are zero and some are equal to others.
            let mut inputs = vec![CaseInput::integers(dtype, shape, 3)];
            inputs.extend((1..function.arity()).map(|_| CaseInput::integers(dtype, shape, bound)));
            Case::with_inputs(&format!("{function:?} of {dtype}{shape:?}"), inputs, move |x| {
                vec![x[0].trace().apply_one(Integers { function }, &x.iter().collect::<Vec<_>>())]
            })
        };
        let mut cases: Vec<Case> = vec![];
        for function in IntegerFunction::ALL {
            cases.push(case(function, DType::I32, &[4, 9], 4));
            cases.push(case(function, DType::U32, &[3, 7001], 1 << 31));
        }
        cases.push(case(IntegerFunction::Add, DType::I32, &[0, 2], 9));
        cases.push(Case::with_inputs(
            "operators broadcast, and take whole numbers",
            vec![CaseInput::integers(DType::I32, [3, 1], 9), CaseInput::integers(DType::I32, [4], 9)],
            |x| {
                let product = &(&x[0] * &x[1] - 7.0);
                vec![product.abs(), -product, 3.0 - product, product.greater(&x[1]), product.maximum(&x[0])]
            },
        ));
        cases
    }
}

impl Kernels for Integers {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        match linker.output(0).dtype {
            DType::I32 => self.link::<i32>(linker),
            DType::U32 => self.link::<u32>(linker),
            other => return Err(Unsupported(other)),
        }
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        const THREADS: usize = 256;
        // Unsigned, sums and products wrap around.
        let result = match self.function {
            IntegerFunction::Add => "(y_t)((u32)a + (u32)b)",
            IntegerFunction::Sub => "(y_t)((u32)a - (u32)b)",
            IntegerFunction::Mul => "(y_t)((u32)a * (u32)b)",
            IntegerFunction::Minimum => "(a < b ? a : b)",
            IntegerFunction::Maximum => "(a > b ? a : b)",
            IntegerFunction::Less => "(a < b)",
            IntegerFunction::LessEqual => "(a <= b)",
            IntegerFunction::Equal => "(a == b)",
            IntegerFunction::NotEqual => "(a != b)",
            IntegerFunction::Select => "(a != 0 ? b : c)",
        };
        // A function of two ignores the third.
        let operand = |index: usize| linker.input(index.min(self.function.arity() - 1)).address;
        let y = linker.output(0);
        let source = Source::new("integers", sources::INTEGERS).address(operand(0)).address(operand(1));
        let source = source.address(operand(2)).operand("y", &y).size("COUNT", y.elements());
        let source = source.constant("RESULT", result).constant("THREADS", THREADS);
        linker.launch(source.launch(y.elements().div_ceil(THREADS), THREADS));
        Ok(())
    }
}

impl Integers {
    fn link<T: crate::Native + kernel::Integer>(&self, linker: &mut Linker<'_>) {
        // A function of two ignores the third.
        let operand = |index: usize| linker.input(index.min(self.function.arity() - 1)).read::<T>();
        let operands = [operand(0), operand(1), operand(2)];
        linker.job(kernel::Integers::new(self.function, operands, linker.output(0).write()));
    }
}

/// What a function of floats is for integers, where it is one.
pub(super) fn of_integers(function: Function) -> Option<IntegerFunction> {
    Some(match function {
        Function::Add => IntegerFunction::Add,
        Function::Sub => IntegerFunction::Sub,
        Function::Mul => IntegerFunction::Mul,
        Function::Minimum => IntegerFunction::Minimum,
        Function::Maximum => IntegerFunction::Maximum,
        Function::Less => IntegerFunction::Less,
        Function::LessEqual => IntegerFunction::LessEqual,
        Function::Equal => IntegerFunction::Equal,
        Function::NotEqual => IntegerFunction::NotEqual,
        Function::Select => IntegerFunction::Select,
        _ => return None,
    })
}

//! Element-wise operations: all of them are one operation that runs a short program on every element.
//!
//! User code traces programs of one instruction; the planner joins chains of them, so that what lies between
//! never reaches memory. The numbers between instructions are rounded to the element type as if it had.

mod functions;
mod methods;
mod scalar;

use super::*;
use crate::DType;
use gradus_kernels::elementwise as kernel;
pub use gradus_scalar::{Argument, Function, Instruction, ScalarProgram};
pub use scalar::Scalar;

/// A program run on every element of operands of one shape.
#[derive(Clone, Debug)]
pub struct Elementwise {
    /// What is computed for each element.
    pub program: ScalarProgram,
    /// How many operands there are.
    pub input_count: usize,
    /// The shape, needed where there are no operands.
    pub shape: crate::Shape,
    /// The type of the result.
    pub dtype: DType,
}

impl Elementwise {
    /// One function of the operands, then of constants.
    fn of(function: Function, arguments: &[Argument], input_count: usize, ty: TensorType) -> Elementwise {
        let mut padded = [Argument::Constant(0.0); 3];
        padded[..arguments.len()].copy_from_slice(arguments);
        let instructions = vec![Instruction { function, arguments: padded }];
        let program = ScalarProgram { instructions, result: Argument::Result(0) };
        Elementwise { program, input_count, shape: ty.shape, dtype: ty.dtype }
    }

    /// The operand, or a constant, stored as `ty`.
    fn copy(source: Argument, ty: TensorType) -> Elementwise {
        let input_count = matches!(source, Argument::Input(_)) as usize;
        let program = ScalarProgram { instructions: vec![], result: source };
        Elementwise { program, input_count, shape: ty.shape, dtype: ty.dtype }
    }

    /// A dense copy of an operand as this type, as the planner puts in where a view will not do.
    pub(crate) fn dense_copy(ty: TensorType) -> Elementwise {
        Elementwise::copy(Argument::Input(0), ty)
    }

    /// Traces the program instruction by instruction.
    fn decomposed(&self, inputs: &[Tensor]) -> Tensor {
        let like = &inputs[0];
        let mut results: Vec<Tensor> = vec![];
        let tensor = |argument: &Argument, results: &[Tensor]| match argument {
            Argument::Input(index) => inputs[*index].clone(),
            Argument::Result(index) => results[*index].clone(),
            Argument::Constant(number) => like.full_like(*number),
        };
        for instruction in &self.program.instructions {
            let operands: Vec<Tensor> = instruction.used().iter().map(|argument| tensor(argument, &results)).collect();
            results.push(like.trace().function(instruction.function, &operands.iter().collect::<Vec<_>>()));
        }
        tensor(&self.program.result, &results).cast(self.dtype)
    }
}

impl Operation for Elementwise {
    fn name(&self) -> &'static str {
        "elementwise"
    }

    fn attributes(&self) -> String {
        format!("{}{}: {}", self.dtype, self.shape, functions::text(&self.program))
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        if !self.program.is_whole(self.input_count) {
            let problem = "the program reads an operand or a result that is not there".to_string();
            return Err(Mismatch::Parameter(problem));
        }
        if inputs.len() != self.input_count || inputs.iter().any(|input| input.shape != self.shape) {
            return Err(Mismatch::Shape(format!("takes {} operands of shape {}", self.input_count, self.shape)));
        }
        if inputs.iter().any(|input| input.dtype.is_integer() && self.dtype.is_integer() && input.dtype != self.dtype) {
            return Err(Mismatch::DType(format!(
                "{} cannot be cast to {}; go through f32",
                inputs[0].dtype, self.dtype
            )));
        }
        Ok(vec![TensorType::new(self.dtype, &self.shape)])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        match &self.program.instructions[..] {
            [] => {
                let is_result = |index| self.program.result == Argument::Input(index);
                let gradient =
                    |(index, input): (usize, &Tensor)| is_result(index).then(|| at.gradient(0).cast(input.dtype()));
                at.inputs.iter().enumerate().map(gradient).collect()
            }
            [instruction] if self.program.result == Argument::Result(0) => functions::gradient(instruction, at),
            _ => at.through(|inputs| vec![self.decomposed(inputs)]),
        }
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        match &self.program.instructions[..] {
            _ if self.dtype.is_integer() => vec![None],
            [] => {
                let Argument::Input(index) = self.program.result else { return vec![None] };
                vec![at.tangent(index).map(|tangent| tangent.cast(self.dtype))]
            }
            [instruction] if self.program.result == Argument::Result(0) => vec![functions::tangent(instruction, at)],
            _ => at.through(|inputs| vec![self.decomposed(inputs)]),
        }
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let operations = self.program.instructions.iter().map(|instruction| functions::cost(instruction.function));
        Cost::per_element(operations.sum(), inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        (0..self.input_count).map(|input| (0, input)).collect()
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Elementwise(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let element = |index: usize| {
            let numbers: Vec<f64> = inputs.iter().map(|input| input.data[index]).collect();
            let result = functions::evaluate(&self.program, &numbers);
            if self.dtype.is_integer() { result.trunc() } else { result }
        };
        vec![Reals::new(&outputs[0].shape, (0..outputs[0].shape.elements()).map(element).collect())]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        functions::cases()
    }
}

impl Kernels for Elementwise {
    fn takes(&self, _input: usize, _layout: &Layout) -> bool {
        true
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let output = linker.output(0);
        let target = output.target()?;
        let sources = (0..linker.input_count()).map(|index| linker.input(index).source()).collect::<Result<_, _>>()?;
        linker.job(kernel::Map::new(linker.isa(), &self.program, sources, target, output.shape()));
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let inputs: Vec<_> = (0..linker.input_count()).map(|index| linker.input(index)).collect();
        linker.launch(gradus_cuda::elementwise(&self.program, &inputs, &linker.output(0)));
        Ok(())
    }
}

impl crate::backend::LinkedOperand {
    /// The elements for an element-wise kernel to read, and their strides.
    pub(super) fn source(self) -> Result<(kernel::InputElements, Vec<usize>), Unsupported> {
        let elements = match self.dtype {
            DType::F32 => kernel::InputElements::F32(self.read()),
            DType::Bf16 => kernel::InputElements::Bf16(self.read()),
            DType::F16 => kernel::InputElements::F16(self.read()),
            DType::I32 => kernel::InputElements::I32(self.read()),
            DType::U32 => kernel::InputElements::U32(self.read()),
            DType::F64 => return Err(Unsupported(DType::F64)),
        };
        Ok((elements, self.layout.strides))
    }

    /// The elements for an element-wise kernel to write.
    pub(super) fn target(&self) -> Result<kernel::OutputElements, Unsupported> {
        Ok(match self.dtype {
            DType::F32 => kernel::OutputElements::F32(self.write()),
            DType::Bf16 => kernel::OutputElements::Bf16(self.write()),
            DType::F16 => kernel::OutputElements::F16(self.write()),
            DType::I32 => kernel::OutputElements::I32(self.write()),
            DType::U32 => kernel::OutputElements::U32(self.write()),
            DType::F64 => return Err(Unsupported(DType::F64)),
        })
    }
}

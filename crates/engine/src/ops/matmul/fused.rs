//! A matrix product and the element-wise program that follows it, in one: the planner puts it in where it can, so
//! that the program runs while the product is still in the cache.

use super::*;
use gradus_kernels::elementwise as element_kernel;

/// `epilogue(product, further operands)`: the operands are those of the product, then the program's others.
#[derive(Clone, Debug)]
pub struct FusedMatmul {
    matmul: Matmul,
    /// Its first operand is the product.
    epilogue: Elementwise,
    kept: Kept,
    /// Whether the result must lie apart from the program's other operands: a library may read these again after it has written.
    apart: bool,
    /// Whether the sums of the columns of the program's result are a last result, in f32.
    column_sums: bool,
}

/// What is a result too, before that of the program.
#[derive(Clone, Debug)]
enum Kept {
    Nothing,
    /// The product.
    Product,
    /// What another program makes of the product, which is its one operand.
    Aside(Elementwise),
}

impl FusedMatmul {
    /// The product with a program after it, whose first operand it is.
    pub(crate) fn new(matmul: &Matmul, epilogue: Elementwise, kept: bool, apart: bool) -> Option<FusedMatmul> {
        let kept = if kept { Kept::Product } else { Kept::Nothing };
        (!matmul.column_sums).then_some(FusedMatmul { matmul: *matmul, epilogue, kept, apart, column_sums: false })
    }

    /// The same, which gives what another program makes of the product, rather than the product.
    pub(crate) fn giving_aside(self, aside: Elementwise) -> FusedMatmul {
        FusedMatmul { kept: Kept::Aside(aside), ..self }
    }

    /// The same, with one result more: the sums of the result over all rows, in f32.
    pub(crate) fn summing(&self) -> Option<FusedMatmul> {
        (!self.column_sums).then(|| FusedMatmul { column_sums: true, ..self.clone() })
    }

    /// The product alone.
    pub fn product(&self) -> &Matmul {
        &self.matmul
    }

    /// How many operands it has, if its results are only the program's and perhaps the product.
    pub(super) fn operands(&self) -> Option<usize> {
        let plain = !self.column_sums && !matches!(self.kept, Kept::Aside(_));
        plain.then_some(self.matmul.operands() + self.epilogue.input_count - 1)
    }

    /// The program alone; its first operand is the product.
    pub fn epilogue(&self) -> &Elementwise {
        &self.epilogue
    }

    /// The program alone, and where its operands besides the product begin, if the product is a result too.
    pub(crate) fn epilogue_of_kept_product(&self) -> Option<(Elementwise, usize)> {
        matches!(self.kept, Kept::Product).then(|| (self.epilogue.clone(), self.matmul.operands()))
    }

    /// Which result is that of the program.
    fn result(&self) -> usize {
        !matches!(self.kept, Kept::Nothing) as usize
    }

    fn product_type(&self, inputs: &[TensorType]) -> Result<TensorType, Mismatch> {
        Mismatch::unless_count(inputs, self.matmul.operands() + self.epilogue.input_count - 1)?;
        Ok(self.matmul.outputs(&inputs[..self.matmul.operands()])?.remove(0))
    }

    /// The job, as one of so many that share their columns.
    pub(super) fn gemm<A: Native + Element, B: Native + Element>(
        &self,
        linker: &Linker<'_>,
        lefts: usize,
    ) -> Result<kernel::Gemm<A, B>, Unsupported> {
        // The planner asks for these where the machine has kernels for them.
        if self.column_sums || matches!(self.kept, Kept::Aside(_)) {
            return Err(Unsupported(self.epilogue.dtype));
        }
        let kept = matches!(self.kept, Kept::Product);
        let result = linker.output(self.result());
        let others = (self.matmul.operands()..linker.input_count()).map(|index| linker.input(index).source());
        let sources = [Ok(None)].into_iter().chain(others.map(|source| source.map(Some)));
        let sources: Vec<_> = sources.collect::<Result<_, _>>()?;
        let target = (result.target()?, !kept);
        let epilogue = |width: usize| {
            let (program, shape) = (&self.epilogue.program, result.shape());
            Some((element_kernel::Epilogue::new(linker.isa(), program, &sources, target, shape, width), kept))
        };
        self.matmul.gemm(linker, &linker.output(0), lefts, epilogue)
    }

    /// The product, and the programs behind it.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let (operands, others) = x.split_at(self.matmul.operands());
        let product = &x[0].trace().apply_one(self.matmul, &operands.iter().collect::<Vec<_>>());
        let operands: Vec<&Tensor> = [product].into_iter().chain(others).collect();
        let result = product.trace().apply_one(self.epilogue.clone(), &operands);
        let kept = match &self.kept {
            Kept::Nothing => None,
            Kept::Product => Some(product.clone()),
            Kept::Aside(aside) => Some(product.trace().apply_one(aside.clone(), &[product])),
        };
        let sums = self.column_sums.then(|| rows_joined(&result).cast(DType::F32).sum(&[0]));
        kept.into_iter().chain([result]).chain(sums).collect()
    }
}

impl Operation for FusedMatmul {
    fn name(&self) -> &'static str {
        "fused_matmul"
    }

    fn attributes(&self) -> String {
        let kept = match &self.kept {
            Kept::Nothing => String::new(),
            Kept::Product => ", kept".to_string(),
            Kept::Aside(aside) => format!(", kept as {}", aside.attributes()),
        };
        let sums = if self.column_sums { ", column sums" } else { "" };
        format!("{}{kept}, then {}{sums}", self.matmul.attributes(), self.epilogue.attributes())
    }

    fn output_count(&self) -> usize {
        self.result() + 1 + self.column_sums as usize
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let product = self.product_type(inputs)?;
        let operands: Vec<TensorType> =
            [&product].into_iter().chain(&inputs[self.matmul.operands()..]).cloned().collect();
        let result = self.epilogue.outputs(&operands)?.remove(0);
        let sums = self.column_sums.then(|| TensorType::new(DType::F32, [result.shape.rows_and_columns().1]));
        let kept = match &self.kept {
            Kept::Nothing => None,
            Kept::Product => Some(product),
            Kept::Aside(aside) => Some(aside.outputs(&[product])?.remove(0)),
        };
        Ok(kept.into_iter().chain([result]).chain(sums).collect())
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let (operands, others) = inputs.split_at(self.matmul.operands());
        let result = &outputs[self.result()..][..1];
        let (product, epilogue) = (self.matmul.cost(operands, result), self.epilogue.cost(others, result));
        let aside = match &self.kept {
            Kept::Aside(aside) => aside.cost(&[], result).operations,
            _ => 0,
        };
        let operations = product.operations + epilogue.operations + aside;
        Cost { operations, bytes: Cost::traffic(inputs, outputs), ..product }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        // The sums of an f32 result that stands for the product gather in its own bytes, before operands are read.
        match !self.apart && (self.result() > 0 || self.epilogue.dtype != DType::F32) {
            true => {
                let first = self.matmul.operands();
                (first..first + self.epilogue.input_count - 1).map(|input| (self.result(), input)).collect()
            }
            false => vec![],
        }
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        self.column_sums.then_some(self.result() + 1).into_iter().collect()
    }

    fn form(&self) -> Form<'_> {
        Form::FusedProduct(self)
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (operands, others) = inputs.split_at(self.matmul.operands());
        let result = &outputs[self.result()..][..1];
        let product = self.matmul.reference(operands, result).remove(0);
        let operands: Vec<&Reals> = [&product].into_iter().chain(others.iter().copied()).collect();
        let fused = self.epilogue.reference(&operands, result).remove(0);
        let kept = match &self.kept {
            Kept::Nothing => None,
            Kept::Product => Some(product.clone()),
            Kept::Aside(aside) => Some(aside.reference(&[&product], result).remove(0)),
        };
        let sums = self.column_sums.then(|| {
            let mut sums = vec![0.0; fused.shape.rows_and_columns().1];
            fused.rows().for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
            Reals::new(Shape::from([sums.len()]), sums)
        });
        kept.into_iter().chain([fused]).chain(sums).collect()
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        cases()
    }
}

impl Kernels for FusedMatmul {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        input >= self.matmul.operands() || self.matmul.takes(input, layout)
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        with_operands!(linker, A, B => linker.job(self.gemm::<A, B>(linker, 1)?));
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let operands = self.matmul.operands()..self.matmul.operands() + self.epilogue.input_count - 1;
        let fused = super::cuda::Fused {
            matmul: &self.matmul,
            epilogue: &self.epilogue,
            others: operands.map(|index| linker.input(index)).collect(),
            kept: (self.result() > 0).then(|| linker.output(0)),
            aside: match &self.kept {
                Kept::Aside(aside) => Some(aside),
                _ => None,
            },
            result: linker.output(self.result()),
            column_sums: self.column_sums.then(|| self.result() + 1),
        };
        super::cuda::link_fused(fused, linker);
        Ok(())
    }
}

/// What libraries have as epilogues: GELU, with the product kept or not, and a product times GELU's slope at another operand.
/// Such numbers are not rounded between the product and the function.
fn epilogues_of_libraries() -> Vec<Case> {
    let fused = |x: &[Tensor], slope: bool, kept: bool| {
        let types = ProductTypes::all(x[0].dtype());
        let matmul = Matmul { has_bias: !slope, types, column_sums: false };
        let one = |function, arguments| Instruction { function, arguments };
        let (unused, product) = (Argument::Constant(0.0), Argument::Input(0));
        let rounding = match types.stored {
            DType::Bf16 => Some(Function::RoundBf16),
            DType::F16 => Some(Function::RoundF16),
            _ => None,
        };
        let mut instructions = vec![one(Function::GeluTanh, [product, unused, unused])];
        if slope {
            let mut at = Argument::Result(0);
            instructions = vec![one(Function::GeluTanhSlope, [Argument::Input(1), unused, unused])];
            if let Some(rounding) = rounding {
                instructions.push(one(rounding, [at, unused, unused]));
                at = Argument::Result(1);
            }
            instructions.push(one(Function::Mul, [product, at, unused]));
        }
        let result = Argument::Result(instructions.len() - 1);
        let program = ScalarProgram { instructions, result };
        // A second operand of more rows than the depth has is to be looked at the other way round.
        let second = if x[1].shape()[0] == x[0].shape()[1] { x[1].clone() } else { x[1].transpose(0, 1) };
        let shape = Shape::from([x[0].shape()[0], second.shape()[1]]);
        let epilogue = Elementwise { program, input_count: 1 + slope as usize, shape, dtype: types.stored };
        let op = FusedMatmul::new(&matmul, epilogue, kept, false).expect("a product without column sums");
        x[0].trace().apply(op, &[&x[0], &second, &x[2]])
    };
    let case = |name: &str, [rows, depth, columns]: [usize; 3], transposed: bool, slope: bool, kept: bool| {
        let second = if transposed { vec![columns, depth] } else { vec![depth, columns] };
        let last = if slope { vec![rows, columns] } else { vec![columns] };
        let inputs = [vec![rows, depth], second, last].map(|shape| CaseInput::uniform(shape, -1.0, 1.0));
        let inputs = inputs.map(CaseInput::without_gradient).to_vec();
        Case::with_inputs(name, inputs, move |x| fused(x, slope, kept)).within(5e-5).rounding_inside()
    };
    // The large ones are those that a GPU has a kernel for, with rests of rows, columns and depth.
    let (small, large) = ([300, 40, 64], [520, 72, 576]);
    vec![
        case("GELU alone", small, false, false, false),
        case("GELU alone, the product kept", small, false, false, true),
        case("times the slope of GELU", small, false, true, false),
        case("GELU alone, of many rows", large, false, false, false),
        case("GELU alone, of many rows, the product kept", large, true, false, true),
        case("times the slope of GELU, of many rows", large, false, true, false),
        case("times the slope of GELU, of many rows, transposed", [520, 72, 520], true, true, false),
    ]
}

/// What planners make of GELU after a product and its gradient after another, where these are large: the slope is kept rather than
/// the product, and the columns of what it gives are summed. Where they are not, the same numbers.
fn gradients_of_gelu() -> Vec<Case> {
    let build = |x: &[Tensor]| {
        let types = ProductTypes::all(x[0].dtype());
        let [a, b, bias, g, v] = x else { unreachable!("five operands") };
        let product = a.linear(b, Some(bias));
        let apply = |function: Function, operands: &[&Tensor]| {
            let arguments = [Argument::Input(0), Argument::Input(operands.len() - 1), Argument::Constant(0.0)];
            let program =
                ScalarProgram { instructions: vec![Instruction { function, arguments }], result: Argument::Result(0) };
            let (shape, dtype) = (operands[0].shape(), operands[0].dtype());
            let op = Elementwise { program, input_count: operands.len(), shape, dtype };
            operands[0].trace().apply_one(op, operands)
        };
        let result = apply(Function::GeluTanh, &[&product]);
        let slope = apply(Function::GeluTanhSlope, &[&product]);
        let gradient = apply(Function::Mul, &[&g.matmul(&v.transpose(0, 1)), &slope]);
        let sums = Matmul::with_column_sums(types);
        let weight = a.trace().apply(sums, &[&a.transpose(0, 1), &gradient]);
        [result, gradient].into_iter().chain(weight).collect()
    };
    let case = |name: &str, [rows, depth, columns, inner]: [usize; 4]| {
        let shapes = [vec![rows, depth], vec![depth, columns], vec![columns], vec![rows, inner], vec![columns, inner]];
        let inputs = shapes.map(|shape| CaseInput::uniform(shape, -1.0, 1.0).without_gradient()).to_vec();
        Case::with_inputs(name, inputs, build).within(2e-4).rounding_inside()
    };
    vec![
        case("GELU's gradient", [24, 8, 40, 16]),
        case("GELU's gradient, of many rows", [520, 8, 576, 16]),
        case("GELU's gradient, of many whole tiles", [512, 16, 512, 24]),
    ]
}

/// `gelu(a @ b + bias) * other`, kept or not, in many sizes, and programs that only convert.
fn cases() -> Vec<Case> {
    let fused = |x: &[Tensor], function: Function, kept: bool, dtype: DType| {
        let matmul = Matmul { has_bias: true, types: ProductTypes::all(x[0].dtype()), column_sums: false };
        let shape: Shape = x[3].shape();
        let one = |function, arguments| Instruction { function, arguments };
        let unused = Argument::Constant(0.0);
        let instructions = vec![
            one(function, [Argument::Input(0), unused, unused]),
            one(Function::Mul, [Argument::Result(0), Argument::Input(1), unused]),
        ];
        let program = ScalarProgram { instructions, result: Argument::Result(1) };
        let epilogue = Elementwise { program, input_count: 2, shape, dtype };
        let op = FusedMatmul::new(&matmul, epilogue, kept, false).expect("a product without column sums");
        x[0].trace().apply(op, &x.iter().collect::<Vec<_>>())
    };
    let sizes = |rows: usize, depth: usize, columns: usize| {
        [&[rows, depth][..], &[depth, columns], &[columns], &[rows, columns]].map(<[usize]>::to_vec)
    };
    let case = |name: &str, shapes: [Vec<usize>; 4], kept: bool| {
        // The gradients are those of the parts; large ones take long to check.
        let small = shapes.iter().all(|shape| shape.iter().product::<usize>() < 1000);
        let inputs = shapes.map(|shape| CaseInput::uniform(shape, -2.0, 2.0));
        let inputs = inputs.map(|input| if small { input } else { input.without_gradient() });
        Case::with_inputs(name, inputs.to_vec(), move |x| fused(x, Function::GeluTanh, kept, x[0].dtype()))
    };
    let mut cases = vec![
        case("of a few numbers", sizes(3, 6, 5), false),
        case("of a few numbers, the product kept", sizes(3, 6, 5), true),
        case("whole panels", sizes(16, 8, 64), false),
        case("whole panels, the product kept", sizes(16, 8, 64), true),
        case("several blocks of the depth", sizes(9, 1100, 40), false).within(5e-4),
        case("several blocks of the depth, the product kept", sizes(9, 1100, 40), true).within(5e-4),
        case("several tiles", sizes(530, 3, 290), false),
        Case::new("stored in f32", &[&[8, 6], &[6, 32], &[32], &[8, 32]], move |x| {
            fused(x, Function::Tanh, true, DType::F32)
        }),
    ];
    cases.extend(epilogues_of_libraries());
    cases.extend(gradients_of_gelu());
    cases
}

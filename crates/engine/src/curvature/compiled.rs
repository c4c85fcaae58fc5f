//! Matrices and losses that are programs: compiled once, replayed for every vector.

use super::newton::Smooth;
use super::{Linearized, Matrix, hessian_vector_product};
use crate::backend::Backend;
use crate::{DType, Error, Program, Result, Routine, Shape, Tensor, Trace, gradient_or_zeros};

/// A matrix that is a routine of a program: parts of the vector are inputs, parts of the product outputs, in f32.
pub struct CompiledProducts<'a> {
    program: &'a mut Program,
    routine: String,
    parts: Vec<Part>,
}

/// A part of the vector and of the product.
struct Part {
    vector: String,
    product: String,
    elements: usize,
}

impl<'a> CompiledProducts<'a> {
    /// The matrix of a routine, given the names of the inputs that make up the vector and of the outputs that make up the
    /// product, in the same order. Outputs that do not fit are found out by the first product.
    pub fn new(program: &'a mut Program, routine: &str, names: &[(String, String)]) -> Result<CompiledProducts<'a>> {
        let part = |(vector, product): &(String, String)| {
            let ty = program.ty(vector)?;
            if ty.dtype != DType::F32 {
                let (name, expected) = (vector.clone(), "f32 numbers".to_string());
                return Err(Error::Data { name, expected, given: ty.to_string() });
            }
            Ok(Part { vector: vector.clone(), product: product.clone(), elements: ty.shape.elements() })
        };
        let parts = names.iter().map(part).collect::<Result<_>>()?;
        Ok(CompiledProducts { program, routine: routine.to_string(), parts })
    }
}

impl Matrix for CompiledProducts<'_> {
    fn size(&self) -> usize {
        self.parts.iter().map(|part| part.elements).sum()
    }

    fn product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<()> {
        let mut at = 0;
        for part in &self.parts {
            self.program.write(&part.vector, &vector[at..at + part.elements])?;
            at += part.elements;
        }
        self.program.run(&self.routine)?;
        at = 0;
        for part in &self.parts {
            self.program.read_into(&part.product, &mut product[at..at + part.elements])?;
            at += part.elements;
        }
        Ok(())
    }
}

/// A loss of some tensors, with its gradient and its Hessian's products, compiled: for [`super::newton_cg`], and, where it
/// stands, a [`Matrix`] by itself. What the products at one point have in common is computed with the first.
pub struct CompiledLoss {
    program: Program,
    sizes: Vec<usize>,
    /// Whether what the products have in common is still to be computed where it stands.
    moved: bool,
    /// Whether they have anything in common.
    linearizes: bool,
}

/// The routines of a [`CompiledLoss`].
const GRADIENT: &str = "gradient";
const LINEARIZE: &str = "linearize";
const PRODUCT: &str = "product";
/// Where products save a smaller share of what linearizing computes, it takes several of them to gain anything.
const WORTH_LINEARIZING: f64 = 0.5;

impl CompiledLoss {
    /// Compiles the loss of f32 tensors of these shapes. Data are constants of the trace that the tensors are of.
    #[track_caller]
    pub fn new(
        backend: &dyn Backend,
        shapes: &[Shape],
        loss: impl FnOnce(&[Tensor]) -> Tensor,
    ) -> Result<CompiledLoss> {
        let trace = Trace::new();
        let input =
            |prefix: &str, (index, shape): (usize, &Shape)| trace.input(&format!("{prefix}{index}"), DType::F32, shape);
        let [tensors, vectors] =
            ["x", "v"].map(|prefix| shapes.iter().enumerate().map(|at| input(prefix, at)).collect::<Vec<_>>());
        let loss = loss(&tensors).sum_all().cast(DType::F32);
        let references: Vec<&Tensor> = tensors.iter().collect();
        let slopes = gradient_or_zeros(&loss, &references)?;
        let vectors: Vec<&Tensor> = vectors.iter().collect();
        let products = hessian_vector_product(&loss, &references, &vectors)?;
        let mut linearized = Linearized::of("kept", &products, &vectors, usize::MAX)?;
        if linearized.saved() < WORTH_LINEARIZING {
            linearized = Linearized::of("none", &products, &vectors, 0)?;
        }
        let mut first = Routine::new(GRADIENT).output("loss", &loss);
        let mut second = Routine::new(PRODUCT);
        for (index, slope) in slopes.iter().enumerate() {
            first = first.output(&format!("g{index}"), slope);
            second = second.output(&format!("p{index}"), &linearized.products()[index]);
        }
        let mut routines = vec![first, second];
        let linearizes = linearized.bytes() > 0;
        if linearizes {
            routines.push(linearized.keep(Routine::new(LINEARIZE)));
        }
        let program = trace.compile(backend, &routines)?;
        Ok(CompiledLoss { program, sizes: shapes.iter().map(Shape::elements).collect(), moved: true, linearizes })
    }

    /// Writes the numbers at which the Hessian is taken.
    pub fn set(&mut self, x: &[f32]) -> Result<()> {
        self.moved = true;
        self.write("x", x)
    }

    fn write(&mut self, prefix: &str, numbers: &[f32]) -> Result<()> {
        let total: usize = self.sizes.iter().sum();
        if numbers.len() != total {
            let (expected, given) = (format!("{total} numbers"), format!("{}", numbers.len()));
            return Err(Error::Data { name: "the vector of all tensors".to_string(), expected, given });
        }
        let mut at = 0;
        for (index, size) in self.sizes.iter().enumerate() {
            self.program.write(&format!("{prefix}{index}"), &numbers[at..at + size])?;
            at += size;
        }
        Ok(())
    }

    fn read(&self, prefix: &str, numbers: &mut [f32]) -> Result<()> {
        let mut at = 0;
        for (index, size) in self.sizes.iter().enumerate() {
            self.program.read_into(&format!("{prefix}{index}"), &mut numbers[at..at + size])?;
            at += size;
        }
        Ok(())
    }
}

impl Smooth for CompiledLoss {
    fn loss_and_gradient(&mut self, x: &[f32], slope: &mut [f32]) -> Result<f64> {
        self.set(x)?;
        self.program.run(GRADIENT)?;
        self.read("g", slope)?;
        Ok(self.program.scalar("loss")? as f64)
    }

    fn hessian_product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<()> {
        self.write("v", vector)?;
        if self.linearizes && self.moved {
            self.program.run(LINEARIZE)?;
            self.moved = false;
        }
        self.program.run(PRODUCT)?;
        self.read("p", product)
    }
}

impl Matrix for CompiledLoss {
    fn size(&self) -> usize {
        self.sizes.iter().sum()
    }

    fn product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<()> {
        self.hessian_product(vector, product)
    }
}

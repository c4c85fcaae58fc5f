//! Matrices and losses that are programs: compiled once, replayed for every vector.

use super::newton::Smooth;
use super::{Matrix, hessian_vector_product};
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
/// stands, a [`Matrix`] by itself.
pub struct CompiledLoss {
    program: Program,
    sizes: Vec<usize>,
}

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
        let products = hessian_vector_product(&loss, &references, &vectors.iter().collect::<Vec<_>>())?;
        let mut first = Routine::new("gradient").output("loss", &loss);
        let mut second = Routine::new("product");
        for index in 0..shapes.len() {
            first = first.output(&format!("g{index}"), &slopes[index]);
            second = second.output(&format!("p{index}"), &products[index]);
        }
        let program = trace.compile(backend, &[first, second])?;
        Ok(CompiledLoss { program, sizes: shapes.iter().map(Shape::elements).collect() })
    }

    /// Writes the numbers at which the Hessian is taken.
    pub fn set(&mut self, x: &[f32]) -> Result<()> {
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
        self.program.run("gradient")?;
        self.read("g", slope)?;
        Ok(self.program.scalar("loss")? as f64)
    }

    fn hessian_product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<()> {
        self.write("v", vector)?;
        self.program.run("product")?;
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

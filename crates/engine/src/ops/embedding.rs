//! Rows of a table by number, as tokens pick their vectors.

use super::*;
use crate::Shape;
use gradus_cuda::{Source, sources};
use gradus_kernels::embedding as kernel;

/// Rows of a table, one for each number.
#[derive(Debug)]
pub struct Embedding;

/// The gradient of a table of so many rows: each row is the sum of the gradients of its uses.
#[derive(Debug)]
pub struct EmbeddingGradient {
    rows: usize,
}

impl Operation for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn attributes(&self) -> String {
        String::new()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let (table, ids) = (&inputs[0], &inputs[1]);
        Mismatch::unless_float(table)?;
        Mismatch::unless_integer(ids)?;
        if table.shape.rank() != 2 {
            let problem =
                format!("the table must have 2 axes, rows and columns, not {}; reshape it", table.shape.rank());
            return Err(Mismatch::Shape(problem));
        }
        Ok(vec![TensorType::new(table.dtype, rows_shape(&ids.shape, table.shape[1]))])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let (table, ids) = (&at.inputs[0], &at.inputs[1]);
        let op = EmbeddingGradient { rows: table.shape()[0] };
        vec![Some(table.trace().apply_one(op, &[ids, &at.gradient(0)])), None]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).map(|table| table.embedding(&at.inputs[1]))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        // Only the rows that are picked are read.
        Cost { work: Work::Elements, operations: 0, bytes: (inputs[1].bytes() + 2 * outputs[0].bytes()) as u64 }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::indices(1, inputs[0].shape[0]))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (table, ids) = (inputs[0], inputs[1]);
        let mut data = Vec::with_capacity(outputs[0].shape.elements());
        for &id in &ids.data {
            for column in 0..table.shape[1] {
                let known = (0.0..table.shape[0] as f64).contains(&id);
                data.push(if known { table.at(&[id as usize, column]) } else { 0.0 });
            }
        }
        vec![Reals::new(&outputs[0].shape, data)]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |name: &str, table: [usize; 2], ids: &[usize], dtype: crate::DType| {
            let inputs = vec![CaseInput::uniform(table, -2.0, 2.0), CaseInput::integers(dtype, ids, table[0])];
            Case::with_inputs(name, inputs, |x| vec![x[0].embedding(&x[1])])
        };
        use crate::DType::{I32, U32};
        vec![
            case("a batch of tokens", [7, 5], &[2, 3], U32),
            case("signed numbers", [7, 5], &[4], I32),
            case("one row by a single number", [1, 1], &[], U32),
            case("no numbers", [3, 4], &[0, 2], U32),
            case("no columns", [3, 0], &[2], U32),
            case("often the same row", [3, 33], &[50], U32),
            case("large", [40, 300], &[70], U32),
        ]
    }
}

impl Kernels for Embedding {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (table, ids, y) = (linker.input(0), linker.input(1), linker.output(0));
        let columns = table.shape()[1];
        let fault = linker.fault();
        // Numbers below zero, read as unsigned, are above every bound.
        with_bits!(table.dtype, T => {
            linker.job(kernel::Embedding::<T>::new(table.bits(), ids.bits(), y.bits_mut(), columns, fault));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        const THREADS: usize = 256;
        let (table, ids, y) = (linker.input(0), linker.input(1), linker.output(0));
        let vector = gradus_cuda::common_vector(table.shape[1], &[&table, &y]);
        let source = Source::new("embedding", sources::EMBEDDING).operand("x", &table).operand("ids", &ids);
        let source = linker.with_fault(source.operand("y", &y)).size("TABLE_ROWS", table.shape[0]);
        let source = source.size("COUNT", y.elements()).size("COLUMNS", table.shape[1]);
        let source = source.constant("VECTOR", vector).constant("THREADS", THREADS);
        linker.launch(source.launch(y.elements().div_ceil(vector * THREADS), THREADS));
        Ok(())
    }
}

impl Operation for EmbeddingGradient {
    fn name(&self) -> &'static str {
        "embedding_gradient"
    }

    fn attributes(&self) -> String {
        format!("{} rows", self.rows)
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let (ids, gradient) = (&inputs[0], &inputs[1]);
        Mismatch::unless_integer(ids)?;
        Mismatch::unless_float(gradient)?;
        Mismatch::unless_rank("the gradient", gradient, 1)?;
        let (_, columns) = gradient.shape.rows_and_columns();
        Mismatch::unless_shape("the gradient", gradient, &rows_shape(&ids.shape, columns))?;
        Ok(vec![TensorType::new(gradient.dtype, [self.rows, columns])])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![None, Some(at.gradient(0).embedding(&at.inputs[0]))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let op = EmbeddingGradient { rows: self.rows };
        vec![at.tangent(1).map(|gradient| gradient.trace().apply_one(op, &[&at.inputs[0], gradient]))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost {
            work: Work::Elements,
            operations: inputs[1].shape.elements() as u64,
            bytes: Cost::traffic(inputs, outputs),
        }
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::indices(0, self.rows))
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![0]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (ids, gradient) = (inputs[0], inputs[1]);
        let mut y = Reals::zeros(&outputs[0]);
        for (id, row) in ids.data.iter().zip(gradient.rows()) {
            if (0.0..self.rows as f64).contains(id) {
                row.iter().enumerate().for_each(|(column, x)| *y.at_mut(&[*id as usize, column]) += x);
            }
        }
        vec![y]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let case = |name: &str, rows: usize, ids: &[usize], columns: usize| {
            let numbers = CaseInput::integers(crate::DType::U32, ids, rows);
            let gradient = CaseInput::uniform(rows_shape(&ids.into(), columns), -2.0, 2.0);
            Case::with_inputs(name, vec![numbers, gradient], move |x| {
                x[0].trace().apply(EmbeddingGradient { rows }, &[&x[0], &x[1]])
            })
        };
        vec![
            case("some rows unused", 9, &[2, 3], 5),
            case("one row by a single number", 1, &[], 1),
            case("no numbers", 3, &[0], 4),
            case("often the same row", 3, &[50], 33),
            case("large", 60, &[50], 400),
            case("each row very often", 3, &[300], 6),
        ]
    }
}

impl Kernels for EmbeddingGradient {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (ids, gradient, y) = (linker.input(0), linker.input(1), linker.output(0));
        let columns = y.shape()[1];
        let elements = kernel::Occurrences::scratch_elements(ids.shape().elements(), self.rows);
        let occurrences = kernel::Occurrences::new(linker.scratch::<u32>(elements), self.rows);
        let fault = linker.fault();
        with_float!(gradient.dtype, T => {
            linker.job(kernel::OccurrenceSort::new(ids.bits(), occurrences, fault));
            let (gradient, y) = (gradient.read::<T>(), y.write::<T>());
            let job = kernel::EmbeddingGradient::new(linker.isa(), occurrences, gradient, y, columns);
            linker.job(job.continued(linker.accumulates(0)));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        let (ids, gradient, table) = (linker.input(0), linker.input(1), linker.output(0));
        let accumulates = linker.accumulates(0);
        if !accumulates {
            linker.zero(table.address, table.elements() * table.element.size());
        }
        let operands = gradus_cuda::EmbeddingGradient { ids: &ids, gradient: &gradient, table: &table, accumulates };
        let faulting = linker.faulting();
        for launch in gradus_cuda::embedding_gradient(&operands, faulting, |bytes| linker.scratch(bytes)) {
            linker.launch(launch);
        }
        Ok(())
    }
}

/// The shape of one row for each number.
fn rows_shape(ids: &Shape, columns: usize) -> Shape {
    ids.iter().copied().chain([columns]).collect()
}

impl Tensor {
    /// The rows of this table that the numbers pick: `[rows, columns]` by `[...]` gives `[..., columns]`.
    #[track_caller]
    pub fn embedding(&self, ids: &Tensor) -> Tensor {
        self.trace().apply_one(Embedding, &[self, ids])
    }
}

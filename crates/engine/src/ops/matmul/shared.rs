//! Matrix products of several first operands with one second, in one: the planner puts it in where the machine had better pack the
//! columns once for all of them, as those of a forward pass and of its tangents.

use super::*;
use std::ops::Range;
use std::sync::Arc;

/// Products, each with its epilogue if it has one, of operands and results one product after the other. The second operand is the
/// same for all, and so are the sizes; each product has the bits that it would have by itself.
#[derive(Clone, Debug)]
pub struct SharedMatmul {
    products: Vec<Arc<dyn Operation>>,
}

impl SharedMatmul {
    /// Of products that fit together.
    pub(crate) fn new(products: Vec<Arc<dyn Operation>>) -> SharedMatmul {
        SharedMatmul { products }
    }

    /// What a product is told by that may be one of several, and how many operands it has.
    pub(crate) fn sharing(op: &dyn Operation) -> Option<(&Matmul, usize)> {
        match op.form() {
            Form::Product(product) if !product.column_sums => Some((product, product.operands())),
            Form::FusedProduct(fused) => Some((fused.product(), fused.operands()?)),
            _ => None,
        }
    }

    /// The operands and the results of each product.
    fn parts(&self) -> impl Iterator<Item = (&Arc<dyn Operation>, Range<usize>, Range<usize>)> {
        let mut ends = (0, 0);
        self.products.iter().map(move |op| {
            let starts = ends;
            let operands = SharedMatmul::sharing(op.as_ref()).map_or(0, |(_, operands)| operands);
            ends = (starts.0 + operands, starts.1 + op.output_count());
            (op, starts.0..ends.0, starts.1..ends.1)
        })
    }

    /// One product after the other.
    fn decomposed(&self, x: &[Tensor]) -> Vec<Tensor> {
        let apply = |(op, inputs, _): (&Arc<dyn Operation>, Range<usize>, _)| {
            x[0].trace().apply_shared(op.clone(), &x[inputs].iter().collect::<Vec<_>>())
        };
        self.parts().flat_map(apply).collect()
    }
}

impl Operation for SharedMatmul {
    fn name(&self) -> &'static str {
        "shared_matmul"
    }

    fn attributes(&self) -> String {
        let of = |op: &Arc<dyn Operation>| format!("{} {}", op.name(), op.attributes());
        self.products.iter().map(of).collect::<Vec<_>>().join("; beside ")
    }

    fn output_count(&self) -> usize {
        self.products.iter().map(|op| op.output_count()).sum()
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_count(inputs, self.parts().map(|(_, inputs, _)| inputs.end).max().unwrap_or(0))?;
        let mut outputs = vec![];
        for (op, operands, _) in self.parts() {
            outputs.extend(op.outputs(&inputs[operands])?);
        }
        Ok(outputs)
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        at.through(|x| self.decomposed(x))
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        let costs = self.parts().map(|(op, operands, results)| op.cost(&inputs[operands], &outputs[results]));
        let all = costs.reduce(|all, cost| Cost {
            work: match (all.work, cost.work) {
                (Work::Product { rows, columns, depth }, Work::Product { rows: more, .. }) => {
                    Work::Product { rows: rows + more, columns, depth }
                }
                (work, _) => work,
            },
            operations: all.operations + cost.operations,
            bytes: all.bytes,
        });
        // The operand that they share is read once.
        let again = (self.products.len() as u64 - 1) * inputs[1].bytes() as u64;
        Cost { bytes: Cost::traffic(inputs, outputs) - again, ..all.expect("there are products") }
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
        let of = |(op, operands, results): (&Arc<dyn Operation>, Range<usize>, Range<usize>)| {
            op.reference(&inputs[operands], &outputs[results])
        };
        self.parts().flat_map(of).collect()
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        cases()
    }
}

impl Kernels for SharedMatmul {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        let part = self.parts().find(|(_, operands, _)| operands.contains(&input));
        let kernels = part.and_then(|(op, operands, _)| Some((own_kernels(op.as_ref())?, input - operands.start)));
        kernels.is_some_and(|(kernels, input)| kernels.takes(input, layout))
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        with_operands!(linker, A, B => {
            let mut all: Option<kernel::Gemm<A, B>> = None;
            for (op, operands, results) in self.parts() {
                let (part, lefts) = (linker.part(operands, results), self.products.len());
                let job = match op.form() {
                    Form::FusedProduct(fused) => fused.gemm::<A, B>(&part, lefts)?,
                    Form::Product(product) => product.gemm::<A, B>(&part, &part.output(0), lefts, |_| None)?,
                    _ => unreachable!("only products share columns"),
                };
                all = match all {
                    Some(all) if all.has_columns_of(&job) => Some(all.beside(job)),
                    // One whose first operand lies in another way is computed by itself.
                    Some(all) => {
                        linker.job(job);
                        Some(all)
                    }
                    None => Some(job),
                };
            }
            linker.job(all.expect("there are products"));
        });
        Ok(())
    }

    fn cuda(&self, _linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        // The planner asks for it where the machine packs columns.
        let product = self.products.first().and_then(|op| SharedMatmul::sharing(op.as_ref()));
        Err(Unsupported(product.map_or(DType::F32, |(product, _)| product.types.computed)))
    }
}

/// Products of one second operand, which planners put together, with all that they may be followed by.
fn cases() -> Vec<Case> {
    let case = |name: &str, shapes: &[&[usize]], build: fn(&[Tensor]) -> Vec<Tensor>| {
        // The gradients are those of products; large ones take long to check.
        let small = shapes.iter().all(|shape| shape.iter().product::<usize>() < 200);
        let input = |shape: &&[usize]| CaseInput::uniform(shape.to_vec(), -1.0, 1.0);
        let inputs = shapes.iter().map(input).map(|input| if small { input } else { input.without_gradient() });
        Case::with_inputs(name, inputs.collect(), build).within(1e-4)
    };
    let two = |x: &[Tensor]| vec![x[0].matmul(&x[2]), x[1].matmul(&x[2])];
    vec![
        case("of a few numbers", &[&[3, 5], &[3, 5], &[5, 7]], two),
        case("of several panels and blocks of the depth", &[&[70, 600], &[70, 600], &[600, 90]], two),
        case("of several tiles", &[&[90, 40], &[90, 40], &[40, 700]], two),
        case("of few rows", &[&[7, 136], &[7, 136], &[136, 99]], two),
        case("of batches", &[&[2, 3, 9, 5], &[2, 3, 9, 5], &[3, 5, 6]], two),
        case("three, transposed", &[&[30, 20], &[30, 20], &[30, 20], &[35, 20]], |x| {
            let shared = x[3].transpose(0, 1);
            x[..3].iter().map(|x| x.matmul(&shared)).collect()
        }),
        case("with a bias each, one followed, one kept too", &[&[20, 12], &[20, 12], &[12, 40], &[40], &[40]], |x| {
            let [first, second] = [0, 1].map(|at| x[at].linear(&x[2], Some(&x[3 + at])));
            let followed = second.gelu();
            vec![first.gelu() * &second, second * followed]
        }),
        case("first operands that lie in other ways", &[&[30, 20], &[20, 30], &[30, 20], &[20, 35]], |x| {
            vec![x[0].matmul(&x[3]), x[1].transpose(0, 1).matmul(&x[3]), x[2].matmul(&x[3])]
        }),
        // The second product needs the first: they stay apart.
        case("one after the other", &[&[6, 8], &[8, 8]], |x| {
            let first = x[0].matmul(&x[1]);
            vec![first.matmul(&x[1]), first]
        }),
        // Each pair may be one product, but not both.
        case("pairs that wait for each other", &[&[6, 8], &[6, 8], &[8, 8], &[8, 8]], |x| {
            let [first, second] = [x[0].matmul(&x[2]), x[1].matmul(&x[3])];
            vec![first.matmul(&x[3]), second.matmul(&x[2])]
        }),
    ]
}

//! A check that numbers are finite: where one is not, the replay ends with an error that names it.

use super::*;
use gradus_cuda::{Source, sources};
use gradus_kernels::finite as kernel;

/// The operand; an element that is NaN or infinite is a fault, whose detail is the first such element's index.
#[derive(Debug)]
pub struct CheckFinite {
    name: String,
}

impl Operation for CheckFinite {
    fn name(&self) -> &'static str {
        "check_finite"
    }

    fn attributes(&self) -> String {
        self.name.clone()
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        Mismatch::unless_float(&inputs[0])?;
        Ok(inputs.to_vec())
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        vec![Some(at.gradient(0))]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        vec![at.tangent(0).cloned()]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(1, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Faults(Check::Finite { input: 0, name: self.name.clone() })
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], _outputs: &[TensorType]) -> Vec<Reals> {
        vec![inputs[0].clone()]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let shapes: [&[usize]; 5] = [&[], &[1], &[0, 3], &[5, 13], &[5, 8001]];
        shapes.map(|shape| Case::new(&format!("{shape:?}"), &[shape], |x| vec![x[0].check_finite("x")])).into()
    }
}

impl Kernels for CheckFinite {
    fn takes(&self, _input: usize, layout: &Layout) -> bool {
        layout.is_dense()
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let fault = linker.fault();
        with_float!(x.dtype, T => {
            linker.job(kernel::CheckFinite::<T>::new(linker.isa(), x.read(), y.write(), fault));
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        const THREADS: usize = 256;
        let (x, y) = (linker.input(0), linker.output(0));
        let vector = gradus_cuda::common_vector(x.elements(), &[&x, &y]);
        let source = Source::new("check_finite", sources::CHECK_FINITE).operand("x", &x).operand("y", &y);
        let source = linker.with_fault(source).size("COUNT", x.elements());
        let source = source.constant("VECTOR", vector).constant("THREADS", THREADS);
        linker.launch(source.launch(x.elements().div_ceil(vector * THREADS), THREADS));
        Ok(())
    }
}

impl Tensor {
    /// The same numbers; a replay in which one of them is NaN or infinite ends with an error that gives this name
    /// and the element. Use the result, or the check is left out with all else that is not used.
    #[track_caller]
    pub fn check_finite(&self, name: &str) -> Tensor {
        self.trace().apply_one(CheckFinite { name: name.to_string() }, &[self])
    }
}

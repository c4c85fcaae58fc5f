//! A causal language model whose channels are mixed by Hadamard transforms instead of matrices.

use crate::hadamard;
use gradus::Tensor;
use gradus::models::{CausalModel, Initializer, KeyValueContext, Parameters};

/// Its sizes; the width is a power of two.
#[derive(Clone, Debug)]
pub struct Mixer {
    pub vocabulary: usize,
    pub context: usize,
    pub width: usize,
    pub layers: usize,
}

const NORMAL: Initializer = Initializer::Normal { deviation: 0.1 };

impl Mixer {
    fn table(&self, parameters: &Parameters) -> Tensor {
        parameters.get("table", [self.vocabulary, self.width], NORMAL)
    }

    fn block(&self, at: &Parameters, x: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
        let (b, t, c) = (x.size(0), x.size(1), self.width);
        let product = |name: &str, x: &Tensor| x.matmul(&at.get(name, [c, c], NORMAL));
        let norm = |name: &str, x: &Tensor| x.rms_norm(&at.get(name, [c], Initializer::Ones), 1e-5);
        let normed = norm("norm_1", x); // [b, t, c]
        let head = |name: &str| product(name, &normed).reshape([b, 1, t, c]);
        let seen = context.attend(&head("query"), &head("key"), &head("value"), None); // [b, 1, t, c]
        let x = x + product("joined", &seen.reshape([b, t, c])); // [b, t, c]
        let spread = hadamard(&norm("norm_2", &x)) * at.get("scale", [c], Initializer::Ones);
        &x + hadamard(&spread.gelu()) * at.get("gain", [c], Initializer::Ones)
    }
}

impl CausalModel for Mixer {
    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn context(&self) -> usize {
        self.context
    }

    fn hidden(&self, parameters: &Parameters, tokens: &Tensor, context: &mut dyn KeyValueContext) -> Tensor {
        let positions = parameters.get("positions", [self.context, self.width], NORMAL);
        let mut x = self.table(parameters).embedding(tokens) + context.rows(&positions); // [b, t, c]
        for layer in 0..self.layers {
            x = self.block(&parameters.within(format_args!("layer.{layer}")), &x, context); // [b, t, c]
        }
        x.rms_norm(&parameters.get("norm", [self.width], Initializer::Ones), 1e-5)
    }

    fn logits(&self, parameters: &Parameters, hidden: &Tensor) -> Tensor {
        hidden.matmul(&self.table(parameters).transpose(0, 1))
    }
}

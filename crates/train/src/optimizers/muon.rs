//! Muon: the momentum of a hidden layer's matrix, made orthogonal; all other weights by AdamW.

use super::{GroupedOptimizer, Hyperparameters, Optimizer, Update, Updated, of_hidden_matrices};
use gradus_engine::ops::ProductTypes;
use gradus_engine::{DType, Shape, Tensor};

pub(super) const USUAL: Hyperparameters = Hyperparameters { weight_decay: 0.1, beta1: 0.95, beta2: 0.95 };

/// `beta1` is the momentum of matrices.
pub(super) fn with(settings: Hyperparameters) -> GroupedOptimizer {
    let Hyperparameters { weight_decay, beta1: momentum, .. } = settings;
    of_hidden_matrices(Muon { momentum, weight_decay, ..Muon::default() }, settings)
}

/// Moves a matrix along the orthogonal matrix nearest to its momentum, so that all directions of the matrix are learned at the
/// same pace. The step is scaled to the size of AdamW's: both go with the same learning rate and decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// Momentum's share kept, with Nesterov's look ahead.
    pub momentum: f32,
    /// Decay of matrices, times the learning rate.
    pub weight_decay: f32,
    /// Steps of Newton and Schulz.
    pub iterations: usize,
    /// What the products of these steps are computed in; bf16 is enough.
    pub computed: DType,
}

impl Default for Muon {
    fn default() -> Muon {
        let Hyperparameters { weight_decay, beta1: momentum, .. } = USUAL;
        Muon { momentum, weight_decay, iterations: 5, computed: DType::Bf16 }
    }
}

/// The root mean square of AdamW's updates, as they are seen in training.
const UPDATE_SIZE: f32 = 0.2;

/// The polynomial x -> a x + b x^3 + c x^5, applied to singular values: its slope at 0 is steep, and five times over it takes
/// all from 0.003 to 1 near 1, within about 0.3.
const QUINTIC: [f32; 3] = [3.4445, -4.775, 2.0315];

impl Optimizer for Muon {
    fn name(&self) -> &'static str {
        "muon"
    }

    fn weight_decay(&self) -> f32 {
        self.weight_decay
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        vec![("momentum", shape.clone())]
    }

    #[track_caller]
    fn update(&self, at: Update<'_>) -> Updated {
        let Update { weight, gradient, states, learning_rate, weight_decay, scale, .. } = at;
        let shape = weight.shape();
        if shape.rank() < 2 {
            let problem = format!("{shape} is no matrix; give it another rule by `GroupedOptimizer::rule_for`");
            return Updated { weight: weight.parameter_error("muon", problem), states: vec![states[0].clone()] };
        }
        let gradient = &(gradient * scale);
        let momentum = &states[0] * self.momentum + gradient * (1.0 - self.momentum);
        let ahead = &momentum * self.momentum + gradient * (1.0 - self.momentum);
        // A convolution's filter is a row.
        let rows = shape[0];
        let matrix = ahead.reshape([rows, shape.elements() / rows.max(1)]);
        let size = UPDATE_SIZE * (rows.max(shape.elements() / rows.max(1)) as f32).sqrt();
        let direction = self.orthogonal(&matrix).reshape(&shape);
        let kept = 1.0 - learning_rate * weight_decay;
        Updated { weight: weight * kept - direction * (learning_rate * size), states: vec![momentum] }
    }
}

impl Muon {
    /// About the orthogonal matrix that is nearest, by products alone.
    #[track_caller]
    fn orthogonal(&self, matrix: &Tensor) -> Tensor {
        let [rows, columns] = [0, 1].map(|axis| matrix.shape()[axis]);
        // The smaller side's products are cheaper.
        let is_tall = rows > columns;
        let wide = if is_tall { matrix.transpose(0, 1) } else { matrix.clone() };
        let types = ProductTypes::new(self.computed, DType::F32);
        let [a, b, c] = QUINTIC;
        let mut x = &wide / (wide.sum_of_squares(&[0, 1]).sqrt() + 1e-7);
        for _ in 0..self.iterations {
            let squares = x.matmul_as(&x.transpose(0, 1), types);
            let polynomial = &squares * b + squares.matmul_as(&squares, types) * c;
            x = &x * a + polynomial.matmul_as(&x, types);
        }
        if is_tall { x.transpose(0, 1) } else { x }
    }
}

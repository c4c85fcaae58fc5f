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
    /// What Newton and Schulz's steps are computed and held in; bf16 is enough.
    pub computed: DType,
}

impl Default for Muon {
    fn default() -> Muon {
        let Hyperparameters { weight_decay, beta1: momentum, .. } = USUAL;
        Muon { momentum, weight_decay, computed: DType::Bf16 }
    }
}

/// The root mean square of AdamW's updates, as they are seen in training.
const UPDATE_SIZE: f32 = 0.2;

/// Polynomials x -> a x + b x^3 + c x^5, applied to singular values one after another: each is the one whose largest distance from 1 is the
/// least where the one before it leaves them, beginning from 0.003 to 1. All end within 0.2 of 1, where five steps of the usual
/// polynomial (3.4445, -4.775, 2.0315) end within 0.32.
const QUINTICS: [[f32; 3]; 4] = [
    [8.3837, -24.7659, 18.3571],
    [4.0434, -3.0114, 0.5695],
    [3.5056, -2.6267, 0.5257],
    [2.4901, -1.8343, 0.4368],
];

/// By how much the largest singular value stays below 1 at first: beyond it, where rounding may lead, the first polynomial is steep.
const MARGIN: f32 = 1.02;

/// Numbers of matrices that are made orthogonal at once, unless one has more: what is held for it stays small beside a model.
const TOGETHER: usize = 1 << 22;

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
        self.update_together(&[at]).remove(0)
    }

    /// Matrices of one shape, or of that shape the other way round, share their products.
    fn together(&self, shapes: &[Shape]) -> Vec<Vec<usize>> {
        let mut batches: Vec<([usize; 2], Vec<usize>)> = vec![];
        for (index, shape) in shapes.iter().enumerate() {
            let sides = wide_sides(shape);
            let numbers = shape.elements();
            let fits = |(of, members): &&mut ([usize; 2], Vec<usize>)| {
                shape.rank() >= 2 && *of == sides && (members.len() + 1) * numbers <= TOGETHER
            };
            match batches.iter_mut().find(fits) {
                Some((_, members)) => members.push(index),
                None => batches.push((sides, vec![index])),
            }
        }
        batches.into_iter().map(|(_, members)| members).collect()
    }

    #[track_caller]
    fn update_together(&self, all: &[Update<'_>]) -> Vec<Updated> {
        if let Some(at) = all.iter().find(|at| at.weight.shape().rank() < 2) {
            let problem =
                format!("{} is no matrix; give it another rule by `GroupedOptimizer::rule_for`", at.weight.shape());
            let refused = at.weight.parameter_error("muon", problem);
            return all.iter().map(|at| Updated { weight: refused.clone(), states: at.states.to_vec() }).collect();
        }
        let (momenta, wide): (Vec<Tensor>, Vec<Tensor>) = all.iter().map(|at| self.momentum(at)).unzip();
        let directions = self.orthogonal(&Tensor::stack(&wide.iter().collect::<Vec<_>>(), 0));
        let updated = |(index, (at, momentum)): (usize, (&Update<'_>, Tensor))| {
            let shape = at.weight.shape();
            let [_, longer] = wide_sides(&shape);
            let direction = directions.slice(0, index..index + 1).reshape(wide_sides(&shape));
            let direction = if is_tall(&shape) { direction.transpose(0, 1) } else { direction };
            let size = UPDATE_SIZE * (longer as f32).sqrt();
            let kept = 1.0 - at.learning_rate * at.weight_decay;
            let by = direction.reshape(&shape).cast(DType::F32) * (at.learning_rate * size);
            Updated { weight: at.weight * kept - by, states: vec![momentum] }
        };
        all.iter().zip(momenta).enumerate().map(updated).collect()
    }
}

/// Rows and columns of a weight as a matrix; a convolution's filter is a row.
fn sides(shape: &Shape) -> [usize; 2] {
    let rows = shape.iter().next().copied().unwrap_or(1);
    [rows, shape.elements() / rows.max(1)]
}

fn is_tall(shape: &Shape) -> bool {
    let [rows, columns] = sides(shape);
    rows > columns
}

/// The shorter side first: its products are cheaper.
fn wide_sides(shape: &Shape) -> [usize; 2] {
    let [rows, columns] = sides(shape);
    [rows.min(columns), rows.max(columns)]
}

impl Muon {
    /// The new momentum, and what is to be made orthogonal: that of a step ahead, as a matrix that is not tall.
    #[track_caller]
    fn momentum(&self, at: &Update<'_>) -> (Tensor, Tensor) {
        let gradient = &(at.gradient * at.scale);
        let momentum = &at.states[0] * self.momentum + gradient * (1.0 - self.momentum);
        let ahead = &momentum * self.momentum + gradient * (1.0 - self.momentum);
        let shape = at.weight.shape();
        let matrix = ahead.reshape(sides(&shape));
        (momentum, if is_tall(&shape) { matrix.transpose(0, 1) } else { matrix })
    }

    /// About the orthogonal matrices that are nearest, by products alone.
    #[track_caller]
    fn orthogonal(&self, matrices: &Tensor) -> Tensor {
        let types = ProductTypes::all(self.computed);
        let norms = matrices.sum_of_squares(&[1, 2]).sqrt() * MARGIN + 1e-7;
        let mut x = (matrices / norms.reshape([matrices.size(0), 1, 1])).cast(self.computed);
        for [a, b, c] in QUINTICS {
            let squares = x.matmul_as(&x.transpose(1, 2), types);
            let polynomial = &squares * b + squares.matmul_as(&squares, types) * c;
            x = &x * a + polynomial.matmul_as(&x, types);
        }
        x
    }
}

//! SOAP: Adam in the eigenbasis of Shampoo's two matrices; all weights but hidden matrices by AdamW.

use super::{GroupedOptimizer, Hyperparameters, Optimizer, Refresh, Refreshing, Update, Updated, of_hidden_matrices};
use gradus_engine::{DType, Shape, Tensor};

pub(super) const USUAL: Hyperparameters = Hyperparameters { weight_decay: 0.1, beta1: 0.95, beta2: 0.95 };

pub(super) fn with(settings: Hyperparameters) -> GroupedOptimizer {
    let Hyperparameters { weight_decay, beta1, beta2 } = settings;
    of_hidden_matrices(Soap { beta1, beta2, weight_decay, ..Soap::default() }, settings)
}

/// Adam for a matrix whose rows and columns are turned to the eigenvectors of their second moments, where Adam's numbers for each
/// element are those that matter. The basis follows the moments by one turn in so many steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Soap {
    /// First moment's share kept.
    pub beta1: f32,
    /// The share kept of all second moments: of elements in the basis, of rows and of columns.
    pub beta2: f32,
    /// Decay of matrices, times the learning rate.
    pub weight_decay: f32,
    /// Steps between turns of the basis.
    pub every: u64,
    /// How many times longer than the other a side may be and still be turned; beyond that it keeps its axes, for its basis would
    /// cost more than the gradient.
    pub longest_side: usize,
}

impl Default for Soap {
    fn default() -> Soap {
        let Hyperparameters { weight_decay, beta1, beta2 } = USUAL;
        Soap { beta1, beta2, weight_decay, every: 10, longest_side: 2 }
    }
}

const EPSILON: f32 = 1e-8;

/// A side of a matrix, by its axis.
#[derive(Clone, Copy)]
struct Side {
    axis: usize,
    length: usize,
}

impl Side {
    /// Its second moment and its basis, less the identity: so zeros are the axes as they are.
    fn names(self) -> [&'static str; 2] {
        [["rows", "row_basis"], ["columns", "column_basis"]][self.axis]
    }

    /// The second moments of a matrix along it.
    #[track_caller]
    fn moments(self, matrix: &Tensor) -> Tensor {
        match self.axis {
            0 => matrix.matmul(&matrix.transpose(0, 1)),
            _ => matrix.transpose(0, 1).matmul(matrix),
        }
    }

    /// `by` on this side of a matrix: its transpose from the left, or itself from the right.
    #[track_caller]
    fn multiplied(self, matrix: &Tensor, by: &Tensor) -> Tensor {
        match self.axis {
            0 => by.transpose(0, 1).matmul(matrix),
            _ => matrix.matmul(by),
        }
    }
}

impl Soap {
    /// A weight as a matrix; a convolution's filter is a row.
    fn matrix(shape: &Shape) -> [usize; 2] {
        let rows = shape.first().copied().unwrap_or(1);
        [rows, shape.elements() / rows.max(1)]
    }

    /// The sides that are turned. A side of one has one axis only.
    fn sides(&self, shape: &Shape) -> Vec<Side> {
        let [rows, columns] = Soap::matrix(shape);
        let longest = rows.min(columns).saturating_mul(self.longest_side);
        let sides = [(0, rows), (1, columns)].map(|(axis, length)| Side { axis, length });
        sides.into_iter().filter(|side| (2..=longest).contains(&side.length)).collect()
    }
}

impl Optimizer for Soap {
    fn name(&self) -> &'static str {
        "soap"
    }

    fn weight_decay(&self) -> f32 {
        self.weight_decay
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        let of_side = |side: Side| side.names().map(|name| (name, Shape::from([side.length; 2])));
        let moments = ["first", "second"].map(|name| (name, Shape::from(Soap::matrix(shape))));
        moments.into_iter().chain(self.sides(shape).into_iter().flat_map(of_side)).collect()
    }

    #[track_caller]
    fn update(&self, at: Update<'_>) -> Updated {
        let Update { weight, gradient, states, learning_rate, weight_decay, scale, step } = at;
        let (shape, sides) = (weight.shape(), self.sides(&weight.shape()));
        let [first, second] = [&states[0], &states[1]];
        let gradient = &(gradient * scale).reshape(Soap::matrix(&shape));
        let followed = |old: &Tensor, new: &Tensor, kept: f32| old * kept + new * (1.0 - kept);
        let bases: Vec<&Tensor> = states.iter().skip(3).step_by(2).collect();
        let turned = |matrix: &Tensor| {
            let sides = sides.iter().zip(&bases);
            sides.fold(matrix.clone(), |matrix, (side, basis)| &matrix + side.multiplied(&matrix, basis))
        };
        let turned_back = |matrix: &Tensor| {
            let sides = sides.iter().zip(&bases);
            sides.fold(matrix.clone(), |matrix, (side, basis)| {
                &matrix + side.multiplied(&matrix, &basis.transpose(0, 1))
            })
        };
        let in_basis = &turned(gradient);
        let first = followed(first, gradient, self.beta1);
        let second = followed(second, &(in_basis * in_basis), self.beta2);
        let fair = |beta: f32| 1.0 - step.full_like(beta).pow(step);
        let size = (&second / fair(self.beta2)).sqrt() + EPSILON;
        let direction = turned_back(&(turned(&first) / fair(self.beta1) / size)).reshape(&shape);
        let mut new = vec![first, second];
        for (side, of_side) in sides.iter().zip(states[2..].chunks(2)) {
            new.extend([followed(&of_side[0], &side.moments(gradient), self.beta2), of_side[1].clone()]);
        }
        let kept = 1.0 - learning_rate * weight_decay;
        Updated { weight: weight * kept - direction * learning_rate, states: new }
    }

    fn refresh(&self) -> Option<Refresh> {
        Some(Refresh { every: self.every, by_curvature: false })
    }

    #[track_caller]
    fn refreshed(&self, at: Refreshing<'_>) -> Vec<Tensor> {
        let mut new = vec![at.states[0].clone(), at.states[1].clone()];
        for (side, of_side) in self.sides(at.shape).into_iter().zip(at.states[2..].chunks(2)) {
            let (moments, basis) = (&of_side[0], &of_side[1]);
            let turn = turn(moments, basis);
            // Second moments of elements, if those do not depend on each other.
            new[1] = side.multiplied(&new[1], &(&turn.by * &turn.by));
            new.extend([moments.clone(), turn.basis]);
        }
        new
    }
}

/// A turn of a basis.
pub(super) struct Turn {
    /// The new basis, less the identity.
    pub basis: Tensor,
    /// The turn in the old basis.
    pub by: Tensor,
}

/// The largest turn, as the norm of what is added to the identity: beyond it, turns in different planes get in each other's way.
const LARGEST_TURN: f32 = 2.0;
/// Brings singular values of 1 to the square root of 5 to where Newton and Schulz's steps take them to 1.
const INTO_REACH: f32 = 0.625;
const ITERATIONS: usize = 5;
/// What is as small as this beside the largest moment is rounding.
const ROUNDING: f32 = 1e-7;

/// Turns a basis towards the eigenvectors of a symmetric matrix: in all planes at once by the angles that Jacobi's method has for
/// each, made smaller together where they are large, and made orthogonal by products alone.
#[track_caller]
pub(super) fn turn(symmetric: &Tensor, basis: &Tensor) -> Turn {
    let size = symmetric.shape()[0];
    let places = symmetric.trace().arange(size, DType::F32);
    let (row, column) = (places.unsqueeze(1), places.unsqueeze(0));
    let identity = &row.equal(&column);
    let basis = &(basis + identity);
    let seen = basis.transpose(0, 1).matmul(&symmetric.matmul(basis));
    let seen = (&seen + seen.transpose(0, 1)) * 0.5;
    let diagonal = (&seen * identity).sum(&[0]);
    let largest = diagonal.max(&[0]) + f32::MIN_POSITIVE;
    let (seen, diagonal) = (seen / &largest, diagonal / &largest);
    let apart = diagonal.unsqueeze(0) - diagonal.unsqueeze(1);
    let none = apart.zeros_like();
    // Equal ones are told apart by their place; nothing turns in itself.
    let upwards = apart.greater(&none) - apart.less(&none);
    let upwards = upwards + apart.equal(&none) * (column.greater(&row) - column.less(&row));
    let half = &apart * 0.5;
    let tangent = upwards * &seen / (half.abs() + (&half * &half + &seen * &seen).sqrt() + ROUNDING);
    let norm = tangent.transpose(0, 1).matmul(&tangent).sum_of_abs(&[0]).max(&[0]).sqrt();
    let smaller = (norm.full_like(LARGEST_TURN) / (norm + ROUNDING)).minimum(&largest.ones_like());
    let mut turned = (basis + basis.matmul(&(tangent * smaller))) * INTO_REACH;
    for _ in 0..ITERATIONS {
        let squares = turned.transpose(0, 1).matmul(&turned);
        turned = &turned * 1.5 - turned.matmul(&squares) * 0.5;
    }
    Turn { by: basis.transpose(0, 1).matmul(&turned), basis: turned - identity }
}

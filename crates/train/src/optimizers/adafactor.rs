//! Adafactor: the second moment of a matrix as the means of its rows and columns.

use super::{Adafactor, Hyperparameters, Optimizer, Update, Updated};
use gradus_engine::Shape;
use gradus_engine::ops::{AdafactorInputs, SecondMoment};

pub(super) const USUAL: Hyperparameters = Hyperparameters { weight_decay: 0.1, beta1: 0.9, beta2: 0.95 };

pub(super) fn with(Hyperparameters { weight_decay, .. }: Hyperparameters) -> Adafactor {
    Adafactor { weight_decay, ..Adafactor::default() }
}

impl Optimizer for Adafactor {
    fn name(&self) -> &'static str {
        "adafactor"
    }

    fn weight_decay(&self) -> f32 {
        self.weight_decay
    }

    fn states(&self, shape: &Shape) -> Vec<(&'static str, Shape)> {
        match Adafactor::moment_shapes(shape) {
            SecondMoment::Factored { rows, columns } => vec![("rows", rows), ("columns", columns)],
            SecondMoment::Whole(shape) => vec![("second", shape)],
        }
    }

    #[track_caller]
    fn update(&self, at: Update<'_>) -> Updated {
        let Update { weight, gradient, states, learning_rate, weight_decay, scale, step } = at;
        let second_moment = &match states {
            [rows, columns] => SecondMoment::Factored { rows: rows.clone(), columns: columns.clone() },
            _ => SecondMoment::Whole(states[0].clone()),
        };
        let inputs = AdafactorInputs { weight, gradient, second_moment, learning_rate, step, scale };
        let new = Adafactor { weight_decay, ..*self }.update(inputs);
        let states = match new.second_moment {
            SecondMoment::Factored { rows, columns } => vec![rows, columns],
            SecondMoment::Whole(second) => vec![second],
        };
        Updated { weight: new.weight, states }
    }
}

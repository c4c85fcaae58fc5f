//! The end of a step: norm, clipping, and the update of weights or of parts of them.

use super::parts::part_name;
use super::{DIAGNOSE, Differentiated, MEASURED, StepConfig};
use crate::clipping::{clip_by_norm, clip_by_value};
use crate::lanes;
use crate::optimizers::{Part, StepNumbers};
use crate::watch::{Figures, Measured, Measures, Reading, count_non_finite, non_finite_name};
use gradus_engine::{Routine, Tensor};

/// The routines that end a step.
pub(super) struct Ending {
    pub routines: Vec<Routine>,
    /// How the health of gradients is read, if it is measured.
    pub reading: Option<Reading>,
    /// What the optimizer remembers.
    pub states: Vec<Tensor>,
    /// The same of each weight, by its rule.
    pub remembered: Vec<Vec<Tensor>>,
}

/// What is updated.
pub(super) struct Target<'a> {
    /// The weights, or the parts of them that are updated here.
    pub parts: Vec<Part<'a>>,
    /// Their gradients.
    pub gradients: Vec<Tensor>,
    /// The squares of all gradients, where they come from outside.
    pub squares: Option<Vec<Vec<Tensor>>>,
    /// Whether new numbers of parts are given, rather than weights assigned.
    pub in_parts: bool,
}

impl<'a> Target<'a> {
    /// All weights, with these gradients.
    pub fn whole(model: &'a Differentiated, gradients: Vec<Tensor>) -> Target<'a> {
        let parts = model.names.iter().zip(&model.weights).map(|(name, weight)| Part::whole(name, weight));
        Target { parts: parts.collect(), gradients, squares: None, in_parts: false }
    }
}

impl StepConfig {
    /// The routine that ends a step, with clipping and the update of every weight, and the same once more with the figures
    /// of gradients and updates. `begun` gives what it does besides, by its name.
    pub(super) fn update(
        &self,
        name: &str,
        begun: impl Fn(&str) -> Routine,
        model: &Differentiated,
        target: &Target<'_>,
    ) -> Ending {
        let Target { parts, gradients, .. } = target;
        let scaler = model.scalars.loss_scaler.as_ref();
        let unscaled = |x: &Tensor| scaler.map_or_else(|| x.clone(), |scaler| x * scaler.inverse());
        let norm = unscaled(&self.norm(target)).check_finite("the gradient norm");
        // One, but only once the norm is known to be finite: so no update comes before that.
        let one = &norm * 0.0 + 1.0;
        let clipped: Vec<Tensor>;
        let (updating, scale) = match self.clip_value {
            Some(limit) => {
                let gradients: Vec<Tensor> = gradients.iter().map(unscaled).collect();
                clipped = clip_by_value(&gradients.iter().collect::<Vec<_>>(), limit);
                (&clipped[..], one.clone())
            }
            None => (&gradients[..], unscaled(&clip_by_norm(&norm, &model.scalars.clip_norm))),
        };
        // What is no weight's comes first, as what others may be replayed after (`Routine::apart`).
        let begun = |name: &str| {
            let routine = begun(name).output("gradient_norm", &norm);
            scaler.map_or_else(|| routine.clone(), |scaler| scaler.good_step(routine.clone()))
        };
        let begun = [begun(name), begun(MEASURED)];
        let numbers = StepNumbers { learning_rate: model.scalars.learning_rate.clone(), scale, one };
        let mut figures = Figures::default();
        let updated = self.optimizer.updated(parts, updating, &numbers, |index, new| {
            if self.health {
                let (Part { name, numbers: weight, .. }, gradient) = (&parts[index], &gradients[index]);
                figures.add(Measured { name, weight, gradient, updated: Some(new) });
            }
        });
        let ended = |routine: Routine, new: &[Tensor]| {
            let routine = parts.iter().zip(new).fold(routine, |routine, (part, new)| match target.in_parts {
                false => routine.assign(&part.numbers, new),
                // It becomes a part of the weight once all have theirs.
                true => routine.output(&part_name(part.name), new),
            });
            updated.states.iter().fold(routine, |routine, (state, new)| routine.assign(state, new))
        };
        let [usual, measured] = begun;
        let mut routines = vec![ended(usual, &updated.weights).times_per_step(1)];
        let mut reading = None;
        if self.health {
            let measures = Measures::of_finite(figures);
            routines.push(measures.outputs(ended(measured, measures.updated())));
            reading = Some(measures.into_reading());
        }
        let states = updated.states.into_iter().map(|(state, _)| state).collect();
        Ending { routines, reading, states, remembered: updated.remembered }
    }

    /// The norm of all gradients. Over several lanes, so that parts of it can be had elsewhere.
    fn norm(&self, target: &Target<'_>) -> Tensor {
        let gradients = &target.gradients;
        match (&target.squares, self.lanes.count()) {
            (Some(squares), _) => lanes::norm_of(squares),
            (None, 1) => Tensor::global_norm(&gradients.iter().collect::<Vec<_>>()),
            (None, _) => lanes::norm_of(&gradients.iter().map(lanes::squares).collect::<Vec<_>>()),
        }
    }

    /// The sum of squares of each weight's gradient, to find where a number that is not finite came from; and how many
    /// such numbers there are.
    pub(super) fn diagnosis(&self, target: &Target<'_>) -> Routine {
        let mut routine = Routine::new(DIAGNOSE);
        for (Part { name, .. }, gradient) in target.parts.iter().zip(&target.gradients) {
            routine = routine.output(name, &gradient.sum_of_squares(&gradient.all_axes()));
            if self.health {
                routine = routine.output(&non_finite_name(name), &count_non_finite(gradient));
            }
        }
        routine
    }
}

//! An optimizer over named tensors, by groups.

use super::{Optimizer, Refresh, Refreshing, Update, Updated, WeightAverage};
use gradus_engine::{DType, Role, Routine, Shape, Tensor};
use std::fmt;
use std::sync::Arc;

/// How the weights of a group are treated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// What the learning rate is multiplied by.
    pub learning_rate_factor: f32,
    /// Their decay; `None`: that of the optimizer.
    pub weight_decay: Option<f32>,
}

impl Default for Group {
    fn default() -> Group {
        Group { learning_rate_factor: 1.0, weight_decay: None }
    }
}

type Predicate = Arc<dyn Fn(&str, &Shape) -> bool + Send + Sync>;

/// An optimizer and the groups of weights that it treats differently. Without any, matrices are decayed and vectors
/// (biases, gains of norms) are not.
///
/// ```
/// use gradus_train::optimizers::{AdamW, Group, GroupedOptimizer};
///
/// let optimizer = GroupedOptimizer::new(AdamW::default())
///     .group(|name, _| name.starts_with("backbone."), Group { learning_rate_factor: 0.1, ..Group::default() });
/// ```
#[derive(Clone)]
pub struct GroupedOptimizer {
    rule: Arc<dyn Optimizer>,
    exceptions: Vec<(Predicate, Arc<dyn Optimizer>)>,
    groups: Vec<(Predicate, Group)>,
    average: Option<WeightAverage>,
}

/// Single numbers that all updates of a step take.
#[derive(Clone, Debug)]
pub struct StepNumbers {
    /// The learning rate.
    pub learning_rate: Tensor,
    /// What gradients are multiplied by as they are read.
    pub scale: Tensor,
    /// By how much the count of steps grows: a 1, which may depend on whatever must be so before anything is updated.
    pub one: Tensor,
}

/// A weight, or a part of one.
pub(crate) struct Part<'a> {
    pub name: &'a str,
    /// The shape of the whole weight.
    pub shape: Shape,
    pub numbers: Tensor,
}

/// What an update of all weights gives.
pub(crate) struct UpdatedAll {
    /// The new weights, in their order.
    pub weights: Vec<Tensor>,
    /// Each state besides, and its new value.
    pub states: Vec<(Tensor, Tensor)>,
    /// The states of each weight's rule.
    pub remembered: Vec<Vec<Tensor>>,
}

fn state_name(kind: &str, weight: &str) -> String {
    format!("optimizer.{kind}.{weight}")
}

/// Whether a state gets another value.
fn is_new((state, new): &(Tensor, Tensor)) -> bool {
    !matches!((state.handle(), new.handle()), (Ok(state), Ok(new)) if state == new)
}

impl StepNumbers {
    /// Gradients as they are, and an update that waits for nothing.
    #[track_caller]
    pub fn new(learning_rate: &Tensor) -> StepNumbers {
        let one = learning_rate.trace().full(1.0, DType::F32, []);
        StepNumbers { learning_rate: learning_rate.clone(), scale: one.clone(), one }
    }
}

impl<O: Optimizer + 'static> From<O> for GroupedOptimizer {
    fn from(rule: O) -> GroupedOptimizer {
        GroupedOptimizer::shared(Arc::new(rule))
    }
}

impl GroupedOptimizer {
    /// This rule for all weights.
    pub fn new(rule: impl Optimizer + 'static) -> GroupedOptimizer {
        rule.into()
    }

    /// As [`GroupedOptimizer::new`], of a rule that others have too.
    pub fn shared(rule: Arc<dyn Optimizer>) -> GroupedOptimizer {
        GroupedOptimizer { rule, exceptions: vec![], groups: vec![], average: None }
    }

    /// Updates the weights for which this is so, by name and shape, by another rule. Of several that a weight could go by, the
    /// first counts.
    pub fn rule_for(
        mut self,
        applies: impl Fn(&str, &Shape) -> bool + Send + Sync + 'static,
        rule: impl Optimizer + 'static,
    ) -> Self {
        self.exceptions.push((Arc::new(applies), Arc::new(rule)));
        self
    }

    /// Treats the weights for which this is so, by name and shape, as a group. Of several groups that a weight could be
    /// in, the first counts.
    pub fn group(mut self, applies: impl Fn(&str, &Shape) -> bool + Send + Sync + 'static, group: Group) -> Self {
        self.groups.push((Arc::new(applies), group));
        self
    }

    /// Keeps an exponential moving average of every weight beside it, named by [`WeightAverage::name`].
    pub fn average(mut self, decay: f32) -> Self {
        self.average = Some(WeightAverage { decay });
        self
    }

    /// The rules of another optimizer for the same groups.
    pub(crate) fn with_rules_of(self, other: GroupedOptimizer) -> Self {
        GroupedOptimizer { rule: other.rule, exceptions: other.exceptions, ..self }
    }

    /// The rule, that of weights with another one aside.
    pub fn rule(&self) -> &dyn Optimizer {
        &*self.rule
    }

    /// The rule of a weight.
    fn rule_of(&self, name: &str, shape: &Shape) -> &dyn Optimizer {
        let exception = self.exceptions.iter().find(|(applies, _)| applies(name, shape));
        exception.map_or(&*self.rule, |(_, rule)| &**rule)
    }

    fn rules(&self) -> impl Iterator<Item = &dyn Optimizer> {
        std::iter::once(&*self.rule).chain(self.exceptions.iter().map(|(_, rule)| &**rule))
    }

    /// Whether ranks can have a part of every weight each.
    pub(crate) fn is_element_wise(&self) -> bool {
        self.rules().all(|rule| rule.is_element_wise() && rule.refresh().is_none())
    }

    /// What is done besides once in some steps: all that a rule asks for, as often as the one that does so most.
    pub(crate) fn refresh(&self) -> Option<Refresh> {
        self.rules().filter_map(|rule| rule.refresh()).reduce(|one, other| Refresh {
            every: one.every.min(other.every),
            by_curvature: one.by_curvature || other.by_curvature,
        })
    }

    /// The states that are made new then, and their new values: of weights with what is remembered of them, and the diagonals of
    /// the Hessian, if they were asked for.
    #[track_caller]
    pub(crate) fn refreshed(
        &self,
        weights: &[(&str, Shape)],
        remembered: &[Vec<Tensor>],
        curvature: Option<&[Tensor]>,
    ) -> Vec<(Tensor, Tensor)> {
        let mut refreshed = vec![];
        for (index, ((name, shape), states)) in weights.iter().zip(remembered).enumerate() {
            let rule = self.rule_of(name, shape);
            if rule.refresh().is_some() {
                let curvature = curvature.map(|diagonals| &diagonals[index]);
                let new = rule.refreshed(Refreshing { shape, states, curvature });
                if new.len() != states.len() {
                    let (stated, given) = (states.len(), new.len());
                    let problem = format!("a refresh of {name:?} gives {given} states of the {stated} that there are");
                    states.iter().for_each(|state| drop(state.parameter_error(rule.name(), problem.clone())));
                }
                refreshed.extend(states.iter().cloned().zip(new).filter(is_new));
            }
        }
        refreshed
    }

    /// Whether averages of weights are kept.
    pub(crate) fn has_average(&self) -> bool {
        self.average.is_some()
    }

    /// What is remembered of a weight of this shape, by the names of the states.
    pub(crate) fn states_of(&self, name: &str, shape: &Shape) -> Vec<String> {
        self.remembered(name, shape).into_iter().map(|(state, _)| state).collect()
    }

    /// The same with their shapes.
    pub(crate) fn remembered(&self, name: &str, shape: &Shape) -> Vec<(String, Shape)> {
        let states =
            self.rule_of(name, shape).states(shape).into_iter().map(|(kind, shape)| (state_name(kind, name), shape));
        states.chain(self.average.map(|_| (WeightAverage::name(name), shape.clone()))).collect()
    }

    /// The factor of the learning rate, and the decay, of a weight.
    fn settings(&self, name: &str, shape: &Shape) -> (f32, f32) {
        let usual = self.rule_of(name, shape).weight_decay();
        match self.groups.iter().find(|(applies, _)| applies(name, shape)) {
            Some((_, group)) => (group.learning_rate_factor, group.weight_decay.unwrap_or(usual)),
            None => (1.0, if shape.rank() >= 2 { usual } else { 0.0 }),
        }
    }

    /// Adds the update of every weight to a routine. The steps are counted in a state.
    #[track_caller]
    pub fn update<'t>(
        &self,
        routine: Routine,
        weights: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
        gradients: &[Tensor],
        numbers: &StepNumbers,
    ) -> Routine {
        let weights: Vec<(&str, &Tensor)> = weights.into_iter().collect();
        let parts: Vec<Part<'_>> = weights.iter().map(|(name, weight)| Part::whole(name, weight)).collect();
        let updated = self.updated(&parts, gradients, numbers, |_, _| ());
        let assigned = weights.iter().map(|(_, weight)| *weight).zip(&updated.weights);
        let assigned = assigned.chain(updated.states.iter().map(|(state, new)| (state, new)));
        assigned.fold(routine, |routine, (state, new)| routine.assign(state, new))
    }

    /// By weight: those that are updated together with it, if it is the first of them that is met; else nothing.
    fn batches(&self, weights: &[Part<'_>]) -> Vec<Vec<usize>> {
        let mut batches = vec![vec![]; weights.len()];
        for rule in self.rules() {
            let of_rule =
                |index: &usize| std::ptr::eq(self.rule_of(weights[*index].name, &weights[*index].shape), rule);
            let members: Vec<usize> = (0..weights.len()).filter(of_rule).collect();
            let shapes: Vec<Shape> = members.iter().map(|&member| weights[member].numbers.shape()).collect();
            for batch in rule.together(&shapes) {
                let batch: Vec<usize> = batch.iter().filter_map(|&at| members.get(at).copied()).collect();
                if let Some(&first) = batch.iter().min() {
                    batches[first] = batch;
                }
            }
        }
        batches
    }

    /// The new value of every weight, and of every state that is remembered besides. `each` is told the number of a weight and
    /// its new value, before the next one is traced.
    #[track_caller]
    pub(crate) fn updated(
        &self,
        weights: &[Part<'_>],
        gradients: &[Tensor],
        numbers: &StepNumbers,
        mut each: impl FnMut(usize, &Tensor),
    ) -> UpdatedAll {
        let trace = numbers.one.trace();
        let count = trace.zero_state_with_role("optimizer.step", Role::Optimizer, DType::F32, []);
        let step = &(&count + &numbers.one);
        let mut updated =
            UpdatedAll { weights: vec![], states: vec![(count.clone(), step.clone())], remembered: vec![] };
        let mut rates = Rates { numbers, scaled: vec![] };
        if weights.len() != gradients.len() {
            let problem = format!("there are {} weights and {} gradients", weights.len(), gradients.len());
            count.parameter_error(self.rule.name(), problem);
        }
        if let Some(WeightAverage { decay }) = self.average.filter(|average| !(0.0..1.0).contains(&average.decay)) {
            count.parameter_error("average", format!("the decay is {decay}; give a number from 0 to below 1"));
        }
        let weights = &weights[..weights.len().min(gradients.len())];
        let mut prepared = vec![];
        for Part { name, shape, numbers: weight } in weights {
            let rule = self.rule_of(name, shape);
            let (factor, weight_decay) = self.settings(name, shape);
            if !(0.0..=f32::MAX).contains(&factor) || !(0.0..=f32::MAX).contains(&weight_decay) {
                let problem =
                    format!("rate factor {factor} and decay {weight_decay} of {name:?} must be finite, from 0 up");
                weight.parameter_error("a group of weights", problem);
            }
            let state = |(kind, shape): (&str, Shape)| {
                trace.zero_state_with_role(&state_name(kind, name), Role::Optimizer, DType::F32, shape)
            };
            updated.remembered.push(rule.states(&weight.shape()).into_iter().map(state).collect());
            prepared.push((rates.of(factor), weight_decay));
        }
        let batches = self.batches(weights);
        let mut new: Vec<Option<Updated>> = weights.iter().map(|_| None).collect();
        for (index, Part { name, shape, numbers: weight }) in weights.iter().enumerate() {
            let rule = self.rule_of(name, shape);
            let states = &updated.remembered[index];
            if new[index].is_none() {
                let update = |&member: &usize| Update {
                    weight: &weights[member].numbers,
                    gradient: &gradients[member],
                    states: &updated.remembered[member],
                    learning_rate: &prepared[member].0,
                    weight_decay: prepared[member].1,
                    scale: &numbers.scale,
                    step,
                };
                let members = &batches[index];
                let results = rule.update_together(&members.iter().map(update).collect::<Vec<_>>());
                members.iter().zip(results).for_each(|(&member, result)| new[member] = Some(result));
            }
            let Some(new) = new[index].take() else {
                weight.parameter_error(rule.name(), format!("an update together with others leaves out {name:?}"));
                updated.weights.push(weight.clone());
                continue;
            };
            if new.states.len() != states.len() {
                let (stated, given) = (states.len(), new.states.len());
                let problem = format!("an update of {name:?} gives {given} states of the {stated} that there are");
                weight.parameter_error(rule.name(), problem);
            }
            updated.states.extend(states.iter().cloned().zip(new.states).filter(is_new));
            updated.states.extend(self.average.map(|average| average.updated(name, &new.weight, step)));
            each(updated.weights.len(), &new.weight);
            updated.weights.push(new.weight);
        }
        updated
    }
}

impl Part<'_> {
    /// All of a weight.
    pub fn whole<'a>(name: &'a str, weight: &Tensor) -> Part<'a> {
        Part { name, shape: weight.shape(), numbers: weight.clone() }
    }
}

/// The learning rates of the groups, each traced once.
struct Rates<'a> {
    numbers: &'a StepNumbers,
    scaled: Vec<(f32, Tensor)>,
}

impl Rates<'_> {
    #[track_caller]
    fn of(&mut self, factor: f32) -> Tensor {
        if factor == 1.0 {
            return self.numbers.learning_rate.clone();
        }
        if let Some((_, rate)) = self.scaled.iter().find(|(known, _)| *known == factor) {
            return rate.clone();
        }
        let rate = &self.numbers.learning_rate * factor;
        self.scaled.push((factor, rate.clone()));
        rate
    }
}

impl fmt::Debug for GroupedOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<&Group> = self.groups.iter().map(|(_, group)| group).collect();
        f.debug_struct("GroupedOptimizer")
            .field("rule", &self.rule)
            .field("exceptions", &self.exceptions.iter().map(|(_, rule)| rule).collect::<Vec<_>>())
            .field("groups", &groups)
            .field("average", &self.average)
            .finish()
    }
}

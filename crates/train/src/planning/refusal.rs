//! What is said when a budget is too small: the smallest that works, and what would bring it down.

use super::StepPlans;
use crate::Result;
use crate::config::OptimizerKind;
use crate::memory::Limit;
use crate::step::StepConfig;
use gradus_engine::backend::Backend;
use gradus_engine::plan::Recompute;

/// How many changes are told.
const CHANGES_TOLD: usize = 3;

/// A budget that cannot be kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The smallest arena that works.
    pub smallest: usize,
    /// What would bring it down most, the largest effect first.
    pub changes: Vec<Change>,
}

/// A change to a run, and what it would need then.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Options, as on the command line.
    pub options: String,
    /// The smallest arena with it.
    pub smallest: usize,
}

impl Refusal {
    /// Finds the smallest arena and the changes that help.
    pub fn of(plans: &StepPlans<'_>, config: &StepConfig, batch: usize, backend: &dyn Backend) -> Result<Refusal> {
        let smallest = plans.smallest()?.arena();
        let mut changes = vec![];
        for (options, changed) in changes_to(config) {
            // A model that can only be traced for its own micro-batch is not helped by another.
            let Ok(changed) = StepPlans::new(&changed, batch, Recompute::Auto, backend).smallest() else { continue };
            if changed.arena() < smallest {
                changes.push(Change { options, smallest: changed.arena() });
            }
        }
        changes.sort_by_key(|change| change.smallest);
        changes.truncate(CHANGES_TOLD);
        Ok(Refusal { smallest, changes })
    }

    /// What to tell whoever stated the budget, or runs on a machine that has no more than the limit: in one line.
    /// `needed` gives what the process needs with an arena.
    pub(super) fn message(&self, limit: &Limit, needed: &dyn Fn(usize) -> u64) -> String {
        let stated_as = |arena: usize| limit.smallest(needed(arena));
        let smallest = stated_as(self.smallest);
        let figures = self.changes.iter().map(|change| (&change.options, stated_as(change.smallest)));
        // What is rounded to the same figure is no help.
        let helpful = figures.filter(|(_, figure)| *figure != smallest);
        let changes: Vec<String> = helpful.map(|(options, figure)| format!("{options} ({figure})")).collect();
        let less = match changes.split_last() {
            Some((last, [])) => format!("; less with {last}"),
            Some((last, others)) => format!("; less with {} or {last}", others.join(", ")),
            None => String::new(),
        };
        let advice = limit.advice(&smallest);
        format!("{}: this run needs {smallest} at least{advice}{less}", limit.not_enough())
    }
}

/// What could be changed: each a choice that users make, by itself.
fn changes_to(config: &StepConfig) -> Vec<(String, StepConfig)> {
    let one_at_once = StepConfig { micro_batch: 1, ..config.clone() };
    let mut changes = vec![];
    if config.micro_batch > 1 {
        changes.push(("`settings.micro_batch` 1".to_string(), one_at_once.clone()));
    }
    // Where it is open how many are computed at once, one needs least.
    let base = if config.micro_batch == 0 { one_at_once } else { config.clone() };
    // Optimizers that remember less.
    let (adamw, others) =
        (("adamw", OptimizerKind::Adamw), [("lion", OptimizerKind::Lion), ("sgd", OptimizerKind::Sgd)]);
    let lighter = match config.optimizer.rule().name() {
        "soap" | "sophia" => [&[adamw][..], &others].concat(),
        "adamw" | "muon" => others.to_vec(),
        _ => vec![],
    };
    for (name, kind) in lighter {
        let optimizer = config.optimizer.clone().with_rules_of(kind.grouped(kind.usual()));
        changes.push((format!("`settings.optimizer` {name}"), StepConfig { optimizer, ..base.clone() }));
    }
    for (setting, objective) in config.objective.smaller() {
        changes.push((setting, StepConfig { objective, ..base.clone() }));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Budget;

    #[test]
    fn a_change_that_comes_to_the_same_figure_is_not_told() {
        let change = |options: &str, smallest| Change { options: options.to_string(), smallest };
        let changes = vec![change("sgd", 20_000_000), change("lion", 49_999_990)];
        let refusal = Refusal { smallest: 50_000_000, changes };
        let limit = Limit::of_any_machine(Some(Budget::megabytes(1)));
        let message = refusal.message(&limit, &|arena| arena as u64);
        // What is left for runs that differ is the limit's to say.
        let (all, sgd) = (limit.smallest(50_000_000), limit.smallest(20_000_000));
        let said = format!("needs {all} at least, so give `settings.memory` {all}; less with sgd ({sgd})");
        assert!(message.ends_with(&said), "{message}");
    }
}

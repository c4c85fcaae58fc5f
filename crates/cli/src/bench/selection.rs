//! Which entries are measured.

use super::entry::{Entry, Group};
use gradus_train::{Error, Result};

/// The name that chooses everything, also what takes long.
pub const ALL: &str = "all";

/// Which of the entries these names choose: groups, beginnings of names, or `all`. No name chooses all that is not
/// heavy.
pub fn chosen(entries: &[Entry], names: &[String]) -> Result<Vec<bool>> {
    if names.is_empty() {
        return Ok(entries.iter().map(|entry| !entry.heavy).collect());
    }
    for name in names {
        if !entries.iter().any(|entry| is_chosen(entry, name)) {
            return Err(unknown(entries, name));
        }
    }
    Ok(entries.iter().map(|entry| names.iter().any(|name| is_chosen(entry, name))).collect())
}

fn is_chosen(entry: &Entry, name: &str) -> bool {
    name == ALL || name == entry.group.name() || (!name.is_empty() && entry.name.starts_with(name))
}

/// Says which known name is nearest to one that chooses nothing.
fn unknown(entries: &[Entry], name: &str) -> Error {
    let distance = |known: &&str| strsim::damerau_levenshtein(name, known);
    let advice = match known_names(entries).into_iter().min_by_key(distance) {
        Some(nearest) if distance(&nearest) <= 1 + name.len() / 3 => format!("did you mean `{nearest}`?"),
        _ => "`gradus bench --list` shows what there is".into(),
    };
    Error::Config(format!("`{name}` is nothing that can be measured; {advice}"))
}

/// Groups, names, and the beginnings of names up to a slash.
fn known_names(entries: &[Entry]) -> Vec<&str> {
    let mut names: Vec<&str> = Group::ALL.iter().map(|group| group.name()).chain([ALL]).collect();
    for entry in entries {
        names.extend(entry.name.match_indices('/').map(|(end, _)| &entry.name[..end]));
        names.push(&entry.name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::entry::Work;

    fn entries() -> Vec<Entry> {
        let entry = |name: &str, group: Group, heavy: bool| Entry {
            name: name.into(),
            group,
            heavy,
            work: Work { amount: 1.0, unit: "GB/s", bound: None },
            measure: Box::new(|_| unreachable!("nothing is measured here")),
        };
        vec![
            entry("limits/read", Group::Limits, false),
            entry("matmul/f32/128", Group::Kernels, false),
            entry("matmul/bf16/128", Group::Kernels, false),
            entry("adamw/124m", Group::Kernels, true),
            entry("steps/124m-64/f32", Group::Steps, true),
        ]
    }

    fn chosen_names(names: &[&str]) -> Vec<String> {
        let entries = entries();
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let chosen = chosen(&entries, &names).unwrap();
        entries.into_iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(entry, _)| entry.name).collect()
    }

    #[test]
    fn names_choose_groups_beginnings_and_everything() {
        assert_eq!(chosen_names(&[]), ["limits/read", "matmul/f32/128", "matmul/bf16/128"]);
        assert_eq!(chosen_names(&["kernels"]), ["matmul/f32/128", "matmul/bf16/128", "adamw/124m"]);
        assert_eq!(chosen_names(&["matmul/f", "steps"]), ["matmul/f32/128", "steps/124m-64/f32"]);
        assert_eq!(chosen_names(&["all"]).len(), 5);
    }

    #[test]
    fn an_unknown_name_gets_the_nearest() {
        let problem = |name: &str| chosen(&entries(), &[name.to_string()]).unwrap_err().to_string();
        assert_eq!(problem("matmull"), "`matmull` is nothing that can be measured; did you mean `matmul`?");
        assert!(problem("step/124m-64/f32").contains("`steps/124m-64/f32`"));
        assert!(problem("").contains("nothing that can be measured"));
        assert!(problem("zzzzzzzzzzzz").contains("--list"));
    }
}

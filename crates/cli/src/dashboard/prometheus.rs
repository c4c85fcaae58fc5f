//! The last figures of each run, as Prometheus reads them: its text format, version 0.0.4.

use serde_json::Value;

/// The type of the text.
pub const KIND: &str = "text/plain; version=0.0.4";

/// A run's last line, with what is not in it.
pub struct Last<'a> {
    /// The run's name.
    pub run: &'a str,
    /// The line.
    pub line: Value,
    /// The last loss on held-out text, in this line or before.
    pub validation_loss: Option<f64>,
    /// Seconds since the file was written to.
    pub age: Option<f64>,
}

/// Figures: their name, the key of a line that has them, how much one of them is, and what they are.
const FIGURES: [(&str, &str, f64, &str); 9] = [
    ("step", "step", 1.0, "Steps taken"),
    ("tokens", "tokens", 1.0, "Tokens seen"),
    ("loss", "loss", 1.0, "Mean loss of the last batch"),
    ("gradient_norm", "gradient_norm", 1.0, "Norm of all gradients before clipping"),
    ("learning_rate", "learning_rate", 1.0, "Learning rate of the last step"),
    ("tokens_per_second", "tokens_per_second", 1.0, "Tokens a second of the last step"),
    ("step_seconds", "step_ms", 1e-3, "Seconds of the last step"),
    ("memory_bytes", "memory_bytes", 1.0, "Memory that the process has"),
    ("peak_memory_bytes", "peak_memory_bytes", 1.0, "Most memory that the process has had"),
];

/// The text.
pub fn text(runs: &[Last<'_>]) -> String {
    let mut text = String::new();
    for (name, key, unit, help) in FIGURES {
        let figure =
            |run: &Last<'_>| run.line.get(key).map(|value| value.as_f64().map_or(f64::NAN, |value| value * unit));
        family(&mut text, name, help, runs, figure);
    }
    family(&mut text, "validation_loss", "Last loss on held-out text", runs, |run| run.validation_loss);
    family(&mut text, "last_line_age_seconds", "Seconds since the last line was written", runs, |run| run.age);
    text
}

fn family(text: &mut String, name: &str, help: &str, runs: &[Last<'_>], figure: impl Fn(&Last<'_>) -> Option<f64>) {
    *text += &format!("# HELP gradus_{name} {help}.\n# TYPE gradus_{name} gauge\n");
    for (run, value) in runs.iter().filter_map(|run| Some((run, figure(run)?))) {
        // A number that is not finite is written as Prometheus does.
        let value = if value.is_nan() { "NaN".to_string() } else { value.to_string() };
        *text += &format!("gradus_{name}{{run=\"{}\"}} {value}\n", escaped(run.run));
    }
}

/// A name as the value of a label.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_family_has_its_help_and_its_type_and_the_figures_are_those_of_the_line() {
        let line = json!({"step": 12, "tokens": 3456, "loss": 2.3456789, "gradient_norm": null, "learning_rate": 0.00003,
            "tokens_per_second": 1234.5, "step_ms": 250.0, "memory_bytes": 85000000, "peak_memory_bytes": 90000000});
        let one = Last { run: "a \"b\"\\c\nd", line, validation_loss: Some(2.25), age: Some(1.5) };
        let two = Last { run: "other", line: json!({"step": 1}), validation_loss: None, age: None };
        let text = text(&[one, two]);
        let label = r#"{run="a \"b\"\\c\nd"}"#;
        for sample in [
            format!("gradus_step{label} 12\n"),
            format!("gradus_loss{label} 2.3456789\n"),
            format!("gradus_gradient_norm{label} NaN\n"),
            format!("gradus_learning_rate{label} 0.00003\n"),
            format!("gradus_step_seconds{label} 0.25\n"),
            format!("gradus_peak_memory_bytes{label} 90000000\n"),
            format!("gradus_validation_loss{label} 2.25\n"),
            "gradus_step{run=\"other\"} 1\n".into(),
        ] {
            assert!(text.contains(&sample), "{sample} in\n{text}");
        }
        assert!(!text.contains("gradus_loss{run=\"other\"}"), "what a line does not have is not told:\n{text}");
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(names.len(), FIGURES.len() + 2);
        for name in names {
            let name = name.strip_suffix(" gauge").unwrap();
            assert_eq!(text.matches(&format!("# HELP {name} ")).count(), 1, "{name}");
        }
        assert!(text.ends_with('\n'));
    }
}

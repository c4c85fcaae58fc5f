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
    /// The last line with figures of gradients.
    pub measured: Option<Value>,
    /// Alerts so far.
    pub alerts: usize,
    /// The last loss on held-out text, in this line or before.
    pub validation_loss: Option<f64>,
    /// The last sharpness of the loss, in this line or before.
    pub sharpness: Option<f64>,
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

/// Figures of each weight: their name, the key of its figures that has them, and what they are.
const WEIGHT_FIGURES: [(&str, &str, &str); 4] = [
    ("weight_gradient_mean_abs", "mean_abs", "Mean absolute value of a weight's gradient"),
    ("weight_gradient_zeros", "zeros", "Share of zeros in a weight's gradient"),
    ("weight_gradient_non_finite", "non_finite", "Numbers of a weight's gradient that are not finite"),
    ("weight_update_ratio", "update_ratio", "Norm of a weight's update beside that of the weight"),
];

/// The text.
pub fn text(runs: &[Last<'_>]) -> String {
    let mut text = String::new();
    for (name, key, unit, help) in FIGURES {
        let figure = |run: &Last<'_>| run.line.get(key).map(|value| number(value) * unit);
        family(&mut text, name, help, runs, figure);
    }
    family(&mut text, "validation_loss", "Last loss on held-out text", runs, |run| run.validation_loss);
    let sharpness = "Largest eigenvalue of the loss's Hessian when last measured";
    family(&mut text, "sharpness", sharpness, runs, |run| run.sharpness);
    family(&mut text, "alerts", "Alerts so far", runs, |run| Some(run.alerts as f64));
    let is_healthy = |run: &Last<'_>| run.line.get("verdict").map(|verdict| f64::from(verdict == "healthy"));
    family(&mut text, "healthy", "Whether nothing is known to go wrong: 1 or 0", runs, is_healthy);
    let norm = |weight: &str, line: &Value| line["gradients"].get(weight).map(number);
    weight_family(&mut text, "weight_gradient_norm", "Norm of a weight's gradient", runs, norm);
    for (name, key, help) in WEIGHT_FIGURES {
        let figure = |weight: &str, line: &Value| line["health"].get(weight)?.get(key).map(number);
        weight_family(&mut text, name, help, runs, figure);
    }
    family(&mut text, "last_line_age_seconds", "Seconds since the last line was written", runs, |run| run.age);
    text
}

fn family(text: &mut String, name: &str, help: &str, runs: &[Last<'_>], figure: impl Fn(&Last<'_>) -> Option<f64>) {
    begin(text, name, help);
    for (run, value) in runs.iter().filter_map(|run| Some((run, figure(run)?))) {
        sample(text, name, &format!("run=\"{}\"", escaped(run.run)), value);
    }
}

/// As [`family`], with a figure of every weight of a run in its last line that has them.
fn weight_family(
    text: &mut String,
    name: &str,
    help: &str,
    runs: &[Last<'_>],
    figure: impl Fn(&str, &Value) -> Option<f64>,
) {
    begin(text, name, help);
    for (run, line) in runs.iter().filter_map(|run| Some((run, run.measured.as_ref()?))) {
        for weight in line["gradients"].as_object().into_iter().flat_map(|gradients| gradients.keys()) {
            if let Some(value) = figure(weight, line) {
                let labels = format!("run=\"{}\",weight=\"{}\"", escaped(run.run), escaped(weight));
                sample(text, name, &labels, value);
            }
        }
    }
}

fn begin(text: &mut String, name: &str, help: &str) {
    *text += &format!("# HELP gradus_{name} {help}.\n# TYPE gradus_{name} gauge\n");
}

/// A number that is not finite is written as Prometheus does.
fn sample(text: &mut String, name: &str, labels: &str, value: f64) {
    let value = if value.is_nan() { "NaN".to_string() } else { value.to_string() };
    *text += &format!("gradus_{name}{{{labels}}} {value}\n");
}

/// A figure of a line, in which null stands for what is no number.
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(f64::NAN)
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
            "tokens_per_second": 1234.5, "step_ms": 250.0, "memory_bytes": 85000000, "peak_memory_bytes": 90000000,
            "verdict": "loss-spike"});
        let measured = json!({"gradients": {"h.0.w": 0.25}, "health": {"h.0.w": {"mean_abs": 0.5, "zeros": 0, "update_ratio": 0.001}}});
        let one = Last {
            run: "a \"b\"\\c\nd",
            line,
            measured: Some(measured),
            alerts: 2,
            validation_loss: Some(2.25),
            sharpness: Some(12.5),
            age: Some(1.5),
        };
        let two = Last {
            run: "other",
            line: json!({"step": 1}),
            measured: None,
            alerts: 0,
            validation_loss: None,
            sharpness: None,
            age: None,
        };
        let text = text(&[one, two]);
        let label = r#"{run="a \"b\"\\c\nd"}"#;
        let weight = r#"{run="a \"b\"\\c\nd",weight="h.0.w"}"#;
        for sample in [
            format!("gradus_step{label} 12\n"),
            format!("gradus_loss{label} 2.3456789\n"),
            format!("gradus_gradient_norm{label} NaN\n"),
            format!("gradus_learning_rate{label} 0.00003\n"),
            format!("gradus_step_seconds{label} 0.25\n"),
            format!("gradus_peak_memory_bytes{label} 90000000\n"),
            format!("gradus_validation_loss{label} 2.25\n"),
            format!("gradus_sharpness{label} 12.5\n"),
            "gradus_step{run=\"other\"} 1\n".into(),
            format!("gradus_alerts{label} 2\n"),
            format!("gradus_healthy{label} 0\n"),
            format!("gradus_weight_gradient_norm{weight} 0.25\n"),
            format!("gradus_weight_update_ratio{weight} 0.001\n"),
        ] {
            assert!(text.contains(&sample), "{sample} in\n{text}");
        }
        assert!(!text.contains("gradus_loss{run=\"other\"}"), "what a line does not have is not told:\n{text}");
        let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        assert_eq!(names.len(), FIGURES.len() + WEIGHT_FIGURES.len() + 6);
        for name in names {
            let name = name.strip_suffix(" gauge").unwrap();
            assert_eq!(text.matches(&format!("# HELP {name} ")).count(), 1, "{name}");
        }
        assert!(text.ends_with('\n'));
    }
}

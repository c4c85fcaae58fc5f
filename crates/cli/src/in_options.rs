//! The library names its settings; the command names the options that state them.

use gradus_train::run::{Event, Observer, Stop};

/// How the library marks a setting in a message.
const SETTING: &str = "`settings.";

/// A message of the library in the words of the command line.
pub fn in_options(message: &str) -> String {
    let mut parts = message.split(SETTING);
    let mut text = parts.next().unwrap_or_default().to_string();
    for part in parts {
        match part.split_once('`') {
            Some((name, rest)) => text += &format!("--{}{rest}", name.replace('_', "-")),
            None => text += &format!("{SETTING}{part}"),
        }
    }
    text
}

/// Passes on what happens, in the words of the command line.
pub struct InOptions<'a>(pub &'a mut dyn Observer);

impl Observer for InOptions<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(text) => self.0.event(&Event::Note(&in_options(text))),
            Event::Warning(text) => self.0.event(&Event::Warning(&in_options(text))),
            _ => self.0.event(event),
        }
    }

    fn should_stop(&self) -> Stop {
        self.0.should_stop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_become_options_and_all_else_stays() {
        let message = "with a lower `settings.learning_rate` (now 1), or `settings.clip` 1.0";
        assert_eq!(in_options(message), "with a lower --learning-rate (now 1), or --clip 1.0");
        for same in ["did you mean `layers`?", "`settings.", "", "a `b` c"] {
            assert_eq!(in_options(same), same);
        }
    }
}

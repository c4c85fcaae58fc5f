//! The real binary: what it refuses, and what it prints without training.

use std::path::PathBuf;
use std::process::{Command, Output};

/// An empty folder to run in, removed at the end of the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let folder = std::env::temp_dir().join(format!("gradus-command-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Place(folder)
    }

    fn gradus(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_gradus")).args(arguments).current_dir(&self.0).output().unwrap()
    }

    /// The one line on standard error with which the binary refuses.
    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.gradus(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.starts_with("error: ") && text.ends_with('\n'), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
        text
    }

    fn printed(&self, arguments: &[&str]) -> String {
        let output = self.gradus(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn bad_options_get_one_line_and_leave_nothing() {
    let place = Place::new("bad");
    for (arguments, part) in [
        (&["train", "--widht", "8"][..], "'--width'"),
        (&["train", "--width", "0"], "at least 1"),
        (&["train", "--width"], "--width"),
        (&["train", "--model", "rnn"], "gpt2, llama"),
        (&["train", "--preset", "enormous"], "tiny"),
        (&["train", "--time", "soon"], "1h30m"),
        (&["train", "--clip", "hard"], "adaptive"),
        (&["train", "--validation", "2"], "below 1"),
        (&["train", "--dropout", "1"], "below 1"),
        (&["train", "--steps", "5", "--time", "1m"], "'--time <TIME>'"),
        (&["train", "--seed", "-1"], "--seed"),
        (&["train", "--width", "100", "--heads", "3"], "not divisible"),
        (&["train", "--memory", "200MB"], "not there yet"),
        (&["train", "--config", "missing.toml"], "missing.toml"),
        (&["train", "missing.txt"], "missing.txt: no such file"),
        (&["train", "--resume", "missing"], "not the folder of a run"),
        (&["trian"], "'train'"),
        (&["bench", "matmull"], "did you mean `matmul`"),
        (&["bench", "limits", "--baseline", "missing.json"], "cannot read missing.json"),
        (&["bench", "limits", "--save", "missing/run.json"], "cannot write to missing"),
        (&["bench", "limits", "--time", "soon"], "1h30m"),
        (&["generate"], "<DIR>"),
        (&["generate", "missing"], "no such folder"),
        (&["generate", "missing", "--top-p", "0"], "above 0"),
        (&["eval", "missing", "text.txt"], "no such folder"),
        (&["inspect", "missing"], "no such folder"),
        (&["completions", "tin-shell"], "bash"),
    ] {
        let text = place.refused(arguments);
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
    assert!(std::fs::read_dir(&place.0).unwrap().next().is_none(), "nothing is written");
}

#[test]
fn an_unknown_key_of_a_file_is_refused_with_its_line() {
    let place = Place::new("key");
    std::fs::write(place.0.join("run.toml"), "# sizes\nlayer = 3\n").unwrap();
    let text = place.refused(&["train", "--config", "run.toml"]);
    assert_eq!(text, "error: run.toml, line 2: `layer` is not an option; did you mean `layers`?\n");
}

#[test]
fn help_shows_every_option_with_its_default() {
    let help = Place::new("help").printed(&["train", "--help"]);
    for part in ["--micro-batch <N>", "--min-learning-rate-share", "[default: cosine]", "runs/NAME-N", "gpt2-medium"] {
        assert!(help.contains(part), "{part}");
    }
}

#[test]
fn completions_and_man_page_know_every_command() {
    let place = Place::new("shell");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = place.printed(&["completions", shell]);
        assert!(script.contains("micro-batch") && script.contains("inspect"), "{shell}");
    }
    let page = place.printed(&["man"]);
    assert!(page.contains("gradus\\-train") && page.contains("micro\\-batch") && page.contains("temperature"));
}

//! The real binary: what it refuses, and what it prints without training.

mod support;

use support::Place;

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
        (&["train", "--memory", "200 parsecs"], "150MB, 2GiB or 80%"),
        (&["train", "--memory", "1MB"], "at least, so give --memory"),
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
        (&["dashboard"], "<DIR>"),
        (&["dashboard", "missing"], "missing: no such folder"),
        (&["dashboard", "."], "not the folder of a run (it has no config.toml)"),
        (&["dashboard", ".", "--port", "high"], "6007"),
        (&["train", "--dashboard", "text.txt"], "a corpus stands before"),
    ] {
        let text = place.refused(arguments);
        assert!(text.contains(part), "{arguments:?}: {text}");
    }
    assert!(std::fs::read_dir(&place.0).unwrap().next().is_none(), "nothing is written");
}

#[test]
fn a_port_that_is_taken_is_refused() {
    let place = Place::new("port");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    std::fs::create_dir(place.0.join("run")).unwrap();
    std::fs::write(place.0.join("run/config.toml"), "").unwrap();
    for arguments in [&["dashboard", "run", "--port", &port][..], &["train", "--dashboard", &port, "--out", "other"]] {
        let text = place.refused(arguments);
        assert!(
            text.contains(&format!("cannot be served at 127.0.0.1:{port}")) && text.contains("another port"),
            "{text}"
        );
    }
    assert!(!place.0.join("other").exists());
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

#[test]
fn what_can_be_measured_is_listed() {
    let place = Place::new("list");
    let usual = place.printed(&["bench", "--list"]);
    assert!(usual.contains("limits/update\n") && usual.contains("steps/reference/bf16\n"), "{usual}");
    assert!(!usual.contains("124m"), "{usual}");
    let all = place.printed(&["bench", "all", "--list"]);
    assert!(all.contains("steps/124m-256/f32  (only") && all.starts_with(&usual[..20]), "{all}");
    assert_eq!(place.printed(&["bench", "matmul/f32/1", "--list"]), "matmul/f32/128\nmatmul/f32/1024\n");
}

#[test]
fn a_tiny_measurement_is_printed_saved_and_compared() {
    let place = Place::new("bench");
    let printed = place.printed(&["bench", "matmul/f32/128", "--time", "0.001", "--json", "--save", "run.json"]);
    assert_eq!(std::fs::read_to_string(place.0.join("run.json")).unwrap(), printed);
    let document: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let results = document["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["rate"].as_f64().unwrap() > 0.0), "{printed}");
    let names: Vec<&str> = results.iter().map(|result| result["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"limits/read") && names.ends_with(&["matmul/f32/128"]), "{names:?}");
    assert!(results.last().unwrap()["share_of_limit"].as_f64().unwrap() > 0.0);
    assert!(document["machine"]["threads"].as_u64().unwrap() > 0);
    let compared = place.printed(&["bench", "limits", "--time", "0.001", "--baseline", "run.json"]);
    assert!(compared.contains("beside the baseline: "), "{compared}");
}

#[test]
fn a_step_is_measured_in_a_process_of_its_own() {
    let place = Place::new("step");
    let printed = place.printed(&["bench", "steps/reference/f32", "--time", "0.001", "--json", "--profile"]);
    let document: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let step = document["results"].as_array().unwrap().last().unwrap();
    assert_eq!((step["name"].as_str(), step["unit"].as_str()), (Some("steps/reference/f32"), Some("tokens/s")));
    assert!(step["rate"].as_f64().unwrap() > 0.0);
    assert!(step["profile"].as_array().unwrap().iter().any(|row| row["operation"] == "adamw"), "{step}");
    #[cfg(target_os = "linux")]
    assert!(step["peak_memory_bytes"].as_u64().unwrap() > 50_000_000);
}

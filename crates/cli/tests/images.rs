//! `gradus train-images` and `gradus classify`, on a set that is drawn.

mod support;

use support::Place;

#[test]
fn images_are_drawn_learned_from_and_told_apart_and_a_budget_is_kept_or_refused() {
    let place = Place::new("images");
    let line = "train-images --steps 4 --batch 8 --size 32 --eval-every 2 --health off --threads 2";
    let stated =
        |more: &str| -> Vec<String> { format!("{line} {more}").split_whitespace().map(str::to_string).collect() };
    let run = |more: &str| {
        let arguments = stated(more);
        place.gradus(&arguments.iter().map(|argument| &argument[..]).collect::<Vec<_>>())
    };
    let output = run("--json");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(text.lines().filter(|line| line.contains("\"validation_accuracy\":")).count(), 5, "{text}");
    for name in ["config.toml", "metrics.jsonl", "confusion.png", "model/config.json", "model/model.safetensors"] {
        assert!(place.0.join("runs/drawn-1").join(name).is_file(), "{name}");
    }
    let said = place.printed(&["classify", "runs/drawn-1", "runs/drawn-1/confusion.png", "--top", "2"]);
    assert!(said.starts_with("runs/drawn-1/confusion.png: ") && said.matches(" %").count() == 2, "{said}");
    assert!(place.refused(&["classify", "runs/drawn-1", "runs/drawn-1/config.toml"]).contains("--skip-broken"));

    let said = place.printed(&["inspect", "runs/drawn-1"]);
    for part in ["architecture", "images", "right", "progress", "ended", "loss by step"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(place.refused(&["generate", "runs/drawn-1", "--prompt", "a"]).contains("gradus classify"));

    // The same weights within less memory, and the least that works where there is too little.
    let refusal = place.refused(&["train-images", "--size", "32", "--batch", "8", "--memory", "5MB"]);
    assert!(refusal.contains("at least, so give --memory"), "{refusal}");
    let within = run("--memory 100MB --json");
    assert!(within.status.success(), "{}", String::from_utf8_lossy(&within.stderr));
    let weights = |run: &str| std::fs::read(place.0.join(run).join("model/model.safetensors")).unwrap();
    assert!(weights("runs/drawn-1") == weights("runs/drawn-2"));
    let said = place.printed(&["inspect", "runs/drawn-1", "runs/drawn-2"]);
    assert!(said.contains("images/s") && said.contains("memory") && !said.contains("seed"), "{said}");
    for (options, part) in [
        (&["train-images", "--skip-broken"][..], "--skip-broken has no effect"),
        (&["train-images", "--resume", "runs/drawn-1", "--seed", "2"], "--seed cannot change"),
        (&["train-images", "--resume", "runs/drawn-9"], "not the folder of a run"),
        (&["train-images", "--size", "0"], "give a side"),
        (&["train-images", "none"], "cannot read none"),
        (&["train-images", "--out", "runs/drawn-1"], "holds other files"),
        (&["train", "--resume", "runs/drawn-1"], "is not an option"),
    ] {
        let said = place.refused(options);
        assert!(said.contains(part), "{options:?}: {said}");
    }
}

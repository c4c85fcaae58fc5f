//! `gradus plan` of the real binary: what it predicts fits together, and the page holds all of it.

mod support;

use serde_json::Value;
use support::Place;

/// The command line that plans a small GPT-2, with the given options besides.
fn plan(options: &str) -> Vec<&str> {
    let sizes = "plan --width 256 --layers 3 --heads 4 --sequence 64 --vocab-size 300 --batch 8 --threads 2";
    sizes.split(' ').chain(options.split_whitespace()).collect()
}

fn json(place: &Place, options: &str) -> Value {
    let arguments = [&plan(options)[..], &["--json"]].concat();
    serde_json::from_str(&place.printed(&arguments)).unwrap()
}

/// The numbers within a page.
fn numbers(page: &str) -> Value {
    let start = page.find("id=\"numbers\">").unwrap() + "id=\"numbers\">".len();
    let end = start + page[start..].find("</script>").unwrap();
    serde_json::from_str(&page[start..end]).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no count"))
}

#[test]
fn kinds_sum_to_the_peak_and_the_curve_falls() {
    let place = Place::new("kinds");
    for options in [
        "",
        "--precision bf16",
        "--precision f16",
        "--optimizer adafactor --micro-batch 8",
        "--memory 70MB",
        "--model llama",
    ] {
        let report = json(&place, options);
        let kinds = report["peak_by_kind"].as_object().unwrap();
        let names: Vec<&str> = kinds.keys().map(|name| &name[..]).collect();
        assert_eq!(names, ["activations", "data", "gradients", "optimiser", "runtime", "scratch", "weights"]);
        assert_eq!(kinds.values().map(number).sum::<u64>(), number(&report["peak_bytes"]), "{options}");
        let curve = report["curve"].as_array().unwrap();
        assert!(curve.len() > 2, "{options}");
        assert_eq!(curve[0]["memory_bytes"], report["smallest_budget_bytes"]);
        for pair in curve.windows(2) {
            assert!(number(&pair[0]["memory_bytes"]) < number(&pair[1]["memory_bytes"]), "{options}: {pair:?}");
            let seconds = |point: &Value| point["seconds_per_step"].as_f64().unwrap();
            assert!(seconds(&pair[0]) > seconds(&pair[1]), "{options}: {pair:?}");
        }
    }
}

#[test]
fn the_object_has_its_keys() {
    let report = json(&Place::new("keys"), "--out here.html");
    let keys: Vec<&str> = report.as_object().unwrap().keys().map(|key| &key[..]).collect();
    let expected = "batch budget_bytes curve family micro_batch page parameters peak_by_kind peak_bytes precision \
                    recomputed seconds_per_step sequence smallest_budget_bytes threads tokens_per_second";
    assert_eq!(keys, expected.split_whitespace().collect::<Vec<_>>());
    assert_eq!((report["page"].as_str(), report["budget_bytes"].is_null()), (Some("here.html"), true));
    assert_eq!((number(&report["batch"]), number(&report["threads"])), (8, 2));
}

#[test]
fn a_budget_too_small_names_the_smallest_and_that_one_is_kept() {
    let place = Place::new("small");
    let error = place.refused(&plan("--memory 3MB"));
    assert!(!place.0.join("plan.html").exists());
    assert!(error.contains("--optimizer") || error.contains("--layers"), "what would bring it down: {error}");
    let smallest = error.split("needs ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    let report = json(&place, &format!("--memory {smallest}"));
    assert!(number(&report["peak_bytes"]) <= number(&report["budget_bytes"]), "{report}");
    let recomputed = report["recomputed"].as_array().unwrap();
    assert!(!recomputed.is_empty(), "the smallest plan computes some of it again");
    for row in recomputed {
        assert!(number(&row["count"]) > 0 && row["seconds"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["operation"].is_string() && (row["layer"].is_null() || number(&row["layer"]) < 3), "{row}");
    }
    let text = place.printed(&plan(&format!("--memory {smallest}")));
    assert!(text.contains("computed again, to keep") && text.contains(" stated"), "{text}");
}

/// The row that is marked is the plan that is told of.
#[test]
fn what_is_marked_is_what_is_planned() {
    let place = Place::new("marked");
    for options in ["", "--memory 70MB", "--micro-batch 2 --precision bf16"] {
        let text = place.printed(&plan(options));
        let after = |start: &str| text.lines().find_map(|line| line.strip_prefix(start)).unwrap().to_string();
        let (memory, step) = (after("predicted peak memory: "), after("predicted step: "));
        let memory: Vec<&str> = memory.split(' ').take(2).collect();
        let marked: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("* ")).collect();
        assert_eq!(marked.len(), 1, "{text}");
        let row: Vec<&str> = marked[0].split_whitespace().collect();
        let told: Vec<&str> = step.split([' ', ',']).filter(|part| !part.is_empty()).collect();
        assert_eq!((&row[..2], &row[2..4]), (&memory[..], &told[..2]), "{text}");
    }
}

#[test]
fn the_page_needs_nothing_else_and_holds_every_buffer() {
    let place = Place::new("page");
    let report = json(&place, "--micro-batch 8");
    let text = std::fs::read_to_string(place.0.join("plan.html")).unwrap();
    for outside in ["http:", "https:", "src=", "<link", "import ", "/*NUMBERS*/", "/*SCRIPT*/", "/*STYLE*/"] {
        assert!(!text.contains(outside), "{outside}");
    }
    let numbers = numbers(&text);
    assert_eq!(numbers["report"]["peak_bytes"], report["peak_bytes"]);
    let map = &numbers["map"];
    let (start, span) = (number(&map["start"]), number(&map["span"]));
    let weights = map["persistent"].as_array().unwrap().iter().filter(|buffer| buffer[1] == "weights");
    assert_eq!(weights.map(|buffer| number(&buffer[3])).sum::<u64>(), 4 * number(&report["parameters"]));
    let routines = map["routines"].as_array().unwrap();
    let names: Vec<&str> = routines.iter().map(|routine| routine["name"].as_str().unwrap()).collect();
    assert_eq!(names[..4], ["evaluate", "step", "measured", "diagnose"]);
    let mut highest = 0;
    for routine in routines {
        let steps = routine["steps"].as_array().unwrap();
        let mut writes = vec![false; steps.len()];
        for buffer in routine["buffers"].as_array().unwrap() {
            let [offset, bytes, first, last] = [0, 1, 2, 3].map(|index| number(&buffer[index]));
            assert!(first <= last && (last as usize) < steps.len(), "{buffer}");
            writes[first as usize] = true;
            highest = highest.max(offset + bytes);
        }
        assert!(writes.iter().all(|writes| *writes), "every step writes something");
    }
    // The last buffer ends where the transients do, but for what rounds it up.
    assert!(highest <= start + span && highest + 64 >= start + span, "{highest} of {}", start + span);
}

#[test]
fn a_file_of_options_and_options_of_no_use_are_taken() {
    let place = Place::new("file");
    std::fs::write(place.0.join("run.toml"), "out = 'runs/x'\noptimizer = 'sgd'\nsteps = 10\nlayers = 5\n").unwrap();
    let report = json(&place, "--config run.toml --learning-rate 0.1 --eval-every 5");
    assert_eq!(report["page"], "plan.html", "the folder of a run is no page");
    let kinds = &report["peak_by_kind"];
    assert!(number(&kinds["optimiser"]) < number(&kinds["weights"]) + 4096, "one moment: {kinds}");
    assert!(!place.0.join("runs").exists());
    for (options, part) in [
        ("--tokenizer char --vocab-size 0", "--vocab-size"),
        ("--resume runs/x", "--config"),
        ("--memory much", "150MB"),
    ] {
        let error = place.refused(&plan(options));
        assert!(error.contains(part), "{options}: {error}");
    }
}

#[test]
fn a_gpu_that_is_not_here_is_planned_for() {
    let place = Place::new("gpu");
    let report = json(&place, "--gpu h200 --precision bf16");
    assert_eq!(
        report["peak_by_kind"].as_object().unwrap().values().map(number).sum::<u64>(),
        number(&report["peak_bytes"])
    );
    assert!(number(&report["peak_by_kind"]["runtime"]) > 500 << 20, "the device's context and libraries are counted");
    let seconds = |report: &Value| report["seconds_per_step"].as_f64().unwrap();
    assert!(seconds(&report) < seconds(&json(&place, "--precision bf16")) / 10.0, "a GPU is not this machine");
    assert_eq!(json(&place, "--gpu H200 --device cuda:3 --precision bf16"), report);
    let within = json(&place, "--gpu h200 --precision bf16 --memory 1GB");
    assert!(number(&within["peak_bytes"]) <= 1_000_000_000);
    let text = place.printed(&plan("--gpu h200"));
    assert!(text.lines().next().unwrap().ends_with("tokens a step, on cuda"), "{text}");
    for (options, part) in [
        ("--gpu h300", "give one of: h200"),
        ("--gpu h200 --device cpu", "--gpu has no effect: --device cpu"),
        ("--gpu h200 --memory 700MB", "700"),
    ] {
        let refusal = place.refused(&plan(options));
        assert!(refusal.contains(part), "{options}: {refusal}");
    }
}

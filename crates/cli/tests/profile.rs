//! `gradus profile` of the real binary: its figures add up, its trace is one that viewers open, and nothing of the run stays.

mod support;

use serde_json::Value;
use std::collections::HashMap;
use support::Place;

/// The command line that profiles a small GPT-2 on the built-in stories, with the given options besides.
fn profile(options: &str) -> Vec<&str> {
    let sizes =
        "profile --width 64 --layers 2 --heads 2 --sequence 64 --tokenizer byte --batch 8 --threads 2 --steps 6";
    sizes.split(' ').chain(options.split_whitespace()).collect()
}

fn read(place: &Place, file: &str) -> String {
    std::fs::read_to_string(place.0.join(file)).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn sum(list: &Value, key: &str) -> f64 {
    list.as_array().unwrap().iter().map(|item| number(&item[key])).sum()
}

#[test]
fn parts_add_up_to_the_step_and_kinds_to_the_peak() {
    let place = Place::new("profile-sums");
    for options in ["--micro-batch 8", "--micro-batch 2 --precision bf16"] {
        let report: Value = serde_json::from_str(&place.printed(&profile(&format!("{options} --json")))).unwrap();
        let step = number(&report["step_ms"]);
        let parts = sum(&report["parts"], "ms");
        assert!((parts / step - 1.0).abs() < 1e-6, "{parts} of {step}");
        let passes: f64 = report["parts"].as_array().unwrap()[..3].iter().map(|part| number(&part["ms"])).sum();
        for list in ["operations", "layers"] {
            assert!((sum(&report[list], "ms") / passes - 1.0).abs() < 1e-6, "{list} of {passes}");
        }
        let kinds = report["memory_bytes"].as_object().unwrap();
        let (all, peak) = (kinds.values().map(number).sum::<f64>(), number(&report["peak_memory_bytes"]));
        assert!((all / peak - 1.0).abs() < 0.02, "{all} of {peak}: {kinds:?}");
        assert!(number(&kinds["unexplained"]) < 0.05 * peak, "{kinds:?}");
        assert!(number(&kinds["weights"]) > 0.0 && number(&kinds["activations"]) > 0.0);
        assert_eq!(report["workers"].as_array().unwrap().len(), 2);
        assert_eq!(number(&report["allocations"]["calls"]), 0.0, "{}", report["allocations"]);
        assert!(report["leaks"].as_array().unwrap().is_empty(), "{}", report["leaks"]);
        assert!(number(&report["trainings"]) > 0.0 && number(&report["data"]["fill_ms"]) > 0.0);
        let operation = &report["operations"][0];
        assert!(["arithmetic", "memory"].contains(&operation["bound"].as_str().unwrap()), "{operation}");
        assert!(number(&operation["share_of_limit"]) > 0.0 && number(&operation["predicted_ms"]) > 0.0);
    }
    assert!(!place.0.join("runs").exists(), "nothing of the run stays");
}

/// Events of the trace format (phases `X` and `M`) with all that viewers need, in the order of their beginnings, each within the
/// one that it begins in.
#[test]
fn the_trace_is_one_that_viewers_open() {
    let place = Place::new("profile-trace");
    let told = place.gradus(&profile("--trace step.json --out page.html"));
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let told = String::from_utf8(told.stdout).unwrap();
    for part in [
        "forward",
        "bound by",
        "layer 1",
        "workers are idle for",
        "allocations in 12 steps: 0",
        "twice as fast",
        "page.html",
    ] {
        assert!(told.contains(part), "{part} in:\n{told}");
    }
    let trace: Value = serde_json::from_str(&read(&place, "step.json")).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let (named, spans): (Vec<&Value>, Vec<&Value>) = events.iter().partition(|event| event["ph"] == "M");
    let threads: Vec<&str> = named
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(threads[..2], ["training", "worker 1"]);
    let (mut last, mut open): (f64, HashMap<u64, Vec<f64>>) = (0.0, HashMap::new());
    for span in &spans {
        assert!(
            span["ph"] == "X" && span["name"].is_string() && span["cat"].is_string() && span["pid"].is_u64(),
            "{span}"
        );
        let (begin, length, thread) = (number(&span["ts"]), number(&span["dur"]), span["tid"].as_u64().unwrap());
        assert!(begin >= last && length >= 0.0 && thread < threads.len() as u64, "{span} after {last}");
        last = begin;
        let around = open.entry(thread).or_default();
        // Ends are sums of the same thousandths of microseconds.
        around.retain(|end| *end > begin + 1e-4);
        assert!(around.last().is_none_or(|end| begin + length <= end + 1e-4), "{span} ends after {around:?}");
        around.push(begin + length);
    }
    assert!(spans.iter().any(|span| span["cat"] == "backward" && span["args"]["layer"] == 1 && span["tid"] == 0));
    // Where others use the machine, one worker may have done all there was before the other had a turn.
    let tells_of_the_second = |trace: &Value| {
        let events = trace["traceEvents"].as_array().unwrap();
        events.iter().any(|event| event["ph"] == "X" && event["tid"] == 1)
    };
    let again = |_| {
        place.gradus(&profile("--trace again.json --out again.html"));
        tells_of_the_second(&serde_json::from_str(&read(&place, "again.json")).unwrap())
    };
    assert!(tells_of_the_second(&trace) || (0..10).any(again), "what the second worker did");
    assert_eq!(spans.iter().filter(|span| span["cat"] == "step").count(), 1);
    let page = read(&place, "page.html");
    assert!(
        page.contains("id=\"numbers\">{\"report\":{") && page.contains("\"map\":{") && !page.contains("/*SCRIPT*/")
    );
    assert!(!page.contains("http://") && !page.contains("https://"), "the page needs nothing from elsewhere");
}

#[test]
fn speeds_that_were_measured_are_used_where_they_are_given() {
    let place = Place::new("profile-speeds");
    place.gradus(&profile("--save-speeds speeds.json"));
    let speeds: Value = serde_json::from_str(&read(&place, "speeds.json")).unwrap();
    assert!(number(&speeds["speeds"]["others"]) > 0.0 && speeds["speeds"].as_object().unwrap().len() > 5, "{speeds}");
    let planned = |options: &str| {
        let sizes = "plan --width 64 --layers 2 --heads 2 --sequence 64 --tokenizer byte --batch 8 --threads 2 --json";
        let arguments: Vec<&str> = sizes.split(' ').chain(options.split_whitespace()).collect();
        let report: Value = serde_json::from_str(&place.printed(&arguments)).unwrap();
        number(&report["seconds_per_step"])
    };
    assert_eq!(planned(""), planned(""));
    assert_ne!(planned("--speeds speeds.json"), planned(""));
    let ratio = planned("--speeds others=3") / planned("");
    assert!((ratio - 3.0).abs() < 1e-6, "{ratio}");
    for wrong in ["--speeds missing.json", "--speeds profile.html", "--speeds matmul=fast"] {
        let arguments: Vec<&str> = ["plan"].into_iter().chain(wrong.split(' ')).collect();
        assert!(place.refused(&arguments).contains("--speeds"), "{wrong}");
    }
}

#[test]
fn what_cannot_be_profiled_is_refused() {
    let place = Place::new("profile-refused");
    for (options, part) in [
        ("--resume runs/x", "--config DIR/config.toml"),
        ("--dashboard", "--dashboard has no effect"),
        ("--memory 2MB", "--memory 2.0 MB is not enough"),
        ("--trace nowhere/here/trace.json", "nowhere/here"),
    ] {
        let error = place.refused(&profile(options));
        assert!(error.contains(part), "{options}: {error}");
        assert!(!place.0.join("profile.html").exists() && !place.0.join("runs").exists());
    }
    assert!(place.refused(&["profile", "--steps", "0"]).contains("`--steps` 0"));
}

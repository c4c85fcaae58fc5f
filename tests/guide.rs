//! The guide's first page shows the programs in `examples`, and counts their lines and those of the peers as it says.

use std::fs;
use std::path::Path;

/// What draws the data, and the `main` that calls and checks.
const LEFT_OUT: [&str; 5] = ["points", "images", "image", "random", "main"];

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The items of a formatted file that are at its top level: imports, functions, types, with the comments before them.
fn items(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    for line in text.lines() {
        let item = items.last_mut().unwrap();
        item.push_str(line);
        item.push('\n');
        if line == "}" || (line.ends_with(';') && !line.starts_with(' ')) {
            items.push(String::new());
        }
    }
    items
}

fn counts(line: &&str) -> bool {
    !line.trim().is_empty() && !line.trim().starts_with("//")
}

/// The items whose lines count: neither imports, nor what draws the data, nor `main`.
fn counted(text: &str) -> Vec<String> {
    let is_counted = |item: &String| {
        let first = item.lines().find(counts).unwrap_or("use");
        let is_left_out = LEFT_OUT.iter().any(|name| first.starts_with(&format!("fn {name}(")));
        !first.starts_with("use") && !is_left_out
    };
    items(text).into_iter().filter(is_counted).collect()
}

fn lines(path: &str) -> usize {
    counted(&read(path)).iter().map(|item| item.lines().filter(counts).count()).sum()
}

#[test]
fn the_guide_counts_lines_as_it_says() {
    let guide = read("docs/guide.md");
    for (name, peer, most) in [("classifier", "spiral", 25), ("convnet", "convnet", 40)] {
        let ours = lines(&format!("examples/{name}.rs"));
        assert!(ours <= most, "{name} has {ours} lines");
        let [candle, burn] = ["candle", "burn"].map(|which| lines(&format!("bench/peers/{which}/examples/{peer}.rs")));
        let row = format!("| `{peer}`: lines | {ours} | {burn} | {candle} |");
        assert!(guide.contains(&row), "the guide should have: {row}");
    }
}

#[test]
fn the_guide_shows_the_examples() {
    let guide = read("docs/guide.md");
    let shown = |item: &String| guide.contains(item.trim());
    assert!(counted(&read("examples/classifier.rs")).iter().all(shown), "each function of the classifier");
    let network = |item: &String| item.contains("fn network(") && shown(item);
    assert!(counted(&read("examples/convnet.rs")).iter().any(network), "the network");
}

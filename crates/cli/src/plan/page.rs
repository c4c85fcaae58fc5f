//! The page: one file that needs nothing else, with the plan's numbers in it. What it is made of serves other pages too.

use super::map::Map;
use super::report::Report;
use gradus_train::planning::Chosen;
use serde::Serialize;

const FRAME: &str = include_str!("page/page.html");
const SCRIPT: &str = include_str!("page/page.js");
/// The style of every page.
const STYLE: &str = include_str!("page/page.css");
/// What scripts of every page use.
const SHARED: &str = include_str!("page/shared.js");
/// The memory map: its section, and what draws it.
const MAP: &str = include_str!("page/map.html");
const MAP_SCRIPT: &str = include_str!("page/map.js");

#[derive(Serialize)]
struct Numbers<'a> {
    report: &'a Report,
    map: Map,
}

/// The page of a planned run.
pub fn html(report: &Report, chosen: &Chosen) -> String {
    with_map(FRAME, "", SCRIPT, &Numbers { report, map: Map::of(chosen) })
}

/// A page with the memory map in it, which its script may rely on; its numbers have the [`Map`] as `map`.
pub fn with_map(frame: &str, style: &str, script: &str, numbers: &impl Serialize) -> String {
    let numbers = serde_json::to_string(numbers).expect("a page holds plain data");
    // Nothing in a text may end the element that holds the numbers.
    let numbers = numbers.replace('<', "\\u003c");
    let frame = frame.replace("<!--MAP-->\n", MAP).replace("/*STYLE*/", &format!("{STYLE}{style}"));
    frame.replace("/*SCRIPT*/", &format!("{SHARED}{MAP_SCRIPT}{script}")).replace("/*NUMBERS*/", &numbers)
}

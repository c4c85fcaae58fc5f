//! The page: one file that needs nothing else, with the plan's numbers in it.

use super::map::Map;
use super::report::Report;
use gradus_train::planning::Chosen;
use serde::Serialize;

const FRAME: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

#[derive(Serialize)]
struct Numbers<'a> {
    report: &'a Report,
    map: Map,
}

/// The page of a planned run.
pub fn html(report: &Report, chosen: &Chosen) -> String {
    let numbers = Numbers { report, map: Map::of(chosen) };
    let numbers = serde_json::to_string(&numbers).expect("a page holds plain data");
    // Nothing in a text may end the element that holds the numbers.
    let numbers = numbers.replace('<', "\\u003c");
    FRAME.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).replace("/*NUMBERS*/", &numbers)
}

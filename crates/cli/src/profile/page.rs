//! The page of a profile: one file that needs nothing else, with the memory map of the plan in it.

use super::report::Report;
use crate::plan::{Map, with_map};
use gradus_train::training::Profiled;
use serde::Serialize;

const FRAME: &str = include_str!("page/profile.html");
const STYLE: &str = include_str!("page/profile.css");
const SCRIPT: &str = include_str!("page/profile.js");

#[derive(Serialize)]
struct Numbers<'a> {
    report: &'a Report,
    map: Map,
}

/// The page.
pub fn html(report: &Report, profiled: &Profiled) -> String {
    let map = Map::of(&profiled.chosen).measured(&profiled.profile.resident);
    with_map(FRAME, STYLE, SCRIPT, &Numbers { report, map })
}

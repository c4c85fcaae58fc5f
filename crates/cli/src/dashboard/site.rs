//! What is served: the page, and the known files of the runs that were named. Nothing in a request names a file.

use super::files;
use super::log::Log;
use super::prometheus::{self, Last};
use super::request::{Refusal, Request};
use super::response::{Body, Response};
use super::seats::Seats;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Answers that are held whole at a time: some tens of kilobytes each.
const HELD_MAX: usize = 4;
/// What a reader does who finds none free.
const BUSY: Refusal = (503, "others are being answered; ask again");
const NOT_FOUND: Refusal = (404, "nothing is served by this name");

/// The files of the page: name, type and text.
const PAGE: [(&str, &str, &str); 8] = [
    ("", "text/html", include_str!("page/page.html")),
    ("page.css", "text/css", include_str!("page/page.css")),
    ("page.js", "text/javascript", include_str!("page/page.js")),
    ("charts.js", "text/javascript", include_str!("page/charts.js")),
    ("data.js", "text/javascript", include_str!("page/data.js")),
    ("heat.js", "text/javascript", include_str!("page/heat.js")),
    ("format.js", "text/javascript", include_str!("page/format.js")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];

/// The runs that are served.
pub struct Site {
    runs: Vec<Run>,
    /// Whether they are trained by this process, so that they go on for as long as it answers.
    is_live: bool,
    /// The address that it is served at.
    served: IpAddr,
    /// One answer is made at a time, so that making them takes the memory of one.
    making: Mutex<()>,
    held: Seats,
}

/// A run.
struct Run {
    name: String,
    folder: PathBuf,
    log: Mutex<Log>,
}

impl Run {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Site {
    /// Of these folders.
    pub fn new(folders: &[PathBuf], is_live: bool, served: IpAddr) -> Site {
        let run = |folder: &PathBuf| Run {
            name: name(folder, folders),
            folder: folder.clone(),
            log: Mutex::new(Log::new(folder)),
        };
        let runs = folders.iter().map(run).collect();
        Site { runs, is_live, served, making: Mutex::new(()), held: Seats::new(HELD_MAX) }
    }

    /// The answer to a request.
    pub fn answer(&self, request: &Request<'_>) -> Response {
        let _one = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match request.is_addressed_to(self.served) {
            true => self.route(request),
            false => Err((403, "addressed to another name than this server's: use localhost or its address")),
        };
        answer.unwrap_or_else(|(status, problem)| Response::refusal(status, problem))
    }

    fn route(&self, request: &Request<'_>) -> Result<Response, Refusal> {
        let parts: Vec<&str> = request.path.split('/').skip(1).collect();
        if let Some((_, kind, text)) = PAGE.iter().find(|(name, ..)| parts == [*name]) {
            return Ok(Response::new(kind, Body::Fixed(text)));
        }
        match parts[..] {
            ["runs"] => Ok(Response::json(&self.state())),
            ["metrics"] => Ok(Response::new(prometheus::KIND, Body::Text(self.prometheus()))),
            ["runs", number, file] => {
                let number: usize = number.parse().map_err(|_| NOT_FOUND)?;
                self.file(self.runs.get(number).ok_or(NOT_FOUND)?, file, request)
            }
            _ => Err(NOT_FOUND),
        }
    }

    fn file(&self, run: &Run, name: &str, request: &Request<'_>) -> Result<Response, Refusal> {
        match name {
            "history" => self.history(run),
            "metrics" => lines(run, request.number("from")?.unwrap_or(0)),
            "config" => {
                let seat = self.held.take().ok_or(BUSY)?;
                let config = files::config(&run.folder);
                let text = config.map_err(|error| format!("config.toml: {error}"));
                let answer = text.map(|text| Response::new("text/plain", Body::Text(text)));
                Ok(answer.unwrap_or_else(|problem| Response::refusal(404, &problem)).seated(seat))
            }
            "samples" => {
                let seat = self.held.take().ok_or(BUSY)?;
                Ok(Response::json(&files::samples(&run.folder, request.number("after")?)).seated(seat))
            }
            _ => Err(NOT_FOUND),
        }
    }

    /// Some lines of the whole run, and first what they are of. Lines that come later are those after `bytes`.
    fn history(&self, run: &Run) -> Result<Response, Refusal> {
        let seat = self.held.take().ok_or(BUSY)?;
        let mut log = run.log();
        let file = match log.catch_up() {
            Ok(file) => file,
            Err(problem) => return Ok(Response::refusal(404, &problem)),
        };
        let lines = log.history.lines();
        let about = json!({
            "generation": log.generation, "bytes": log.bytes, "lines": log.lines, "kept": lines.len(),
            "seconds": log.seconds,
        });
        let body = Body::Lines(format!("{about}\n"), file, lines);
        Ok(Response::new("application/x-ndjson", body).seated(seat))
    }

    /// How each run stands.
    fn state(&self) -> Value {
        let runs: Vec<Value> = self.runs.iter().map(state).collect();
        json!({ "live": self.is_live, "runs": runs })
    }

    fn prometheus(&self) -> String {
        let last = |run: &'_ Run| {
            let mut log = run.log();
            // Without the file, what was read of it is the last that is known.
            let _ = log.catch_up();
            let age = log.age.map(|age| age.as_secs_f64());
            Some((log.last()?, log.measured(), log.alerts, log.validation_loss, log.sharpness, age))
        };
        let runs = self.runs.iter().filter_map(|run| {
            let (line, measured, alerts, validation_loss, sharpness, age) = last(run)?;
            Some(Last { run: &run.name, line, measured, alerts, validation_loss, sharpness, age })
        });
        prometheus::text(&runs.collect::<Vec<_>>())
    }
}

fn state(run: &Run) -> Value {
    let mut log = run.log();
    let problem = log.catch_up().err().or_else(|| log.problem.clone());
    json!({
        "name": run.name, "folder": run.folder.display().to_string(), "generation": log.generation, "bytes": log.bytes,
        "lines": log.lines, "age": log.age.map(|age| age.as_secs_f64()), "problem": problem,
    })
}

/// The lines of a run from a byte on.
fn lines(run: &Run, from: u64) -> Result<Response, Refusal> {
    const OTHER: Refusal = (409, "no line begins at this byte: the file is another than before");
    let mut log = run.log();
    let mut file = match log.catch_up() {
        Ok(file) => file,
        Err(problem) => return Ok(Response::refusal(404, &problem)),
    };
    let length = log.range(&mut file, from).ok().flatten().ok_or(OTHER)?;
    Ok(Response::new("application/x-ndjson", Body::Range(file, from, length)))
}

/// A folder's own name, or all of its path where another has the same.
fn name(folder: &Path, all: &[PathBuf]) -> String {
    let own = |folder: &Path| folder.file_name().map(|name| name.to_string_lossy().into_owned());
    let path = folder.display().to_string();
    let others = all.iter().filter(|other| own(other) == own(folder)).count();
    own(folder).filter(|_| others < 2).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_told_apart() {
        let folders = ["runs/a", "runs/b", "more/b", "/"].map(PathBuf::from);
        let names: Vec<String> = folders.iter().map(|folder| name(folder, &folders)).collect();
        assert_eq!(names, ["a", "runs/b", "more/b", "/"]);
    }
}

//! The server by its socket: who is answered, with what, and what those cannot do who mean ill or never end.

use super::server::CONNECTIONS_MAX;
use super::testing::Folder;
use super::*;
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// A run folder with so many lines, and a server of it.
struct Served {
    folder: Folder,
    live: Live,
    address: SocketAddr,
}

fn line(step: u64) -> String {
    format!("{{\"step\":{step},\"tokens\":{},\"loss\":{}.5,\"step_ms\":10.0}}\n", 100 * step, step % 9)
}

fn served(name: &str, steps: u64) -> Served {
    let folder = Folder::new(name);
    fs::write(folder.path().join("config.toml"), "steps = 9\n").unwrap();
    fs::write(folder.path().join("metrics.jsonl"), (1..=steps).map(line).collect::<String>()).unwrap();
    let place = Reserved::at(Some("0".parse().unwrap())).unwrap();
    let (live, told) = Live::start(place, folder.path()).unwrap();
    let address = told.trim_start_matches("dashboard: http://").trim_end_matches('/').parse().unwrap();
    Served { folder, live, address }
}

/// The status of an answer, its head and its body.
type Answer = (u16, String, Vec<u8>);

fn read_answer(stream: &mut TcpStream) -> std::io::Result<Answer> {
    let (mut head, mut byte) = (vec![], [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length = head.split("Content-Length: ").nth(1).unwrap().split("\r\n").next().unwrap().parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok((status, head, body))
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends these bytes on a connection of their own.
    fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // A server that has seen enough reads no further.
        let _ = stream.write_all(bytes);
        read_answer(&mut stream).unwrap()
    }

    fn get(&self, target: &str) -> Answer {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address).as_bytes())
    }

    fn json(&self, target: &str) -> Value {
        let (status, _, body) = self.get(target);
        assert_eq!(status, 200, "{target}");
        serde_json::from_slice(&body).unwrap()
    }

    fn append(&self, text: &str) {
        let path = self.folder.path().join("metrics.jsonl");
        OpenOptions::new().append(true).open(path).unwrap().write_all(text.as_bytes()).unwrap();
    }
}

#[test]
fn every_answer_has_its_precautions() {
    let served = served("precautions", 3);
    for (target, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/charts.js", "text/javascript"),
        ("/heat.js", "text/javascript"),
        ("/data.js", "text/javascript"),
        ("/format.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
        ("/runs", "application/json"),
        ("/runs/0/config", "text/plain"),
        ("/runs/0/history", "application/x-ndjson"),
        ("/runs/0/metrics", "application/x-ndjson"),
        ("/runs/0/samples", "application/json"),
        ("/metrics", "text/plain; version=0.0.4"),
    ] {
        let (status, head, body) = served.get(target);
        assert_eq!(status, 200, "{target}");
        assert!(head.contains(&format!("Content-Type: {kind}; charset=utf-8\r\n")) && !body.is_empty(), "{head}");
        for part in ["no-store", "nosniff", "default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(head.contains(part), "{target} without {part}: {head}");
        }
        assert!(!head.to_lowercase().contains("access-control"), "{head}");
    }
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let served = served("page", 1);
    for target in ["/", "/page.css", "/page.js", "/charts.js", "/heat.js", "/data.js", "/format.js"] {
        let text = String::from_utf8(served.get(target).2).unwrap();
        // The name of SVG's elements is an address that nobody asks.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "//cdn", "eval(", "innerHTML", " style=\"", "onclick"] {
            assert!(!text.contains(outside), "{target}: {outside}");
        }
    }
}

#[test]
fn other_hosts_and_methods_and_garbage_are_refused() {
    let served = served("refused", 1);
    let with_host = |host: &str| served.send(format!("GET /runs HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).0;
    assert_eq!(with_host("localhost:6007"), 200);
    assert_eq!(with_host("[::1]"), 200);
    for host in ["evil.example", "evil.example:6007", "localhost.evil.example", "192.168.0.1"] {
        assert_eq!(with_host(host), 403, "{host}");
    }
    let (status, head, _) = served.send(b"POST /runs HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(status == 405 && head.contains("Allow: GET, HEAD"), "{head}");
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc",
        b"\r\n\r\n",
    ] {
        assert_eq!(served.send(garbage).0, 400, "{garbage:?}");
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(20_000));
    assert_eq!(served.send(long.as_bytes()).0, 431);
    assert_eq!(served.get("/runs").0, 200, "it goes on");
}

#[test]
fn nothing_but_known_files_is_served() {
    let served = served("paths", 1);
    fs::write(served.folder.path().join("secret"), "secret").unwrap();
    for target in [
        "/runs/0/secret",
        "/runs/0/config.toml",
        "/runs/0/../config.toml",
        "/runs/0/%2e%2e/secret",
        "/runs/0//etc/passwd",
        "/runs/0/samples/step-00000001.txt",
        "/runs/1/config",
        "/runs/-1/config",
        "/runs/99999999999999999999/config",
        "/../Cargo.toml",
        "/page.html/",
        "//",
    ] {
        let (status, _, body) = served.get(target);
        assert_eq!(status, 404, "{target}");
        assert!(serde_json::from_slice::<Value>(&body).unwrap()["error"].is_string(), "{target}");
    }
    fs::remove_file(served.folder.path().join("config.toml")).unwrap();
    let (status, _, body) = served.get("/runs/0/config");
    assert!(status == 404 && String::from_utf8(body).unwrap().contains("config.toml: "));
    assert_eq!(served.get("/runs/0/metrics?from=x").0, 400);
}

/// Whoever can put links into a run's folder shows no more of the machine by them than the page had before.
#[cfg(unix)]
#[test]
fn links_lead_nowhere() {
    use std::os::unix::fs::symlink;
    let served = served("links-served", 3);
    let path = |name: &str| served.folder.path().join(name);
    fs::create_dir(path("elsewhere")).unwrap();
    fs::write(path("elsewhere/step-00000001.txt"), "secret").unwrap();
    fs::write(path("elsewhere/lines"), "{\"step\":1,\"secret\":7}\n").unwrap();
    for name in ["config.toml", "metrics.jsonl"] {
        fs::remove_file(path(name)).unwrap();
        symlink(path("elsewhere/lines"), path(name)).unwrap();
    }
    symlink(path("elsewhere"), path("samples")).unwrap();
    let all = ["/runs", "/metrics", "/runs/0/config", "/runs/0/history", "/runs/0/metrics", "/runs/0/samples"];
    for target in all {
        let (_, head, body) = served.get(target);
        let body = String::from_utf8(body).unwrap();
        assert!(!body.contains("secret"), "{target}: {head}{body}");
    }
    // A folder of samples whose files are links.
    fs::remove_file(path("samples")).unwrap();
    fs::create_dir(path("samples")).unwrap();
    symlink(path("elsewhere/step-00000001.txt"), path("samples/step-00000001.txt")).unwrap();
    assert_eq!(served.json("/runs/0/samples"), serde_json::json!([]));
    // And one that is its own folder again.
    fs::remove_file(path("samples/step-00000001.txt")).unwrap();
    fs::write(path("samples/step-00000002.txt"), "own").unwrap();
    assert_eq!(served.json("/runs/0/samples")[0]["text"], "own");
}

#[test]
fn every_method_that_could_change_something_is_refused() {
    let served = served("methods", 1);
    let text = || fs::read_to_string(served.folder.path().join("metrics.jsonl")).unwrap();
    let before = text();
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "PROPFIND"] {
        for target in ["/", "/runs", "/runs/0/config", "/runs/0/metrics", "/runs/0/stop"] {
            let request = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert_eq!(served.send(request.as_bytes()).0, 405, "{method} {target}");
        }
    }
    assert_eq!(text(), before);
}

#[test]
fn a_connection_stays_and_a_head_has_no_body() {
    let served = served("head", 5);
    let mut stream = served.connect();
    // Two at once, one after the other in parts.
    stream.write_all(b"HEAD /runs/0/metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /runs HTTP/1.1\r\nHo").unwrap();
    let (mut head, mut byte) = (vec![], [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let whole: String = (1..=5).map(line).collect();
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains(&format!("Content-Length: {}\r\n", whole.len())) && head.contains("keep-alive"), "{head}");
    stream.write_all(b"st: localhost\r\n\r\n").unwrap();
    let (status, _, body) = read_answer(&mut stream).unwrap();
    let state: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((status, &state["live"], &state["runs"][0]["lines"]), (200, &true.into(), &5.into()));
}

#[test]
fn lines_are_given_as_they_come_and_whole() {
    let served = served("grows", 3);
    let whole: String = (1..=3).map(line).collect();
    assert_eq!(served.get("/runs/0/metrics").2, whole.as_bytes());
    served.append("{\"step\":4,");
    let from = format!("/runs/0/metrics?from={}", whole.len());
    assert_eq!(served.get(&from).2, b"", "a line in part waits");
    served.append("\"loss\":1.25}\n");
    assert_eq!(served.get(&from).2, b"{\"step\":4,\"loss\":1.25}\n");
    assert_eq!(served.get("/runs/0/metrics?from=5").0, 409);
    // A run that goes on from an earlier step.
    let before = served.json("/runs")["runs"][0]["generation"].clone();
    fs::write(served.folder.path().join("metrics.jsonl"), line(1)).unwrap();
    assert_eq!(served.get(&from).0, 409);
    assert_ne!(served.json("/runs")["runs"][0]["generation"], before);
    let metrics = String::from_utf8(served.get("/metrics").2).unwrap();
    assert!(metrics.contains("gradus_loss{run=\"") && metrics.contains("\"} 1.5\n"), "{metrics}");
}

#[test]
fn a_history_has_lines_of_the_file_with_their_time() {
    let served = served("history", 4000);
    let body = String::from_utf8(served.get("/runs/0/history").2).unwrap();
    let (about, kept) = body.split_once('\n').unwrap();
    let about: Value = serde_json::from_str(about).unwrap();
    let text = fs::read_to_string(served.folder.path().join("metrics.jsonl")).unwrap();
    assert_eq!((about["lines"].as_u64(), about["bytes"].as_u64()), (Some(4000), Some(text.len() as u64)));
    assert_eq!(about["kept"].as_u64().unwrap(), kept.lines().count() as u64);
    assert!(kept.lines().count() < 2100, "{}", kept.lines().count());
    let all: std::collections::HashSet<&str> = text.lines().collect();
    for kept in kept.lines() {
        let mut parts = kept[1..kept.len() - 1].splitn(3, ',');
        let [seconds, _, line] = [(); 3].map(|()| parts.next().unwrap());
        let step = serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap();
        assert!(all.contains(line), "{line}");
        assert!((seconds.parse::<f64>().unwrap() - 0.01 * step as f64).abs() < 2e-3, "{kept}");
    }
    assert!(kept.lines().last().unwrap().contains("\"step\":4000,"));
}

/// Whoever connects and is silent, or asks and does not read, has a place for a few seconds and keeps nobody else from an
/// answer for longer.
#[test]
fn a_thousand_connections_and_stalled_readers_leave_it_answering() {
    let served = served("crowd", 20_000);
    let mut stalled: Vec<TcpStream> = (0..CONNECTIONS_MAX).map(|_| served.connect()).collect();
    for (number, stream) in stalled.iter_mut().enumerate() {
        let request: &[u8] = match number % 2 {
            0 => b"GET /runs/0/metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
            _ => b"GET / HT",
        };
        stream.write_all(request).unwrap();
    }
    let mut crowd: Vec<TcpStream> = (0..1000).map(|_| served.connect()).collect();
    let told = crowd.iter_mut().filter_map(|stream| read_answer(stream).ok()).map(|answer| answer.0);
    let told: Vec<u16> = told.collect();
    assert!(told.len() > 900 && told.iter().all(|status| *status == 503), "{} were told", told.len());
    drop(crowd);
    let start = Instant::now();
    while served.get("/runs").0 != 200 {
        assert!(start.elapsed() < Duration::from_secs(15), "places are free again");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(stalled);
    assert_eq!(served.get("/").0, 200);
    served.live.end();
}

#[test]
fn folders_that_are_no_runs_are_refused() {
    let folder = Folder::new("no-run");
    let refusal = |folder: &Path| check(folder).unwrap_err().to_string();
    assert!(refusal(folder.path()).contains("not the folder of a run (it has no config.toml)"));
    assert!(refusal(&folder.path().join("missing")).contains("no such folder"));
    fs::write(folder.path().join("config.toml"), "").unwrap();
    assert!(check(folder.path()).is_ok());
}

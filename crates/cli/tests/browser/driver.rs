//! Chromium, driven through its driver's plain HTTP.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something on a page may take to be so.
const PATIENCE: Duration = Duration::from_secs(20);

/// A browser with an empty profile, closed at the end of the test.
pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: PathBuf,
}

impl Browser {
    /// One, if it is installed.
    pub fn open() -> Option<Browser> {
        let mut command = Command::new("chromedriver");
        let mut driver = command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines().map_while(Result::ok);
        let started = lines.find_map(|line| line.split("successfully on port ").nth(1).map(str::to_string))?;
        let port = started.trim_end_matches('.').parse().unwrap();
        let profile = std::env::temp_dir().join(format!("gradus-browser-{}", std::process::id()));
        let mut browser = Browser { driver, port, session: String::new(), profile };
        let profile = format!("--user-data-dir={}", browser.profile.display());
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
                     --disable-component-update --disable-sync --disable-dev-shm-usage";
        let flags: Vec<&str> = flags.split_whitespace().chain([&profile[..]]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": {"args": flags}, "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        browser.session = browser.post("/session", &wanted)["sessionId"].as_str().expect("a session").into();
        Some(browser)
    }

    fn ask(&self, method: &str, target: &str, body: &str) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost:{}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}",
            self.port
        );
        stream.write_all(request.as_bytes()).unwrap();
        // The driver leaves the connection open, so that only its length says where an answer ends.
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "{target}: no answer");
            if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let value: Value = serde_json::from_slice(&body).unwrap();
        assert!(value["value"]["error"].is_null(), "{target} {value}");
        value["value"].clone()
    }

    fn post(&self, target: &str, body: &Value) -> Value {
        self.ask("POST", target, &body.to_string())
    }

    fn command(&self, name: &str, body: &Value) -> Value {
        self.post(&format!("/session/{}/{name}", self.session), body)
    }

    /// Opens a page.
    pub fn go(&self, url: &str) {
        self.command("url", &json!({ "url": url }));
    }

    /// What a script gives that runs in the page; a promise is waited for.
    pub fn run(&self, script: &str) -> Value {
        self.command("execute/sync", &json!({"script": script, "args": []}))
    }

    /// Waits until an expression is true.
    pub fn until(&self, expression: &str) {
        let start = Instant::now();
        while self.run(&format!("return Boolean({expression})")) != true {
            let page = || self.run("return document.body.innerText");
            assert!(start.elapsed() < PATIENCE, "never {expression}: {}", page());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses keys one after another, wherever the focus is.
    pub fn press(&self, keys: &[char]) {
        let strokes = keys.iter().flat_map(|key| [("keyDown", key), ("keyUp", key)]);
        let strokes: Vec<Value> = strokes.map(|(kind, key)| json!({"type": kind, "value": key})).collect();
        self.command("actions", &json!({"actions": [{"type": "key", "id": "keys", "actions": strokes}]}));
    }

    /// The page as on a screen of this width, light or dark.
    pub fn look(&self, width: u64, scheme: &str) {
        let metrics = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false});
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        for (name, parameters) in [("setDeviceMetricsOverride", metrics), ("setEmulatedMedia", media)] {
            self.command("goog/cdp/execute", &json!({"cmd": format!("Emulation.{name}"), "params": parameters}));
        }
    }

    /// What the page complained of since the last time.
    pub fn complaints(&self) -> Vec<String> {
        let log = self.command("se/log", &json!({"type": "browser"}));
        log.as_array().unwrap().iter().map(|entry| entry["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.ask("DELETE", &format!("/session/{}", self.session), "");
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

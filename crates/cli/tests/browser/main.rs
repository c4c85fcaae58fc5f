//! The live page in a real browser, where Chromium and its driver are installed: else this is said, and nothing is tested.
//! `GRADUS_BROWSER=required` makes it an error.

mod driver;
// Only its folder is of use here.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

use driver::Browser;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::Place;

/// Keys as the driver names them.
const TAB: char = '\u{e004}';
const LEFT: char = '\u{e012}';
const END: char = '\u{e010}';
const DOWN: char = '\u{e015}';
const HOME: char = '\u{e011}';
const SPACE: char = ' ';

/// A command that serves, ended with the test.
struct Serving {
    command: Child,
    url: String,
}

impl Serving {
    /// Starts it and reads where the page is from what it prints.
    fn start(place: &Place, arguments: &str) -> Serving {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gradus"));
        command.current_dir(&place.0).args(arguments.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut command = command.spawn().unwrap();
        let mut lines = BufReader::new(command.stdout.take().unwrap()).lines().map_while(Result::ok);
        let told = lines.find_map(|line| line.split("dashboard: ").nth(1).map(str::to_string)).expect("an address");
        let url = told.split('/').take(3).collect::<Vec<_>>().join("/") + "/";
        // What else it prints is read, so that it never waits to be.
        std::thread::spawn(move || lines.for_each(drop));
        Serving { command, url }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
    }
}

/// A line of figures, as a run writes them; those of every fifth step have gradients, and one has an alert.
fn line(step: u64, seed: u64) -> String {
    let loss = 6.0 / (step as f64 + seed as f64).sqrt() + 0.0123456789;
    let mut line = json!({
        "step": step, "tokens": 512 * step, "loss": loss, "gradient_norm": 1.0 / step as f64, "learning_rate": 3e-5,
        "tokens_per_second": 12_345.678_9, "step_ms": 41.25, "memory_bytes": 57_000_000, "peak_memory_bytes": 58_000_000,
    });
    if step.is_multiple_of(20) {
        line["validation_loss"] = json!(loss + 0.1);
    }
    if seed == 1 && step.is_multiple_of(15) {
        line["sharpness"] = json!(10.5 + step as f64);
    }
    if step.is_multiple_of(5) {
        line["gradients"] = json!({"blocks.0.weight": 0.5 / step as f64, "blocks.1.weight": 1.25e-7});
        let figures = |ratio: f64| json!({"mean_abs": ratio / 7.0, "zeros": 0.25, "update_ratio": ratio});
        line["health"] = json!({"blocks.0.weight": figures(0.003), "blocks.1.weight": figures(1e-5 / step as f64)});
    }
    // A session ended there: its account has keys of the same names.
    if step == 25 {
        line["account"] = json!({"gradients": {"predicted": 7, "measured": 7}, "health": {}});
    }
    line["verdict"] = json!(if step >= 40 { "loss-spike" } else { "healthy" });
    if step == 40 {
        line["alerts"] = json!(["loss <b>spike</b>"]);
    }
    line.to_string() + "\n"
}

fn write_run(folder: &Path, seed: u64) {
    fs::create_dir_all(folder.join("samples")).unwrap();
    fs::write(folder.join("config.toml"), format!("seed = {seed}\nsteps = 100\nwidth = 32\nmemory = \"70000000\"\n"))
        .unwrap();
    fs::write(folder.join("metrics.jsonl"), (1..=60).map(|step| line(step, seed)).collect::<String>()).unwrap();
    fs::write(folder.join("samples/step-00000050.txt"), "Once upon <i>a</i> time").unwrap();
}

/// A figure of a line as it is written there.
fn written(line: &str, key: &str) -> String {
    let rest = line.split(&format!("\"{key}\":")).nth(1).unwrap();
    rest.split([',', '}']).next().unwrap().to_string()
}

/// What is said of the loss under the cursor.
fn under_cursor(browser: &Browser) -> String {
    let text = browser.run("return document.querySelector('#loss svg[role=slider]').getAttribute('aria-valuetext')");
    text.as_str().unwrap().to_string()
}

#[test]
fn the_page_in_a_browser() {
    let Some(browser) = Browser::open() else {
        assert!(std::env::var("GRADUS_BROWSER").is_err(), "no chromedriver");
        // Past what the test harness keeps to itself.
        let told = "SKIPPED: the page is not tested in a browser; install chromium and chromium-driver";
        writeln!(std::io::stderr(), "{told}").unwrap();
        return;
    };
    let place = Place::new("browser");
    write_run(&place.0.join("one"), 1);
    write_run(&place.0.join("two"), 2);
    let serving = Serving::start(&place, "dashboard one two --port 0");
    browser.look(1600, "light");
    browser.go(&serving.url);
    browser.until("document.querySelectorAll('#runs tbody tr').length === 2");
    browser.until("document.querySelectorAll('#loss path.smooth').length === 2");
    shows_what_the_files_have(&browser);
    grows_with_the_file(&browser, &place);
    is_used_by_keys_alone(&browser);
    saves_what_it_shows(&browser, &place);
    shows_every_gradient(&browser, &place);
    fits_every_screen(&browser);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(serving);
    browser.until("document.querySelector('#connection.lost')");
    // It goes on asking, until it is left.
    browser.go("about:blank");
    assert!(browser.complaints().iter().all(|complaint| complaint.contains("ERR_CONNECTION_REFUSED")));
    opens_during_a_run(&browser, &place);
}

fn shows_what_the_files_have(browser: &Browser) {
    let page = |script: &str| browser.run(&format!("return {script}"));
    let first = "document.querySelector('#runs tbody tr')";
    assert_eq!(
        page(&format!("{first}.querySelector('[data-label=loss]').innerText")),
        json!(written(&line(60, 1), "loss"))
    );
    let validation = page(&format!("{first}.querySelector('[data-label=validation]').innerText"));
    assert_eq!(validation, json!(written(&line(60, 1), "validation_loss")));
    assert_eq!(page("document.querySelector('#alerts').hidden"), json!(false));
    let sharpness = "document.querySelector('#sharpness svg[role=slider]').getAttribute('aria-valuetext')";
    assert_eq!(page(sharpness), "one step 60 largest eigenvalue 70.5");
    assert_eq!(page("document.querySelectorAll('#sharpness circle.mark').length"), json!(4));
    // Text from files is text.
    let alert = page("document.querySelector('#alerts li').innerText");
    assert!(alert.as_str().unwrap().ends_with("loss <b>spike</b>"), "{alert}");
    assert_eq!(page("document.querySelector('#samples article p').innerText"), "Once upon <i>a</i> time");
    assert_eq!(page("document.querySelectorAll('#samples article').length"), json!(2));
    let differing = page("[...document.querySelectorAll('#config .differs th')].map((cell) => cell.innerText)");
    assert_eq!(differing, json!(["seed"]));
    assert_eq!(page("document.querySelector('#gradients').hidden"), json!(false));
    assert!(page("document.querySelectorAll('#gradient-map path').length").as_u64().unwrap() > 1);
    assert_eq!(page(&format!("{first}.querySelector('[data-label=health].unwell').innerText")), "loss spike");
    let colors = "new Set([...document.querySelectorAll('#loss path.smooth')].map((path) => getComputedStyle(path).stroke)).size";
    assert_eq!(page(colors), json!(2));
}

/// Row by row under the cursor of the heat map, and in its table: every figure as it is written.
fn shows_every_gradient(browser: &Browser, place: &Place) {
    browser.run("document.querySelector('#gradient-map svg[role=slider]').focus()");
    browser.press(&[END, DOWN]);
    let told =
        browser.run("return document.querySelector('#gradient-map svg[role=slider]').getAttribute('aria-valuetext')");
    let lines = fs::read_to_string(place.0.join("one/metrics.jsonl")).unwrap();
    let last = lines.lines().rfind(|line| line.contains("gradients")).unwrap();
    let figures = last.split("\"health\":").nth(1).unwrap().split("\"blocks.1.weight\":").nth(1).unwrap();
    let (mean, ratio) = (written(figures, "mean_abs"), written(figures, "update_ratio"));
    let step = written(last, "step");
    let expected = format!("one step {step} blocks.1.weight 1.25e-7 mean {mean} zeros 0.25 update/weight {ratio}");
    assert_eq!(told, json!(expected));
    let table = saved(browser, "gradient-map", "CSV");
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows[0], "step,weight,norm,mean_abs,zeros,non_finite,update_ratio");
    assert!(rows.iter().any(|row| row.starts_with("25,\"blocks.1.weight\",1.25e-7,")), "{table}");
    assert_eq!(*rows.last().unwrap(), format!("{step},\"blocks.1.weight\",1.25e-7,{mean},0.25,,{ratio}"));
}

fn grows_with_the_file(browser: &Browser, place: &Place) {
    let mut file = OpenOptions::new().append(true).open(place.0.join("one/metrics.jsonl")).unwrap();
    let next = line(61, 7);
    let (start, end) = next.split_at(30);
    file.write_all(start.as_bytes()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(1200));
    file.write_all(end.as_bytes()).unwrap();
    let loss = written(&next, "loss");
    browser.until(&format!("document.querySelector('#runs [data-label=loss]').innerText === '{loss}'"));
    // A run that goes on from an earlier step.
    fs::write(place.0.join("two/metrics.jsonl"), (1..=30).map(|step| line(step, 9)).collect::<String>()).unwrap();
    let loss = written(&line(30, 9), "loss");
    browser.until(&format!("document.querySelectorAll('#runs [data-label=loss]')[1].innerText === '{loss}'"));
}

fn is_used_by_keys_alone(browser: &Browser) {
    browser.run("document.activeElement.blur(); window.getSelection().removeAllRanges()");
    let mut visited = vec![];
    for _ in 0..40 {
        browser.press(&[TAB]);
        let focused = browser.run(
            "const it = document.activeElement; const ring = getComputedStyle(it).outlineStyle; \
             return [it.getAttribute('aria-label') || it.name || it.id, it.matches(':focus-visible') && ring !== 'none']",
        );
        assert!(focused[1] == true || focused[0] == "", "{focused} has no ring");
        visited.push(focused[0].as_str().unwrap_or_default().to_string());
    }
    for name in ["axis", "smoothing", "Show one", "Show two", "Save Loss as SVG", "Loss by step", "Memory by step"] {
        assert!(visited.iter().any(|visited| visited == name), "{name} is not reached: {visited:?}");
    }
    browser.run("document.querySelector('#loss svg[role=slider]').focus()");
    browser.press(&[LEFT, LEFT, LEFT]);
    // The first press shows the cursor at the end.
    let loss = written(&line(59, 1), "loss");
    assert!(under_cursor(browser).starts_with(&format!("one step 59 loss {loss} ")), "{}", under_cursor(browser));
    browser.press(&[HOME]);
    let first = format!("one step 1 loss {}", written(&line(1, 1), "loss"));
    assert!(under_cursor(browser).starts_with(&first), "{}", under_cursor(browser));
    browser.run("document.querySelector('input[aria-label=\"Show two\"]').focus()");
    browser.press(&[SPACE]);
    browser.until("document.querySelectorAll('#loss path.smooth').length === 1");
    browser.press(&[SPACE]);
    browser.until("document.querySelectorAll('#loss path.smooth').length === 2");
    for axis in ["tokens", "seconds", "step"] {
        browser.run(&format!("document.querySelector('input[value={axis}]').click()"));
        assert_eq!(browser.run("return document.querySelectorAll('#loss path.smooth').length"), json!(2), "{axis}");
    }
    browser.run("document.querySelector('#loss button').click()");
    let pressed = browser.run("return document.querySelector('#loss button').getAttribute('aria-pressed')");
    assert_eq!(pressed, "true");
}

/// What a chart saves as a file of this kind.
fn saved(browser: &Browser, chart: &str, kind: &str) -> String {
    let script = format!(
        "let saved; const make = URL.createObjectURL; URL.createObjectURL = (blob) => (saved = blob, make(blob)); \
         [...document.querySelectorAll('#{chart} button')].find((button) => button.innerText === '{kind}').click(); \
         URL.createObjectURL = make; return saved.text()"
    );
    browser.run(&script).as_str().unwrap().to_string()
}

fn saves_what_it_shows(browser: &Browser, place: &Place) {
    let table = saved(browser, "loss", "CSV");
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows[0], "run,seconds,step,tokens,loss,validation_loss");
    let lines = fs::read_to_string(place.0.join("one/metrics.jsonl")).unwrap();
    assert_eq!(rows.len(), 1 + lines.lines().count() + 30);
    for (row, line) in rows[1..].iter().zip(lines.lines()) {
        assert_eq!(row.split(',').nth(4).unwrap(), written(line, "loss"), "{row}");
    }
    let svg = saved(browser, "loss", "SVG");
    assert!(
        svg.starts_with("<svg") && svg.contains("rgb(") && !svg.contains("var(") && !svg.contains("class="),
        "{svg}"
    );
    let is_whole =
        "new DOMParser().parseFromString(arguments[0], 'image/svg+xml').querySelector('parsererror') === null";
    let escaped = Value::from(svg).to_string();
    assert_eq!(browser.run(&format!("return {}", is_whole.replace("arguments[0]", &escaped))), json!(true));
}

fn fits_every_screen(browser: &Browser) {
    let mut papers = vec![];
    for (width, scheme) in [(400, "light"), (1600, "light"), (2560, "light"), (400, "dark"), (1600, "dark")] {
        browser.look(width, scheme);
        let room = browser.run("return [document.documentElement.scrollWidth, innerWidth, innerWidth]");
        assert!(room[0].as_u64() <= room[1].as_u64() && room[1] == width, "{width}: {room}");
        let drawn = format!("document.querySelector('#loss svg[role=slider]').viewBox.baseVal.width > {width} * 0.7");
        browser.until(&drawn);
        papers.push(browser.run("return getComputedStyle(document.body).backgroundColor").to_string());
    }
    assert!(papers[0] == papers[1] && papers[3] == papers[4] && papers[0] != papers[3], "{papers:?}");
}

fn opens_during_a_run(browser: &Browser, place: &Place) {
    let options = "--preset nano --batch 2 --time 60s --tokenizer byte --eval-every 0 --sample-every 0 --save-every 0 --threads 1";
    let training = Serving::start(place, &format!("train --dashboard 0 --json {options} --out live"));
    browser.go(&training.url);
    browser.until("document.querySelector('.state.running')");
    let step = "return Number(document.querySelector('[data-label=step]').innerText.replaceAll(',', ''))";
    let before = browser.run(step).as_f64().unwrap();
    browser.until(&format!("(() => {{ {step} }})() > {before}"));
    // Its gradients were measured with the first step.
    browser.until(
        "!document.querySelector('#gradients').hidden && document.querySelector('[data-label=health]').innerText",
    );
    let lines = fs::read_to_string(place.0.join("live/metrics.jsonl")).unwrap();
    let first: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert!(first["gradients"].as_object().unwrap().len() > 10 && first["verdict"] == "healthy", "{first}");
    let rows = browser.run("return document.querySelectorAll('#gradient-map text.end title').length");
    assert!(rows.as_u64().unwrap() > 5, "{rows} rows are named");
    let height = browser.run("return document.querySelector('#sharpness').getBoundingClientRect().height");
    assert_eq!(height, json!(0), "there is no chart of what is not measured");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

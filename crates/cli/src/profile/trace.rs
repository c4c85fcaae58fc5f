//! The last step as a trace that Perfetto and Chrome open: events of the JSON trace format, nested on one track a thread.

use gradus_train::profiler::{Profile, Span};
use serde_json::{Value, json};

/// The only process.
const PROCESS: usize = 1;

/// The trace of a profile's last step.
pub fn json(profile: &Profile) -> String {
    let named = |thread: usize| match thread {
        0 => "training".to_string(),
        thread if thread < profile.workers => format!("worker {thread}"),
        _ => "filling batches".to_string(),
    };
    let threads = 1 + profile.spans.iter().map(|span| span.thread).max().unwrap_or(0);
    let mut events = vec![metadata("process_name", 0, "gradus")];
    for thread in 0..threads {
        events.push(metadata("thread_name", thread, &named(thread)));
        events.push(json!({"ph": "M", "pid": PROCESS, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}));
    }
    events.extend(nested(&profile.spans).iter().map(|(span, begin, end)| event(profile, span, *begin, *end)));
    json!({"displayTimeUnit": "ms", "traceEvents": events}).to_string() + "\n"
}

fn metadata(what: &str, thread: usize, name: &str) -> Value {
    json!({"ph": "M", "pid": PROCESS, "tid": thread, "name": what, "args": {"name": name}})
}

/// Spans in whole nanoseconds, in the order in which they begin, the longer ones first; none ends after one that it began in.
fn nested(spans: &[Span]) -> Vec<(&Span, u64, u64)> {
    let nanoseconds = |seconds: f64| (seconds * 1e9).round() as u64;
    let times = |span| -> (&Span, u64, u64) { (span, nanoseconds(span.begin), nanoseconds(span.begin + span.seconds)) };
    let mut ordered: Vec<(&Span, u64, u64)> = spans.iter().map(times).collect();
    ordered.sort_by_key(|(span, begin, end)| (span.thread, *begin, std::cmp::Reverse(*end)));
    let mut around: Vec<(usize, u64)> = vec![];
    for (span, begin, end) in &mut ordered {
        around.retain(|(thread, until)| *thread == span.thread && *until > *begin);
        if let Some((_, until)) = around.last() {
            // A nanosecond over is rounding.
            *end = (*end).min(*until);
        }
        around.push((span.thread, *end));
    }
    ordered.sort_by_key(|(span, begin, end)| (*begin, std::cmp::Reverse(*end), span.thread));
    ordered
}

fn event(profile: &Profile, span: &Span, begin: u64, end: u64) -> Value {
    let microseconds = |nanoseconds: u64| nanoseconds as f64 / 1e3;
    let mut arguments = json!({});
    if let Some(operation) = span.operation.map(|index| &profile.operations[index]) {
        arguments = json!({
            "pass": operation.pass,
            "line": operation.line,
            "operations": operation.cost.operations,
            "bytes": operation.cost.bytes,
            "predicted_us": 1e6 * operation.predicted,
        });
        if let Some(layer) = operation.layer {
            arguments["layer"] = json!(layer);
        }
    }
    json!({
        "ph": "X",
        "pid": PROCESS,
        "tid": span.thread,
        "ts": microseconds(begin),
        "dur": microseconds(end - begin),
        "name": span.name,
        "cat": span.category,
        "args": arguments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &str, thread: usize, begin: f64, seconds: f64) -> Span {
        Span { name: name.into(), category: "step", thread, begin, seconds, operation: None }
    }

    #[test]
    fn what_began_within_something_ends_with_it_at_the_latest() {
        let spans =
            [span("b", 0, 0.5, 0.500_000_002), span("a", 0, 0.0, 1.0), span("c", 1, 0.25, 3.0), span("d", 0, 1.0, 1.0)];
        let order: Vec<(&str, u64, u64)> =
            nested(&spans).iter().map(|(span, begin, end)| (&span.name[..], *begin, *end)).collect();
        assert_eq!(
            order,
            [
                ("a", 0, 1_000_000_000),
                ("c", 250_000_000, 3_250_000_000),
                ("b", 500_000_000, 1_000_000_000),
                ("d", 1_000_000_000, 2_000_000_000)
            ]
        );
    }
}

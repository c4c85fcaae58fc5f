//! What was written is read back, by a reader of the format's own description.

use super::message::{Field, fields};
use super::*;
use crate::files::testing::Folder;
use crate::watch::{Health, Watched, WeightHealth};
use gradus_engine::Shape;
use std::sync::Arc;

fn report(step: u64) -> StepReport {
    StepReport {
        step,
        steps: None,
        account: None,
        verdict: None,
        alerts: vec![],
        health: None,
        seconds_left: None,
        tokens: step * 100,
        loss: 2.5 / step as f32,
        validation_loss: (step == 2).then_some(2.25),
        accuracy: None,
        gradient_norm: f32::NAN,
        sharpness: None,
        learning_rate: 3e-4,
        loss_scale: None,
        skipped_steps: None,
        bytes_sent: None,
        tokens_per_second: 1234.5,
        step_ms: 10.25,
        peak_memory_bytes: 70_000_001,
        memory_bytes: 5,
    }
}

/// The field of a message, which it has once.
fn only<'a>(message: &'a [u8], number: u32) -> Field<'a> {
    let found: Vec<Field<'a>> =
        fields(message).into_iter().filter(|(found, _)| *found == number).map(|(_, field)| field).collect();
    assert_eq!(found.len(), 1, "field {number}");
    found[0]
}

fn bytes(field: Field<'_>) -> &[u8] {
    let Field::Bytes(bytes) = field else { panic!("{field:?}") };
    bytes
}

fn step_of(event: &[u8]) -> u64 {
    let Field::Integer(step) = only(event, field::EVENT_STEP) else { panic!("a step") };
    step
}

/// The values of an event's summary.
fn values(event: &[u8]) -> Vec<&[u8]> {
    fields(bytes(only(event, field::EVENT_SUMMARY))).into_iter().map(|(_, value)| bytes(value)).collect()
}

/// The scalars of an event, by tag.
fn scalars(event: &[u8]) -> Vec<(String, f32)> {
    let scalar = |value: &[u8]| {
        let Field::Float(number) = only(value, field::VALUE_SIMPLE_VALUE) else { panic!("a float") };
        (String::from_utf8(bytes(only(value, field::VALUE_TAG)).to_vec()).unwrap(), number)
    };
    values(event).into_iter().map(scalar).collect()
}

#[test]
fn every_figure_of_a_step_is_there_by_its_key() {
    let folder = Folder::new("events");
    let mut log = EventLog::begin(folder.path(), None).unwrap();
    (1..=3).for_each(|step| log.write(&report(step)).unwrap());
    log.sync().unwrap();
    let file = fs::read(log.path()).unwrap();
    let events = record::messages(&file);
    assert_eq!(events.len(), 5);
    assert_eq!(bytes(only(events[0], field::EVENT_FILE_VERSION)), VERSION.as_bytes());
    let session = bytes(only(events[1], field::EVENT_SESSION_LOG));
    assert_eq!((only(session, field::SESSION_LOG_STATUS), step_of(events[1])), (Field::Integer(START), 1));
    for (event, step) in events[2..].iter().zip(1..) {
        assert_eq!(step_of(event), step);
        let Field::Double(time) = only(event, field::EVENT_WALL_TIME) else { panic!("a time") };
        assert!(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64() - time < 60.0, "{time}");
        // Numbers that are not finite, which JSON has no words for, are shown as such.
        let line = serde_json::to_value(report(step)).unwrap();
        let told = scalars(event);
        assert_eq!(told.len() + 1, line.as_object().unwrap().len(), "all keys but the step");
        for (tag, number) in told {
            match line[&tag].as_f64() {
                Some(expected) => assert_eq!(number, expected as f32, "{tag} of step {step}"),
                None => assert!(line[&tag].is_null() && number.is_nan(), "{tag} of step {step}"),
            }
        }
    }
}

#[test]
fn gradients_are_there_by_weight() {
    let watched = |name: &str| Watched { name: name.into(), shape: Shape::from([2]), is_table: false };
    let mut health = Health::new(["wte", "h.0.a"].map(watched).into());
    for (number, (_, figures)) in (3..).zip(health.weights_mut()) {
        let norm = number as f32;
        *figures = WeightHealth { gradient_norm: norm, weight_norm: 10.0 * norm, update_norm: norm, ..*figures };
    }
    health.weights_mut().last().unwrap().1.non_finite = 7;
    let folder = Folder::new("events-gradients");
    let mut log = EventLog::begin(folder.path(), None).unwrap();
    log.write(&StepReport { health: Some(Arc::new(health)), ..report(1) }).unwrap();
    let file = fs::read(log.path()).unwrap();
    let told = scalars(record::messages(&file)[2]);
    let find = |tag: &str| told.iter().find(|(found, _)| found == tag).map(|(_, number)| *number);
    assert_eq!((find("gradients/wte"), find("gradients/h.0.a")), (Some(3.0), Some(4.0)));
    assert_eq!(
        (find("update_ratio/h.0.a"), find("zeros/wte"), find("mean_abs/wte")),
        (Some(0.1), Some(0.0), Some(0.0))
    );
    assert_eq!((find("non_finite/wte"), find("non_finite/h.0.a")), (None, Some(7.0)));
}

#[test]
fn samples_are_shown_as_they_are() {
    let folder = Folder::new("events-sample");
    let mut log = EventLog::begin(folder.path(), None).unwrap();
    log.sample(7, "# One *day*\n\n<b>two</b>").unwrap();
    let file = fs::read(log.path()).unwrap();
    let events = record::messages(&file);
    let value = values(events[2])[0];
    assert_eq!((step_of(events[2]), bytes(only(value, field::VALUE_TAG))), (7, &b"sample"[..]));
    let plugin = bytes(only(bytes(only(value, field::VALUE_METADATA)), field::METADATA_PLUGIN_DATA));
    assert_eq!(bytes(only(plugin, field::PLUGIN_DATA_NAME)), b"text");
    let tensor = bytes(only(value, field::VALUE_TENSOR));
    assert_eq!(only(tensor, field::TENSOR_DTYPE), Field::Integer(STRING));
    assert_eq!(bytes(only(tensor, field::TENSOR_STRING_VAL)), b"    # One *day*\n    \n    <b>two</b>");
}

#[test]
fn a_run_that_goes_on_begins_a_file_that_sorts_after_the_others() {
    let folder = Folder::new("events-resumed");
    assert!(!holds_events(&folder.path().join("missing")));
    let mut first = EventLog::begin(folder.path(), None).unwrap();
    assert!(!holds_events(folder.path()), "a start is no hindrance");
    first.write(&report(1)).unwrap();
    assert!(holds_events(folder.path()));
    // One of someone whose clock is ahead.
    let ahead = folder.path().join(format!("{NAME}9999999000.other"));
    fs::write(&ahead, "").unwrap();
    let second = EventLog::begin(folder.path(), Some(40)).unwrap();
    let third = EventLog::begin(folder.path(), Some(40)).unwrap();
    assert!(first.path() < &*ahead && &*ahead < second.path() && second.path() < third.path());
    let file = fs::read(second.path()).unwrap();
    assert_eq!(step_of(record::messages(&file)[1]), 41);
}

//! What a profile tells, in numbers.

use super::bounds::{Bound, Bounds};
use gradus_train::config::MeasuredSpeeds;
use gradus_train::files::atomic;
use gradus_train::memory::Kind;
use gradus_train::models::CausalModel;
use gradus_train::profiler::{Allocations, Count, Finding, Leak, Pass, Point, Profile, ProfiledOperation};
use gradus_train::training::Profiled;
use gradus_train::{Error, Result};
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// What was held at the peak beyond what is measured of the kinds.
pub const UNEXPLAINED: &str = "unexplained";

/// Everything that is told of a profile.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The run, in words.
    pub run: String,
    /// The median of a step as it always is.
    pub step_ms: f64,
    /// The median of a step that is timed.
    pub profiled_step_ms: f64,
    /// Steps of each kind.
    pub steps: usize,
    pub tokens_per_second: f64,
    /// What the step consists of; they add up to it.
    pub parts: Vec<Part>,
    pub operations: Vec<Operation>,
    pub layers: Vec<Layer>,
    pub workers: Vec<Worker>,
    pub data: Data,
    /// What was allocated in the steps, where nothing should be; none where it is not counted.
    pub allocations: Option<Allocated>,
    /// What the memory is for while steps are taken, `unexplained` included; they add up to the peak.
    pub memory_bytes: BTreeMap<String, u64>,
    pub peak_memory_bytes: u64,
    pub predicted_memory_bytes: u64,
    pub points: Vec<Point>,
    /// Bytes after each step beyond the first: on the heap, where it is counted, and of the process.
    pub heap_growth: Option<Vec<i64>>,
    pub process_growth: Vec<i64>,
    pub leaks: Vec<Leak>,
    /// The same in words.
    pub growth: String,
    /// Trainings in this process that were looked at for growth.
    pub trainings: usize,
    /// Operations or bytes a second that the machine does at best.
    pub limits: BTreeMap<String, f64>,
    pub findings: Vec<Finding>,
}

/// A part of a step.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    pub name: String,
    pub ms: f64,
    pub share: f64,
    /// How much faster a step would be, as a share, if this took half as long.
    pub gain_if_twice_as_fast: f64,
}

/// All operations of a name.
#[derive(Clone, Debug, Serialize)]
pub struct Operation {
    #[serde(flatten)]
    pub part: Part,
    /// How many there are in a step.
    pub count: usize,
    /// What bounds most of its time.
    pub bound: Option<Bound>,
    /// How much of what the limits allow is reached. More than 1 of a limit of memory says that caches helped.
    pub share_of_limit: Option<f64>,
    pub gflop_per_second: f64,
    pub gb_per_second: f64,
    /// What the plan reckoned with.
    pub predicted_ms: f64,
    /// How long workers computed, of the time that they had.
    pub busy_share: Option<f64>,
}

/// A layer of the model, or what is in none.
#[derive(Clone, Debug, Serialize)]
pub struct Layer {
    #[serde(flatten)]
    pub part: Part,
    pub forward_ms: f64,
    pub backward_ms: f64,
    pub update_ms: f64,
}

/// A thread that computes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Worker {
    pub busy_ms: f64,
    pub idle_ms: f64,
    pub idle_share: f64,
}

/// Where batches come from.
#[derive(Clone, Debug, Serialize)]
pub struct Data {
    /// What a batch takes to be filled, on a thread of its own.
    pub fill_ms: Option<f64>,
    /// What it could be trained on if nothing else took time.
    pub tokens_per_second: Option<f64>,
    /// Of each stage before the first step: what, bytes of text, bytes a second.
    pub stages: Vec<Stage>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Stage {
    pub what: String,
    pub bytes: u64,
    pub seconds: f64,
    pub bytes_per_second: f64,
    /// Tokens of the text that is trained on, a second, where tokens are made.
    pub tokens_per_second: Option<f64>,
}

/// What was allocated in all steps that count.
#[derive(Clone, Debug, Serialize)]
pub struct Allocated {
    /// Calls that are expected.
    pub expected: u64,
    #[serde(flatten)]
    pub total: Count,
    #[serde(flatten)]
    pub found: Allocations,
}

impl Report {
    /// What a profile tells beside the machine's limits.
    pub fn of(profiled: &Profiled, bounds: &Bounds) -> Report {
        let profile = &profiled.profile;
        let account = &profile.account;
        let mut memory_bytes: BTreeMap<String, u64> =
            Kind::ALL.iter().map(|&kind| (kind.name().to_string(), account[kind].measured)).collect();
        memory_bytes.insert(UNEXPLAINED.into(), account.unexplained().max(0) as u64);
        let parts: Vec<Part> =
            profile.parts().into_iter().map(|share| part(profile, share.name, share.seconds)).collect();
        let growth = |bytes: &[i64]| bytes.iter().map(|now| now - bytes[0]).collect::<Vec<i64>>();
        let mut report = Report {
            run: described(profiled),
            step_ms: 1e3 * profile.step_seconds(),
            profiled_step_ms: 1e3 * profile.timed_step_seconds(),
            steps: profile.timed.len(),
            tokens_per_second: profile.tokens as f64 / profile.step_seconds(),
            parts,
            operations: operations(profile, bounds),
            layers: layers(profile),
            workers: workers(profile),
            data: data(profiled),
            allocations: profile.allocations.clone().map(|found| Allocated {
                expected: 0,
                total: found.total(),
                found,
            }),
            memory_bytes,
            peak_memory_bytes: account.peak,
            predicted_memory_bytes: account.predicted(),
            points: profiled.points.clone(),
            heap_growth: profile.heap.as_deref().map(growth),
            process_growth: growth(&profile.anonymous),
            leaks: profile.leaks.clone(),
            growth: String::new(),
            trainings: profiled.trainings,
            limits: bounds.rates().collect(),
            findings: profile.findings(),
        };
        report.growth = report.growth_in_words();
        report
    }

    /// Writes how long operations took beside what was reckoned.
    pub fn save_speeds(&self, path: &Path) -> Result<()> {
        let measured = self.operations.iter().map(|row| (row.part.name.clone(), row.part.ms, row.predicted_ms));
        let speeds = MeasuredSpeeds::of(measured);
        let speeds = speeds
            .ok_or_else(|| Error::Config("no operation took time that can be told; profile a larger model".into()))?;
        atomic::write_file(path, speeds.to_json().as_bytes())
    }

    /// As one JSON object, with the place of the page.
    pub fn json(&self, page: &Path) -> String {
        let mut document = serde_json::to_value(self).expect("a report is plain data");
        // A path need not be text, and JSON is.
        document["page"] = json!(page.to_string_lossy());
        serde_json::to_string_pretty(&document).expect("a document is plain data") + "\n"
    }
}

fn described(profiled: &Profiled) -> String {
    let (config, step) = (&profiled.config, &profiled.chosen.config);
    let machine = match profiled.backend.memory() {
        Ok(None) => format!("{} threads", config.threads),
        _ => format!("on {}", profiled.backend.name()),
    };
    format!(
        "{}, {} weights, {} sequences of {} tokens a step, {} at once, {}, {machine}",
        config.model.family.name(),
        crate::numbers::rounded(config.model.parameter_count() as u64),
        config.batch.size(),
        config.sequence,
        step.micro_batch,
        step.precision.dtype(),
    )
}

fn part(profile: &Profile, name: String, seconds: f64) -> Part {
    Part {
        name,
        ms: 1e3 * seconds,
        share: seconds / profile.step_seconds(),
        gain_if_twice_as_fast: profile.gain_if_twice_as_fast(seconds),
    }
}

/// The seconds of each operation beside it.
fn timed(profile: &Profile) -> impl Iterator<Item = (&ProfiledOperation, f64)> {
    profile.operations.iter().zip(profile.operation_seconds())
}

fn operations(profile: &Profile, bounds: &Bounds) -> Vec<Operation> {
    let row = |name: String, seconds: f64| {
        let of_name = || timed(profile).filter(|(operation, _)| operation.name == name).map(|(operation, _)| operation);
        let total = |amount: fn(&ProfiledOperation) -> f64| -> f64 {
            of_name().map(|operation| amount(operation) * operation.replays as f64).sum()
        };
        let least: Option<Vec<(Bound, f64)>> = of_name().map(|operation| bounds.least(operation)).collect();
        let least_of = |least: &[(Bound, f64)], bound: Bound| -> f64 {
            least.iter().filter(|(known, _)| *known == bound).map(|(_, seconds)| seconds).sum()
        };
        let bound = least.as_ref().map(|least| {
            let arithmetic = least_of(least, Bound::Arithmetic) >= least_of(least, Bound::Memory);
            if arithmetic { Bound::Arithmetic } else { Bound::Memory }
        });
        let all: Option<f64> = least.map(|least| least.iter().map(|(_, seconds)| seconds).sum());
        Operation {
            count: of_name().map(|operation| operation.replays).sum(),
            bound,
            share_of_limit: all.map(|all| all / seconds),
            gflop_per_second: total(|operation| operation.cost.operations as f64) / seconds / 1e9,
            gb_per_second: total(|operation| operation.cost.bytes as f64) / seconds / 1e9,
            predicted_ms: 1e3 * total(|operation| operation.predicted),
            busy_share: profile.busy_share(|operation| operation.name == name),
            part: part(profile, name, seconds),
        }
    };
    let by_name = profile.by(|operation| operation.name.to_string());
    by_name.into_iter().map(|share| row(share.name, share.seconds)).collect()
}

fn layers(profile: &Profile) -> Vec<Layer> {
    let mut sums: BTreeMap<Option<usize>, [f64; 3]> = BTreeMap::new();
    for (operation, seconds) in timed(profile) {
        let pass = Pass::ALL.iter().position(|pass| *pass == operation.pass).expect("one of all");
        sums.entry(operation.layer).or_default()[pass] += seconds;
    }
    let row = |(layer, [forward, backward, update]): (Option<usize>, [f64; 3])| {
        let name = layer.map_or("outside of layers".to_string(), |layer| format!("layer {layer}"));
        Layer {
            part: part(profile, name, forward + backward + update),
            forward_ms: 1e3 * forward,
            backward_ms: 1e3 * backward,
            update_ms: 1e3 * update,
        }
    };
    sums.into_iter().map(row).collect()
}

fn workers(profile: &Profile) -> Vec<Worker> {
    let step = profile.step_seconds();
    let worker = |worker: &gradus_train::profiler::Worker| Worker {
        busy_ms: 1e3 * worker.busy,
        idle_ms: 1e3 * worker.idle,
        idle_share: worker.idle / step,
    };
    profile.workers().iter().map(worker).collect()
}

fn data(profiled: &Profiled) -> Data {
    let fill = profiled.profile.fill_seconds();
    let stage = |stage: &gradus_train::training::Stage| Stage {
        what: stage.what.clone(),
        bytes: stage.done,
        seconds: stage.seconds,
        bytes_per_second: stage.done as f64 / stage.seconds,
        tokens_per_second: (stage.what == "tokenizing").then(|| profiled.text_tokens as f64 / stage.seconds),
    };
    Data {
        fill_ms: fill.map(|fill| 1e3 * fill),
        tokens_per_second: fill.map(|fill| profiled.profile.tokens as f64 / fill),
        stages: profiled.stages.iter().filter(|stage| stage.seconds > 0.0).map(stage).collect(),
    }
}

impl Report {
    /// What is told of a leak, or that there is none.
    fn growth_in_words(&self) -> String {
        if let [leak, ..] = &self.leaks[..] {
            return leak.to_string();
        }
        let turns = [(self.process_growth.len(), "steps"), (self.trainings, "trainings in one process")];
        let told = turns.iter().filter(|(count, _)| *count >= Leak::FEWEST_TURNS);
        let told: Vec<String> = told.map(|(count, what)| format!("{count} {what}")).collect();
        match told.is_empty() {
            true => format!("growth: not known, it takes {} steps", Leak::FEWEST_TURNS),
            false => format!("no growth over {}", told.join(" and ")),
        }
    }
}

//! What is told of a planned run, in numbers.

use super::recomputed::{Recomputed, recomputed};
use super::traffic::Traffic;
use crate::ranks::joining_bytes;
use gradus_engine::backend::Backend;
use gradus_train::Result;
use gradus_train::config::{Precision, TrainConfig};
use gradus_train::lanes::Place;
use gradus_train::memory::{Budget, Kind};
use gradus_train::models::CausalModel;
use gradus_train::planning::{ArenaBytes, Chosen, Point, RunMemory, StepPlans};
use gradus_train::ranks::{Link, StepTime};
use gradus_train::step::StepConfig;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// What a planned run takes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Family of the model.
    pub family: gradus_train::models::Family,
    /// Numbers of all weights.
    pub parameters: usize,
    /// Element type of the computation.
    pub precision: Precision,
    /// Threads.
    pub threads: usize,
    /// What it is computed on, in words.
    #[serde(skip)]
    pub machine: String,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Sequences a step.
    pub batch: usize,
    /// Sequences computed at once.
    pub micro_batch: usize,
    /// What was stated.
    pub budget_bytes: Option<u64>,
    /// The most that will be resident.
    pub peak_bytes: u64,
    /// The same of ranks other than the first, of whom that is told here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_bytes_of_others: Option<u64>,
    /// What for.
    pub peak_by_kind: BTreeMap<Kind, u64>,
    /// How long a step takes, about.
    pub seconds_per_step: f64,
    /// Tokens a second.
    pub tokens_per_second: f64,
    /// What a step of several ranks takes over their link, if one is stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_link: Option<StepTime>,
    /// Every stage of a pipeline, if ranks share out the blocks of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageReport>,
    /// The share of a step in which a stage waits for the others, where all take the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bubble: Option<f64>,
    /// What is computed again.
    pub recomputed: Vec<Recomputed>,
    /// The smallest budget that works.
    pub smallest_budget_bytes: u64,
    /// Time against memory.
    pub curve: Vec<CurvePoint>,
    /// What ranks exchange, where their link is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
}

/// What a stage of a pipeline takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// Its first block, and the one after its last.
    pub blocks: [usize; 2],
    /// The most that will be resident of a rank with it.
    pub peak_bytes: u64,
    /// How long it works on a step, about.
    pub seconds_per_step: f64,
}

/// What a budget brings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// The budget.
    pub memory_bytes: u64,
    /// How long a step takes with it.
    pub seconds_per_step: f64,
    /// Tokens a second with it.
    pub tokens_per_second: f64,
    /// Sequences computed at once with it.
    pub micro_batch: usize,
}

impl Report {
    /// Plans, and says what the plan takes; or refuses a budget that cannot be kept.
    pub fn of(config: &TrainConfig, link: Option<Link>, backend: &dyn Backend) -> Result<(Report, Chosen)> {
        let mut memory = RunMemory::asked_about(config, joining_bytes(config.place.ranks), backend)?;
        let mut resolved = config.clone();
        let chosen = memory.choose(&mut resolved, backend)?;
        let (batch, outside) = (resolved.batch.size(), memory.outside(&resolved));
        let open = StepConfig { micro_batch: config.micro_batch, ..chosen.config.clone() };
        let plans = StepPlans::new(&open, batch, config.recompute.policy(), backend).kept()?;
        let tokens = (batch * config.sequence) as f64;
        let point = |point: Point| CurvePoint {
            memory_bytes: memory.smallest_budget(&resolved, point.arena),
            seconds_per_step: point.seconds,
            tokens_per_second: tokens / point.seconds,
            micro_batch: point.micro_batch,
        };
        let mut curve: Vec<CurvePoint> = plans.curve()?.into_iter().map(point).collect();
        // Where the stages before training need more than the arena, the fastest of all arenas below that is had.
        curve.reverse();
        curve.dedup_by_key(|point| point.memory_bytes);
        curve.reverse();
        let stages = stages(&resolved, &mut memory, backend)?;
        let by_kind = ArenaBytes::of(&chosen.plan).by_kind(outside);
        let place = Place { rank: 1, ..resolved.place };
        let has_others = place.ranks > 1 && resolved.stages == 1 && backend.memory()?.is_none();
        let others = has_others.then(|| TrainConfig { place, ..resolved.clone() });
        let report = Report {
            family: resolved.model.family,
            parameters: resolved.model.parameter_count(),
            precision: chosen.config.precision,
            threads: config.threads,
            machine: match backend.memory()? {
                Some(_) => format!("on {}", backend.name()),
                None => format!("{} threads", config.threads),
            },
            sequence: resolved.sequence,
            batch,
            micro_batch: chosen.config.micro_batch,
            budget_bytes: config.memory.map(Budget::bytes),
            peak_bytes: chosen.arena() as u64 + outside.total(),
            peak_bytes_of_others: others.map(|others| chosen.arena() as u64 + memory.outside(&others).total()),
            peak_by_kind: by_kind.into(),
            seconds_per_step: chosen.seconds(),
            tokens_per_second: tokens / chosen.seconds(),
            on_link: match link {
                Some(link) => chosen.config.on_link(&chosen.plan, &link, backend)?,
                None => None,
            },
            stages,
            bubble: (chosen.config.stage.count > 1).then(|| chosen.config.stage.bubble(chosen.config.passes())),
            recomputed: recomputed(&chosen),
            smallest_budget_bytes: memory.smallest_budget(&resolved, plans.smallest()?.arena()),
            curve,
            traffic: None,
        };
        Ok((report, chosen))
    }

    /// What is planned, as a point beside those of the curve.
    pub fn planned(&self) -> CurvePoint {
        CurvePoint {
            memory_bytes: self.peak_bytes,
            seconds_per_step: self.seconds_per_step,
            tokens_per_second: self.tokens_per_second,
            micro_batch: self.micro_batch,
        }
    }

    /// As one JSON object, with the place of the page.
    pub fn json(&self, page: &Path) -> String {
        let mut document = serde_json::to_value(self).expect("a report is plain data");
        // A path need not be text, and JSON is.
        document["page"] = json!(page.to_string_lossy());
        serde_json::to_string_pretty(&document).expect("a document is plain data") + "\n"
    }
}

/// What each stage takes, if there are several.
fn stages(config: &TrainConfig, memory: &mut RunMemory, backend: &dyn Backend) -> Result<Vec<StageReport>> {
    if config.stages == 1 {
        return Ok(vec![]);
    }
    let blocks = StepConfig::of(config).blocks_by_stage()?;
    let stage = |(rank, blocks): (usize, Range<usize>)| {
        let mut config = TrainConfig { place: Place { rank, ..config.place }, ..config.clone() };
        let chosen = memory.choose(&mut config, backend)?;
        Ok(StageReport {
            blocks: [blocks.start, blocks.end],
            peak_bytes: chosen.arena() as u64 + memory.outside(&config).total(),
            seconds_per_step: chosen.seconds(),
        })
    };
    blocks.into_iter().enumerate().map(stage).collect()
}

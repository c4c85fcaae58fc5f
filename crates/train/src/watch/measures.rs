//! The figures of gradients and updates as traced numbers beside them, and how they are read.

use super::health::{Health, Watched, WeightHealth};
use crate::Result;
use gradus_engine::graph::{Graph, Value};
use gradus_engine::{DType, GradientTape, Program, Routine, Tensor};
use std::sync::Arc;

/// Numbers of a weight whose changes are computed at once: what is held besides the new weight.
const CHANGES_AT_ONCE: usize = 1 << 22;

/// What is measured of each weight: a single number each, named by what it is and by the weight.
#[derive(Clone, Debug)]
struct Names {
    squares: String,
    absolutes: String,
    zeros: String,
    size: String,
    change: Option<String>,
    non_finite: String,
}

impl Names {
    fn of(name: &str, is_updated: bool) -> Names {
        let named = |what: &str| format!("health.{what}.{name}");
        Names {
            squares: named("squares"),
            absolutes: named("absolutes"),
            zeros: named("zeros"),
            size: named("size"),
            change: is_updated.then(|| named("change")),
            non_finite: non_finite_name(name),
        }
    }
}

/// What the count of a weight's gradient that is not finite is called.
pub(crate) fn non_finite_name(name: &str) -> String {
    format!("health.non_finite.{name}")
}

/// How many numbers are not finite.
#[track_caller]
pub(crate) fn count_non_finite(gradient: &Tensor) -> Tensor {
    let gradient = &gradient.cast(DType::F32);
    let is_finite = gradient.abs().less(&gradient.full_like(f32::INFINITY));
    is_finite.count_zeros(&is_finite.all_axes())
}

/// A weight, its gradient, and its value after an update if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// Its name.
    pub name: &'a str,
    /// The weight.
    pub weight: &'a Tensor,
    /// Its gradient.
    pub gradient: &'a Tensor,
    /// What the routine assigns it.
    pub updated: Option<&'a Tensor>,
}

/// The figures of some weights in a routine.
///
/// ```
/// use gradus_engine::backend::Cpu;
/// use gradus_engine::{Array, Routine, Trace, gradient};
/// use gradus_train::watch::{Measured, Measures};
///
/// let trace = Trace::new();
/// let w = trace.state("w", Array::new([2], &[3.0f32, 4.0])?);
/// let slope = &gradient(&w.sum_of_squares(&[0]), &[&w])?[0];
/// let new = &w - slope * 0.1;
/// let measures = Measures::new(&[Measured { name: "w", weight: &w, gradient: slope, updated: Some(&new) }]);
/// let routine = measures.outputs(Routine::new("step"));
/// let routine = measures.updated().iter().fold(routine, |routine, new| routine.assign(&w, new));
/// let mut program = trace.compile(&Cpu::new(1)?, &[routine])?;
/// program.run("step")?;
/// let health = measures.health(&program)?;
/// let figures = health.weight("w").expect("it is watched");
/// assert_eq!((figures.gradient_norm, figures.mean_abs, figures.zeros), (10.0, 7.0, 0.0));
/// assert!((figures.update_ratio().expect("an update") - 0.2).abs() < 1e-6);
/// # Ok::<(), gradus_train::Error>(())
/// ```
pub struct Measures {
    figures: Figures,
    reading: Reading,
}

/// Figures as they are traced, weight by weight.
#[derive(Default)]
pub(crate) struct Figures {
    outputs: Vec<(String, Tensor)>,
    updated: Vec<Tensor>,
    weights: Vec<(Names, String, Tensor)>,
}

impl Figures {
    /// Traces those of a weight. To be called before the next weight is updated: what is traced first is done first, and so one
    /// new weight is held aside at a time.
    #[track_caller]
    pub fn add(&mut self, measured: Measured<'_>) {
        let Measured { name, weight, gradient, updated } = measured;
        let names = Names::of(name, updated.is_some());
        let (gradient, axes) = (&gradient.cast(DType::F32), gradient.all_axes());
        self.outputs.push((names.squares.clone(), gradient.sum_of_squares(&axes)));
        self.outputs.push((names.absolutes.clone(), gradient.sum_of_abs(&axes)));
        self.outputs.push((names.zeros.clone(), gradient.count_zeros(&axes)));
        self.outputs.push((names.size.clone(), weight.cast(DType::F32).sum_of_squares(&axes)));
        if let (Some(new), Some(name)) = (updated, &names.change) {
            self.outputs.push((name.clone(), change(weight, new)));
            // A copy, so that the new value is written over the old one only when their difference was taken: else
            // all new values would wait aside for the end of the routine.
            self.updated.push(new * 1.0);
        }
        self.weights.push((names, name.to_string(), weight.clone()));
    }
}

impl Measures {
    /// Traces the figures of these weights.
    #[track_caller]
    pub fn new(weights: &[Measured<'_>]) -> Measures {
        let mut figures = Figures::default();
        weights.iter().for_each(|measured| figures.add(*measured));
        for measured in weights {
            figures.outputs.push((non_finite_name(measured.name), count_non_finite(measured.gradient)));
        }
        Measures::of_finite(figures)
    }

    /// Of a routine that refuses gradients that are not finite: there is nothing to count.
    pub(crate) fn of_finite(figures: Figures) -> Measures {
        Measures { reading: Reading::new(&figures.weights), figures }
    }

    /// Adds the figures to a routine.
    pub fn outputs(&self, routine: Routine) -> Routine {
        self.figures.outputs.iter().fold(routine, |routine, (name, value)| routine.output(name, value))
    }

    /// What the routine must assign to the weights that are updated, in their order: the same numbers, in a place of their
    /// own until they have been compared.
    pub fn updated(&self) -> &[Tensor] {
        &self.figures.updated
    }

    /// The figures, after the routine ran.
    pub fn health(&self, program: &Program) -> Result<Health> {
        let mut health = self.reading.health();
        self.reading.read(program, 1.0, &mut health)?;
        self.reading.read_counts(program, &mut health)?;
        Ok(health)
    }

    /// What is needed to read the figures, without the trace.
    pub(crate) fn into_reading(self) -> Reading {
        self.reading
    }
}

/// The norm of the difference, squared; of a large weight in parts.
#[track_caller]
fn change(weight: &Tensor, new: &Tensor) -> Tensor {
    let (shape, axes) = (weight.shape(), weight.all_axes());
    let difference = |weight: &Tensor, new: &Tensor| (new - weight).cast(DType::F32).sum_of_squares(&axes);
    let rows = shape.first().copied().unwrap_or(1);
    let at_once = (CHANGES_AT_ONCE / (shape.elements() / rows.max(1)).max(1)).max(1);
    if rows <= at_once {
        return difference(weight, new);
    }
    let parts = (0..rows).step_by(at_once).map(|first| first..rows.min(first + at_once));
    let sums = parts.map(|part| difference(&weight.slice(0, part.clone()), &new.slice(0, part)));
    sums.reduce(|sum, part| sum + part).expect("a weight has rows")
}

/// The figures as a program gives them.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    watched: Arc<[Watched]>,
    names: Vec<Names>,
}

impl Reading {
    fn new(weights: &[(Names, String, Tensor)]) -> Reading {
        let is_table = |weight: &Tensor| {
            // A trace that failed is told by whoever compiles it.
            weight.handle().is_ok_and(|value| is_table(&weight.trace().graph(), value))
        };
        let watched = |(_, name, weight): &(Names, String, Tensor)| Watched {
            name: name.clone(),
            shape: weight.shape(),
            is_table: is_table(weight),
        };
        Reading {
            watched: weights.iter().map(watched).collect(),
            names: weights.iter().map(|(names, _, _)| names.clone()).collect(),
        }
    }

    /// Room for the figures.
    pub fn health(&self) -> Health {
        Health::new(self.watched.clone())
    }

    /// Reads the figures of gradients that are so many times too large. Allocates nothing.
    pub fn read(&self, program: &Program, scale: f32, health: &mut Health) -> Result<()> {
        for (names, (_, figures)) in self.names.iter().zip(health.weights_mut()) {
            let count = figures.count.max(1) as f32;
            figures.gradient_norm = program.scalar(&names.squares)?.sqrt() / scale;
            figures.mean_abs = program.scalar(&names.absolutes)? / scale / count;
            figures.zeros = program.scalar(&names.zeros)? / count;
            figures.weight_norm = program.scalar(&names.size)?.sqrt();
            figures.non_finite = 0;
            figures.update_norm = match &names.change {
                Some(name) => program.scalar(name)?.sqrt(),
                None => f32::NAN,
            };
        }
        Ok(())
    }

    /// Reads what the diagnosis of a step that was refused gives: norms and counts, with no update.
    pub fn read_non_finite(&self, program: &Program, health: &mut Health) -> Result<()> {
        for (watched, figures) in health.weights_mut() {
            let norm = program.scalar(&watched.name)?.sqrt();
            *figures = WeightHealth {
                count: figures.count,
                gradient_norm: norm,
                update_norm: f32::NAN,
                ..WeightHealth::default()
            };
        }
        self.read_counts(program, health)
    }

    fn read_counts(&self, program: &Program, health: &mut Health) -> Result<()> {
        for (names, (_, figures)) in self.names.iter().zip(health.weights_mut()) {
            figures.non_finite = program.scalar(&names.non_finite)? as u64;
        }
        Ok(())
    }
}

/// Whether rows of a value are looked up by number: an operation reads it, or a view or cast of it, with integers alone.
fn is_table(graph: &Graph, value: Value) -> bool {
    let mut same = vec![false; graph.nodes().len()];
    same[value.node] = true;
    for (index, node) in graph.nodes().iter().enumerate().skip(value.node + 1) {
        let reads = node.inputs.iter().any(|input| same[input.node]);
        let is_looked_up = |other: &Value| graph.ty(*other).dtype == DType::I32;
        match node.inputs.len() {
            1 => same[index] = reads,
            2 if reads && node.inputs.iter().any(is_looked_up) => return true,
            _ => {}
        }
    }
    false
}

/// The figures of the gradients of `output`, which a tape has recorded, by these named tensors.
///
/// ```
/// use gradus_engine::{Array, GradientTape};
///
/// let tape = GradientTape::new()?;
/// let (first, last) = (tape.watch(Array::new([2], &[1.0f32, -2.0])?), tape.watch(Array::new([2], &[1e-6f32, 0.0])?));
/// let loss = ((&first * &last).tanh()).sum_all();
/// let health = gradus_train::watch::on_tape(&tape, &loss, &[("first", &first), ("last", &last)])?;
/// assert_eq!(health.weight("first").unwrap().zeros, 0.5);
/// # Ok::<(), gradus_train::Error>(())
/// ```
#[track_caller]
pub fn on_tape(tape: &GradientTape, output: &Tensor, named: &[(&str, &Tensor)]) -> Result<Health> {
    let tensors: Vec<&Tensor> = named.iter().map(|(_, tensor)| *tensor).collect();
    let gradients = tape.gradient(output, &tensors)?;
    let measured = |((name, weight), gradient)| Measured { name, weight, gradient, updated: None };
    let weights: Vec<Measured<'_>> = named.iter().copied().zip(&gradients).map(measured).collect();
    let Measures { figures, reading } = Measures::new(&weights);
    let read = tape.read_all(&figures.outputs.iter().map(|(_, value)| value).collect::<Vec<_>>())?;
    let mut health = reading.health();
    let (measured, counted) = read.split_at(4 * weights.len());
    for (((_, figures), numbers), counted) in health.weights_mut().zip(measured.chunks(4)).zip(counted) {
        let number = |index: usize| numbers[index].to_f64()[0] as f32;
        let count = figures.count.max(1) as f32;
        figures.gradient_norm = number(0).sqrt();
        (figures.mean_abs, figures.zeros) = (number(1) / count, number(2) / count);
        (figures.weight_norm, figures.non_finite) = (number(3).sqrt(), counted.to_f64()[0] as u64);
    }
    Ok(health)
}

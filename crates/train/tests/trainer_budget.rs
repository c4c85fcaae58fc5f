//! The trainer of a model of one's own within a budget. Alone in its process, whose memory it is about.

use gradus_engine::backend::Cpu;
use gradus_engine::{DType, Tensor};
use gradus_train::memory::{Budget, ProcessMemory, Size};
use gradus_train::parameters::{Initializer, Parameters};
use gradus_train::run::Unwatched;
use gradus_train::step::{Batch, Inputs};
use gradus_train::trainer::{Settings, Trainer};
use gradus_train::{Error, Result};
use std::sync::Arc;

const WIDTH: usize = 64;
const LAYERS: usize = 12;
const BATCH: usize = 4096;

/// Deep and narrow on many examples: activations are most of it.
fn deep(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let x = inputs.get("x", DType::F32, [WIDTH]); // [b, c]
    let weight =
        |layer: usize| parameters.get(&format!("{layer}"), [WIDTH, WIDTH], Initializer::XavierUniform { gain: 1.0 });
    let y = (0..LAYERS).fold(x.clone(), |y, layer| y.matmul(&weight(layer)).tanh()); // [b, c]
    let error = y - x;
    &error * &error
}

fn trained(memory: Option<Budget>) -> Result<(usize, Vec<u8>)> {
    let settings = Settings { batch: BATCH, steps: Some(2), memory, ..Settings::default() };
    let mut trainer = Trainer::new(deep, settings, Arc::new(Cpu::new(2)?))?;
    let fill = |step: u64, batch: &mut Batch| {
        let numbers = batch.numbers_mut::<f32>("x")?;
        numbers.iter_mut().enumerate().for_each(|(index, x)| *x = ((index as u64 * 7 + step) % 19) as f32 / 19.0);
        Ok(())
    };
    trainer.train(fill, &mut Unwatched)?;
    Ok((trainer.program().plan().regions.total(), trainer.program().bytes("3").unwrap().to_vec()))
}

#[test]
fn a_budget_is_kept_or_refused_with_the_smallest_that_works() {
    let bytes = |text: &str| Some(Budget::Bytes(text.parse::<Size>().unwrap()));
    let smallest_but = |budget: &str| {
        let Err(Error::Config(refused)) = trained(bytes(budget)) else { return budget.to_string() };
        refused.split("this run needs ").nth(1).unwrap().split(' ').next().unwrap().to_string()
    };
    // A process that has planned before holds a little more than a new one, so what is named is asked about once more.
    let figure = &smallest_but(&smallest_but("2MB"));
    let smallest: Size = figure.parse().unwrap();
    assert!((5_000_000..40_000_000).contains(&smallest.0), "{figure}");
    let (small, bits) = trained(bytes(figure)).unwrap();
    let peak = ProcessMemory::read().peak;
    // Where the system does not say, there is nothing to compare.
    assert!(peak == 0 || peak <= smallest.0, "{peak} bytes at the peak of a budget of {figure}");
    let (large, same_bits) = trained(None).unwrap();
    assert!(2 * small < large, "{small} beside {large}: activations are not kept in the small one");
    assert_eq!(bits, same_bits);
}

//! Models and what they learn.

use gradus_engine::ops::{Conv2dOptions, Pool2dOptions};
use gradus_engine::{Array, DType, Tensor};
use gradus_train::Result;
use gradus_train::language::{LanguageModel, TARGETS, TOKENS};
use gradus_train::layers::{BatchNorm, Conv2d, Gru, Linear, Lstm};
use gradus_train::models::{Family, ModelConfig};
use gradus_train::parameters::{Initializer, Parameters};
use gradus_train::step::{Batch, Inputs};
use gradus_train::trainer::Trainer;
use std::rc::Rc;

pub const INPUTS: usize = 16;
pub const CLASSES: usize = 4;
const WIDTH: usize = 32;
pub const VOCABULARY: usize = 29;
pub const CONTEXT: usize = 16;

/// How a network of linear layers begins.
#[derive(Clone, Copy)]
pub struct Mlp {
    pub layers: usize,
    pub activation: fn(&Tensor) -> Tensor,
    /// What the usual deviation of a layer's weights is multiplied by.
    pub scale: fn(usize) -> f32,
    /// What a layer's biases begin with.
    pub bias: fn(usize) -> f32,
}

impl Mlp {
    pub fn new(layers: usize, activation: fn(&Tensor) -> Tensor) -> Mlp {
        Mlp { layers, activation, scale: |_| 1.0, bias: |_| 0.0 }
    }

    /// The losses of points that are to be told apart.
    pub fn losses(self) -> impl Fn(&Parameters, &Inputs) -> Tensor {
        move |parameters, inputs| {
            let (mut x, class) = (inputs.get("x", DType::F32, [INPUTS]), inputs.get("class", DType::I32, []));
            for layer in 0..self.layers {
                let is_last = layer + 1 == self.layers;
                let (rows, columns) = (x.size(1), if is_last { CLASSES } else { WIDTH });
                let deviation = (self.scale)(layer) * (2.0 / rows as f32).sqrt();
                let weight = parameters.get(
                    &format!("layers.{layer}.weight"),
                    [rows, columns],
                    Initializer::Normal { deviation },
                );
                let bias = parameters.get(
                    &format!("layers.{layer}.bias"),
                    [columns],
                    Initializer::Constant((self.bias)(layer)),
                );
                x = x.linear(&weight, Some(&bias));
                x = if is_last { x } else { (self.activation)(&x) };
            }
            x.cross_entropy_rows(&class, None)
        }
    }
}

/// A number between 0 and 1 that looks random.
pub fn random(number: u64) -> f32 {
    let mut x = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((x ^ (x >> 31)) >> 40) as f32 / (1u64 << 24) as f32
}

/// Points whose class follows from them.
pub fn points(step: u64, batch: &mut Batch) -> Result<()> {
    let rows = batch.rows() as u64;
    let number =
        |row: usize, column: usize| 2.0 * random((step * rows + row as u64) * INPUTS as u64 + column as u64) - 1.0;
    for (row, x) in batch.numbers_mut::<f32>("x")?.chunks_exact_mut(INPUTS).enumerate() {
        x.iter_mut().enumerate().for_each(|(column, x)| *x = number(row, column));
    }
    for (row, class) in batch.numbers_mut::<i32>("class")?.iter_mut().enumerate() {
        *class = 2 * i32::from(number(row, 0) > 0.0) + i32::from(number(row, 1) > 0.0);
    }
    Ok(())
}

/// A small language model.
pub fn language(family: Family) -> LanguageModel {
    LanguageModel::new(Rc::new(ModelConfig::new(family, VOCABULARY, 32, 2, 2, CONTEXT)))
}

/// Sequences that count on by a step of their own; those of poisoned steps are noise.
pub fn sequences(poisoned: fn(u64) -> bool) -> impl Fn(u64, &mut Batch) -> Result<()> + Send + Sync + Copy {
    move |step, batch| {
        let token = |row: usize, place: usize| {
            let number = step * batch.rows() as u64 + row as u64;
            let noise = (random(number * CONTEXT as u64 + place as u64) * VOCABULARY as f32) as i32;
            let (start, by) = ((number * 7 % 29) as i32, (number % 3) as i32 + 1);
            if poisoned(step) { noise } else { (start + by * place as i32) % VOCABULARY as i32 }
        };
        let all = |shift: usize| -> Vec<i32> {
            (0..batch.rows())
                .flat_map(|row| (0..CONTEXT).map(move |place| (row, place)))
                .map(|(row, place)| token(row, place + shift))
                .collect()
        };
        let (tokens, targets) = (all(0), all(1));
        batch.write(TOKENS, &tokens)?;
        batch.write(TARGETS, &targets)
    }
}

/// Multiplies a weight as it stands.
pub fn scale_weight(trainer: &mut Trainer, name: &str, by: f32) {
    let array = trainer.read(name).unwrap();
    let numbers: Vec<f32> = array.to_vec::<f32>().unwrap().iter().map(|number| number * by).collect();
    trainer.program_mut().write_array(name, &Array::new(&array.ty().shape, &numbers).unwrap()).unwrap();
}

/// A convolutional network over the same points as 4 x 4 images.
pub fn convolutional(parameters: &Parameters, inputs: &Inputs) -> Tensor {
    let (x, class) = (inputs.get("x", DType::F32, [INPUTS]), inputs.get("class", DType::I32, []));
    let same = Conv2dOptions { padding: [1, 1], ..Default::default() };
    let x = x.reshape([x.size(0), 1, 4, 4]);
    let x = Conv2d::without_bias(&parameters.within("first"), 1, 8, [3, 3], same).forward(&x);
    let x = BatchNorm::new(&parameters.within("norm"), 8).forward(&x).relu();
    let x = Conv2d::new(&parameters.within("second"), 8, 8, [3, 3], same).forward(&x).relu();
    let x = x.max_pool2d(Pool2dOptions::new([2, 2])).flatten(1);
    Linear::new(&parameters.within("head"), 32, CLASSES).forward(&x).cross_entropy_rows(&class, None)
}

/// A recurrent network over the same points as sequences of 4.
pub fn recurrent(is_lstm: bool) -> impl Fn(&Parameters, &Inputs) -> Tensor {
    move |parameters, inputs| {
        let (x, class) = (inputs.get("x", DType::F32, [INPUTS]), inputs.get("class", DType::I32, []));
        let (x, within) = (x.reshape([x.size(0), 4, 4]), parameters.within("recurrent"));
        let states = match is_lstm {
            true => Lstm::new(&within, 4, 16, 1).forward(&x).states,
            false => Gru::new(&within, 4, 16, 1).forward(&x).states,
        };
        Linear::new(&parameters.within("head"), 16, CLASSES).forward(&states[0][0]).cross_entropy_rows(&class, None)
    }
}

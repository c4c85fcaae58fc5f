//! Recurrent layers, unrolled over time: a step is traced for every place of the sequence.

use super::{Linear, given};
use crate::config::Precision;
use crate::parameters::{Initializer, Parameters};
use gradus_engine::{DType, Tensor, TensorType};

/// The most steps, over the places of all layers: each is a dozen operations of the trace, and the time to plan them, about
/// a minute for so many, grows as their square.
const MOST_STEPS: usize = 512;

/// Gated recurrent units, batch first. Weights of layer k: `weight_ih_lk` [3 hidden, inputs], `weight_hh_lk`
/// [3 hidden, hidden], `bias_ih_lk`, `bias_hh_lk`; of the reset gate, the update gate and the candidate, in this order.
#[derive(Clone, Debug)]
pub struct Gru(Stack);

/// Long short-term memory, batch first. Weights of layer k: `weight_ih_lk` [4 hidden, inputs], `weight_hh_lk`
/// [4 hidden, hidden], `bias_ih_lk`, `bias_hh_lk`; of the input gate, the forget gate, the candidate and the output gate,
/// in this order.
#[derive(Clone, Debug)]
pub struct Lstm(Stack);

/// What a recurrent layer gives.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// What the last layer gives at every place: [b, t, hidden].
    pub outputs: Tensor,
    /// What each layer remembers after the last place, [b, hidden] each: of a GRU its output, of an LSTM its output and
    /// its cell.
    pub states: Vec<Vec<Tensor>>,
}

/// What makes a kind of layer: from what the input and the hidden state give for the gates, [b, hidden] each, and the
/// states before, to the states after; the first of them is the output.
trait Cell {
    const GATES: usize;
    const STATES: usize;

    #[track_caller]
    fn step(input: &[Tensor], hidden: &[Tensor], states: &[Tensor]) -> Vec<Tensor>;
}

impl Cell for Gru {
    const GATES: usize = 3;
    const STATES: usize = 1;

    #[track_caller]
    fn step(input: &[Tensor], hidden: &[Tensor], states: &[Tensor]) -> Vec<Tensor> {
        let reset = (&input[0] + &hidden[0]).sigmoid();
        let update = (&input[1] + &hidden[1]).sigmoid();
        let candidate = (&input[2] + reset * &hidden[2]).tanh();
        vec![(1.0 - &update) * candidate + update * &states[0]]
    }
}

impl Cell for Lstm {
    const GATES: usize = 4;
    const STATES: usize = 2;

    #[track_caller]
    fn step(input: &[Tensor], hidden: &[Tensor], states: &[Tensor]) -> Vec<Tensor> {
        let enter = (&input[0] + &hidden[0]).sigmoid();
        let forget = (&input[1] + &hidden[1]).sigmoid();
        let candidate = (&input[2] + &hidden[2]).tanh();
        let leave = (&input[3] + &hidden[3]).sigmoid();
        let cell = forget * &states[1] + enter * candidate;
        vec![leave * cell.tanh(), cell]
    }
}

/// Layers one on another.
#[derive(Clone, Debug)]
struct Stack {
    layers: Vec<Layer>,
    hidden: usize,
    precision: Precision,
}

#[derive(Clone, Debug)]
struct Layer {
    from_input: Linear,
    from_hidden: Linear,
}

impl Stack {
    #[track_caller]
    fn new<C: Cell>(parameters: &Parameters, inputs: usize, hidden: usize, layers: usize) -> Stack {
        if !(1..=MOST_STEPS).contains(&layers) {
            let problem = format!("{layers} layers; take from 1 to {MOST_STEPS}");
            parameters.trace().full(0.0, DType::F32, []).parameter_error("a recurrent layer", problem);
        }
        let rows = hidden.saturating_mul(C::GATES);
        let mut made = vec![];
        for layer in 0..layers.clamp(1, MOST_STEPS) {
            let inputs = if layer == 0 { inputs } else { hidden };
            made.push(Layer {
                from_input: projection(parameters, &format!("ih_l{layer}"), [rows, inputs], hidden),
                from_hidden: projection(parameters, &format!("hh_l{layer}"), [rows, hidden], hidden),
            });
        }
        Stack { layers: made, hidden, precision: parameters.precision() }
    }

    /// Takes the steps of the cell over the places of every layer.
    #[track_caller]
    fn forward<C: Cell>(&self, x: &Tensor, states: Option<&[Vec<Tensor>]>) -> Recurrence {
        let state = TensorType::new(given(x, self.precision), [x.shape().first().copied().unwrap_or(1), self.hidden]);
        if let Some(problem) = self.problem(x, states, &state, C::STATES) {
            let refused = x.parameter_error("recurrent layer", problem);
            let states = vec![vec![refused.clone(); C::STATES]; self.layers.len()];
            return Recurrence { outputs: refused, states };
        }
        let zeros = x.trace().full(0.0, state.dtype, state.shape);
        let sizes = vec![self.hidden; C::GATES];
        let (mut outputs, mut last) = (x.clone(), vec![]);
        for (index, layer) in self.layers.iter().enumerate() {
            let mut state = states.map_or_else(|| vec![zeros.clone(); C::STATES], |states| states[index].clone());
            let from_input = layer.from_input.forward(&outputs); // [b, t, gates * hidden]
            let mut places = vec![];
            for place in 0..x.size(1) {
                let input = from_input.slice(1, place..place + 1).squeeze(1).split(-1, &sizes);
                let hidden = layer.from_hidden.forward(&state[0]).split(-1, &sizes);
                state = C::step(&input, &hidden, &state);
                places.push(state[0].clone()); // [b, hidden]
            }
            outputs = Tensor::stack(&places.iter().collect::<Vec<_>>(), 1); // [b, t, hidden]
            last.push(state);
        }
        Recurrence { outputs, states: last }
    }

    /// What is wrong with a sequence, or with so many states for each layer to start from.
    fn problem(&self, x: &Tensor, states: Option<&[Vec<Tensor>]>, state: &TensorType, count: usize) -> Option<String> {
        let (shape, layers) = (x.shape(), self.layers.len());
        let most = MOST_STEPS / layers;
        if shape.rank() != 3 || !(1..=most).contains(&shape[1]) {
            return Some(format!(
                "takes sequences [batch, places, inputs] of 1 to {most} places, not {shape}: more take minutes to plan; \
                 cut longer ones, and go on by `forward_from`"
            ));
        }
        let fits = |layer: &Vec<Tensor>| layer.len() == count && layer.iter().all(|given| given.ty() == *state);
        match states {
            Some(states) if states.len() != layers || !states.iter().all(fits) => {
                Some(format!("there are {layers} layers, each with {count} states {state} to start from"))
            }
            _ => None,
        }
    }
}

/// A linear layer to the gates, of weights and bias that start as PyTorch's do.
#[track_caller]
fn projection(parameters: &Parameters, name: &str, shape: [usize; 2], hidden: usize) -> Linear {
    let initializer = Initializer::uniform_in_fan(hidden);
    let weight = parameters.get(&format!("weight_{name}"), shape, initializer);
    let bias = parameters.get(&format!("bias_{name}"), [shape[0]], initializer);
    Linear::over(parameters, &weight, Some(&bias))
}

macro_rules! recurrent {
    ($($layer:ident)*) => {$(
        impl $layer {
            /// So many layers, one on another, from inputs of one width to states of another.
            #[track_caller]
            pub fn new(parameters: &Parameters, inputs: usize, hidden: usize, layers: usize) -> $layer {
                $layer(Stack::new::<$layer>(parameters, inputs, hidden, layers))
            }

            /// Over a sequence [b, t, inputs], from states of zero.
            #[track_caller]
            pub fn forward(&self, x: &Tensor) -> Recurrence {
                self.0.forward::<$layer>(x, None)
            }

            /// Over a sequence [b, t, inputs], from states such as an earlier one ended with.
            #[track_caller]
            pub fn forward_from(&self, x: &Tensor, states: &[Vec<Tensor>]) -> Recurrence {
                self.0.forward::<$layer>(x, Some(states))
            }
        }
    )*};
}

recurrent!(Gru Lstm);

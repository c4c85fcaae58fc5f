//! Recurrent layers, unrolled over time: a step is traced for every place of the sequence.

use super::Linear;
use crate::parameters::{Initializer, Parameters};
use gradus_engine::{DType, Shape, Tensor};

/// The longest sequence: each place is a dozen operations of the trace.
const MOST_PLACES: usize = 1 << 16;

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

/// Layers one on another.
#[derive(Clone, Debug)]
struct Stack {
    layers: Vec<Layer>,
    hidden: usize,
    gates: usize,
}

/// More layers than any recurrent network has.
const MOST_LAYERS: usize = 1024;

#[derive(Clone, Debug)]
struct Layer {
    from_input: Linear,
    from_hidden: Linear,
}

impl Stack {
    #[track_caller]
    fn new(parameters: &Parameters, inputs: usize, hidden: usize, layers: usize, gates: usize) -> Stack {
        if !(1..=MOST_LAYERS).contains(&layers) {
            let problem = format!("{layers} layers; take from 1 to {MOST_LAYERS}");
            parameters.trace().full(0.0, DType::F32, []).parameter_error("a recurrent layer", problem);
        }
        let layers = layers.clamp(1, MOST_LAYERS);
        let initializer = Initializer::uniform_in_fan(hidden);
        let rows = hidden.saturating_mul(gates);
        let mut made = Vec::new();
        for layer in 0..layers {
            let linear = |from: &str, columns: usize| {
                let weight = parameters.get(&format!("weight_{from}_l{layer}"), [rows, columns], initializer);
                let bias = parameters.get(&format!("bias_{from}_l{layer}"), [rows], initializer);
                Linear::over(parameters, &weight, Some(&bias))
            };
            let from_input = linear("ih", if layer == 0 { inputs } else { hidden });
            made.push(Layer { from_input, from_hidden: linear("hh", hidden) });
        }
        Stack { layers: made, hidden, gates }
    }

    /// Runs `step` over the places of every layer: from what the input and the hidden state give for the gates
    /// [b, hidden each], and the states before, to the states after; the first of them is the output.
    #[track_caller]
    fn forward(&self, x: &Tensor, states: Option<&[Vec<Tensor>]>, count: usize, step: Step) -> Recurrence {
        let refused = |poisoned: Tensor| {
            let states = vec![vec![poisoned.clone(); count]; self.layers.len()];
            Recurrence { outputs: poisoned, states }
        };
        if x.shape().rank() != 3 || !(1..=MOST_PLACES).contains(&x.size(1)) {
            let problem =
                format!("takes sequences [batch, places, inputs] of 1 to {MOST_PLACES} places, not {}", x.shape());
            return refused(x.parameter_error("recurrent layer", problem));
        }
        let shape = Shape::from([x.size(0), self.hidden]);
        let fit = |layer: &Vec<Tensor>| layer.len() == count && layer.iter().all(|state| state.shape() == shape);
        if states.is_some_and(|states| states.len() != self.layers.len() || !states.iter().all(fit)) {
            let layers = self.layers.len();
            let problem = format!("there are {layers} layers, each with {count} states {shape} to start from");
            return refused(x.parameter_error("recurrent layer", problem));
        }
        let zeros = x.trace().full(0.0, DType::F32, shape);
        let (mut outputs, mut last) = (x.clone(), vec![]);
        for (index, layer) in self.layers.iter().enumerate() {
            let mut state = states.map_or_else(|| vec![zeros.clone(); count], |states| states[index].clone());
            let from_input = layer.from_input.forward(&outputs); // [b, t, gates * hidden]
            let mut places = vec![];
            for place in 0..x.size(1) {
                let input = from_input.slice(1, place..place + 1).squeeze(1).split(-1, &vec![self.hidden; self.gates]);
                let hidden = layer.from_hidden.forward(&state[0]).split(-1, &vec![self.hidden; self.gates]);
                state = step(&input, &hidden, &state);
                places.push(state[0].clone()); // [b, hidden]
            }
            outputs = Tensor::stack(&places.iter().collect::<Vec<_>>(), 1); // [b, t, hidden]
            last.push(state);
        }
        Recurrence { outputs, states: last }
    }
}

/// Parts for the gates from the input and from the hidden state, and the states before; the states after.
type Step = fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Tensor>;

#[track_caller]
fn gru_step(input: &[Tensor], hidden: &[Tensor], states: &[Tensor]) -> Vec<Tensor> {
    let reset = (&input[0] + &hidden[0]).sigmoid();
    let update = (&input[1] + &hidden[1]).sigmoid();
    let candidate = (&input[2] + reset * &hidden[2]).tanh();
    vec![(1.0 - &update) * candidate + update * &states[0]]
}

#[track_caller]
fn lstm_step(input: &[Tensor], hidden: &[Tensor], states: &[Tensor]) -> Vec<Tensor> {
    let enter = (&input[0] + &hidden[0]).sigmoid();
    let forget = (&input[1] + &hidden[1]).sigmoid();
    let candidate = (&input[2] + &hidden[2]).tanh();
    let leave = (&input[3] + &hidden[3]).sigmoid();
    let cell = forget * &states[1] + enter * candidate;
    vec![leave * cell.tanh(), cell]
}

macro_rules! recurrent {
    ($($layer:ident of $gates:literal gates and $states:literal states by $step:ident;)*) => {$(
        impl $layer {
            /// So many layers, one on another, from inputs of one width to states of another.
            #[track_caller]
            pub fn new(parameters: &Parameters, inputs: usize, hidden: usize, layers: usize) -> $layer {
                $layer(Stack::new(parameters, inputs, hidden, layers, $gates))
            }

            /// Over a sequence [b, t, inputs], from states of zero.
            #[track_caller]
            pub fn forward(&self, x: &Tensor) -> Recurrence {
                self.0.forward(x, None, $states, $step)
            }

            /// Over a sequence [b, t, inputs], from states such as an earlier one ended with.
            #[track_caller]
            pub fn forward_from(&self, x: &Tensor, states: &[Vec<Tensor>]) -> Recurrence {
                self.0.forward(x, Some(states), $states, $step)
            }
        }
    )*};
}

recurrent! {
    Gru of 3 gates and 1 states by gru_step;
    Lstm of 4 gates and 2 states by lstm_step;
}

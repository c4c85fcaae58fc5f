//! Layers for models of one's own, on tensors and [`Parameters`].
//!
//! A layer takes its weights from [`Parameters`] when it is made and is traced by its `forward`. Names, shapes and initial
//! numbers are those of the PyTorch module of the same name, so that its state dict can be read by name
//! ([`Parameters::load`]). Layers without weights are methods of [`Tensor`]: activations, `max_pool2d` and its kin, `softmax`;
//! dropout, which needs a key, is [`Parameters::dropout`].
//!
//! Matrix products, convolutions and attention are computed in the precision of the [`Parameters`]; what a layer gives is f32,
//! or in that precision if its operand is: activations inside of a layer are stored in it.
//!
//! [`Parameters`]: crate::parameters::Parameters
//! [`Parameters::load`]: crate::parameters::Parameters::load
//! [`Parameters::dropout`]: crate::parameters::Parameters::dropout
//!
//! ```
//! use gradus_engine::{DType, Trace};
//! use gradus_train::layers::{LayerNorm, Linear};
//! use gradus_train::parameters::Parameters;
//!
//! let trace = Trace::new();
//! let parameters = Parameters::new(&trace);
//! let x = trace.input("x", DType::F32, [8, 16]);
//! let hidden = Linear::new(&parameters.within("fc1"), 16, 32).forward(&x).relu(); // [8, 32]
//! let hidden = LayerNorm::new(&parameters.within("norm"), 32).forward(&hidden); // [8, 32]
//! let y = Linear::new(&parameters.within("fc2"), 32, 4).forward(&parameters.dropout(&hidden, 0.1)); // [8, 4]
//! assert_eq!(parameters.list()[0].name, "fc1.weight");
//! # trace.check()?;
//! # Ok::<(), gradus_engine::Error>(())
//! ```

mod attention;
mod convolution;
mod feed_forward;
mod linear;
mod norm;
mod recurrent;

pub use attention::{MultiHeadAttention, MultiHeadAttentionOptions, rotary_positions};
pub use convolution::{Conv1d, Conv2d};
pub use feed_forward::{FeedForward, SwiGlu};
pub use linear::{Embedding, Linear};
pub use norm::{BatchNorm, LayerNorm, RmsNorm};
pub use recurrent::{Gru, Lstm, Recurrence};

use crate::config::Precision;
use gradus_engine::{DType, Tensor};

/// What a layer gives for this operand, when its products are computed in this precision.
fn given(x: &Tensor, precision: Precision) -> DType {
    if x.dtype() == precision.dtype() { precision.dtype() } else { DType::F32 }
}

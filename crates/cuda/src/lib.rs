//! CUDA for gradus: what a device does, as data, and what carries it out.
//!
//! The first half is pure: [`Source`] writes a kernel with its shapes as constants, [`Command`] says what to launch on
//! which addresses. It needs no device, no driver and no library, so plans are made and tested anywhere. The second half
//! loads NVIDIA's libraries when it is first asked for: [`Device`] compiles, allocates, captures and replays.

mod append;
mod attention;
mod cached_attention;
mod choice;
mod command;
mod compile;
mod cross_entropy;
mod device;
mod disk_cache;
mod elementwise;
mod embedding_gradient;
mod error;
mod followed_product;
mod graph;
mod host;
mod library;
mod map;
mod meeting;
mod memory;
mod nccl;
mod norm;
mod operand;
mod peers;
mod prepared;
mod product;
mod program;
mod reduce;
mod replay;
mod rows_product;
mod sample;
mod scatter;
mod sort;
mod source;
pub mod sources;
mod stream;
mod top_k;

pub use append::Append;
pub use attention::{Attention, AttentionGradient};
pub use cached_attention::CachedAttention;
pub use command::{Bias, Command, Gelu, Launch, Matrix, Product};
pub use compile::{can_compile, compile};
pub use cross_entropy::{Logits, cross_entropy, cross_entropy_gradient, cross_entropy_with_gradient};
pub use device::Device;
pub use elementwise::{copy, elementwise};
pub use embedding_gradient::{EmbeddingGradient, embedding_gradient};
pub use error::{Error, Result};
pub use followed_product::{Epilogue, are_followed, column_sum_rows, followed_product};
pub use graph::Steps;
pub use host::Staging;
pub use map::Map;
pub use meeting::{Meeting, Message, TreeSum};
pub use memory::Memory;
pub use norm::{Norm, NormGradient, norm, norm_gradient, share_sums};
pub use operand::{Element, Operand, common_vector};
pub use peers::Peers;
pub use program::expression;
pub use reduce::{ReduceOptions, Reduction, reduce};
pub use replay::Replay;
pub use rows_product::rows_product;
pub use sample::sample;
pub use scatter::{ScatterAdd, scatter_add};
pub use sort::{Sort, sort};
pub use source::{Source, threads_for};
pub use top_k::{TopK, top_k};

/// Multiprocessors of an H100 or H200, over which work is shared out.
pub const MULTIPROCESSORS: usize = 132;

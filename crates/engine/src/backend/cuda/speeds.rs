//! How long a step takes on a GPU, about: plans are chosen by it, so it depends on the kind of GPU alone.

use super::GpuKind;
use crate::DType;
use crate::ops::{Form, Operation, Work};
use crate::plan::Step;

/// Beginning a kernel, and waiting for its last block.
const LAUNCH: f64 = 2e-6;
/// Operations a second outside of products.
const SCALAR_RATE: f64 = 3e13;
/// What f32 products reach of the rate of 16-bit ones.
const F32_SHARE: f64 = 0.07;
/// What products in TF32 do.
const TF32_SHARE: f64 = 0.45;
/// Attention reaches this share of what products do.
const ATTENTION_SHARE: f64 = 0.4;

/// How long a step takes on this kind of GPU.
pub(super) fn seconds(step: &Step, kind: &GpuKind) -> f64 {
    let cost = step.cost();
    let dtype = step.inputs.first().map_or(DType::F32, |input| input.dtype);
    let product_rate = kind.product_rate * if dtype == DType::F32 { F32_SHARE } else { 1.0 };
    let rate = match cost.work {
        Work::Product { .. } if is_tf32(&*step.op) => kind.product_rate * TF32_SHARE,
        Work::Product { .. } | Work::BlockedProducts => product_rate,
        Work::Attention => product_rate * ATTENTION_SHARE,
        Work::Convolution => kind.product_rate * F32_SHARE / 2.0,
        Work::Elements => SCALAR_RATE,
    };
    LAUNCH + (cost.operations as f64 / rate).max(cost.bytes as f64 / kind.bandwidth)
}

/// Whether an operation's products are in TF32.
fn is_tf32(op: &dyn Operation) -> bool {
    match op.form() {
        Form::Product(product) => product.types().is_tf32(),
        Form::FusedProduct(fused) => fused.product().types().is_tf32(),
        Form::Accumulation(accumulation) => is_tf32(accumulation.inner()),
        _ => false,
    }
}

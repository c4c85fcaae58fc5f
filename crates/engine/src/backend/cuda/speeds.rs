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
/// Attention reaches this share of what products do, and so do products of blocks with what is done between them.
const ATTENTION_SHARE: f64 = 0.36;
const BLOCKED_SHARE: f64 = 0.75;
/// What of their traffic products do not hide behind their arithmetic.
const EXPOSED_SHARE: f64 = 0.5;

/// How long a step takes on this kind of GPU.
pub(super) fn seconds(step: &Step, kind: &GpuKind) -> f64 {
    let cost = step.cost();
    let dtype = step.inputs.first().map_or(DType::F32, |input| input.dtype);
    let share = match dtype {
        _ if is_tf32(&*step.op) => TF32_SHARE,
        DType::F32 => F32_SHARE,
        _ => 1.0,
    };
    let (product_rate, operations) = (kind.product_rate * share, cost.operations as f64);
    let traffic = cost.bytes as f64 / kind.bandwidth;
    let arithmetic = match cost.work {
        Work::Product { rows, columns, depth } => {
            let product = (2.0 * rows as f64 * columns as f64 * depth as f64).min(operations);
            // An epilogue's arithmetic is done when the tensor cores have nothing more to do for the tile.
            product / product_rate + (operations - product) / SCALAR_RATE + EXPOSED_SHARE * traffic
        }
        Work::BlockedProducts => operations / (product_rate * BLOCKED_SHARE),
        Work::Attention => operations / (product_rate * ATTENTION_SHARE),
        Work::Convolution => operations / (kind.product_rate * F32_SHARE / 2.0),
        Work::Elements => operations / SCALAR_RATE,
    };
    LAUNCH + arithmetic.max(traffic)
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

//! How long a step takes on a CPU, about. Plans are chosen by it, so it depends on nothing that changes from run to
//! run: the figures are those of one core of a Zen 4 at 3.7 GHz (`gradus bench`, two threads), whatever the machine.
//! What matters is how kinds of work compare, and that is much the same elsewhere.

use crate::DType;
use crate::ops::Work;
use crate::plan::Step;
use gradus_kernels::Isa;

/// Bytes a second between the cores and the last cache, and between the cores and memory, all workers together.
const CACHE_BANDWIDTH: f64 = 80e9;
const MEMORY_BANDWIDTH: f64 = 45e9;
/// What is moved by a step and still found in the last cache by the next.
const CACHE_BYTES: u64 = 16 << 20;
/// Operations a second of one worker outside of products: exponentials, norms, updates.
const SCALAR_RATE: f64 = 12e9;
/// Attention reaches this share of what products do.
const ATTENTION_SHARE: f64 = 0.4;
/// Handing a step to the workers and waiting for the last.
const HANDOFF: f64 = 3e-6;

/// How long a step takes with this instruction set and so many workers.
pub(super) fn seconds(step: &Step, isa: Isa, workers: usize) -> f64 {
    let cost = step.cost();
    let bandwidth = if cost.bytes <= CACHE_BYTES { CACHE_BANDWIDTH } else { MEMORY_BANDWIDTH };
    let dtype = step.inputs.first().map_or(DType::F32, |input| input.dtype);
    let rate = workers as f64 * rate(cost.work, dtype, isa);
    let computing = cost.operations as f64 / rate * edges(cost.work);
    HANDOFF + computing.max(cost.bytes as f64 / bandwidth)
}

/// How much longer a product takes because each of its sizes has an end: panels to be packed, tiles half full, sums to be
/// fetched and put back. Measured over micro-batches of the reference model, 128 to 4,096 rows.
fn edges(work: Work) -> f64 {
    const EDGE: f64 = 16.0;
    match work {
        Work::Product { rows, columns, depth } => {
            [rows, columns, depth].map(|size| 1.0 + EDGE / size.max(1) as f64).iter().product()
        }
        _ => 1.0,
    }
}

/// Operations a second of one worker.
fn rate(work: Work, dtype: DType, isa: Isa) -> f64 {
    match work {
        Work::Product { .. } | Work::BlockedProducts => product_rate(dtype, isa),
        // Told by the products of the definition: 150e9 to 170e9 of 3 x 3 that take fewer, 70e9 to 90e9 of strided ones and of one
        // element, 18e9 where each channel is for itself.
        Work::Convolution => product_rate(DType::F32, isa),
        // Where there are matrix registers, attention does without them, and without pairs.
        Work::Attention if isa == Isa::Amx => product_rate(DType::F32, isa) * ATTENTION_SHARE,
        Work::Attention => product_rate(dtype, isa) * ATTENTION_SHARE,
        Work::Elements => SCALAR_RATE,
    }
}

fn product_rate(dtype: DType, isa: Isa) -> f64 {
    match (isa, dtype) {
        (Isa::Amx, DType::Bf16) => 600e9,
        (Isa::Avx512Bf16, DType::Bf16) => 210e9,
        (Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512, _) => 113e9,
        (Isa::Avx2, _) => 100e9,
        (Isa::Neon, _) => 40e9,
        (Isa::Baseline, _) => 20e9,
    }
}

//! Single operations as entries, each traced, compiled and replayed like any program.

use super::entry::{Entry, Group, Sample, Setting, Work};
use gradus_engine::ops::{AdamW, AdamWInputs, Conv2dOptions, LayerNormGradient};
use gradus_engine::plan::BufferKind;
use gradus_engine::{DType, Program, Routine, Tensor, TensorType, Trace, gradient};
use gradus_kernels::bf16;
use gradus_kernels::limits::Limit;
use gradus_train::Result;
use gradus_train::profiler::Benchmark;
use std::time::Duration;

/// Time for each kernel.
const TIME: Duration = Duration::from_secs(1);
/// Integers of inputs stay below this, as targets among the tokens of GPT-2.
const VOCABULARY: usize = 50_257;

/// Every kernel.
pub fn entries() -> Vec<Entry> {
    let mut kernels = vec![];
    for dtype in [DType::F32, DType::Bf16] {
        kernels.extend([128, 256, 512, 1024, 2048].map(|size| matmul(dtype, size)));
        kernels.extend(linear(dtype));
    }
    for dtype in [DType::F32, DType::Bf16] {
        kernels.extend([1, 8, 64].into_iter().flat_map(|rows| decode(dtype, rows)));
    }
    kernels.push(adamw("2m", 2_359_296));
    kernels.push(Kernel { heavy: true, ..adamw("124m", 124_439_808) });
    for batch in [8, 16, 32] {
        kernels.extend([layer_norm_forward(batch), layer_norm_backward(batch)]);
    }
    kernels.push(cross_entropy());
    for dtype in [DType::F32, DType::Bf16] {
        kernels.extend([256, 512, 1024].map(|length| attention(dtype, length)));
    }
    kernels.extend(convolutions().iter().flat_map(convolution));
    kernels.into_iter().map(Kernel::entry).collect()
}

/// An operation, or a few, to be timed.
struct Kernel {
    name: String,
    heavy: bool,
    work: Work,
    /// Traces what is to be timed, as the routine [`ROUTINE`].
    trace: Box<Traced>,
    /// The operations whose time counts, if others are there for their sake; none if all count.
    counted: &'static [&'static str],
}

/// Traces a routine.
type Traced = dyn Fn(&Trace) -> Result<Routine>;

impl Kernel {
    fn new(name: String, work: Work, trace: impl Fn(&Trace) -> Result<Routine> + 'static) -> Kernel {
        Kernel { name, heavy: false, work, trace: Box::new(trace), counted: &[] }
    }

    fn entry(self) -> Entry {
        Entry {
            name: self.name.clone(),
            group: Group::Kernels,
            heavy: self.heavy,
            work: self.work,
            measure: Box::new(move |setting| self.measure(setting)),
        }
    }

    fn measure(&self, setting: &Setting) -> Result<Sample> {
        let trace = Trace::new();
        let routine = (self.trace)(&trace)?;
        let mut program = trace.compile(&*setting.backend, &[routine])?;
        fill_inputs(&mut program)?;
        let time = setting.time.unwrap_or(TIME);
        let seconds = match self.counted {
            [] => Benchmark::lasting(time).run(|| Ok(program.run(ROUTINE)?))?,
            operations => Benchmark::lasting(time).run_counted(|| seconds_of(&mut program, operations))?,
        };
        Ok(Sample::timed(seconds))
    }
}

/// The routine of every kernel.
const ROUTINE: &str = "run";

/// Replays the routine and adds up the time of the steps of these operations.
fn seconds_of(program: &mut Program, operations: &[&str]) -> Result<f64> {
    let steps = &program.plan().routines[0].steps;
    let counted: Vec<bool> = steps.iter().map(|step| operations.contains(&step.op.name())).collect();
    let mut timing = program.timing(ROUTINE)?;
    program.run_timed(ROUTINE, &mut timing)?;
    let counted = timing.steps.iter().zip(&counted).filter(|(_, counted)| **counted);
    Ok(counted.map(|(time, _)| time.as_secs_f64()).sum())
}

/// Gives every input numbers: between -1 and 1, or tokens.
fn fill_inputs(program: &mut Program) -> Result<()> {
    let inputs: Vec<(String, TensorType)> = program
        .plan()
        .buffers
        .iter()
        .filter_map(|buffer| match &buffer.kind {
            BufferKind::Input(name) => Some((name.to_string(), buffer.ty.clone())),
            _ => None,
        })
        .collect();
    for (name, ty) in inputs {
        let count = ty.shape.elements();
        match ty.dtype {
            DType::I32 => program.write(&name, &tokens(count, VOCABULARY))?,
            DType::Bf16 => program.write(&name, &uniform(count).map(bf16::from_f32).collect::<Vec<_>>())?,
            _ => program.write(&name, &uniform(count).collect::<Vec<_>>())?,
        }
    }
    Ok(())
}

/// Numbers between -1 and 1, in no order, the same at every run.
fn uniform(count: usize) -> impl Iterator<Item = f32> {
    scattered(count).map(|bits| bits as i32 as f32 / (1u32 << 31) as f32)
}

/// Tokens of a vocabulary, in no order, the same at every run.
pub fn tokens(count: usize, vocabulary: usize) -> Vec<i32> {
    scattered(count).map(|bits| ((bits as u64 * vocabulary as u64) >> 32) as i32).collect()
}

/// All 32 bits of a multiplicative sequence that visits them evenly.
fn scattered(count: usize) -> impl Iterator<Item = u32> {
    (1..=count as u64).map(|index| (index.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32)
}

/// The limit of products of this type.
fn limit_of(dtype: DType) -> Limit {
    if dtype == DType::Bf16 { Limit::bf16() } else { Limit::f32() }
}

/// A product of square matrices.
fn matmul(dtype: DType, size: usize) -> Kernel {
    let work = Work::operations(2.0 * (size as f64).powi(3), limit_of(dtype));
    Kernel::new(format!("matmul/{dtype}/{size}"), work, move |trace| {
        let a = trace.input("a", dtype, [size, size]);
        let b = trace.input("b", dtype, [size, size]);
        Ok(Routine::new(ROUTINE).output("c", &a.matmul(&b)))
    })
}

/// The widest layer of the reference case, and its gradients.
fn linear(dtype: DType) -> Vec<Kernel> {
    const ROWS: usize = 4096;
    const INPUTS: usize = 256;
    const OUTPUTS: usize = 1024;
    type Direction = fn(&Tensor, &Tensor, &Tensor) -> Tensor;
    let directions: [(&str, Direction); 3] = [
        ("forward", |x, weight, _| x.matmul(weight)),
        ("input-gradient", |_, weight, gradient| gradient.matmul(&weight.transpose(0, 1))),
        ("weight-gradient", |x, _, gradient| x.transpose(0, 1).matmul(gradient)),
    ];
    let work = Work::operations(2.0 * (ROWS * INPUTS * OUTPUTS) as f64, limit_of(dtype));
    let kernel = |(name, direction): (&str, Direction)| {
        Kernel::new(format!("linear/{dtype}/{name}"), work, move |trace| {
            let x = trace.input("x", dtype, [ROWS, INPUTS]);
            let weight = trace.input("weight", dtype, [INPUTS, OUTPUTS]);
            let gradient = trace.input("gradient", dtype, [ROWS, OUTPUTS]);
            Ok(Routine::new(ROUTINE).output("result", &direction(&x, &weight, &gradient)))
        })
    };
    directions.map(kernel).into()
}

/// The products of GPT-2 124M as it decodes: few rows times weights that no cache holds, each of which is read once.
fn decode(dtype: DType, rows: usize) -> Vec<Kernel> {
    /// Bytes of weights of one size.
    const BEYOND_CACHES: usize = 128 << 20;
    let kernel = |(name, inputs, outputs, transposed): (&str, usize, usize, bool)| {
        let weight_bytes = inputs * outputs * dtype.size();
        let layers = BEYOND_CACHES.div_ceil(weight_bytes);
        let work = Work::bytes((layers * weight_bytes) as f64, Limit::Read);
        let kernel = Kernel::new(format!("decode/{dtype}/{rows}/{name}"), work, move |trace| {
            let x = trace.input("x", dtype, [rows, inputs]);
            let product = |layer: usize| match transposed {
                true => x.matmul(&trace.input(&format!("weight {layer}"), dtype, [outputs, inputs]).transpose(0, 1)),
                false => x.matmul(&trace.input(&format!("weight {layer}"), dtype, [inputs, outputs])),
            };
            let add = |routine: Routine, layer| routine.output(&format!("y {layer}"), &product(layer));
            Ok((0..layers).fold(Routine::new(ROUTINE), add))
        });
        Kernel { heavy: true, ..kernel }
    };
    let sizes = [
        ("attention", 768, 2304, false),
        ("up", 768, 3072, false),
        ("down", 3072, 768, false),
        ("head", 768, VOCABULARY, true),
    ];
    sizes.map(kernel).into()
}

/// An update of so many parameters, all in one tensor.
fn adamw(name: &str, count: usize) -> Kernel {
    // Weight, gradient and two moments are read, all but the gradient written.
    let bytes = 7.0 * 4.0 * count as f64;
    let work = Work { amount: count as f64, unit: "parameters/s", bound: Some((Limit::Update, bytes)) };
    Kernel::new(format!("adamw/{name}"), work, move |trace| {
        let state = |name: &str| trace.zero_state(name, DType::F32, [count]);
        let (weight, first_moment, second_moment) = (&state("weight"), &state("first"), &state("second"));
        let gradient = &trace.input("gradient", DType::F32, [count]);
        let (learning_rate, step) = (&trace.full(1e-3, DType::F32, []), &trace.full(10.0, DType::F32, []));
        let rule = AdamW { beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
        let scale = &trace.full(1.0, DType::F32, []);
        let inputs = AdamWInputs { weight, gradient, scale, first_moment, second_moment, learning_rate, step };
        let new = rule.update(inputs);
        let routine = Routine::new(ROUTINE).assign(weight, &new.weight).assign(first_moment, &new.first_moment);
        Ok(routine.assign(second_moment, &new.second_moment))
    })
}

/// Rows of a layer norm's sequence, and numbers of a row.
const NORM_SHAPE: [usize; 2] = [64, 512];

/// Bytes of a layer norm's operand.
fn norm_bytes(batch: usize) -> f64 {
    (4 * batch * NORM_SHAPE[0] * NORM_SHAPE[1]) as f64
}

/// The operand of a layer norm, and its gain.
fn layer_norm_operands(trace: &Trace, batch: usize) -> [Tensor; 2] {
    let [rows, columns] = NORM_SHAPE;
    [trace.input("x", DType::F32, [batch, rows, columns]), trace.input("gain", DType::F32, [columns])]
}

/// A layer norm: its operand is read, its result written.
fn layer_norm_forward(batch: usize) -> Kernel {
    let work = Work::bytes(2.0 * norm_bytes(batch), Limit::CacheCopy);
    Kernel::new(format!("layer-norm/forward/{batch}"), work, move |trace| {
        let [x, gain] = layer_norm_operands(trace, batch);
        let bias = trace.input("bias", gain.dtype(), gain.shape());
        Ok(Routine::new(ROUTINE).output("y", &x.layer_norm(&gain, &bias, 1e-5)))
    })
}

/// The gradients of a layer norm: operand and gradient are read, a gradient is written. The statistics of the rows are
/// inputs, as if a forward pass had left them.
fn layer_norm_backward(batch: usize) -> Kernel {
    let work = Work::bytes(3.0 * norm_bytes(batch), Limit::CacheCopy);
    Kernel::new(format!("layer-norm/backward/{batch}"), work, move |trace| {
        let [x, gain] = layer_norm_operands(trace, batch);
        let statistic = |name: &str| trace.input(name, DType::F32, [batch, NORM_SHAPE[0]]);
        let (mean, inverse_deviation) = (statistic("mean"), statistic("inverse_deviation"));
        let y_gradient = trace.input("y_gradient", x.dtype(), x.shape());
        let gradients = trace.apply(LayerNormGradient::default(), &[&x, &gain, &mean, &inverse_deviation, &y_gradient]);
        let named = gradients.iter().enumerate().map(|(index, found)| (format!("gradient {index}"), found));
        Ok(named.fold(Routine::new(ROUTINE), |routine, (name, found)| routine.output(&name, found)))
    })
}

/// Adds the gradients of `inputs` as outputs, when that of `y` is given as an input. On its way it is multiplied by
/// one, in an operation that should not count.
fn with_gradients(mut routine: Routine, y: &Tensor, inputs: &[&Tensor]) -> Result<Routine> {
    let y_gradient = y.trace().input("y_gradient", y.dtype(), y.shape());
    for (index, found) in gradient(&(y * &y_gradient), inputs)?.iter().enumerate() {
        routine = routine.output(&format!("gradient {index}"), found);
    }
    Ok(routine)
}

/// The loss of a batch over the vocabulary of GPT-2, and its gradient: logits are read twice and written once.
fn cross_entropy() -> Kernel {
    const ROWS: usize = 256;
    let work = Work::bytes(3.0 * (4 * ROWS * VOCABULARY) as f64, Limit::Update);
    Kernel::new(format!("cross-entropy/{ROWS}x{VOCABULARY}"), work, |trace| {
        let logits = trace.input("logits", DType::F32, [ROWS, VOCABULARY]);
        let loss = logits.cross_entropy(&trace.input("targets", DType::I32, [ROWS]), None);
        let routine = Routine::new(ROUTINE).output("loss", &loss);
        Ok(routine.output("gradient", &gradient(&loss, &[&logits])?[0]))
    })
}

/// Causal attention forward and backward: seven products over half of the pairs.
fn attention(dtype: DType, length: usize) -> Kernel {
    const BATCH: usize = 8;
    const HEADS: usize = 8;
    const HEAD_SIZE: usize = 64;
    let pairs = (length * length / 2) as f64;
    let work = Work::operations(7.0 * 2.0 * (BATCH * HEADS * HEAD_SIZE) as f64 * pairs, limit_of(dtype));
    let kernel = Kernel::new(format!("attention/{dtype}/{length}"), work, move |trace| {
        let input = |name: &str| trace.input(name, dtype, [BATCH, HEADS, length, HEAD_SIZE]);
        let (queries, keys, values) = (input("queries"), input("keys"), input("values"));
        let y = queries.attention(&keys, &values, true);
        with_gradients(Routine::new(ROUTINE).output("y", &y), &y, &[&queries, &keys, &values])
    });
    Kernel { counted: &["attention", "attention_gradient"], ..kernel }
}

/// A convolution of square planes and filters.
struct Convolution {
    name: &'static str,
    groups: usize,
    channels: usize,
    filters: usize,
    size: usize,
    kernel: usize,
    stride: usize,
}

/// Those of ResNet-18 and ResNet-50, and one of each channel for itself.
fn convolutions() -> [Convolution; 8] {
    let row = |name, groups, [channels, filters]: [usize; 2], size, kernel, stride| Convolution {
        name,
        groups,
        channels,
        filters,
        size,
        kernel,
        stride,
    };
    [
        row("7x7-stride-2-3-to-64-at-224", 1, [3, 64], 224, 7, 2),
        row("3x3-64-at-56", 1, [64, 64], 56, 3, 1),
        row("3x3-stride-2-64-to-128-at-56", 1, [64, 128], 56, 3, 2),
        row("3x3-128-at-28", 1, [128, 128], 28, 3, 1),
        row("3x3-256-at-14", 1, [256, 256], 14, 3, 1),
        row("3x3-512-at-7", 1, [512, 512], 7, 3, 1),
        row("1x1-256-to-64-at-56", 1, [256, 64], 56, 1, 1),
        row("depthwise-3x3-128-at-56", 128, [128, 128], 56, 3, 1),
    ]
}

/// A convolution of 16 images, and its gradients. What is counted are the products of its definition.
fn convolution(row: &Convolution) -> Vec<Kernel> {
    const IMAGES: usize = 16;
    let &Convolution { name, groups, channels, filters, size, kernel, stride } = row;
    let options = Conv2dOptions { stride: [stride; 2], padding: [kernel / 2; 2], groups, ..Conv2dOptions::default() };
    let output = (size + 2 * (kernel / 2) - kernel) / stride + 1;
    let weights = filters * (channels / groups) * kernel * kernel;
    let work = Work::operations(2.0 * (IMAGES * output * output * weights) as f64, Limit::f32());
    let directions: [(&str, &'static [&'static str]); 3] = [
        ("forward", &["conv2d"]),
        ("input-gradient", &["conv2d_input_gradient"]),
        ("weight-gradient", &["conv2d_weight_gradient"]),
    ];
    let kernel = |(index, (direction, counted)): (usize, (&str, &'static [&'static str]))| {
        let traced = Kernel::new(format!("conv/{name}/{direction}"), work, move |trace| {
            let x = trace.input("x", DType::F32, [IMAGES, channels, size, size]);
            let weight = trace.input("weight", DType::F32, [filters, channels / groups, kernel, kernel]);
            let y = x.conv2d(&weight, None, options);
            match index {
                0 => Ok(Routine::new(ROUTINE).output("y", &y)),
                _ => with_gradients(Routine::new(ROUTINE), &y, &[[&x, &weight][index - 1]]),
            }
        });
        Kernel { heavy: true, counted, ..traced }
    };
    directions.into_iter().enumerate().map(kernel).collect()
}

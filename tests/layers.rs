//! Layers and losses compared with PyTorch's, forwards and gradients, on the numbers that `tests/fixtures/layers.py` stored.

mod support;

use gradus::layers::{
    BatchNorm, Conv1d, Conv2d, Embedding, FeedForward, Gru, LayerNorm, Linear, Lstm, MultiHeadAttention,
    MultiHeadAttentionOptions, Recurrence, RmsNorm, SwiGlu, rotary_positions,
};
use gradus::losses::{self, ClassOptions, Reduction};
use gradus::ops::{Conv1dOptions, Conv2dOptions};
use gradus::parameters::{Initializer, Parameters};
use gradus::{Array, DType, Error, Precision, Program, Routine, Tensor, Trace, gradient_or_zeros};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use support::device;
use support::fixture::Fixture;

/// The largest error, relative to the largest number of each tensor.
const TOLERANCE: f64 = 1e-5;

type Build = fn(&Parameters, &[Tensor]) -> Vec<Tensor>;

/// A case of the fixture on the CPU.
struct Computed {
    program: Program,
    names: Vec<String>,
}

/// The largest difference, relative to the largest number that is expected.
fn difference(name: &str, computed: &Array, expected: &Array) -> f64 {
    assert_eq!(computed.shape(), expected.shape(), "{name}");
    let (computed, expected) = (computed.to_f64(), expected.to_f64());
    let scale = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs())).max(1e-30);
    let largest = |most: f64, (a, b): (&f64, &f64)| if (a - b).is_nan() { f64::NAN } else { most.max((a - b).abs()) };
    computed.iter().zip(&expected).fold(0.0, largest) / scale
}

/// Outputs, gradients and statistics of a case, by the names that the fixture has.
fn computed(fixture: &Fixture, case: &str, precision: Precision, build: Build) -> Computed {
    let trace = Trace::new();
    let key = trace.constant(Array::new([2], &[0u32, 0]).unwrap());
    let parameters = Parameters::new(&trace).with_precision(precision);
    let statistics = fixture.names(&format!("{case}/statistics."));
    let parameters = if case.ends_with("_evaluated") { parameters } else { parameters.training(&key) };
    let inputs = fixture.names(&format!("{case}/input."));
    let stored = |kind: &str, name: &str| fixture.array(&format!("{case}/{kind}.{name}"));
    let input = |name: &String| {
        let ty = stored("input", name).ty().clone();
        trace.input(&format!("input.{name}"), ty.dtype, ty.shape)
    };
    let inputs: Vec<(String, Tensor)> = inputs.iter().map(|name| (format!("input.{name}"), input(name))).collect();
    let operands: Vec<Tensor> = inputs.iter().map(|(_, tensor)| tensor.clone()).collect();
    let outputs = build(&parameters, &operands);
    let term = |(index, output): (usize, &Tensor)| {
        (output * trace.constant(stored("cotangent", &index.to_string()))).sum_all()
    };
    let total = outputs.iter().enumerate().map(term).reduce(|sum, term| sum + term).expect("a case has outputs");
    let weights: Vec<(String, Tensor)> = parameters
        .list()
        .iter()
        .zip(parameters.tensors())
        .map(|(parameter, tensor)| (format!("weight.{}", parameter.name), tensor))
        .collect();
    let mut names: Vec<String> = weights.iter().map(|(name, _)| name.replacen("weight.", "", 1)).collect();
    names.sort();
    assert_eq!(names, fixture.names(&format!("{case}/weight.")), "{case}: the names of PyTorch's state dict");
    let mut routine = Routine::new("case");
    for (index, output) in outputs.iter().enumerate() {
        routine = routine.output(&format!("output.{index}"), output);
    }
    for (name, tensor) in weights.iter().chain(&inputs).filter(|(_, tensor)| tensor.dtype().is_float()) {
        let slope = gradient_or_zeros(&total, &[tensor]).unwrap_or_else(|error| panic!("{case}: {error}"));
        routine = routine.output(&format!("gradient.{name}"), &slope[0]);
    }
    for (state, value) in parameters.updates() {
        routine = routine.assign(&state, &value);
    }
    let mut program = trace.compile(&*device(1), &[routine]).unwrap_or_else(|error| panic!("{case}: {error}"));
    for (name, _) in &inputs {
        program.write_array(name, &fixture.array(&format!("{case}/{name}"))).unwrap();
    }
    for name in &names {
        program.write_array(name, &stored("weight", name)).unwrap();
    }
    if case.ends_with("_evaluated") {
        statistics.iter().for_each(|name| program.write_array(name, &stored("statistics", name)).unwrap());
    }
    program.run("case").unwrap_or_else(|error| panic!("{case}: {error}"));
    let of_kind = |kind: &str| {
        fixture.names(&format!("{case}/{kind}.")).into_iter().map(|name| format!("{kind}.{name}")).collect::<Vec<_>>()
    };
    let names = [of_kind("output"), of_kind("gradient"), of_kind("statistics")].concat();
    assert!(names.len() >= 2, "{case}: the fixture has numbers");
    Computed { program, names }
}

impl Computed {
    /// The largest difference of all outputs, gradients and statistics, with its name.
    fn worst(&self, fixture: &Fixture, case: &str) -> (f64, String) {
        let of = |name: &String| {
            let read = self.program.read(name.strip_prefix("statistics.").unwrap_or(name)).unwrap();
            (difference(name, &read, &fixture.array(&format!("{case}/{name}"))), name.clone())
        };
        let worse = |a: (f64, String), b: (f64, String)| if b.0 > a.0 || b.0.is_nan() { b } else { a };
        self.names.iter().map(of).reduce(worse).expect("a case has outputs")
    }
}

fn layers() -> Vec<(&'static str, Build)> {
    vec![
        ("linear", |p, x| vec![Linear::new(p, 5, 7).forward(&x[0])]),
        ("linear_without_bias", |p, x| vec![Linear::without_bias(p, 5, 4).forward(&x[0])]),
        ("embedding", |p, x| vec![Embedding::new(p, 6, 4).forward(&x[0])]),
        ("conv1d", |p, x| {
            let options = Conv1dOptions { stride: 2, padding: 2, dilation: 2, groups: 2 };
            vec![Conv1d::new(p, 4, 6, 3, options).forward(&x[0])]
        }),
        ("conv2d", |p, x| {
            let options = Conv2dOptions { stride: [2, 1], padding: [1, 1], ..Default::default() };
            vec![Conv2d::new(p, 3, 4, [3, 2], options).forward(&x[0])]
        }),
        ("conv2d_without_bias", |p, x| {
            let options = Conv2dOptions { padding: [1, 1], ..Default::default() };
            vec![Conv2d::without_bias(p, 2, 3, [3, 3], options).forward(&x[0])]
        }),
        ("layer_norm", |p, x| vec![LayerNorm::new(p, 6).forward(&x[0])]),
        ("rms_norm", |p, x| vec![RmsNorm::new(p, 6).with_epsilon(1e-6).forward(&x[0])]),
        ("batch_norm", |p, x| vec![BatchNorm::new(p, 3).forward(&x[0])]),
        ("batch_norm_evaluated", |p, x| vec![BatchNorm::new(p, 3).forward(&x[0])]),
        ("attention", |p, x| vec![MultiHeadAttention::new(p, 6, MultiHeadAttentionOptions::new(2)).forward(&x[0])]),
        ("attention_causal", |p, x| {
            vec![MultiHeadAttention::new(p, 6, MultiHeadAttentionOptions::causal(2)).forward(&x[0])]
        }),
        ("attention_over", |p, x| {
            vec![MultiHeadAttention::new(p, 6, MultiHeadAttentionOptions::new(3)).forward_over(&x[0], &x[1])]
        }),
        ("attention_grouped", |p, x| {
            let options = MultiHeadAttentionOptions {
                kv_heads: 2,
                bias: false,
                rotary_base: Some(10000.0),
                ..MultiHeadAttentionOptions::causal(4)
            };
            vec![MultiHeadAttention::new(p, 16, options).forward(&x[0])]
        }),
        ("feed_forward", |p, x| vec![FeedForward::new(p, 4, 9).forward(&x[0])]),
        ("swi_glu", |p, x| vec![SwiGlu::new(p, 4, 9).forward(&x[0])]),
        ("gru", |p, x| flattened(Gru::new(p, 3, 4, 2).forward(&x[0]))),
        ("lstm", |p, x| flattened(Lstm::new(p, 3, 4, 2).forward(&x[0]))),
        ("lstm_from", |p, x| {
            let states = [1, 2].map(|at: usize| x[at].squeeze(0)).to_vec();
            flattened(Lstm::new(p, 3, 4, 1).forward_from(&x[0], &[states]))
        }),
    ]
}

/// Outputs, and each kind of state of all layers, as PyTorch gives them.
fn flattened(Recurrence { outputs, states }: Recurrence) -> Vec<Tensor> {
    let kind = |kind: usize| Tensor::stack(&states.iter().map(|layer| &layer[kind]).collect::<Vec<_>>(), 0);
    std::iter::once(outputs).chain((0..states[0].len()).map(kind)).collect()
}

fn all_losses() -> Vec<(&'static str, Build)> {
    fn smoothed(x: &[Tensor], reduction: Reduction) -> Vec<Tensor> {
        let options =
            ClassOptions { label_smoothing: 0.2, ignored: Some(-100), class_weights: Some(x[2].clone()), reduction };
        vec![losses::cross_entropy(&x[0], &x[1], options)]
    }
    vec![
        ("cross_entropy", |_, x| {
            let options = ClassOptions { ignored: Some(-100), ..Default::default() };
            vec![losses::cross_entropy(&x[0], &x[1], options)]
        }),
        ("cross_entropy_smoothed_none", |_, x| smoothed(x, Reduction::None)),
        ("cross_entropy_smoothed_mean", |_, x| smoothed(x, Reduction::Mean)),
        ("cross_entropy_smoothed_sum", |_, x| smoothed(x, Reduction::Sum)),
        ("cross_entropy_spread", |_, x| {
            let options = ClassOptions { label_smoothing: 0.3, ignored: Some(-100), ..Default::default() };
            vec![losses::cross_entropy(&x[0], &x[1], options)]
        }),
        ("negative_log_likelihood", |_, x| {
            let class_weights = Some(x[2].clone());
            let options = ClassOptions { ignored: Some(-100), class_weights, ..Default::default() };
            vec![losses::negative_log_likelihood(&x[0], &x[1], options)]
        }),
        ("binary_cross_entropy", |_, x| {
            vec![losses::binary_cross_entropy_with_logits(&x[0], &x[1], None, Reduction::Mean)]
        }),
        ("binary_cross_entropy_weighted", |_, x| {
            vec![losses::binary_cross_entropy_with_logits(&x[0], &x[1], Some(&x[2]), Reduction::None)]
        }),
        ("mse", |_, x| vec![losses::mse(&x[0], &x[1], Reduction::Mean)]),
        ("l1", |_, x| vec![losses::l1(&x[0], &x[1], Reduction::Sum)]),
        ("huber", |_, x| vec![losses::huber(&x[0], &x[1], 0.7, Reduction::Mean)]),
        ("smooth_l1", |_, x| vec![losses::smooth_l1(&x[0], &x[1], 0.5, Reduction::None)]),
        ("kl_divergence", |_, x| vec![losses::kl_divergence(&x[0], &x[1], Reduction::Sum)]),
        ("cosine_similarity", |_, x| vec![losses::cosine_similarity(&x[0], &x[1], 1)]),
    ]
}

#[test]
fn layers_and_losses_give_pytorchs_numbers_and_gradients() {
    let fixture = Fixture::open("layers");
    let cases = [layers(), all_losses()].concat();
    for (case, build) in &cases {
        let (worst, name) = computed(&fixture, case, Precision::F32, *build).worst(&fixture, case);
        assert!(worst <= TOLERANCE, "{case}, {name}: {worst:e} of the largest");
    }
    // Every case that is stored is compared.
    let stored: std::collections::BTreeSet<String> =
        fixture.names("").iter().map(|name| name.split('/').next().unwrap().to_string()).collect();
    assert_eq!(stored, cases.iter().map(|(case, _)| case.to_string()).collect());
}

#[test]
fn layers_with_products_in_bf16_give_nearly_the_same() {
    let fixture = Fixture::open("layers");
    for (case, build) in layers() {
        let (worst, name) = computed(&fixture, case, Precision::Bf16, build).worst(&fixture, case);
        assert!(worst <= 0.05, "{case}, {name}: {worst:e} of the largest");
        let has_products = !case.contains("norm") && case != "embedding";
        assert_eq!(worst > 1e-4, has_products, "{case}, {name}: products in bf16, and nothing else: {worst:e}");
    }
}

#[test]
fn recurrent_layers_give_what_they_take() {
    for (dtype, given) in [(DType::F32, DType::F32), (DType::Bf16, DType::Bf16)] {
        let trace = Trace::new();
        let parameters = Parameters::new(&trace).with_precision(Precision::Bf16);
        let x = trace.input("x", dtype, [2, 5, 3]);
        let Recurrence { outputs, states } = Lstm::new(&parameters, 3, 4, 2).forward(&x);
        trace.check().unwrap();
        assert_eq!((outputs.dtype(), states[1][1].dtype()), (given, given));
    }
}

#[test]
fn layers_start_from_pytorchs_defaults() {
    let trace = Trace::new();
    let parameters = Parameters::new(&trace);
    Linear::new(&parameters.within("linear"), 64, 3);
    Conv2d::new(&parameters.within("conv"), 8, 6, [3, 5], Conv2dOptions { groups: 2, ..Default::default() });
    Embedding::new(&parameters.within("table"), 9, 4);
    BatchNorm::new(&parameters.within("norm"), 4);
    MultiHeadAttention::new(&parameters.within("attention"), 16, MultiHeadAttentionOptions::new(2));
    Lstm::new(&parameters.within("lstm"), 7, 25, 1);
    let within = |bound: f32| Initializer::Uniform { low: -bound, high: bound };
    let expected = [
        ("linear.weight", within(0.125)),
        ("linear.bias", within(0.125)),
        ("conv.weight", within(1.0 / 60f32.sqrt())),
        ("conv.bias", within(1.0 / 60f32.sqrt())),
        ("table.weight", Initializer::Normal { deviation: 1.0 }),
        ("norm.weight", Initializer::Ones),
        ("norm.bias", Initializer::Zeros),
        ("attention.in_proj_weight", Initializer::XavierUniform { gain: 1.0 }),
        ("attention.in_proj_bias", Initializer::Zeros),
        ("attention.out_proj.weight", within(0.25)),
        ("attention.out_proj.bias", Initializer::Zeros),
        ("lstm.weight_ih_l0", within(0.2)),
        ("lstm.bias_ih_l0", within(0.2)),
        ("lstm.weight_hh_l0", within(0.2)),
        ("lstm.bias_hh_l0", within(0.2)),
    ];
    let found: Vec<(String, Initializer)> =
        parameters.list().into_iter().map(|parameter| (parameter.name, parameter.initializer)).collect();
    assert_eq!(found, expected.map(|(name, initializer)| (name.to_string(), initializer)));
}

#[test]
fn a_state_dict_is_read_by_name_or_refused() {
    let path = std::env::temp_dir().join(format!("gradus-state-dict-{}.safetensors", std::process::id()));
    let trace = Trace::new();
    let parameters = Parameters::new(&trace);
    let y = BatchNorm::new(&parameters, 3).forward(&trace.input("x", DType::F32, [2, 3]));
    let mut program = trace.compile(&*device(1), &[Routine::new("r").output("y", &y)]).unwrap();
    let names = ["weight", "bias", "running_mean", "running_var"];
    let mut load = |names: &[&str], size: usize| {
        let numbers = |first: usize| [first as f32, 1.5, -2.0].map(f32::to_le_bytes).concat();
        let data: Vec<Vec<u8>> = (0..names.len()).map(numbers).collect();
        let tensor = |bytes| TensorView::new(Dtype::F32, vec![size], bytes).unwrap();
        let count = TensorView::new(Dtype::I64, vec![], &[0; 8]).unwrap();
        let tensors = names.iter().zip(&data).map(|(name, bytes)| (name.to_string(), tensor(&bytes[..size * 4])));
        let tensors: Vec<_> = tensors.chain([("num_batches_tracked".to_string(), count)]).collect();
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        parameters.load(&mut program, &path)?;
        Ok(names.iter().map(|&name| program.read(name).unwrap().to_vec::<f32>().unwrap()).collect::<Vec<_>>())
    };
    let read: gradus::train::Result<Vec<Vec<f32>>> = load(&names, 3);
    assert_eq!(read.unwrap(), [0.0, 1.0, 2.0, 3.0].map(|first| vec![first, 1.5, -2.0]));
    let more = ["weight", "bias", "running_mean", "running_var", "scale"];
    for (names, size, expected) in [
        (&names[..3], 3, "\"running_var\" is missing here and f32[3] in the model"),
        (&names, 2, "is f32[2] here and f32[3] in the model"),
        (&more, 3, "\"scale\" is f32[3] here and missing in the model"),
    ] {
        let error = load(names, size).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn what_does_not_fit_a_layer_or_a_loss_is_said_at_the_callers_line() {
    let refusals: [(Build, &str); 18] = [
        (|p, x| vec![Linear::new(p, 5, 7).forward(&x[0])], "matmul"),
        (
            |p, x| vec![MultiHeadAttention::new(p, 6, MultiHeadAttentionOptions::new(4)).forward(&x[0])],
            "take a divisor",
        ),
        (
            |p, x| vec![MultiHeadAttention::new(p, 8, MultiHeadAttentionOptions::new(0)).forward(&x[0])],
            "take a divisor",
        ),
        (
            |p, x| vec![MultiHeadAttention::new(p, 8, MultiHeadAttentionOptions::new(2)).forward(&x[0])],
            "[batch, places, 8]",
        ),
        (|p, x| vec![Gru::new(p, 3, 4, 1).forward(&x[0]).outputs], "takes sequences"),
        (
            |p, _| vec![Gru::new(p, 3, 4, 2).forward(&p.trace().full(0.0, DType::F32, [1, 300, 3])).outputs],
            "to 256 places",
        ),
        (
            |p, x| {
                let rows = x[0].unsqueeze(0);
                let state = x[0].slice(0, 0..1).cast(DType::Bf16);
                vec![Gru::new(p, 3, 3, 1).forward_from(&rows, &[vec![state]]).outputs]
            },
            "1 states f32[1, 3] to start from",
        ),
        (|p, x| vec![Lstm::new(p, 5, 4, 1).forward(&x[0].unsqueeze(0)).outputs], "matmul"),
        (|p, x| vec![Lstm::new(p, usize::MAX, 4, 1).forward(&x[0].unsqueeze(0)).outputs], "address"),
        (|p, x| vec![Conv2d::new(p, 8, 4, [1, 1], Default::default()).forward(&x[0])], "conv2d"),
        (|p, x| vec![Conv1d::new(p, 8, 4, 1, Default::default()).forward(&x[0])], "conv1d"),
        (|_, x| vec![x[0].pad(0, [usize::MAX, 0], 0.0)], "address"),
        (|_, x| vec![rotary_positions(&x[0], 10000.0)], "must be even"),
        (
            |p, x| vec![Lstm::new(p, 3, 4, 1).forward_from(&x[0].unsqueeze(0), &[]).outputs],
            "1 layers, each with 2 states",
        ),
        (|p, _| vec![BatchNorm::new(p, 1 << 30).forward(&p.get("w", [1, 1], Initializer::Ones))], "at most"),
        (|_, x| vec![losses::mse(&x[0], &x[0].slice(0, 0..1), Reduction::Mean)], "of one shape"),
        (|_, x| vec![losses::huber(&x[0], &x[0], -1.0, Reduction::Mean)], "delta of -1"),
        (
            |_, x| {
                let options =
                    ClassOptions { class_weights: Some(x[0].slice(0, 0..1).flatten(0)), ..Default::default() };
                let targets = x[0].trace().arange(2, DType::I32);
                vec![losses::cross_entropy(&x[0].slice(1, 0..2), &targets, options)]
            },
            "one for each class",
        ),
    ];
    for (build, expected) in refusals {
        let trace = Trace::new();
        let x = trace.input("x", DType::F32, [2, 3]);
        build(&Parameters::new(&trace), &[x]);
        let error = trace.check().expect_err(expected);
        assert!(matches!(error, Error::Shape { .. } | Error::Parameter { .. }), "{error}");
        assert!(error.to_string().contains(expected) && error.to_string().contains("tests/layers.rs:"), "{error}");
    }
}

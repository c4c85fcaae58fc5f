//! Attention over several blocks of keys, whose sums are scaled again whenever a block has a larger score: against the
//! f64 reference, with scores that rise, fall and alternate from block to block.

mod support;

use gradus::backend::{Cpu, evaluate};
use gradus::ops::AttentionOptions;
use gradus::{Array, DType, Routine, Tensor, TensorType, Trace, gradient};
use gradus_kernels::Isa;
use support::comparison::compare_each;
use support::numbers::Random;
use support::rounding::unit;

/// Keys that a kernel takes at a time; the counts below lie at and around its multiples.
const BLOCK: usize = 64;
/// Windows of the causal ones: none, within a block, over a block's edge, over several.
const WINDOWS: [Option<usize>; 4] = [None, Some(5), Some(BLOCK + 3), Some(3 * BLOCK)];
const KEY_COUNTS: [usize; 8] =
    [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 7, 8 * BLOCK];
const HEADS: usize = 2;
const QUERIES: usize = 37;
const DEPTH: usize = 24;

/// A name, and a factor for each block.
type Pattern = (&'static str, fn(usize) -> f64);

/// How much larger the scores of a block are than those of the first.
const PATTERNS: [Pattern; 4] = [
    ("level", |_| 1.0),
    ("rising", |block| 1.0 + block as f64),
    ("falling", |block| 8.0 - block as f64),
    ("alternating", |block| if block % 2 == 0 { 1.0 } else { 6.0 }),
];

struct Attended {
    trace: Trace,
    feeds: Vec<(&'static str, Array)>,
    results: Vec<Tensor>,
}

fn attended(keys: usize, options: AttentionOptions, growth: fn(usize) -> f64, dtype: DType) -> Attended {
    let mut random = Random::new(keys as u64);
    let trace = Trace::new();
    let mut feeds = vec![];
    let mut input = |name, places: usize, factor: &dyn Fn(usize) -> f64| {
        let ty = TensorType::new(dtype, [1, HEADS, places, DEPTH]);
        let place = |index: usize| index / DEPTH % places;
        let numbers: Vec<f64> =
            (0..HEADS * places * DEPTH).map(|index| random.uniform(-1.0, 1.0) * factor(place(index))).collect();
        feeds.push((name, Array::from_f64(ty.clone(), &numbers).unwrap()));
        trace.input(name, dtype, ty.shape)
    };
    let q = input("q", QUERIES, &|_| 1.0);
    let k = input("k", keys, &|place| growth(place / BLOCK));
    let v = input("v", keys, &|_| 1.0);
    let weights = input("weights", QUERIES, &|_| 1.0);
    let result = q.attention_with(&k, &v, options);
    let sum = (&result * weights).cast(DType::F32).sum_all();
    let mut results = vec![result];
    results.extend(gradient(&sum, &[&q, &k, &v]).unwrap());
    Attended { trace, feeds, results }
}

impl Attended {
    fn computed(&self, isa: Isa) -> Vec<Array> {
        let results = self.results.iter().enumerate();
        let routine =
            results.fold(Routine::new("case"), |routine, (index, result)| routine.output(&format!("y{index}"), result));
        let mut program = self.trace.compile(&Cpu::with_isa(1, isa).unwrap(), &[routine]).unwrap();
        for (name, array) in &self.feeds {
            program.write_array(name, array).unwrap();
        }
        program.run("case").unwrap();
        (0..self.results.len()).map(|index| program.read(&format!("y{index}")).unwrap()).collect()
    }

    fn check(&self, what: &str) {
        let graph = self.trace.to_graph();
        let values: Vec<_> = self.results.iter().map(|result| result.handle().unwrap()).collect();
        let fed = |node: usize| {
            let label = graph.nodes()[node].label();
            let feed = self.feeds.iter().find(|(name, _)| label == format!("input {name:?}"));
            feed.map(|(_, array)| array.to_f64())
        };
        let reference = evaluate(&graph, &values, fed);
        // Scores are sums of `DEPTH` products, probabilities are off by as much as they are, and every result is a sum
        // of products with those: a few units for each, of the largest number.
        let unit = unit(self.results[0].dtype());
        let largest = |numbers: &[f64]| numbers.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let allowed: Vec<f64> = reference.iter().map(|result| 32.0 * unit * largest(&result.data)).collect();
        for isa in Isa::available() {
            compare_each(&format!("{what}, {isa}"), &self.computed(isa), &reference, &allowed);
        }
    }
}

fn check_all(dtype: DType) {
    for keys in KEY_COUNTS {
        for (name, growth) in PATTERNS {
            let all = AttentionOptions::default();
            // Where scores rise, every block corrects the sums of those before it, which a window may have left empty.
            let windows = if name == "rising" { &WINDOWS[..] } else { &[None] };
            let causal = windows.iter().map(|&window| AttentionOptions { causal: true, window, scale: None });
            for options in [all].into_iter().chain(causal) {
                let what = format!("{keys} keys, {name} scores, {options:?}, {dtype}");
                attended(keys, options, growth, dtype).check(&what);
            }
        }
    }
}

#[test]
fn blocks_of_keys_equal_the_reference_in_f32() {
    check_all(DType::F32);
}

#[test]
fn blocks_of_keys_equal_the_reference_in_bf16() {
    check_all(DType::Bf16);
}

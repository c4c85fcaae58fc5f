//! Rotary positions: pairs of numbers of a query or key turned by an angle that grows with its place.

use super::*;
use crate::{Array, DType, Error, Shape, Trace};
use gradus_cuda::{Source, sources};
use gradus_kernels::rotary as kernel;

/// Turns, in each row of [..., t, d], element `i` and element `i + d / 2` as a pair, by the angle whose cosine and
/// sine the f32 tables [t, d / 2] hold for the row's place and `i`; or the other way.
#[derive(Clone, Copy, Debug)]
pub struct Rotary {
    inverse: bool,
}

impl Rotary {
    /// The result from plain operations, in f32 and rounded once.
    fn decomposed(&self, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Tensor {
        let half = x.shape().last().map_or(0, |depth| depth / 2);
        let numbers = x.cast(DType::F32);
        let (first, second) = (numbers.slice(-1, 0..half), numbers.slice(-1, half..2 * half));
        let sin = if self.inverse { -sin } else { sin.clone() };
        let turned = [&first * cos - &second * &sin, &second * cos + &first * &sin];
        Tensor::concat(&[&turned[0], &turned[1]], -1).cast(x.dtype())
    }
}

impl Operation for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn attributes(&self) -> String {
        if self.inverse { "inverse".to_string() } else { String::new() }
    }

    fn output_count(&self) -> usize {
        1
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, Mismatch> {
        let [x, cos, sin] = inputs else { unreachable!("three operands") };
        Mismatch::unless_float(x)?;
        Mismatch::unless_rank("the operand", x, 2)?;
        let &[.., places, depth] = &x.shape[..] else { unreachable!("two axes at least") };
        if depth % 2 != 0 {
            return Err(Mismatch::Shape(format!(
                "the last axis must be of even size to be turned in pairs, not {depth}"
            )));
        }
        for (what, table) in [("the table of cosines", cos), ("the table of sines", sin)] {
            Mismatch::unless_shape(what, table, &Shape::from([places, depth / 2]))?;
            if table.dtype != DType::F32 {
                return Err(Mismatch::DType(format!("{what} must be f32, not {}; cast it", table.dtype)));
            }
        }
        Ok(vec![x.clone()])
    }

    fn gradient(&self, at: &Differentiation<'_>) -> Vec<Option<Tensor>> {
        let [x, cos, sin] = at.inputs else { unreachable!("three operands") };
        let tables = match at.wants(1) || at.wants(2) {
            true => at.through(|inputs| vec![self.decomposed(&inputs[0], &inputs[1], &inputs[2])]),
            false => vec![None; 3],
        };
        let back = x.trace().apply_one(Rotary { inverse: !self.inverse }, &[&at.gradient(0), cos, sin]);
        vec![Some(back), tables[1].clone(), tables[2].clone()]
    }

    fn tangent(&self, at: &Linearization<'_>) -> Vec<Option<Tensor>> {
        let [_, cos, sin] = at.inputs else { unreachable!("three operands") };
        if at.tangent(1).is_some() || at.tangent(2).is_some() {
            return at.through(|inputs| vec![self.decomposed(&inputs[0], &inputs[1], &inputs[2])]);
        }
        vec![at.tangent(0).map(|tangent| tangent.trace().apply_one(*self, &[tangent, cos, sin]))]
    }

    fn cost(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Cost {
        Cost::per_element(3, inputs, outputs)
    }

    fn in_place(&self) -> Vec<(usize, usize)> {
        vec![(0, 0)]
    }

    fn effect(&self, _inputs: &[TensorType]) -> Effect {
        Effect::Pure
    }

    fn accumulates(&self) -> Vec<usize> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Opaque
    }

    fn reference(&self, inputs: &[&Reals], outputs: &[TensorType]) -> Vec<Reals> {
        let (x, shape) = (inputs[0], &outputs[0].shape);
        let (last, half) = (shape.rank() - 1, shape[shape.rank() - 1] / 2);
        vec![Reals::from_fn(shape, |index| {
            let (place, pair) = (index[last - 1], index[last] % half);
            let (cos, sin) = (inputs[1].at(&[place, pair]), inputs[2].at(&[place, pair]));
            let sin = if self.inverse { -sin } else { sin };
            let member = |column: usize| x.at(&[&index[..last], &[column]].concat());
            let (first, second) = (member(pair), member(pair + half));
            if index[last] < half { first * cos - second * sin } else { second * cos + first * sin }
        })]
    }

    fn lowering(&self) -> Lowering<'_> {
        Lowering::Kernels(self)
    }

    fn cases() -> Vec<Case> {
        let mut cases = vec![];
        for shape in [&[3, 4][..], &[1, 2], &[2, 3, 5, 6], &[2, 0, 4], &[3, 0], &[3, 130, 66]] {
            for inverse in [false, true] {
                let table: &[usize] = &[shape[shape.len() - 2], shape[shape.len() - 1] / 2];
                let name = format!("{shape:?}{}", if inverse { ", inverse" } else { "" });
                cases.push(Case::new(&name, &[shape, table, table], move |x| {
                    let (cos, sin) = (x[1].cast(DType::F32), x[2].cast(DType::F32));
                    vec![x[0].trace().apply_one(Rotary { inverse }, &[&x[0], &cos, &sin])]
                }));
            }
        }
        cases.push(Case::new("heads of a projection, by the tables", &[&[2, 5, 12]], |x| {
            let [cos, sin] = x[0].trace().rotary_tables(5, 4, 100.0);
            vec![x[0].reshape([2, 5, 3, 4]).permute(&[0, 2, 1, 3]).rotary(&cos, &sin)]
        }));
        cases
    }
}

impl Kernels for Rotary {
    fn takes(&self, input: usize, layout: &Layout) -> bool {
        if input == 0 { layout.is_dense_from(layout.shape.rank() - 1) } else { layout.is_dense() }
    }

    fn cpu(&self, linker: &mut Linker<'_>) -> Result<(), Unsupported> {
        let (x, y) = (linker.input(0), linker.output(0));
        let tables = [linker.input(1).read(), linker.input(2).read()];
        let before_last = x.layout.shape.rank() - 1;
        let axis = |axis: usize| kernel::Axis { size: x.layout.shape[axis], stride: x.layout.strides[axis] };
        let axes: Vec<kernel::Axis> = (0..before_last).map(axis).collect();
        let depth = x.layout.shape[before_last];
        with_float!(x.dtype, T => {
            let job = kernel::Rotary::<T>::new(linker.isa(), x.read(), axes, depth, tables, y.write(), self.inverse);
            linker.job(job);
        });
        Ok(())
    }

    fn cuda(&self, linker: &mut CudaLinker<'_>) -> Result<(), Unsupported> {
        const THREADS: usize = 256;
        let (x, cosines, sines, y) = (linker.input(0), linker.input(1), linker.input(2), linker.output(0));
        let &[.., places, depth] = &x.shape[..] else { unreachable!("two axes at least") };
        let (half, count) = (depth / 2, x.elements() / 2);
        let vector = gradus_cuda::common_vector(half, &[&x, &cosines, &sines, &y]);
        let source = Source::new("rotary", sources::ROTARY).operand("x", &x).address(cosines.address);
        let source = source.address(sines.address).operand("y", &y).size("COUNT", count).size("HALF", half);
        let source = source.size("PLACES", places).constant("INVERSE", self.inverse as u8);
        let source = source.constant("VECTOR", vector).constant("THREADS", THREADS);
        linker.launch(source.launch(count.div_ceil(vector * THREADS), THREADS));
        Ok(())
    }
}

/// The largest table: a trace holds its numbers.
const LARGEST_TABLE: usize = 1 << 28;

impl Trace {
    /// Cosines and sines [places, depth / 2] of the angles `place * theta^(-2 i / depth)`, computed in f64 and stored
    /// in f32.
    #[track_caller]
    pub fn rotary_tables(&self, places: usize, depth: usize, theta: f64) -> [Tensor; 2] {
        if !depth.is_multiple_of(2) || depth / 2 > LARGEST_TABLE || !(theta > 0.0 && theta.is_finite()) {
            let problem = format!("{depth} numbers on base {theta}: the numbers must be even, and the base above 0");
            return self.no_tables(problem);
        }
        let frequency = |pair: usize| theta.powf(-2.0 * pair as f64 / depth as f64);
        self.rotary_tables_from(places, &(0..depth / 2).map(frequency).collect::<Vec<f64>>())
    }

    /// As [`Trace::rotary_tables`], of the angles `place * frequencies[i]`.
    #[track_caller]
    pub fn rotary_tables_from(&self, places: usize, frequencies: &[f64]) -> [Tensor; 2] {
        let half = frequencies.len();
        if places.saturating_mul(half) > LARGEST_TABLE || !frequencies.iter().all(|frequency| frequency.is_finite()) {
            let problem = format!("{half} frequencies at {places} places: at most {LARGEST_TABLE} angles, all finite");
            return self.no_tables(problem);
        }
        let angle = |index: usize| (index / half) as f64 * frequencies[index % half];
        let table = |function: fn(f64) -> f64| {
            let numbers: Vec<f64> = (0..places * half).map(|index| function(angle(index))).collect();
            let table = Array::from_f64(TensorType::new(DType::F32, [places, half]), &numbers);
            table.expect("a number for every place and frequency")
        };
        [self.constant(table(f64::cos)), self.constant(table(f64::sin))]
    }

    #[track_caller]
    fn no_tables(&self, problem: String) -> [Tensor; 2] {
        let refused =
            self.fail(Error::Parameter { op: "rotary_tables".into(), inputs: vec![], problem, at: self.location() });
        [refused.clone(), refused]
    }
}

impl Tensor {
    /// With rotary positions: [..., t, d] turned by the angles of the tables [t, d / 2] of [`Trace::rotary_tables`].
    #[track_caller]
    pub fn rotary(&self, cos: &Tensor, sin: &Tensor) -> Tensor {
        self.trace().apply_one(Rotary { inverse: false }, &[self, cos, sin])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GradientTape;
    use crate::backend::Reference;

    #[test]
    fn tables_hold_the_angles_of_each_place() {
        let tape = GradientTape::on(Reference);
        let tables = tape.watch(Array::scalar(0f32)).trace().rotary_tables(3, 4, 100.0);
        let [cos, sin] = tables.map(|table| tape.read(&table).unwrap().to_f64());
        let angles = [0.0, 0.0, 1.0, 0.1, 2.0, 0.2f64];
        for (index, angle) in angles.into_iter().enumerate() {
            assert!((cos[index] - angle.cos()).abs() < 1e-7);
            assert!((sin[index] - angle.sin()).abs() < 1e-7);
        }
    }

    #[test]
    fn tables_that_cannot_be_are_errors_of_the_trace() {
        for (places, depth, theta) in
            [(usize::MAX, 4, 1e4), (0, usize::MAX - 1, 1e4), (1 << 40, 1 << 40, 1e4), (3, 5, 1e4), (3, 4, f64::NAN)]
        {
            let trace = Trace::new();
            trace.rotary_tables(places, depth, theta);
            assert!(matches!(trace.check(), Err(Error::Parameter { .. })), "{places} {depth} {theta}");
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_named() {
        let problem = |x: &[usize], table: &[usize], dtype: DType| {
            let trace = Trace::new();
            let table = trace.input("table", dtype, table);
            trace.input("x", DType::F32, x).rotary(&table, &table);
            match trace.check() {
                Err(Error::Shape { problem, .. } | Error::DType { problem, .. }) => problem,
                other => panic!("{other:?}"),
            }
        };
        assert!(problem(&[4], &[1, 2], DType::F32).contains("at least 2 axes"));
        assert!(problem(&[3, 5], &[3, 2], DType::F32).contains("even"));
        assert!(problem(&[3, 4], &[3, 4], DType::F32).contains("[3, 2]"));
        assert!(problem(&[3, 4], &[3, 2], DType::Bf16).contains("must be f32"));
    }
}

//! Rules that take a matrix as one, beside the same in f64.

use super::*;
use gradus_engine::Tensor;

/// A matrix in f64, rows one after another.
#[derive(Clone, Debug)]
struct Matrix {
    rows: usize,
    columns: usize,
    numbers: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, columns: usize, number: impl Fn(usize, usize) -> f64) -> Matrix {
        let numbers = (0..rows * columns).map(|at| number(at / columns, at % columns)).collect();
        Matrix { rows, columns, numbers }
    }

    fn read(program: &Program, name: &str, rows: usize) -> Matrix {
        let numbers = program.read(name).unwrap().to_f64();
        Matrix { rows, columns: numbers.len() / rows, numbers }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.numbers[row * self.columns + column]
    }

    fn transposed(&self) -> Matrix {
        Matrix::new(self.columns, self.rows, |row, column| self.at(column, row))
    }

    fn times(&self, other: &Matrix) -> Matrix {
        let sum = |row, column| (0..self.columns).map(|at| self.at(row, at) * other.at(at, column)).sum();
        Matrix::new(self.rows, other.columns, sum)
    }

    fn with(&self, other: &Matrix, both: impl Fn(f64, f64) -> f64) -> Matrix {
        Matrix::new(self.rows, self.columns, |row, column| both(self.at(row, column), other.at(row, column)))
    }

    fn plus_identity(&self) -> Matrix {
        Matrix::new(self.rows, self.columns, |row, column| self.at(row, column) + f64::from(u8::from(row == column)))
    }
}

fn weight(rows: usize) -> Matrix {
    Matrix::new(rows, 6 / rows, |row, column| WEIGHTS[row * (6 / rows) + column])
}

fn gradient_of(step: i32, rows: usize) -> Matrix {
    Matrix::new(rows, 6 / rows, |row, column| gradient(step, row * (6 / rows) + column))
}

fn assert_near(found: &[f32], expected: &Matrix, tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.numbers.len());
    for (at, (found, expected)) in found.iter().zip(&expected.numbers).enumerate() {
        assert!((*found as f64 - expected).abs() < tolerance, "{what}, {at}: {found} not {expected}");
    }
}

/// Muon's three steps by its formulas.
fn muon_in_f64(rows: usize, momentum: f64, decay: f64) -> Matrix {
    let mut weight = weight(rows);
    let mut held = weight.with(&weight, |_, _| 0.0);
    for step in 0..STEPS {
        let gradient = gradient_of(step, rows);
        held = held.with(&gradient, |held, new| momentum * held + (1.0 - momentum) * new);
        let ahead = held.with(&gradient, |held, new| momentum * held + (1.0 - momentum) * new);
        let mut x = if rows > 6 / rows { ahead.transposed() } else { ahead };
        let norm = x.numbers.iter().map(|number| number * number).sum::<f64>().sqrt();
        x = x.with(&x, |number, _| number / (1.02 * norm));
        for [a, b, c] in [
            [8.3837, -24.7659, 18.3571],
            [4.0434, -3.0114, 0.5695],
            [3.5056, -2.6267, 0.5257],
            [2.4901, -1.8343, 0.4368],
        ] {
            let squares = x.times(&x.transposed());
            let polynomial = squares.with(&squares.times(&squares), |one, two| b * one + c * two);
            x = x.with(&polynomial.times(&x), |x, rest| a * x + rest);
        }
        let direction = if rows > 6 / rows { x.transposed() } else { x };
        let size = 0.2 * (rows.max(6 / rows) as f64).sqrt();
        weight = weight.with(&direction, |weight, by| weight * (1.0 - RATE * decay) - RATE * size * by);
    }
    weight
}

#[test]
fn muon_moves_by_the_orthogonal_part_of_its_momentum() {
    for (shape, rows) in [(&[2, 3][..], 2), (&[3, 2], 3), (&[2, 3, 1], 2)] {
        let muon = Muon { weight_decay: 0.5, ..Muon::default() };
        let expected = muon_in_f64(rows, 0.95, 0.5);
        let exact = numbers(&after_steps(&Muon { computed: DType::F32, ..muon }.into(), shape), "w");
        assert_near(&exact, &expected, 1e-5, "in f32");
        // In bf16 small singular values, which each step magnifies, are off by more than others.
        let rounded = numbers(&after_steps(&muon.into(), shape), "w");
        let distance = |from: &[f64]| {
            let squares = from.iter().zip(&expected.numbers).map(|(from, to)| (from - to) * (from - to));
            squares.sum::<f64>().sqrt()
        };
        let off = distance(&rounded.iter().map(|number| *number as f64).collect::<Vec<_>>());
        assert!(off < 0.1 * distance(&WEIGHTS), "in bf16: {off} of {}", distance(&WEIGHTS));
    }
}

/// Matrices of one shape, lying or standing, are made orthogonal at once, each as if it were alone.
#[test]
fn matrices_together_have_the_bits_of_each_alone() {
    let shapes: [&[usize]; 4] = [&[4, 6], &[6, 4], &[4, 6], &[2, 3]];
    let names = ["a", "b", "c", "d"];
    let moved = |chosen: &[usize]| -> Vec<Vec<f32>> {
        let trace = Trace::new();
        let start = |index: usize, seed: usize| {
            let count = shapes[index].iter().product::<usize>();
            let numbers: Vec<f32> = (0..count).map(|at| ((at * 7 + seed + 13 * index) as f32).sin()).collect();
            Array::new(shapes[index], &numbers).unwrap()
        };
        let weights: Vec<Tensor> = chosen.iter().map(|&at| trace.state(names[at], start(at, 0))).collect();
        let gradients: Vec<Tensor> = chosen.iter().map(|&at| trace.constant(start(at, 5))).collect();
        let numbers = StepNumbers::new(&trace.full(0.1, DType::F32, []));
        let named = chosen.iter().map(|&at| names[at]).zip(&weights);
        let routine = GroupedOptimizer::new(Muon::default()).update(Routine::new("step"), named, &gradients, &numbers);
        let mut program = trace.compile(&Cpu::new(2).unwrap(), &[routine]).unwrap();
        (0..2).for_each(|_| program.run("step").unwrap());
        chosen.iter().map(|&at| self::numbers(&program, names[at])).collect()
    };
    let shapes: Vec<Shape> = shapes.iter().map(|shape| Shape::from(*shape)).collect();
    assert_eq!(Muon::default().together(&shapes), [vec![0, 1, 2], vec![3]]);
    let alone: Vec<Vec<f32>> = (0..4).flat_map(|at| moved(&[at])).collect();
    assert_eq!(moved(&[0, 1, 2, 3]), alone);
}

#[test]
fn all_but_hidden_matrices_go_by_adamw() {
    let plain = OptimizerKind::Adamw;
    for kind in [OptimizerKind::Muon, OptimizerKind::Soap] {
        let optimizer = kind.grouped(kind.usual());
        for (name, shape) in [("wte.weight", &[2, 3][..]), ("h.0.ln_1.weight", &[6])] {
            let settings = Hyperparameters { beta2: kind.usual().beta2, ..plain.usual() };
            let expected = numbers(&after_steps_of(name, &plain.grouped(settings), shape), name);
            assert_eq!(numbers(&after_steps_of(name, &optimizer, shape), name), expected, "{kind:?} {name}");
        }
        let hidden = "h.0.mlp.weight";
        assert!(after_steps_of(hidden, &optimizer, &[2, 3]).read("optimizer.second.wte").is_err());
        assert_ne!(
            numbers(&after_steps_of(hidden, &optimizer, &[2, 3]), hidden),
            numbers(&after_steps_of(hidden, &plain.grouped(plain.usual()), &[2, 3]), hidden)
        );
    }
}

#[test]
fn muon_alone_refuses_what_is_no_matrix() {
    let trace = Trace::new();
    let weight = trace.zero_state("w", DType::F32, [6]);
    let numbers = StepNumbers::new(&trace.full(0.1, DType::F32, []));
    GroupedOptimizer::new(Muon::default()).update(
        Routine::new("step"),
        [("w", &weight)],
        std::slice::from_ref(&weight),
        &numbers,
    );
    let error = trace.check().unwrap_err().to_string();
    assert!(error.contains("no matrix") && error.contains("rule_for"), "{error}");
}

#[test]
fn sophia_divides_by_curvature_and_clips() {
    let curvature = [0.0, 4.0, -1.0, 1e3, 1e-6, 40.0];
    let sophia = Sophia { bandwidth: 0.5, beta1: 0.9, beta2: 0.75, weight_decay: 0.5, every: 10 };
    let (mut program, weight) = refreshable(&sophia, &[2, 3], Some(&curvature));
    for step in 0..STEPS {
        let gradients: Vec<f32> = (0..6).map(|at| gradient(step, at) as f32).collect();
        program.write("gradient", &gradients).unwrap();
        program.run("refresh").unwrap();
        program.run("step").unwrap();
    }
    for at in 0..6 {
        let (mut w, mut m, mut h) = (WEIGHTS[at], 0.0, 0.0);
        for step in 0..STEPS {
            h = 0.75 * h + 0.25 * curvature[at];
            m = 0.9 * m + 0.1 * gradient(step, at);
            w = w * (1.0 - RATE * 0.5) - RATE * (m / f64::max(0.5 * h, 1e-12)).clamp(-1.0, 1.0);
        }
        let found = numbers(&program, &weight)[at] as f64;
        assert!((found - w).abs() < 2e-6, "{at}: {found} not {w}");
    }
    assert!(GroupedOptimizer::new(sophia).refresh().unwrap().by_curvature);
}

/// A program of two routines, `step` and `refresh`, and the weight's name.
fn refreshable(
    rule: &(impl Optimizer + Clone + 'static),
    shape: &[usize],
    curvature: Option<&[f64]>,
) -> (Program, String) {
    let trace = Trace::new();
    let numbers = WEIGHTS.map(|number| number as f32);
    let weight = trace.state("w", Array::new(shape, &numbers).unwrap());
    let gradient = trace.input("gradient", DType::F32, shape);
    let numbers = StepNumbers::new(&trace.full(RATE as f32, DType::F32, []));
    let optimizer = GroupedOptimizer::new(rule.clone());
    let updated = optimizer.updated(&[Part::whole("w", &weight)], &[gradient], &numbers, |_, _| ());
    let assigned = |routine: Routine, all: &[(Tensor, Tensor)]| {
        all.iter().fold(routine, |routine, (state, new)| routine.assign(state, new))
    };
    let step = assigned(Routine::new("step").assign(&weight, &updated.weights[0]), &updated.states);
    let diagonal = curvature.map(|numbers| {
        let numbers: Vec<f32> = numbers.iter().map(|number| *number as f32).collect();
        vec![trace.constant(Array::new(shape, &numbers).unwrap())]
    });
    let new = optimizer.refreshed(&[("w", weight.shape())], &updated.remembered, diagonal.as_deref());
    let refresh = assigned(Routine::new("refresh"), &new);
    (trace.compile(&Cpu::new(1).unwrap(), &[step, refresh]).unwrap(), "w".to_string())
}

/// Adam's step in a basis, by its formulas: rows and columns are turned by orthogonal matrices.
fn soap_in_f64(at: [&Matrix; 3], step: i32, bases: [&Matrix; 2], gradient: &Matrix) -> [Matrix; 3] {
    let [weight, first, second] = at;
    let [left, right] = bases;
    let turned = |x: &Matrix| left.transposed().times(x).times(right);
    let first = first.with(gradient, |old, new| 0.95 * old + 0.05 * new);
    let second = second.with(&turned(gradient), |old, new| 0.95 * old + 0.05 * new * new);
    let fair = 1.0 - 0.95f64.powi(step + 1);
    let direction = turned(&first).with(&second, |m, v| (m / fair) / ((v / fair).sqrt() + 1e-8));
    let back = left.times(&direction).times(&right.transposed());
    [weight.with(&back, |weight, by| weight - RATE * by), first, second]
}

#[test]
fn soap_is_adam_in_a_basis_that_follows_the_gradients() {
    let soap = Soap { weight_decay: 0.0, ..Soap::default() };
    let (mut program, weight_name) = refreshable(&soap, &[2, 3], None);
    let none = || Matrix::new(2, 3, |_, _| 0.0);
    let mut states = [weight(2), none(), none()];
    for step in 0..12 {
        let gradient = Matrix::new(2, 3, |row, column| ((row * 3 + column) as f64 * 1.7 + step as f64).sin());
        let sent: Vec<f32> = gradient.numbers.iter().map(|number| *number as f32).collect();
        program.write("gradient", &sent).unwrap();
        let bases = [("row_basis", 2), ("column_basis", 3)]
            .map(|(name, rows)| Matrix::read(&program, &format!("optimizer.{name}.w"), rows).plus_identity());
        let [a, b, c] = &states;
        let expected = soap_in_f64([a, b, c], step, [&bases[0], &bases[1]], &gradient);
        program.run("step").unwrap();
        assert_near(&numbers(&program, &weight_name), &expected[0], 2e-5, "weight");
        assert_near(&numbers(&program, "optimizer.second.w"), &expected[2], 2e-5, "second moment");
        program.run("refresh").unwrap();
        states = expected;
        // Turned with the basis.
        states[2] = Matrix::read(&program, "optimizer.second.w", 2);
    }
    for (moments, basis, rows) in [("rows", "row_basis", 2), ("columns", "column_basis", 3)] {
        let moments = Matrix::read(&program, &format!("optimizer.{moments}.w"), rows);
        let basis = Matrix::read(&program, &format!("optimizer.{basis}.w"), rows).plus_identity();
        let identity = basis.transposed().times(&basis);
        let seen = basis.transposed().times(&moments).times(&basis);
        for row in 0..rows {
            for column in 0..rows {
                let one = f64::from(u8::from(row == column));
                assert!((identity.at(row, column) - one).abs() < 1e-5, "{basis:?}");
                let off = if row == column { 0.0 } else { seen.at(row, column).abs() };
                assert!(off < 2e-3 * seen.numbers.iter().fold(0.0, |most: f64, x| most.max(x.abs())), "{seen:?}");
            }
        }
    }
}

/// A spectrum with equal eigenvalues and such of zero, in a basis that has nothing to do with the axes.
#[test]
fn a_basis_turns_to_the_eigenvectors_of_its_moments() {
    const SIZE: usize = 24;
    let eigenvalue = |at: usize| [4.0, 4.0, 1.0, 0.1, 0.0, 0.0][at % 6] / (1 + at / 6) as f64;
    // Reflections of the axes.
    let mirror = |seed: f64| {
        let normal: Vec<f64> = (0..SIZE).map(|at| ((at + 1) as f64 * seed).sin()).collect();
        let square: f64 = normal.iter().map(|x| x * x).sum();
        Matrix::new(SIZE, SIZE, |row, column| {
            f64::from(u8::from(row == column)) - 2.0 * normal[row] * normal[column] / square
        })
    };
    let basis = mirror(1.3).times(&mirror(2.9)).times(&mirror(0.7));
    let spectrum = Matrix::new(SIZE, SIZE, |row, column| if row == column { eigenvalue(row) * 1e-9 } else { 0.0 });
    let moments = basis.times(&spectrum).times(&basis.transposed());
    let trace = Trace::new();
    let sent: Vec<f32> = moments.numbers.iter().map(|number| *number as f32).collect();
    let symmetric = trace.constant(Array::new(&[SIZE, SIZE][..], &sent).unwrap());
    let state = trace.zero_state("basis", DType::F32, [SIZE, SIZE]);
    let turn = Routine::new("turn").assign(&state, &soap::turn(&symmetric, &state).basis);
    let mut program = trace.compile(&Cpu::new(1).unwrap(), &[turn]).unwrap();
    (0..30).for_each(|_| program.run("turn").unwrap());
    let found = Matrix::read(&program, "basis", SIZE).plus_identity();
    let seen = found.transposed().times(&moments).times(&found);
    let identity = found.transposed().times(&found);
    for row in 0..SIZE {
        for column in 0..SIZE {
            let one = f64::from(u8::from(row == column));
            assert!((identity.at(row, column) - one).abs() < 1e-5, "{row} {column}");
            assert!(
                row == column || seen.at(row, column).abs() < 4e-9 * 1e-3,
                "{row} {column}: {}",
                seen.at(row, column)
            );
        }
    }
    let mut eigenvalues: Vec<f64> = (0..SIZE).map(|at| seen.at(at, at)).collect();
    let mut expected: Vec<f64> = (0..SIZE).map(|at| eigenvalue(at) * 1e-9).collect();
    eigenvalues.sort_by(f64::total_cmp);
    expected.sort_by(f64::total_cmp);
    assert!(eigenvalues.iter().zip(&expected).all(|(found, known)| (found - known).abs() < 4e-12), "{eigenvalues:?}");
}

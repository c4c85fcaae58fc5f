//! Second derivatives: Hessians of small networks against PyTorch's and their spectra against NumPy's, by the numbers that
//! `tests/fixtures/curvature.py` stored; estimates against the errors that they state; and what is found from products.

mod support;

use gradus::backend::Cpu;
use gradus::curvature::{
    CompiledLoss, CompiledProducts, ConjugateGradients, FromFn, LanczosOptions, Matrix, NewtonCg, Smooth,
    conjugate_gradients, diagonal, diagonal_estimate, lanczos, newton_cg, spectral_density, trace_estimate,
    trace_estimates,
};
use gradus::plan::{Options, Recompute};
use gradus::testing::numbers::Random;
use gradus::{
    Array, DType, GradientTape, Result, Routine, Shape, Tensor, Trace, fisher_diagonal, gauss_newton_vector_product,
    gradient, hessian, hessian_vector_product, jacobian, jacobian_vector_product, vector_jacobian_product,
};
use support::fixture::Fixture;

/// A network of the fixture: its loss, and its weights one after another.
struct Network {
    name: &'static str,
    loss: fn(&Tensor, &Tensor, &[Tensor]) -> Tensor,
    fixture: Fixture,
}

fn perceptron(x: &Tensor, targets: &Tensor, weights: &[Tensor]) -> Tensor {
    x.linear(&weights[0], Some(&weights[1])).tanh().linear(&weights[2], Some(&weights[3])).cross_entropy(targets, None)
}

fn transformer(x: &Tensor, targets: &Tensor, weights: &[Tensor]) -> Tensor {
    let [joint, output, gain, bias, up, classes] = weights else { panic!("six weights") };
    let heads = x.layer_norm(gain, bias, 1e-5).matmul(joint).split(-1, &[4, 4, 4]);
    let heads: Vec<Tensor> = heads.iter().map(|part| part.reshape([2, 3, 2, 2]).transpose(1, 2)).collect();
    let seen = heads[0].attention(&heads[1], &heads[2], true).transpose(1, 2).reshape([2, 3, 4]);
    let x = x + seen.matmul(output);
    let x = &x + x.matmul(up).gelu();
    // Classes as rows, for the fused loss.
    x.linear_cross_entropy(&classes.transpose(0, 1), targets, None)
}

fn networks() -> [Network; 2] {
    let network = |name, loss| Network { name, loss, fixture: Fixture::open("curvature") };
    [network("perceptron", perceptron), network("transformer", transformer)]
}

impl Network {
    fn array(&self, name: &str) -> Array {
        self.fixture.array(&format!("{}/{name}", self.name))
    }

    fn weights(&self) -> Vec<Array> {
        let count = self.fixture.names(&format!("{}/weight.", self.name)).len();
        (0..count).map(|index| self.array(&format!("weight.{index}"))).collect()
    }

    fn flat(&self) -> Vec<f32> {
        self.weights().iter().flat_map(|weight| weight.to_vec::<f32>().unwrap()).collect()
    }

    fn compiled(&self, threads: usize) -> CompiledLoss {
        let shapes: Vec<Shape> = self.weights().iter().map(|weight| weight.shape().clone()).collect();
        let mut loss = CompiledLoss::new(&Cpu::new(threads).unwrap(), &shapes, |weights| {
            let constant = |name: &str| weights[0].trace().constant(self.array(name));
            (self.loss)(&constant("x"), &constant("targets"), weights)
        })
        .unwrap();
        loss.set(&self.flat()).unwrap();
        loss
    }
}

/// All of a matrix, row by row.
fn dense(matrix: &mut impl Matrix) -> Vec<Vec<f32>> {
    let size = matrix.size();
    let row = |row: usize| {
        let (mut unit, mut product) = (vec![0.0; size], vec![0.0; size]);
        unit[row] = 1.0;
        matrix.product(&unit, &mut product).unwrap();
        product
    };
    (0..size).map(row).collect()
}

fn largest(numbers: impl IntoIterator<Item = f64>) -> f64 {
    numbers.into_iter().fold(0.0, |most, x| most.max(x.abs()))
}

#[test]
fn hessians_equal_those_of_pytorch_and_are_symmetric() {
    for network in networks() {
        let mut loss = network.compiled(1);
        let mut slope = vec![0.0; network.flat().len()];
        loss.loss_and_gradient(&network.flat(), &mut slope).unwrap();
        let expected = network.array("gradient").to_f64();
        let scale = largest(expected.iter().copied());
        let error = largest(slope.iter().zip(&expected).map(|(a, b)| *a as f64 - b)) / scale;
        assert!(error < 1e-5, "{}: gradient {error:e}", network.name);
        let (found, expected) = (dense(&mut loss), network.array("hessian").to_f64());
        let (size, scale) = (found.len(), largest(expected.iter().copied()));
        let pairs = || (0..size).flat_map(|row| (0..size).map(move |column| (row, column)));
        let error = largest(pairs().map(|(i, j)| found[i][j] as f64 - expected[i * size + j])) / scale;
        assert!(error < 1e-5, "{}: Hessian {error:e}", network.name);
        let skew = largest(pairs().map(|(i, j)| (found[i][j] - found[j][i]) as f64)) / scale;
        assert!(skew < 2e-6, "{}: not symmetric by {skew:e}", network.name);
    }
}

#[test]
fn products_have_the_same_bits_on_any_number_of_threads() {
    for network in networks() {
        let [one, two, three] = [1, 2, 3].map(|threads| dense(&mut network.compiled(threads)));
        assert!(one == two && one == three, "{}", network.name);
    }
}

#[test]
fn lanczos_finds_the_spectra_of_networks() {
    for network in networks() {
        let mut loss = network.compiled(1);
        let expected = network.array("eigenvalues").to_f64();
        let options = LanczosOptions { steps: expected.len(), ..LanczosOptions::default() };
        let found = lanczos(&mut loss, options).unwrap();
        let scale = largest(expected.iter().copied());
        for (ritz, expected) in found.eigenvalues.iter().rev().zip(expected.iter().rev()).take(4) {
            assert!((ritz.value - expected).abs() < 1e-4 * scale, "{}: {ritz:?}, not {expected}", network.name);
        }
        assert!(
            (found.smallest().value - expected[0]).abs() < 1e-4 * scale,
            "{}: {:?}",
            network.name,
            found.smallest()
        );
        // Each lies as near to an eigenvalue as it says, but for the rounding of the products.
        for ritz in &found.eigenvalues {
            let nearest = expected.iter().map(|x| (x - ritz.value).abs()).fold(f64::INFINITY, f64::min);
            assert!(nearest <= ritz.error + 1e-4 * scale, "{}: {ritz:?}, {nearest} away", network.name);
        }
        let trace: f64 = expected.iter().sum();
        let estimate = trace_estimate(&mut loss, 400, 1).unwrap();
        assert!(
            (estimate.value - trace).abs() < 4.0 * estimate.error && estimate.error < 0.1 * trace.abs(),
            "{estimate:?}"
        );
    }
}

/// A symmetric matrix with these eigenvalues: turned by reflections.
fn with_spectrum(eigenvalues: &[f64], seed: u64) -> Vec<Vec<f64>> {
    let size = eigenvalues.len();
    let mut random = Random::new(seed);
    let mut matrix: Vec<Vec<f64>> =
        (0..size).map(|i| (0..size).map(|j| if i == j { eigenvalues[i] } else { 0.0 }).collect()).collect();
    for _ in 0..3 {
        let normal: Vec<f64> = (0..size).map(|_| random.uniform(-1.0, 1.0)).collect();
        let square: f64 = normal.iter().map(|x| x * x).sum();
        for _ in 0..2 {
            // Once for the rows; transposed, once for the columns.
            for row in &mut matrix {
                let share = 2.0 * row.iter().zip(&normal).map(|(a, b)| a * b).sum::<f64>() / square;
                row.iter_mut().zip(&normal).for_each(|(x, n)| *x -= share * n);
            }
            matrix = (0..size).map(|i| (0..size).map(|j| matrix[j][i]).collect()).collect();
        }
    }
    matrix
}

fn matrix_of(rows: &[Vec<f64>]) -> impl Matrix {
    let rows = rows.to_vec();
    FromFn::new(rows.len(), move |vector: &[f32], product: &mut [f32]| {
        let dot = |row: &Vec<f64>| row.iter().zip(vector).map(|(a, b)| a * *b as f64).sum::<f64>() as f32;
        product.iter_mut().zip(&rows).for_each(|(to, row)| *to = dot(row));
        Ok(())
    })
}

#[test]
fn lanczos_finds_the_spectrum_of_a_quadratic() {
    let eigenvalues: Vec<f64> =
        (0..60).map(|at| -1.0 + 0.05 * at as f64 + if at > 56 { at as f64 } else { 0.0 }).collect();
    let rows = with_spectrum(&eigenvalues, 3);
    let all = lanczos(&mut matrix_of(&rows), LanczosOptions { steps: 60, ..LanczosOptions::default() }).unwrap();
    assert_eq!(all.eigenvalues.len(), 60);
    for (found, expected) in all.eigenvalues.iter().zip(&eigenvalues) {
        assert!((found.value - expected).abs() < 1e-4, "{found:?}, not {expected}");
    }
    for reorthogonalize in [true, false] {
        let options = LanczosOptions { steps: 16, seed: 5, reorthogonalize };
        let few = lanczos(&mut matrix_of(&rows), options).unwrap().largest();
        assert!((few.value - eigenvalues[59]).abs() < 1e-4 && few.error < 1e-3, "{few:?}");
    }
    // Three of sixty lie far out.
    let runs: Vec<_> = (0..30)
        .map(|seed| lanczos(&mut matrix_of(&rows), LanczosOptions { steps: 20, seed, reorthogonalize: true }).unwrap())
        .collect();
    let points: Vec<f64> = (0..8000).map(|at| -10.0 + at as f64 * 0.01).collect();
    let density = spectral_density(&runs, &points, 0.3);
    let integral =
        |from: f64| points.iter().zip(&density).filter(|(x, _)| **x > from).map(|(_, d)| d * 0.01).sum::<f64>();
    assert!((integral(-10.0) - 1.0).abs() < 1e-3, "{}", integral(-10.0));
    assert!((integral(20.0) - 0.05).abs() < 0.03, "{}", integral(20.0));
}

#[test]
fn estimates_are_as_far_off_as_they_say() {
    let eigenvalues: Vec<f64> = (0..40).map(|at| 0.2 * at as f64 - 1.0).collect();
    let rows = with_spectrum(&eigenvalues, 9);
    let trace: f64 = eigenvalues.iter().sum();
    let exact = diagonal(&mut matrix_of(&rows)).unwrap();
    assert!(largest(exact.iter().enumerate().map(|(i, x)| *x as f64 - rows[i][i])) < 1e-6);
    let (runs, samples) = (300, 60);
    let (mut within_one, mut within_two, mut elements_within_two) = (0, 0, 0);
    for seed in 0..runs {
        let estimate = trace_estimate(&mut matrix_of(&rows), samples, seed).unwrap();
        let off = (estimate.value - trace).abs() / estimate.error;
        within_one += (off < 1.0) as usize;
        within_two += (off < 2.0) as usize;
        let by_element = diagonal_estimate(&mut matrix_of(&rows), samples, seed).unwrap();
        let is_within = |at: &usize| (by_element.diagonal[*at] - exact[*at]).abs() < 2.0 * by_element.error[*at];
        elements_within_two += (0..40).filter(is_within).count();
    }
    let share = |count: usize, of: u64| count as f64 / of as f64;
    // 0.68 and 0.95 of a normal distribution, within what 300 runs tell.
    assert!((share(within_one, runs) - 0.68).abs() < 0.08, "{within_one} of {runs}");
    assert!((share(within_two, runs) - 0.95).abs() < 0.04, "{within_two} of {runs}");
    assert!((share(elements_within_two, 40 * runs) - 0.95).abs() < 0.02, "{elements_within_two}");
    // Sixteen times the samples, a quarter of the error.
    let error = |samples| trace_estimate(&mut matrix_of(&rows), samples, 77).unwrap().error;
    let ratio = error(100) / error(1600);
    assert!((ratio - 4.0).abs() < 0.8, "{ratio}");
    let blocks = trace_estimates(&mut matrix_of(&rows), &[0..10, 10..40, 7..7], 4000, 2).unwrap();
    let first: f64 = (0..10).map(|at| rows[at][at]).sum();
    assert!((blocks[0].value - first).abs() < 4.0 * blocks[0].error && blocks[0].error < 0.2, "{blocks:?}");
    assert!((blocks[0].value + blocks[1].value - trace).abs() < 4.0 * blocks[1].error, "{blocks:?}");
    assert_eq!((blocks[2].value, blocks[2].error), (0.0, 0.0));
}

#[test]
fn conjugate_gradients_solve_and_tell_what_they_cannot() {
    let eigenvalues: Vec<f64> = (0..30).map(|at| 10f64.powf(at as f64 / 10.0)).collect();
    let rows = with_spectrum(&eigenvalues, 4);
    let b: Vec<f32> = (0..30).map(|at| (at as f32 * 0.7).sin()).collect();
    let options = ConjugateGradients { steps: 200, tolerance: 1e-5, damping: 0.5 };
    let solution = conjugate_gradients(&mut matrix_of(&rows), &b, options).unwrap();
    let mut product = vec![0.0; 30];
    matrix_of(&rows).product(&solution.x, &mut product).unwrap();
    let left = (0..30).map(|at| product[at] + 0.5 * solution.x[at] - b[at]).map(|x| x as f64);
    assert!(largest(left) < 1e-4 && solution.residual <= 1e-5 && !solution.indefinite, "{solution:?}");
    let rows = with_spectrum(&[-1.0, -2.0], 1);
    assert!(conjugate_gradients(&mut matrix_of(&rows), &[1.0, 1.0], options).unwrap().indefinite);
    let nothing = conjugate_gradients(&mut matrix_of(&rows), &[0.0, 0.0], options).unwrap();
    assert_eq!((nothing.x, nothing.steps), (vec![0.0, 0.0], 0));
}

/// Goes down the gradient with a step that cannot diverge, for as many evaluations.
fn gradient_descent(loss: &mut CompiledLoss, x: &[f32], rate: f32, steps: usize) -> f64 {
    let (mut x, mut slope) = (x.to_vec(), vec![0.0; x.len()]);
    for _ in 0..steps {
        loss.loss_and_gradient(&x, &mut slope).unwrap();
        x.iter_mut().zip(&slope).for_each(|(x, g)| *x -= rate * g);
    }
    loss.loss_and_gradient(&x, &mut slope).unwrap()
}

#[test]
fn newton_converges_where_gradient_descent_does_not() {
    // A quadratic whose directions differ a hundred thousand times.
    let stretch: Vec<f32> = (0..20).map(|at| 10f32.powf(at as f32 * 5.0 / 19.0)).collect();
    let mut quadratic = CompiledLoss::new(&Cpu::new(1).unwrap(), &[Shape::from([20])], |x| {
        let stretch = x[0].trace().constant(Array::new([20], &stretch).unwrap());
        let from_minimum = &x[0] - 1.0;
        (stretch * &from_minimum * &from_minimum).sum_all() * 0.5
    })
    .unwrap();
    let start = vec![0.0; 20];
    let found = newton_cg(&mut quadratic, &start, NewtonCg::default()).unwrap();
    assert!(found.loss < 1e-9, "{found:?}");
    // The largest step that does not diverge is 2 over the largest curvature.
    let descended = gradient_descent(&mut quadratic, &start, 1.9 / 1e5, found.evaluations);
    assert!(descended > 1e3 * f64::max(found.loss, 1e-9) && descended.is_finite(), "{descended}");

    let mut rosenbrock = CompiledLoss::new(&Cpu::new(1).unwrap(), &[Shape::from([2])], |x| {
        let parts = x[0].split(0, &[1, 1]);
        let (a, b) = (1.0 - &parts[0], &parts[1] - &parts[0] * &parts[0]);
        (&a * &a + &b * &b * 100.0).sum_all()
    })
    .unwrap();
    let found = newton_cg(&mut rosenbrock, &[-1.2, 1.0], NewtonCg::default()).unwrap();
    assert!(found.loss < 1e-9 && largest(found.x.iter().map(|x| *x as f64 - 1.0)) < 1e-4, "{found:?}");
    let descended = gradient_descent(&mut rosenbrock, &[-1.2, 1.0], 1e-3, found.evaluations);
    assert!(descended > 1e-2, "{descended}, {found:?}");
}

#[test]
fn jacobians_on_a_tape_are_whole_and_agree_with_products() {
    let tape = GradientTape::new().unwrap();
    let x = tape.watch(Array::new([3], &[0.5f32, -1.0, 2.0]).unwrap());
    let [wide, narrow] = [Tensor::concat(&[&x.exp(), &(&x * &x)], 0), (&x * &x * &x).sum_keep(&[0])];
    let rows = tape.read(&jacobian(&wide, &x).unwrap()).unwrap();
    assert_eq!(rows.shape(), &Shape::from([6, 3]));
    let at = [0.5f64, -1.0, 2.0];
    for (index, found) in rows.to_f64().into_iter().enumerate() {
        let (row, column) = (index / 3, index % 3);
        let slope = if row < 3 { at[row].exp() } else { 2.0 * at[row - 3] };
        let expected = if row % 3 == column { slope } else { 0.0 };
        assert!((found - expected).abs() < 1e-6, "{row}, {column}: {found}");
    }
    let row = tape.read(&jacobian(&narrow, &x).unwrap()).unwrap();
    assert_eq!((row.shape().clone(), row.to_f64()), (Shape::from([1, 3]), vec![0.75, 3.0, 12.0]));
    let bends = tape.read(&hessian(&narrow, &x).unwrap()).unwrap().to_f64();
    assert_eq!(bends, [3.0, 0.0, 0.0, 0.0, -6.0, 0.0, 0.0, 0.0, 12.0]);
    // A line does not bend.
    assert_eq!(tape.read(&hessian(&x, &x).unwrap()).unwrap().to_f64(), [0.0; 9]);
}

#[test]
fn gauss_newton_is_the_jacobian_around_the_bend_of_the_loss() {
    let network = &networks()[0];
    let tape = GradientTape::new().unwrap();
    let weights: Vec<Tensor> = network.weights().into_iter().map(|weight| tape.watch(weight)).collect();
    let [x, targets] = ["x", "targets"].map(|name| tape.watch(network.array(name)));
    let logits = x.linear(&weights[0], Some(&weights[1])).tanh().linear(&weights[2], Some(&weights[3])); // [7, 3]
    let loss = logits.cross_entropy(&targets, None);
    let vector =
        tape.watch(Array::new([3, 4], &[0.3f32, -1.0, 0.5, 0.2, 1.0, 0.1, -0.4, 0.8, 0.0, 0.6, -0.7, 1.1]).unwrap());
    let found = gauss_newton_vector_product(&loss, &[&logits], &[&weights[0]], &[&vector]).unwrap();
    let rows = jacobian(&logits, &weights[0]).unwrap().reshape([21, 12]);
    let bend = hessian(&loss, &logits).unwrap().reshape([21, 21]);
    let expected = rows.transpose(0, 1).matmul(&bend).matmul(&rows).matmul(&vector.reshape([12, 1])).reshape([3, 4]);
    let read = tape.read_all(&[&found[0], &expected]).unwrap();
    let scale = largest(read[1].to_f64());
    let error = largest(read[0].to_f64().iter().zip(read[1].to_f64()).map(|(a, b)| a - b));
    assert!(scale > 0.01 && error < 1e-5 * scale, "{error} of {scale}");
}

#[test]
fn the_fisher_diagonal_is_the_mean_square_of_gradients() {
    let tape = GradientTape::new().unwrap();
    let w = tape.watch(Array::new([2], &[1.0f32, -2.0]).unwrap());
    let x = tape.watch(Array::new([3, 2], &[1.0f32, 0.0, 2.0, 1.0, 0.0, 3.0]).unwrap());
    let losses = x.matmul(&w); // their gradients are the rows of x
    let found = tape.read(&fisher_diagonal(&losses, &[&w]).unwrap()[0]).unwrap().to_f64();
    assert!(largest([found[0] - 5.0 / 3.0, found[1] - 10.0 / 3.0]) < 1e-6, "{found:?}");
}

#[test]
fn compiled_products_are_replayed() -> Result<()> {
    let trace = Trace::new();
    let [w, v] = ["w", "v"].map(|name| trace.input(name, DType::F32, [2, 3]));
    let loss = (&w * &w * &w).sum_all();
    let product = &hessian_vector_product(&loss, &[&w], &[&v])?[0];
    let mut program = trace.compile(&Cpu::new(1)?, &[Routine::new("product").output("p", product)])?;
    program.write("w", &[1f32, 2., 3., 4., 5., 6.])?;
    let mut matrix = CompiledProducts::new(&mut program, "product", &[("v".to_string(), "p".to_string())])?;
    assert_eq!(diagonal(&mut matrix)?, [6.0, 12.0, 18.0, 24.0, 30.0, 36.0]);
    let mut unknown = CompiledProducts::new(&mut program, "product", &[("v".to_string(), "q".to_string())])?;
    let error = unknown.product(&[0.0; 6], &mut [0.0; 6]).unwrap_err();
    assert!(error.to_string().contains("\"q\""), "{error}");
    Ok(())
}

#[test]
fn what_cannot_be_asked_is_said() {
    let trace = Trace::new();
    let x = trace.input("x", DType::F32, [3]);
    let n = trace.input("n", DType::I32, [3]);
    let other = trace.input("other", DType::F32, [2]);
    let y = (&x * &x).sum_all();
    let says = |result: Result<Vec<Tensor>>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("curvature.rs"), "{error}");
    };
    says(hessian_vector_product(&y, &[&x], &[]), "a vector for each of 1 tensors, not 0");
    says(hessian_vector_product(&y, &[&x], &[&other]), "a vector of f32[2] for a tensor of f32[3]");
    says(hessian_vector_product(&y, &[&x, &x], &[&x, &x]), "named twice");
    says(jacobian_vector_product(&[&y], &[&n], &[&n]), "floating-point");
    says(vector_jacobian_product(&[&x], &[&y], &[&other]), "a vector of f32[2] for a tensor of f32[3]");
    says(hessian_vector_product(&n, &[&x], &[&x]), "cast it to a float");
    let elsewhere = Trace::new().input("x", DType::F32, [3]);
    says(hessian_vector_product(&y, &[&elsewhere], &[&x]), "two traces");
    let large = trace.input("large", DType::F32, [5000]);
    says(jacobian(&large.exp(), &large).map(|x| vec![x]), "more than 4096");
    says(fisher_diagonal(&large, &[&x]), "not 5000");
    // What does not depend on it does not change.
    let tape = GradientTape::new().unwrap();
    let x = tape.watch(Array::scalar(2f32));
    let still = jacobian_vector_product(&[&x.stop_gradient().exp()], &[&x], &[&x]).unwrap();
    assert_eq!(tape.read(&still[0]).unwrap().to_f64(), [0.0]);
    let mut bad = FromFn::new(3, |_: &[f32], product: &mut [f32]| {
        product.fill(f32::NAN);
        Ok(())
    });
    let refused = [
        lanczos(&mut bad, LanczosOptions::default()).err(),
        trace_estimate(&mut bad, 2, 0).err(),
        trace_estimate(&mut bad, 1, 0).err(),
        lanczos(&mut bad, LanczosOptions { steps: 0, ..LanczosOptions::default() }).err(),
        conjugate_gradients(&mut bad, &[1.0], ConjugateGradients::default()).err(),
    ];
    let words = ["not finite", "not finite", "at least 2 samples", "one step", "1 numbers for a matrix of 3 rows"];
    for (error, words) in refused.into_iter().zip(words) {
        let error = error.expect("refused").to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_gradient_can_be_differentiated_by_any_mixture_of_modes() {
    // Third derivatives of x^4 three ways.
    let tape = GradientTape::new().unwrap();
    let (x, one) = (tape.watch(Array::scalar(1.5f32)), tape.watch(Array::scalar(1f32)));
    let y = &x * &x * &x * &x;
    let forward = |of: &Tensor| jacobian_vector_product(&[of], &[&x], &[&one]).unwrap().remove(0);
    let reverse = |of: &Tensor| gradient(of, &[&x]).unwrap().remove(0);
    let found = [forward(&forward(&forward(&y))), reverse(&forward(&reverse(&y))), forward(&reverse(&forward(&y)))];
    let read = tape.read_all(&found.iter().collect::<Vec<_>>()).unwrap();
    assert!(read.iter().all(|read| (read.to_f64()[0] - 36.0).abs() < 1e-4), "{read:?}");
}

#[test]
fn what_is_made_again_gives_the_same_products_in_less_memory() {
    let trace = Trace::new();
    let x = trace.constant(Array::new([64, 16], &[0.3f32; 64 * 16]).unwrap());
    let states: Vec<Tensor> = (0..8)
        .map(|layer| {
            let numbers: Vec<f32> = (0..256).map(|at| ((at * 7 + layer * 13) as f32).sin() * 0.3).collect();
            trace.state(&format!("w{layer}"), Array::new([16, 16], &numbers).unwrap())
        })
        .collect();
    let hidden =
        states.iter().enumerate().fold(x, |x, (layer, w)| trace.in_layer(layer, || x.matmul(w).tanh().exp().tanh()));
    let loss = hidden.sum_of_squares(&[0, 1]);
    let weights: Vec<&Tensor> = states.iter().collect();
    // Any vector will do: the weights themselves.
    let products = hessian_vector_product(&loss, &weights, &weights).unwrap();
    let mut routine = Routine::new("product");
    for (index, product) in products.iter().enumerate() {
        routine = routine.output(&format!("p{index}"), product);
    }
    let backend = Cpu::new(2).unwrap();
    let computed = |recompute: Recompute| {
        let options = Options { recompute, ..Options::default() };
        let mut program = trace.compile_with(&backend, std::slice::from_ref(&routine), options).unwrap();
        program.run("product").unwrap();
        let read: Vec<Array> = (0..8).map(|index| program.read(&format!("p{index}")).unwrap()).collect();
        (program.plan().regions.transients, read)
    };
    let (kept, expected) = computed(Recompute::None);
    let (again, found) = computed(Recompute::Block { every: 1 });
    assert!(again < kept * 3 / 4, "{again} of {kept} bytes");
    assert_eq!(found, expected);
    assert!(largest(expected[7].to_f64()) > 1e-3);
}

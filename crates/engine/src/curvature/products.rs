//! Second derivatives as products, traced like anything else: no matrix is ever held unless it is asked for.

use crate::autodiff::{self, Following, added_up};
use crate::error::Location;
use crate::graph::Value;
use crate::linearize::Push;
use crate::{Array, Error, Result, Tensor, gradient_or_zeros, jacobian_vector_product};

/// A matrix of more rows or columns than this is not traced, product by product: whatever it is for, products do it in less.
const MOST_PRODUCTS: usize = 4096;

/// The gradients of `inputs` from those of `outputs`, `vectors`: a vector times the Jacobian. Zeros where no output depends
/// on the input in a way that can be differentiated.
#[track_caller]
pub fn vector_jacobian_product(outputs: &[&Tensor], inputs: &[&Tensor], vectors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let Some(first) = outputs.first() else { return Ok(inputs.iter().map(|input| input.zeros_like()).collect()) };
    let trace = first.trace();
    // The outputs and their vectors must fit as inputs and their directions must.
    Push::from("vector_jacobian_product", trace, outputs, vectors, at)?;
    if let Some(foreign) = inputs.iter().find(|input| !input.is_of(trace)) {
        return Err(foreign.foreign("vector_jacobian_product", at));
    }
    let [outputs, owned] =
        [outputs, inputs].map(|tensors| tensors.iter().map(|&tensor| tensor.clone()).collect::<Vec<_>>());
    let vectors: Vec<Option<Tensor>> = vectors.iter().map(|&vector| Some(vector.clone())).collect();
    let found = trace.differentiating(|| {
        let terms = autodiff::backward(trace, &outputs, &vectors, &owned, 0, &mut ());
        let sum = |(terms, input): (&Vec<Tensor>, &Tensor)| added_up(terms).unwrap_or_else(|| input.zeros_like());
        trace.attributing(at, None, || terms.iter().zip(&owned).map(sum).collect())
    });
    trace.check()?;
    Ok(found)
}

/// The Hessian of `loss`, summed over its elements, with respect to `inputs`, times `vectors`: how the gradient changes when
/// the inputs change by them. It is exact, and costs about as much as two or three gradients.
///
/// It goes forward over reverse: each step of the gradient is followed by its tangent at once, so that what is between them
/// is gone as soon as it is between a step and its neighbour.
///
/// ```
/// use gradus_engine::{Array, GradientTape, hessian_vector_product};
///
/// let tape = GradientTape::new()?;
/// let x = tape.watch(Array::new([2], &[3.0f32, 4.0])?);
/// let v = tape.watch(Array::new([2], &[1.0f32, -1.0])?);
/// let loss = (&x * &x * &x).sum_all(); // its Hessian has 6 x on the diagonal
/// let product = hessian_vector_product(&loss, &[&x], &[&v])?;
/// assert_eq!(tape.read(&product[0])?.to_f64(), [18.0, -24.0]);
/// # Ok::<(), gradus_engine::Error>(())
/// ```
#[track_caller]
pub fn hessian_vector_product(loss: &Tensor, inputs: &[&Tensor], vectors: &[&Tensor]) -> Result<Vec<Tensor>> {
    Ok(loss_and_hessian_vector_product(loss, inputs, vectors)?.1)
}

/// As [`hessian_vector_product`], and the loss made of what the product needs anyway: where tangents go through blocks, as those of
/// the loss over a vocabulary do, `loss` itself would be computed besides.
#[track_caller]
pub fn loss_and_hessian_vector_product(
    loss: &Tensor,
    inputs: &[&Tensor],
    vectors: &[&Tensor],
) -> Result<(Tensor, Vec<Tensor>)> {
    let at = Location::caller();
    let trace = loss.trace();
    let mut push = Push::from("hessian_vector_product", trace, inputs, vectors, at)?;
    if loss.dtype().is_integer() {
        let problem = format!("a result of {} cannot be differentiated; cast it to a float", loss.ty());
        return Err(Error::NoGradient { problem, at });
    }
    let end: Value = loss.handle()?;
    push.over(0..end.node + 1, &[end]);
    let owned: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
    let products = trace.differentiating(|| {
        let seed = trace.attributing(at, None, || loss.ones_like());
        push.begin();
        let terms = autodiff::backward(trace, std::slice::from_ref(loss), &[Some(seed)], &owned, 0, &mut push);
        trace.attributing(at, None, || {
            terms.iter().zip(&owned).map(|(terms, input)| sum_of_tangents(&push, terms, input)).collect::<Result<_>>()
        })
    })?;
    trace.check()?;
    Ok((push.instead_of(loss.clone()), products))
}

/// The tangent of a gradient that is the sum of these.
fn sum_of_tangents(push: &Push<'_>, terms: &[Tensor], input: &Tensor) -> Result<Tensor> {
    let tangents = terms.iter().map(|term| push.tangent_of(term)).collect::<Result<Vec<_>>>()?;
    Ok(added_up(&tangents).unwrap_or_else(|| input.zeros_like()))
}

/// The Gauss-Newton matrix of `loss` with respect to `inputs`, times `vectors`: the Hessian without how the `outputs` of the
/// model bend, `J^T H J` of their Jacobian J and the Hessian H of the loss by the outputs. Where the loss is convex in the
/// outputs, as a mean squared error or a cross-entropy is, no eigenvalue is below zero.
///
/// The loss must depend on the inputs by the outputs alone.
#[track_caller]
pub fn gauss_newton_vector_product(
    loss: &Tensor,
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    vectors: &[&Tensor],
) -> Result<Vec<Tensor>> {
    let changes = jacobian_vector_product(outputs, inputs, vectors)?;
    let bent = hessian_vector_product(loss, outputs, &changes.iter().collect::<Vec<_>>())?;
    vector_jacobian_product(outputs, inputs, &bent.iter().collect::<Vec<_>>())
}

/// The Jacobian of `output` by `input`, whole: the axes of the output, then those of the input. It takes a product for each
/// element of the smaller one, and is for small problems.
#[track_caller]
pub fn jacobian(output: &Tensor, input: &Tensor) -> Result<Tensor> {
    let at = Location::caller();
    let (rows, columns) = (output.shape().elements(), input.shape().elements());
    if rows.min(columns) > MOST_PRODUCTS {
        let problem = format!(
            "a Jacobian of {rows} by {columns} takes {} products, more than {MOST_PRODUCTS}; use jacobian_vector_product or \
             vector_jacobian_product for what it is needed for",
            rows.min(columns)
        );
        return Err(Error::NoGradient { problem, at });
    }
    let trace = output.trace();
    let shape: Vec<usize> = output.shape().iter().chain(input.shape().iter()).copied().collect();
    if rows.min(columns) == 0 {
        return Ok(trace.constant(Array::zeros(input.dtype(), shape)?));
    }
    let unit = |like: &Tensor, element: usize| -> Result<Tensor> {
        let mut numbers = vec![0.0; like.shape().elements()];
        numbers[element] = 1.0;
        Ok(trace.constant(Array::from_f64(like.ty(), &numbers)?))
    };
    let by_columns = columns < rows;
    let product = |element: usize| -> Result<Tensor> {
        let found = match by_columns {
            true => jacobian_vector_product(&[output], &[input], &[&unit(input, element)?])?,
            false => vector_jacobian_product(&[output], &[input], &[&unit(output, element)?])?,
        };
        Ok(found[0].reshape([1, rows.max(columns)]))
    };
    let products = (0..rows.min(columns)).map(product).collect::<Result<Vec<_>>>()?;
    let joined = Tensor::concat(&products.iter().collect::<Vec<_>>(), 0);
    let matrix = if by_columns { joined.transpose(0, 1) } else { joined };
    let matrix = matrix.reshape(shape);
    trace.check()?;
    Ok(matrix)
}

/// The Hessian of `loss`, summed over its elements, by `input`, whole: the axes of the input twice. For small problems.
#[track_caller]
pub fn hessian(loss: &Tensor, input: &Tensor) -> Result<Tensor> {
    let slope = gradient_or_zeros(loss, &[input])?.swap_remove(0);
    jacobian(&slope, input)
}

/// The diagonal of the empirical Fisher matrix: the mean, over all `losses`, of the square of each one's gradient by every
/// element of `inputs`. It takes a gradient for each loss.
#[track_caller]
pub fn fisher_diagonal(losses: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let count = losses.shape().elements();
    if count == 0 || count > MOST_PRODUCTS {
        let problem = format!("takes from 1 to {MOST_PRODUCTS} losses, not {count}; add up the diagonals of parts");
        return Err(Error::NoGradient { problem, at });
    }
    let flat = losses.reshape([count]);
    let mut sums: Vec<Vec<Tensor>> = inputs.iter().map(|_| vec![]).collect();
    for index in 0..count {
        let slopes = gradient_or_zeros(&flat.slice(0, index..index + 1), inputs)?;
        sums.iter_mut().zip(slopes).for_each(|(sum, slope)| sum.push(&slope * &slope));
    }
    let mean = |squares: &Vec<Tensor>| added_up(squares).expect("at least one loss") * (1.0 / count as f32);
    let means = sums.iter().map(mean).collect();
    losses.trace().check()?;
    Ok(means)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Cpu;
    use crate::plan::Options;
    use crate::{DType, Program, Routine, Trace};

    /// The bits of a loss over a vocabulary and of the products beside it, and the operations that both take.
    fn computed(threads: usize, with_product: bool) -> (Vec<u32>, Vec<&'static str>) {
        let trace = Trace::new();
        let [x, v] = ["x", "v"].map(|name| trace.input(name, DType::F32, [60, 40]));
        let [weight, u] = ["weight", "u"].map(|name| trace.input(name, DType::F32, [90, 40]));
        let targets = trace.input("targets", DType::I32, [60]);
        let own = x.linear_cross_entropy(&weight, &targets, None);
        let (loss, products) = loss_and_hessian_vector_product(&own, &[&x, &weight], &[&v, &u]).unwrap();
        let routine = match with_product {
            true => Routine::new("r").output("loss", &loss).output("p0", &products[0]).output("p1", &products[1]),
            false => Routine::new("r").output("loss", &own),
        };
        let backend = Cpu::new(threads).unwrap();
        let plan = trace.plan(&backend, &[routine], Options::default()).unwrap();
        let operations = plan.routines[0].steps.iter().map(|step| step.op.name()).collect();
        let mut program = Program::link(plan, &backend).unwrap();
        for (name, count) in [("x", 2400), ("v", 2400), ("weight", 3600), ("u", 3600)] {
            let numbers: Vec<f32> = (0..count).map(|at| (at as f32 * 0.37 + name.len() as f32).sin()).collect();
            program.write(name, &numbers).unwrap();
        }
        program.write("targets", &(0..60).map(|row| row * 7 % 90).collect::<Vec<i32>>()).unwrap();
        program.run("r").unwrap();
        let names: &[&str] = if with_product { &["loss", "p0", "p1"] } else { &["loss"] };
        let numbers = names.iter().flat_map(|name| program.read(*name).unwrap().to_f64());
        (numbers.map(|number| (number as f32).to_bits()).collect(), operations)
    }

    #[test]
    fn the_loss_beside_a_product_is_made_of_its_logits() {
        let ((alone, fused), (both, parts)) = (computed(2, false), computed(2, true));
        assert!(fused.contains(&"linear_cross_entropy") && !parts.contains(&"linear_cross_entropy"), "{parts:?}");
        let [alone, beside] = [alone[0], both[0]].map(f32::from_bits);
        assert!((alone - beside).abs() < 1e-6 * alone.abs(), "{beside}, not {alone}");
        assert!(parts.contains(&"shared_matmul"), "{parts:?}");
        assert!([1, 3].iter().all(|&threads| computed(threads, true).0 == both));
    }
}

//! Comparing computed numbers with those of the reference, so that the comparison can fail.

use crate::Array;
use crate::ops::Reals;

/// Compares each result with the reference, and makes sure that the comparison can fail: a computation that gives zeros,
/// other signs or numbers of the wrong place must not pass. `allowed` is how far the numbers of a result may be off.
pub fn compare(what: &str, computed: &[Array], reference: &[Reals], allowed: &[f64]) {
    let mut told_apart = [None; 3];
    for (index, ((computed, reference), &allowed)) in computed.iter().zip(reference).zip(allowed).enumerate() {
        let (computed, reference) = (computed.to_f64(), &reference.data);
        if let Some(element) = first_difference(&computed, reference, allowed) {
            let (got, want) = (computed[element], reference[element]);
            panic!("{what}: result {index}, element {element}: {got} instead of {want} (within {allowed:e})");
        }
        for ((_, forged), told_apart) in forgeries(reference).into_iter().zip(&mut told_apart) {
            // In f64, what is not zero but for rounding is.
            if first_difference(&forged, reference, 1e-12).is_some() {
                *told_apart =
                    Some(told_apart.unwrap_or(false) || first_difference(&forged, reference, allowed).is_some());
            }
        }
    }
    for ((forgery, _), told_apart) in forgeries(&[]).iter().zip(told_apart) {
        assert!(told_apart != Some(false), "{what}: {forgery} would pass within {allowed:?}");
    }
}

/// As [`compare`], and each result by itself must be told apart from a forged one.
pub fn compare_each(what: &str, computed: &[Array], reference: &[Reals], allowed: &[f64]) {
    for (index, ((computed, reference), allowed)) in computed.iter().zip(reference).zip(allowed).enumerate() {
        let one = (std::slice::from_ref(computed), std::slice::from_ref(reference), std::slice::from_ref(allowed));
        compare(&format!("{what}, result {index}"), one.0, one.1, one.2);
    }
}

/// The first number that is farther from what is wanted than allowed.
fn first_difference(computed: &[f64], wanted: &[f64], allowed: f64) -> Option<usize> {
    let agrees = |got: f64, want: f64| got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= allowed;
    computed.iter().zip(wanted).position(|(&got, &want)| !agrees(got, want))
}

/// What a kernel that does nothing, has a sign wrong or reads the wrong place would give.
fn forgeries(reference: &[f64]) -> [(&'static str, Vec<f64>); 3] {
    let mut neighbours = reference.to_vec();
    neighbours.rotate_left(1.min(reference.len()));
    let negated = reference.iter().map(|x| -x).collect();
    [("all zeros", vec![0.0; reference.len()]), ("the other sign", negated), ("the neighbour's number", neighbours)]
}

/// How far the numbers of each result may be off, from its largest number, or `floor` if that is larger.
pub fn relative(reference: &[Reals], tolerance: f64, floor: f64) -> Vec<f64> {
    let largest =
        |result: &Reals| result.data.iter().filter(|x| x.is_finite()).fold(floor, |most, x| most.max(x.abs()));
    reference.iter().map(|result| tolerance * largest(result)).collect()
}

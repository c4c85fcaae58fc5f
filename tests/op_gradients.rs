//! Every case of every operation: first and second derivatives and tangents against finite differences of the f64 reference,
//! and computed by the kernels.

use gradus::ops;
use gradus::testing::{check_gradients, check_tangents};

/// Every operation, or the one that `GRADUS_TEST_OP` names.
fn each(check: fn(&ops::ListedOperation)) {
    let only = std::env::var("GRADUS_TEST_OP").ok();
    ops::all().iter().filter(|entry| only.as_ref().is_none_or(|only| only == entry.type_name)).for_each(check);
}

#[test]
fn derivatives_equal_finite_differences() {
    each(check_gradients);
}

#[test]
fn tangents_equal_finite_differences_and_hessians_are_symmetric() {
    each(check_tangents);
}

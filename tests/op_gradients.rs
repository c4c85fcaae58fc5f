//! Every case of every operation: first and second derivatives against finite differences of the f64 reference, and
//! computed by the kernels.

use gradus::ops;
use gradus::testing::check_gradients;

#[test]
fn derivatives_equal_finite_differences() {
    let only = std::env::var("GRADUS_TEST_OP").ok();
    for entry in ops::all().iter().filter(|entry| only.as_ref().is_none_or(|only| only == entry.type_name)) {
        check_gradients(entry);
    }
}

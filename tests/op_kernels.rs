//! Every case of every operation on the CPU: each instruction set, element type, kind of operand and number of
//! threads against the f64 reference, and against each other to the bit where they must agree.

use gradus::ops;
use gradus::testing::{KernelChecks, SecondMachine, check_on};

#[test]
fn kernels_equal_the_reference() {
    let only = std::env::var("GRADUS_TEST_OP").ok();
    let mut checks = KernelChecks::new().unwrap();
    for entry in ops::all().iter().filter(|entry| only.as_ref().is_none_or(|only| only == entry.type_name)) {
        checks.check(entry);
    }
    if only.is_none() {
        let untried = checks.untried();
        assert!(untried.is_empty(), "rules for writing over an operand that were never tried: {untried:?}");
    }
}

/// What a plan for another machine makes of them: other copies, other types of operands, other chains.
#[test]
fn a_second_machine_equals_the_reference() {
    ops::all().iter().for_each(|entry| check_on(&SecondMachine, entry));
}

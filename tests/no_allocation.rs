//! A training step allocates nothing and frees nothing after the first, on any number of threads.
//!
//! A program of its own, not one of the test harness: the harness has a thread that tells of tests that take long, and
//! whatever it allocates would be counted.

mod support;

use gradus::backend::Cpu;
use support::counting::{Counting, count, counted};
use support::training;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The counter itself must count, or the test below could not fail.
fn the_counter_counts() {
    count(true);
    drop(std::hint::black_box(vec![0u8; 100]));
    let (allocations, frees) = counted();
    assert!(allocations > 0 && frees > 0);
}

fn steps_after_the_first_neither_allocate_nor_free() {
    for threads in [1, 2, 4] {
        let mut program = training::compile(&Cpu::new(threads).unwrap());
        let mut losses = [0.0f32; 100];
        for (step, loss) in losses.iter_mut().enumerate() {
            count(step > 0);
            training::write_batch(&mut program, step);
            program.run("step").unwrap();
            *loss = program.scalar("loss").unwrap();
        }
        assert_eq!(counted(), (0, 0), "calls in steps 2..=100 on {threads} threads");
        assert!(losses[99] < 0.8 * losses[0], "it learns: {} to {}", losses[0], losses[99]);
    }
}

fn main() {
    the_counter_counts();
    steps_after_the_first_neither_allocate_nor_free();
}

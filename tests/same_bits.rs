//! The number of threads does not change a bit of what is trained.

mod support;

use gradus::backend::Cpu;
use gradus::models::CausalModel;
use support::training;

#[test]
fn a_hundred_steps_give_the_same_weights_on_any_number_of_threads() {
    let names: Vec<String> = training::config().parameters().into_iter().map(|parameter| parameter.name).collect();
    let mut expected: Option<Vec<Vec<u8>>> = None;
    for threads in 1..=4 {
        let mut program = training::compile(&Cpu::new(threads).unwrap());
        for step in 0..100 {
            training::write_batch(&mut program, step);
            program.run("step").unwrap();
        }
        let weights: Vec<Vec<u8>> = names.iter().map(|name| program.read(name).unwrap().bytes().to_vec()).collect();
        let expected = expected.get_or_insert_with(|| weights.clone());
        for ((name, computed), expected) in names.iter().zip(&weights).zip(expected.iter()) {
            assert!(computed == expected, "{name} has other bits on {threads} threads");
        }
    }
}

#[test]
fn two_programs_on_one_pool_at_the_same_time_give_the_same_bits() {
    let cpu = Cpu::new(3).unwrap();
    let trained = |mut program: gradus::Program| {
        for step in 0..10 {
            training::write_batch(&mut program, step);
            program.run("step").unwrap();
        }
        program.read("transformer.wte.weight").unwrap()
    };
    let expected = trained(training::compile(&cpu));
    let (first, second) = (training::compile(&cpu), training::compile(&cpu));
    let (first, second) = std::thread::scope(|scope| {
        let (first, second) = (scope.spawn(|| trained(first)), scope.spawn(|| trained(second)));
        (first.join().unwrap(), second.join().unwrap())
    });
    assert!(first.bytes() == expected.bytes() && second.bytes() == expected.bytes());
}

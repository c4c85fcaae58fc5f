use super::*;
use proptest::prelude::*;

/// Every compressor for a matrix of this size.
fn all(rows: usize, columns: usize) -> Vec<(&'static str, Box<dyn Compressor>)> {
    let numbers = rows * columns;
    vec![
        ("8 bits", Box::new(Blocks::of_8_bits(numbers))),
        ("4 bits", Box::new(Blocks::of_4_bits(numbers))),
        ("top k", Box::new(TopK::new(numbers, numbers / 10))),
        ("threshold", Box::new(Threshold::new(numbers, 0.75))),
        ("rank 2", Box::new(PowerSgd::new(rows, columns, 2))),
    ]
}

/// What is sent of a gradient, with the state after it.
fn sent(compressor: &mut dyn Compressor, gradient: &[f32], state: &mut [f32]) -> (Vec<u8>, Vec<f32>) {
    let mut message = vec![0xaa; compressor.most_bytes()];
    let bytes = compressor.compress(gradient, state, &mut message);
    message.truncate(bytes);
    let mut back = vec![0.5; gradient.len()];
    compressor.decompress(&message, &mut back);
    (message, back)
}

/// Numbers of many sizes.
fn numbers(count: usize) -> impl Strategy<Value = Vec<f32>> {
    let number = (-1.0f32..1.0, -12i32..3).prop_map(|(number, exponent)| number * 2f32.powi(exponent));
    prop::collection::vec(prop_oneof![9 => number, 1 => Just(0.0)], count)
}

fn matrices() -> impl Strategy<Value = (usize, usize, Vec<f32>, Vec<f32>)> {
    (1usize..24, 1usize..40)
        .prop_flat_map(|(rows, columns)| (Just(rows), Just(columns), numbers(rows * columns), numbers(rows * columns)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_was_sent_and_the_error_kept_are_the_gradient_and_the_earlier_error((rows, columns, gradient, error) in matrices()) {
        for (name, mut compressor) in all(rows, columns) {
            let mut state = error.clone();
            state.resize(compressor.state_numbers(), 0.0);
            let (_, back) = sent(compressor.as_mut(), &gradient, &mut state);
            let largest = gradient.iter().chain(&error).fold(0.0, |largest: f32, number| largest.max(number.abs()));
            // A product of thin matrices is rounded; all others leave exactly what they do not send.
            let tolerance = if name == "rank 2" { 1e-5 * largest } else { 0.0 };
            for at in 0..gradient.len() {
                let (due, is) = (gradient[at] + error[at], back[at] + state[at]);
                prop_assert!((due - is).abs() <= tolerance, "{name}: {due} and {is} at {at}");
            }
        }
    }

    #[test]
    fn the_same_numbers_give_the_same_bytes((rows, columns, gradient, error) in matrices()) {
        for (name, mut compressor) in all(rows, columns) {
            let mut first = error.clone();
            first.resize(compressor.state_numbers(), 0.0);
            let mut second = first.clone();
            let one = sent(compressor.as_mut(), &gradient, &mut first);
            // What it computed in between must not matter.
            sent(compressor.as_mut(), &error, &mut vec![0.0; second.len()]);
            let other = sent(compressor.as_mut(), &gradient, &mut second);
            prop_assert!(one == other && first == second, "{name}");
        }
    }

    #[test]
    fn numbers_that_are_not_finite_are_told_and_the_state_stays((rows, columns, mut gradient, error) in matrices(), bad in 0usize..960) {
        let at = bad % gradient.len();
        gradient[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][bad % 3];
        for (name, mut compressor) in all(rows, columns) {
            let mut state = error.clone();
            state.resize(compressor.state_numbers(), 0.0);
            let before = state.clone();
            let (_, back) = sent(compressor.as_mut(), &gradient, &mut state);
            prop_assert!(back.iter().any(|number| !number.is_finite()), "{name}");
            prop_assert_eq!(&state, &before);
        }
    }

    #[test]
    fn any_message_gives_numbers(bytes in prop::collection::vec(any::<u8>(), 1..4000)) {
        for (_, mut compressor) in all(20, 30) {
            let message: Vec<u8> = bytes.iter().copied().cycle().take(compressor.most_bytes()).collect();
            compressor.decompress(&message, &mut [0.0; 600]);
        }
    }
}

#[test]
fn bytes_are_as_few_as_stated() {
    let (rows, columns) = (768, 3072);
    let whole = (rows * columns * WORD) as f64;
    let ratio = |compressor: &dyn Compressor| whole / compressor.most_bytes() as f64;
    let numbers = rows * columns;
    assert!((ratio(&Blocks::of_8_bits(numbers)) - 1024.0 / 260.0).abs() < 1e-9);
    assert!((ratio(&Blocks::of_4_bits(numbers)) - 256.0 / 36.0).abs() < 1e-9);
    assert!((ratio(&TopK::new(numbers, numbers / 100)) - 50.0).abs() < 0.01);
    // Of rows + columns numbers a vector pair, 64 have 36 bytes.
    assert!((ratio(&PowerSgd::new(rows, columns, 4)) - 4.0 * 614.4 / (36.0 / 64.0 * 4.0)).abs() < 1e-9);
}

#[test]
fn top_k_sends_the_largest_and_of_equal_ones_the_first() {
    let mut compressor = TopK::new(6, 3);
    let mut state = [0.0; 6];
    let (message, back) = sent(&mut compressor, &[1.0, -3.0, 2.0, 2.0, -2.0, 0.5], &mut state);
    assert_eq!((message.len(), compressor.most_bytes()), (18, 18));
    assert_eq!(back, [0.0, -3.0, 2.0, 2.0, 0.0, 0.0]);
    assert_eq!(state, [1.0, 0.0, 0.0, 0.0, -2.0, 0.5]);
    // What was left is sent once it is the largest.
    let (_, back) = sent(&mut compressor, &[0.0, 0.0, 0.0, 0.0, -2.0, 0.0], &mut state);
    assert_eq!(back, [1.0, 0.0, 0.0, 0.0, -4.0, 0.5]);
    assert_eq!(TopK::new(5, 0).most_bytes(), 6, "one at least");
    assert_eq!(TopK::new(5, 9).most_bytes(), 30, "all at most");
    assert_eq!(TopK::new(0, 3).most_bytes(), 0);
}

#[test]
fn a_threshold_sends_all_where_places_would_cost_more() {
    let mut compressor = Threshold::new(4, 1.0);
    let (few, back) = sent(&mut compressor, &[0.5, 1.0, -0.5, -2.0], &mut [0.0; 4]);
    assert_eq!((few.len(), back), (4 + 2 * 6, vec![0.0, 1.0, 0.0, -2.0]));
    let mut state = [0.0; 4];
    let (many, back) = sent(&mut compressor, &[0.5, 1.0, -1.5, -2.0], &mut state);
    assert_eq!((many.len(), back, state), (4 + 4 * 4, vec![0.5, 1.0, -1.5, -2.0], [0.0; 4]));
}

#[test]
fn four_bits_keep_their_signs_and_an_odd_end() {
    let mut compressor = Blocks::of_4_bits(67);
    let gradient: Vec<f32> = (0..67).map(|at| (at % 15) as f32 - 7.0).collect();
    let mut state = vec![0.0; 67];
    let (message, back) = sent(&mut compressor, &gradient, &mut state);
    assert_eq!(message.len(), 36 + 4 + 2);
    // In the last block, too, the largest is 7 multiples.
    let last = gradient[64..].iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
    assert_eq!(back[..64], gradient[..64]);
    assert!(back[64..].iter().zip(&gradient[64..]).all(|(back, number)| (back - number).abs() <= last / 14.0));
}

#[test]
fn a_matrix_of_the_rank_is_sent_whole_and_others_in_the_end() {
    let (rows, columns) = (12, 20);
    let thin = |rank: usize| -> Vec<f32> {
        let wave = |at: usize, of: usize| ((at * (of + 2) + of) as f32).sin();
        let number = |row, column| (0..rank).map(|of| wave(row, of) * wave(column, of + 7)).sum();
        (0..rows * columns).map(|at| number(at / columns, at % columns)).collect()
    };
    let length = |numbers: &[f32]| numbers.iter().map(|number| number * number).sum::<f32>().sqrt();
    let mut compressor = PowerSgd::new(rows, columns, 2);
    let mut state = vec![0.0; compressor.state_numbers()];
    let matrix = thin(2);
    sent(&mut compressor, &matrix, &mut state);
    // All but what 4 bits round: a fourteenth of the largest of 64 at most, of the left vectors and of the right ones.
    assert!(length(&state[..rows * columns]) < length(&matrix) / 7.0);
    // The same gradient over and over: what is sent in all comes to what was given in all.
    let matrix = thin(6);
    let mut state = vec![0.0; compressor.state_numbers()];
    let mut total = vec![0.0; rows * columns];
    let rounds = 40;
    for _ in 0..rounds {
        let (_, back) = sent(&mut compressor, &matrix, &mut state);
        total.iter_mut().zip(&back).for_each(|(total, back)| *total += back);
    }
    let missing: Vec<f32> = total.iter().zip(&matrix).map(|(total, given)| total - rounds as f32 * given).collect();
    assert!(length(&missing) < 0.25 * rounds as f32 * length(&matrix), "{}", length(&missing) / length(&matrix));
}

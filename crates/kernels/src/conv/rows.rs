//! Rows of numbers, converted and moved in whole blocks. The last block ends with the row, over some of the one before, so that
//! nothing beside the row is read or written.

use super::tile::LANES;
use crate::Element;
use std::any::TypeId;

/// Zeros at the first `count` places, as far as there are so many, and maybe some more.
#[inline(always)]
pub(super) fn zero(target: &mut [f32], count: usize) {
    match target.get_mut(..count.next_multiple_of(LANES)) {
        Some(blocks) => {
            // A number that a compiler does not know: it would call a function for a block or two.
            let nothing = std::hint::black_box(0.0);
            blocks.as_chunks_mut::<LANES>().0.iter_mut().for_each(|block| *block = [nothing; LANES]);
        }
        None => {
            let count = count.min(target.len());
            target[..count].fill(0.0);
        }
    }
}

/// Elements that are numbers already.
#[inline(always)]
pub(super) fn numbers<T: Element>(elements: &[T]) -> Option<&[f32]> {
    (TypeId::of::<T>() == TypeId::of::<f32>()).then(|| bytemuck::cast_slice(elements))
}

/// A row as numbers.
#[inline(always)]
pub(super) fn load<T: Element>(source: &[T], target: &mut [f32]) {
    convert(source, target, 0.0, T::to_f32);
}

/// Numbers as a row.
#[inline(always)]
pub(super) fn store<T: Element>(source: &[f32], target: &mut [T]) {
    convert(source, target, T::from_f32(0.0), T::from_f32);
}

#[inline(always)]
fn convert<T: Copy, U: Copy>(source: &[T], target: &mut [U], zero: U, of: impl Fn(T) -> U) {
    let source = &source[..target.len()];
    match target.len() {
        LANES.. => convert_blocks::<T, U, LANES>(source, target, zero, of),
        8.. => convert_blocks::<T, U, 8>(source, target, zero, of),
        4.. => convert_blocks::<T, U, 4>(source, target, zero, of),
        _ => {
            for (to, from) in target.iter_mut().zip(source) {
                *to = of(*from);
            }
        }
    }
}

/// Of at least one block.
#[inline(always)]
fn convert_blocks<T: Copy, U: Copy, const N: usize>(source: &[T], target: &mut [U], zero: U, of: impl Fn(T) -> U) {
    let block = |from: &[T; N], to: &mut [U; N]| {
        // Loaded before they are stored: for all that the compiler knows, source and target might be the same, and it
        // would move one number at a time.
        let (from, mut numbers) = (*from, [zero; N]);
        for lane in 0..N {
            numbers[lane] = of(from[lane]);
        }
        *to = numbers;
    };
    for (from, to) in source.as_chunks().0.iter().zip(target.as_chunks_mut().0) {
        block(from, to);
    }
    if let (Some(from), Some(to)) = (source.last_chunk(), target.last_chunk_mut()) {
        block(from, to);
    }
}

/// Every other element of a row as numbers, of which the row's last may be one.
#[inline(always)]
pub(super) fn load_halves<T: Element>(source: &[T], even: &mut [f32]) {
    let whole = (source.len() / (2 * LANES)).min(even.len() / LANES);
    for (from, to) in source.as_chunks().0.iter().zip(even.as_chunks_mut().0) {
        [*to, _] = parted(&loaded(from));
    }
    for (from, to) in source[2 * LANES * whole..].iter().step_by(2).zip(&mut even[whole * LANES..]) {
        *to = from.to_f32();
    }
}

/// Elements in turn as numbers in either half, which are of the same length.
#[inline(always)]
pub(super) fn load_pairs<T: Element>(source: &[T], [even, odd]: [&mut [f32]; 2]) {
    let halves = even.as_chunks_mut().0.iter_mut().zip(odd.as_chunks_mut().0);
    for (from, (even, odd)) in source.as_chunks().0.iter().zip(halves) {
        [*even, *odd] = parted(&loaded(from));
    }
    match (source.last_chunk(), even.last_chunk_mut(), odd.last_chunk_mut()) {
        (Some(from), Some(even), Some(odd)) => [*even, *odd] = parted(&loaded(from)),
        _ => {
            for ((from, even), odd) in source.as_chunks::<2>().0.iter().zip(even).zip(odd) {
                (*even, *odd) = (from[0].to_f32(), from[1].to_f32());
            }
        }
    }
}

#[inline(always)]
fn loaded<T: Element>(from: &[T; 2 * LANES]) -> [f32; 2 * LANES] {
    let (from, mut numbers) = (*from, [0.0; 2 * LANES]);
    for lane in 0..2 * LANES {
        numbers[lane] = from[lane].to_f32();
    }
    numbers
}

/// Numbers in turn as a row, of which the first may be one more than the second.
#[inline(always)]
pub(super) fn store_pairs<T: Element>([even, odd]: [&[f32]; 2], target: &mut [T]) {
    let (even, last) = even.split_at(odd.len());
    let (pairs, rest) = target.split_at_mut(2 * odd.len());
    if let (Some(to), Some(from)) = (rest.first_mut(), last.first()) {
        *to = T::from_f32(*from);
    }
    let block = |to: &mut [T; 2 * LANES], halves: [&[f32; LANES]; 2]| {
        let numbers = joined(&halves.map(|half| *half));
        for lane in 0..2 * LANES {
            to[lane] = T::from_f32(numbers[lane]);
        }
    };
    let halves = even.as_chunks().0.iter().zip(odd.as_chunks().0);
    for (to, (even, odd)) in pairs.as_chunks_mut().0.iter_mut().zip(halves) {
        block(to, [even, odd]);
    }
    match (pairs.last_chunk_mut(), even.last_chunk(), odd.last_chunk()) {
        (Some(to), Some(even), Some(odd)) => block(to, [even, odd]),
        _ => {
            for ((to, even), odd) in pairs.as_chunks_mut::<2>().0.iter_mut().zip(even).zip(odd) {
                *to = [T::from_f32(*even), T::from_f32(*odd)];
            }
        }
    }
}

/// The numbers at even and at odd places: halves of words, which vectors have instructions for.
#[inline(always)]
pub(super) fn parted(numbers: &[f32; 2 * LANES]) -> [[f32; LANES]; 2] {
    let words: [u64; LANES] = bytemuck::cast(*numbers);
    let mut halves = [[0.0; LANES]; 2];
    for lane in 0..LANES {
        let word = words[lane].to_le();
        halves[0][lane] = f32::from_bits(word as u32);
        halves[1][lane] = f32::from_bits((word >> 32) as u32);
    }
    halves
}

/// Numbers in turn: the reverse of [`parted`].
#[inline(always)]
pub(super) fn joined([even, odd]: &[[f32; LANES]; 2]) -> [f32; 2 * LANES] {
    let mut words = [0u64; LANES];
    for lane in 0..LANES {
        words[lane] = (even[lane].to_bits() as u64 | (odd[lane].to_bits() as u64) << 32).to_le();
    }
    bytemuck::cast(words)
}

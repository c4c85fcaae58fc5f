//! Stores that go past the caches: for results too large to be found there when they are read again. They save the
//! memory the reading of lines that are about to be overwritten.

use crate::Isa;
use crate::strided::Scalar;

/// Stores a block with conversion: to the elements from a place on.
pub(crate) type Store = unsafe fn(*mut u8, usize, &[f32]);

/// The store for an element type, if the level has one.
pub(crate) fn select<T: Scalar>(isa: Isa) -> Option<Store> {
    #[cfg(target_arch = "x86_64")]
    {
        use std::any::TypeId;
        let wide = matches!(isa, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx);
        let is = |other: TypeId| wide && TypeId::of::<T>() == other;
        if is(TypeId::of::<f32>()) {
            return Some(x86::store_f32);
        }
        if is(TypeId::of::<crate::bf16>()) {
            return Some(x86::store_bf16);
        }
    }
    let _ = isa;
    None
}

/// Makes what this thread streamed visible to others, before it tells them.
#[inline(always)]
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction orders this thread's stores and does nothing else; every x86-64 has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use crate::{Element, bf16};
    use std::arch::x86_64::*;

    const LINE: usize = 64;

    /// Whole lines are streamed; what lies before and after them is stored as usual.
    macro_rules! store {
        ($name:ident, $element:ty, $vector:ty, $stream:path) => {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
            pub(super) unsafe fn $name(first: *mut u8, start: usize, from: &[f32]) {
                const IN_LINE: usize = LINE / size_of::<$element>();
                // SAFETY: the elements are the target's and this call's alone: the caller's promise.
                let to = unsafe { std::slice::from_raw_parts_mut(first.cast::<$element>().add(start), from.len()) };
                let convert = <$element as Element>::from_f32;
                let before = to.as_ptr().align_offset(LINE).min(to.len());
                let (head, rest) = to.split_at_mut(before);
                let (head_from, rest_from) = from.split_at(before);
                head.iter_mut().zip(head_from).for_each(|(to, from)| *to = convert(*from));
                let (lines, tail) = rest.as_chunks_mut::<IN_LINE>();
                let (lines_from, tail_from) = rest_from.as_chunks::<IN_LINE>();
                for (line, from) in lines.iter_mut().zip(lines_from) {
                    // SAFETY: the line is aligned and as large as the vector, whose bits are the numbers'.
                    unsafe {
                        let numbers = std::mem::transmute::<[$element; IN_LINE], $vector>(from.map(convert));
                        $stream(line.as_mut_ptr().cast(), numbers);
                    }
                }
                tail.iter_mut().zip(tail_from).for_each(|(to, from)| *to = convert(*from));
            }
        };
    }
    store!(store_f32, f32, __m512, _mm512_stream_ps);
    store!(store_bf16, bf16, __m512i, _mm512_stream_si512);
}

#[cfg(test)]
mod tests {
    use crate::strided::Writer;
    use crate::{Element, Isa, Out, bf16};

    fn check<T: Element + PartialEq + std::fmt::Debug>() {
        for isa in Isa::available() {
            for (start, count) in [(0, 100), (3, 64), (16, 32), (5, 7), (9, 0)] {
                let numbers: Vec<f32> = (0..count).map(|i| i as f32 * 0.37 - 5.0).collect();
                let mut target = vec![T::from_f32(9.0); start + count + 8];
                let writer = Writer::new(isa, Out::new(target.as_mut_ptr(), target.len()));
                // SAFETY: the target lives in this function and nothing else touches it.
                unsafe { writer.stream(start, &numbers) };
                super::fence();
                let expected: Vec<T> = numbers.iter().map(|&x| T::from_f32(x)).collect();
                assert_eq!(target[start..start + count], expected, "{isa}");
                let beside = target[..start].iter().chain(&target[start + count..]);
                assert!(beside.copied().all(|x| x == T::from_f32(9.0)), "{isa}: wrote beside the block");
            }
        }
    }

    #[test]
    fn streamed_blocks_are_what_was_stored() {
        check::<f32>();
        check::<bf16>();
    }
}

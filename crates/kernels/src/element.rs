//! The element types that kernels load and store. Arithmetic is always in f32.

use bytemuck::Pod;
use half::{bf16, f16};

/// A floating-point element type: loaded to f32, stored from f32 with rounding to nearest even.
pub trait Element: Pod + Send + Sync + 'static {
    /// The value as f32; exact.
    fn to_f32(self) -> f32;
    /// The nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;
    /// The nearest bf16.
    fn to_bf16(self) -> bf16;
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }
    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        Element::from_f32(self)
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits((self.to_bits() as u32) << 16)
    }
    // Branch-free, so that loops over it become vector code (the crate's own conversion branches on NaN).
    #[inline(always)]
    fn from_f32(value: f32) -> bf16 {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet_nan = (bits >> 16) | 0x40;
        bf16::from_bits(if value.is_nan() { quiet_nan } else { rounded } as u16)
    }
    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        self
    }
}

impl Element for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let bits = self.to_bits() as u32;
        let sign = (bits & 0x8000) << 16;
        let magnitude = bits & 0x7fff;
        // Moves exponent and mantissa into place, then scales by 2^112, which also normalizes subnormals.
        let scaled = (f32::from_bits(magnitude << 13) * f32::from_bits(0x7780_0000)).to_bits();
        let special = 0x7f80_0000 | (magnitude << 13);
        f32::from_bits(sign | if magnitude >= 0x7c00 { special } else { scaled })
    }
    #[inline(always)]
    fn from_f32(value: f32) -> f16 {
        let bits = value.to_bits();
        let sign = (bits >> 16) & 0x8000;
        let magnitude = bits & 0x7fff_ffff;
        // Normal results: re-bias the exponent and round to nearest even in integer arithmetic.
        let odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + odd) >> 13;
        // Subnormal results: adding 0.5 lets the adder round at the right bit.
        let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let finite = if magnitude < 0x3880_0000 { subnormal } else { normal };
        let overflow = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        f16::from_bits((sign | if magnitude >= 0x477f_f000 { overflow } else { finite }) as u16)
    }
    #[inline(always)]
    fn to_bf16(self) -> bf16 {
        Element::from_f32(Element::to_f32(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every f16 and bf16 bit pattern and many f32 near rounding boundaries convert as the `half` crate does.
    #[test]
    fn conversions_equal_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (h, b) = (f16::from_bits(bits), bf16::from_bits(bits));
            let same = |ours: f32, theirs: f32| ours == theirs || (ours.is_nan() && theirs.is_nan());
            assert!(same(Element::to_f32(h), h.to_f32()), "f16 {bits:#x}");
            assert!(same(Element::to_f32(b), b.to_f32()), "bf16 {bits:#x}");
            let (from_h, from_b) = (h.to_f32().to_bits(), b.to_f32().to_bits());
            for base in [from_h, from_b] {
                for delta in [0i32, 1, -1, 0x7fff, 0x8000, 0x8001, 0xfff, 0x1000, 0x1001] {
                    let value = f32::from_bits(base.wrapping_add_signed(delta));
                    let (h_ours, h_theirs) = (<f16 as Element>::from_f32(value), f16::from_f32(value));
                    let (b_ours, b_theirs) = (<bf16 as Element>::from_f32(value), bf16::from_f32(value));
                    assert!(h_ours == h_theirs || (h_ours.is_nan() && h_theirs.is_nan()), "f16 of {value:e}");
                    assert!(b_ours == b_theirs || (b_ours.is_nan() && b_theirs.is_nan()), "bf16 of {value:e}");
                }
            }
        }
    }
}

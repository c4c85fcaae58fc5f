//! Sliding windows along one axis, as convolution and pooling see them.

use std::ops::Range;

/// The targets `t` below `targets` whose source `t * step + offset` is inside `0..sources`.
#[inline(always)]
pub(crate) fn inside(step: usize, offset: isize, sources: usize, targets: usize) -> Range<usize> {
    let first = if offset < 0 { offset.unsigned_abs().div_ceil(step) } else { 0 };
    let reach = sources as isize - offset;
    let end = if reach > 0 { (reach as usize).div_ceil(step).min(targets) } else { 0 };
    first.min(end)..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_equals_trying_every_target() {
        for step in 1..4 {
            for offset in -7isize..8 {
                for sources in 0..7 {
                    for targets in 0..9 {
                        let found = inside(step, offset, sources, targets);
                        let is_inside = |t: &usize| (0..sources as isize).contains(&((t * step) as isize + offset));
                        let tried: Vec<usize> = (0..targets).filter(is_inside).collect();
                        assert_eq!(found.collect::<Vec<_>>(), tried, "{step} {offset} {sources} {targets}");
                    }
                }
            }
        }
    }
}

//! A token of each row of logits.

use crate::{Launch, Operand, Source, sources};

const THREADS: usize = 1024;
/// Bytes of shared memory that a block may have, without what the kernel itself declares.
const SHARED: usize = 227 * 1024 - 10 * 1024;

/// The kernel, of dense logits [..., v]; the settings are the addresses of what is allowed, uniform numbers, temperature,
/// top-k and top-p.
pub fn sample(logits: &Operand, settings: [u64; 5], tokens: &Operand) -> Launch {
    let columns = logits.shape.last().copied().unwrap_or(1);
    // Rows that fit are held as ranks, and read once.
    let (held, bytes) = (columns <= SHARED / size_of::<u32>(), columns * size_of::<u32>());
    let source = Source::new("sample", sources::SAMPLE).code(sources::RANK).operand("x", logits);
    let source = source.operand("tokens", tokens).size("COLUMNS", columns).constant("THREADS", THREADS);
    let source = settings.into_iter().fold(source, Source::address).constant("HELD", held as u8);
    source.launch_on([tokens.elements(), 1, 1], THREADS, if held { bytes } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    #[test]
    fn rows_that_fit_are_held() {
        let shared = |columns: usize| {
            let operand = |shape: &[usize]| Operand::dense(Element::F32, shape, 0);
            let launch = sample(&operand(&[3, columns]), [0; 5], &operand(&[3]));
            assert_eq!((launch.grid, launch.block), ([3, 1, 1], 1024));
            assert_eq!(launch.shared > 0, launch.source.contains("#define HELD 1\n"));
            launch.shared
        };
        assert_eq!(shared(50_257), 4 * 50_257);
        assert_eq!(shared(128_256), 0);
    }
}

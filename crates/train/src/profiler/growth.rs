//! What grows from turn to turn.

use serde::Serialize;

/// Growth of what the system counts that may be chance: it counts pages, and some of them late.
const SYSTEM_SLACK: i64 = 128 << 10;

/// Memory that grows from turn to turn.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Leak {
    /// Of what.
    pub name: String,
    /// Bytes that each turn adds, about.
    pub bytes_per_turn: f64,
    /// Turns that were looked at.
    pub turns: usize,
    /// Whether they were counted on the heap, to the byte, rather than told by the system for the whole process.
    pub on_heap: bool,
}

impl Leak {
    /// Turns that are needed to tell growth from what is taken once.
    pub const FEWEST_TURNS: usize = 6;
}

/// The leak that numbers of turns one after another tell of, if they do: of the heap, where that is counted, or of the process.
pub(super) fn leak(name: &str, heap: Option<&[i64]>, resident: &[i64]) -> Option<Leak> {
    let found = |bytes: &[i64], slack: i64, on_heap: bool| {
        let bytes_per_turn = growth(bytes, slack)?;
        Some(Leak { name: name.to_string(), bytes_per_turn, turns: bytes.len(), on_heap })
    };
    heap.and_then(|heap| found(heap, 0, true)).or_else(|| found(resident, SYSTEM_SLACK, false))
}

/// How much is added in a turn, if each third of the turns holds more than any turn of the third before: what was taken once,
/// however late, is in one of them alone.
fn growth(bytes: &[i64], slack: i64) -> Option<f64> {
    if bytes.len() < Leak::FEWEST_TURNS {
        return None;
    }
    let third = bytes.len() / 3;
    let thirds = [&bytes[..third], &bytes[third..2 * third], &bytes[2 * third..]];
    let most = thirds.map(|third| third.iter().copied().max().expect("no third is empty"));
    let least = thirds.map(|third| third.iter().copied().min().expect("no third is empty"));
    let grows = least[1] > most[0] + slack && least[2] > most[1] + slack;
    grows.then(|| (bytes[bytes.len() - 1] - bytes[0]) as f64 / (bytes.len() - 1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_grows_in_every_third_is_a_leak() {
        let rising: Vec<i64> = (0..12).map(|turn| 1000 + 24 * turn).collect();
        assert_eq!(growth(&rising, 0), Some(24.0));
        assert_eq!(growth(&rising, 1000), None);
        let once: Vec<i64> = (0..12).map(|turn| if turn < 7 { 10 } else { 5000 }).collect();
        assert_eq!(growth(&once, 0), None);
        let swaying: Vec<i64> = (0..12).map(|turn| 1000 + 100 * (turn % 4)).collect();
        assert_eq!((growth(&swaying, 0), growth(&[1; 30], 0), growth(&[1, 2, 3, 4, 5], 0)), (None, None, None));
    }

    #[test]
    fn the_heap_says_more_than_the_system() {
        let (heap, resident): (Vec<i64>, Vec<i64>) = (0..9).map(|turn| (turn * 100, turn << 20)).unzip();
        let found = leak("turn", Some(&heap), &resident).unwrap();
        assert_eq!((found.bytes_per_turn, found.on_heap, found.turns), (100.0, true, 9));
        let found = leak("turn", Some(&[0; 9]), &resident).unwrap();
        assert_eq!((found.bytes_per_turn, found.on_heap), (f64::from(1 << 20), false));
        assert_eq!(leak("turn", None, &[7; 9]), None);
    }
}

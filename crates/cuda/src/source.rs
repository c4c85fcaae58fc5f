//! Writing kernels: a text with its shapes and types as constants before it.

use crate::{Element, Launch, Map, Operand};
use std::fmt::{Display, Write};
use std::ops::Range;

/// What kernels call that wait by themselves for what runs before them.
const WAIT: &str = "await_earlier();";

/// A kernel being written: a fixed text, and before it the constants, types and functions that make it this one.
pub struct Source {
    entry: &'static str,
    text: &'static str,
    definitions: String,
    maps: Vec<Map>,
    arguments: Vec<u64>,
    /// The furthest element of any operand: decides the type of indices.
    reach: usize,
    /// What it reads before it waits for what runs before it.
    early: Vec<Range<u64>>,
}

impl Source {
    /// The function `entry` of this text.
    pub fn new(entry: &'static str, text: &'static str) -> Source {
        Source { entry, text, definitions: String::new(), maps: vec![], arguments: vec![], reach: 0, early: vec![] }
    }

    /// A constant.
    pub fn constant(mut self, name: &str, value: impl Display) -> Source {
        writeln!(self.definitions, "#define {name} {value}").expect("written to a string");
        self
    }

    /// A number, to the bit.
    pub fn number(self, name: &str, value: f32) -> Source {
        self.constant(name, number(value))
    }

    /// A size, which indices must be able to count to.
    pub fn size(mut self, name: &str, value: usize) -> Source {
        self.reach = self.reach.max(value);
        writeln!(self.definitions, "#define {name} ((index_t){value}u)", value = value).expect("written to a string");
        self
    }

    /// A type.
    pub fn element(mut self, name: &str, element: Element) -> Source {
        writeln!(self.definitions, "typedef {} {name};", element.name()).expect("written to a string");
        self
    }

    /// An operand: the next parameter of the function. `NAME_t` is the type of its elements, and `NAME_at(i)` says where the
    /// element of that number lies, in the order of its shape.
    pub fn operand(mut self, name: &str, operand: &Operand) -> Source {
        self = self.element(&format!("{name}_t"), operand.element).address(operand.address);
        self.places(name, operand)
    }

    /// The function `NAME_at(i)` of an operand, or of some of its axes, by itself.
    pub fn places(mut self, name: &str, operand: &Operand) -> Source {
        self.reach = self.reach.max(operand.end()).max(operand.elements());
        let index = place(&operand.axes());
        self.code(&format!("__device__ __forceinline__ index_t {name}_at(index_t i) {{ return {index}; }}"))
    }

    /// An address that is the next parameter of the function, and no operand: scratch.
    pub fn address(mut self, address: u64) -> Source {
        self.arguments.push(address);
        self
    }

    /// A matrix that the function reads box by box: its next parameter. All of them come before the addresses.
    pub fn map(mut self, map: Map) -> Source {
        self.maps.push(map);
        self
    }

    /// That it reads these bytes before it waits for what runs before it.
    pub fn early(mut self, address: u64, bytes: usize) -> Source {
        self.early.push(address..address + bytes as u64);
        self
    }

    /// Further definitions.
    pub fn code(mut self, text: &str) -> Source {
        self.definitions.push_str(text);
        self.definitions.push('\n');
        self
    }

    /// To be run by so many blocks of so many threads.
    pub fn launch(self, blocks: usize, threads: usize) -> Launch {
        self.launch_on([blocks, 1, 1], threads, 0)
    }

    /// To be run by blocks in a grid, with dynamic shared memory.
    pub fn launch_on(self, grid: [usize; 3], threads: usize, shared: usize) -> Launch {
        let index = if self.reach < 1 << 31 { "u32" } else { "u64" };
        let prelude = include_str!("../kernels/prelude.cuh");
        let waits = [self.text, &self.definitions].iter().any(|text| text.contains(WAIT));
        let early = waits.then_some(self.early);
        let source = format!("{prelude}typedef {index} index_t;\n{}{}", self.definitions, self.text);
        // As many as can be counted are more than any device takes, and refused.
        let grid = grid.map(|blocks| u32::try_from(blocks).unwrap_or(u32::MAX));
        Launch {
            source,
            entry: self.entry,
            grid,
            block: threads as u32,
            shared: shared as u32,
            maps: self.maps,
            arguments: self.arguments,
            early,
        }
    }
}

/// How many threads share a row of so many numbers: whole warps, a few numbers for each, up to 1024.
pub fn threads_for(row: usize) -> usize {
    row.div_ceil(4).next_power_of_two().clamp(32, 1024)
}

/// A number as text that is that number, to the bit.
pub(crate) fn number(value: f32) -> String {
    format!("__int_as_float({:#010x})", value.to_bits())
}

/// Where element `i` lies, as an expression.
fn place(axes: &[(usize, usize)]) -> String {
    match axes {
        [(_, 1)] => return "i".to_string(),
        // No place at all, or one; what has no elements has no places to divide by.
        _ if axes.iter().any(|&(size, _)| size == 0) => return "0".to_string(),
        _ => {}
    }
    let mut terms = vec![];
    let mut inner: usize = 1;
    for (number, &(size, stride)) in axes.iter().enumerate().rev() {
        let divided = if inner == 1 { "i".to_string() } else { format!("i / {inner}u") };
        let index = if number == 0 { divided } else { format!("{divided} % {size}u") };
        if stride > 0 {
            terms.push(format!("({index}) * (index_t){stride}u"));
        }
        inner *= size;
    }
    if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_strides() {
        assert_eq!(place(&[]), "0");
        assert_eq!(place(&[(24, 1)]), "i");
        assert_eq!(place(&[(24, 2)]), "(i) * (index_t)2u");
        assert_eq!(place(&[(3, 1), (5, 3)]), "(i % 5u) * (index_t)3u + (i / 5u) * (index_t)1u");
        assert_eq!(place(&[(3, 0), (5, 1)]), "(i % 5u) * (index_t)1u");
        assert_eq!(place(&[(3, 5), (0, 2)]), "0");
    }

    #[test]
    fn in_a_text_every_kernel_waits_or_none() {
        for text in crate::sources::ALL {
            let [kernels, waits] = ["extern \"C\"", WAIT].map(|part| text.matches(part).count());
            assert!(waits == 0 || waits == kernels, "{text}");
        }
    }

    #[test]
    fn numbers_keep_their_bits() {
        assert_eq!(number(-0.0), "__int_as_float(0x80000000)");
        assert_eq!(number(1.0), "__int_as_float(0x3f800000)");
    }
}

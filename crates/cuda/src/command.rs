//! What a device does in the course of a step, as data.

use crate::{Element, Map};
use std::ops::Range;

/// One thing the device does. Those of a step run one after another.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Runs a kernel.
    Launch(Launch),
    /// A matrix product.
    Product(Product),
    /// Sets bytes to zero.
    Zero {
        /// From here,
        address: u64,
        /// so many.
        bytes: usize,
    },
}

impl Command {
    /// The kernel that it launches, if it does.
    pub fn launch(&self) -> Option<&Launch> {
        match self {
            Command::Launch(launch) => Some(launch),
            _ => None,
        }
    }

    /// The product that it is, if it is one.
    pub fn product(&self) -> Option<&Product> {
        match self {
            Command::Product(product) => Some(product),
            _ => None,
        }
    }
}

/// A kernel and what it runs on.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// All of its source: shapes are constants in it, addresses are not.
    pub source: String,
    /// The function in it.
    pub entry: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// The matrices that it reads box by box: its first parameters.
    pub maps: Vec<Map>,
    /// The addresses that it takes, in order.
    pub arguments: Vec<u64>,
    /// If it waits by itself for what runs before it, so that it may begin earlier: the addresses that it reads before it does.
    pub early: Option<Vec<Range<u64>>>,
}

impl Launch {
    /// The blocks along an axis that are more than a device takes.
    pub fn too_many_blocks(&self) -> Option<u32> {
        const MOST: [u32; 3] = [i32::MAX as u32, u16::MAX as u32, u16::MAX as u32];
        self.grid.into_iter().zip(MOST).find(|(blocks, most)| blocks > most).map(|(blocks, _)| blocks)
    }
}

/// `d = a @ b + bias + added`, or what GELU makes of it, or `d += a @ b`, for a batch of matrices. Sums are in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// What is summed over.
    pub depth: usize,
    /// How many.
    pub batch: usize,
    /// [rows, depth].
    pub a: Matrix,
    /// [depth, columns].
    pub b: Matrix,
    /// [rows, columns], not transposed.
    pub d: Matrix,
    /// Added to every row.
    pub bias: Option<Bias>,
    /// Added to the result: a matrix of its sizes and type. If it is the result itself, that goes on from what is there.
    pub added: Option<Matrix>,
    /// What is made of the product.
    pub gelu: Option<Gelu>,
    /// Whether operands, which are f32 then, are rounded to TF32.
    pub tf32: bool,
    /// Scratch for the library: its address and its size, which whoever links the product fills in.
    pub workspace: (u64, usize),
}

/// A matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// The type of its elements.
    pub element: Element,
    /// The address of the first.
    pub address: u64,
    /// Elements from one row to the next; from one column to the next, if it is transposed.
    pub stride: usize,
    /// Whether columns lie one after another instead of rows.
    pub transposed: bool,
    /// Elements from one matrix of the batch to the next.
    pub batch_stride: usize,
}

/// What GELU, in its tanh form, makes of a product. The library computes it from the sums in f32, before they are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// GELU of the product.
    Of,
    /// GELU of the product, which itself is stored here, as the result lies.
    Keeping(u64),
    /// The product times the slope of GELU at the numbers stored here, as the result lies.
    SlopeAt(u64),
}

/// The bias of a product. The library takes it in the type of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bias {
    /// The type of its elements.
    pub element: Element,
    /// The address of the first element.
    pub address: u64,
}

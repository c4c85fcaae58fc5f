//! Attention and its gradient: which kernels run, in tiles of which sizes.

use crate::{Element, Launch, MULTIPROCESSORS, Operand, Source, sources};
use std::f32::consts::LOG2_E;

/// The largest depth for which a warp's sums fit into registers.
const DEEPEST: usize = 128;

/// Warpgroups of a block of the kernels that use their products, and tiles of keys and values that such a block has room for
/// in the forward pass.
const GROUPS: usize = 2;
const FORWARD_STAGES: usize = 5;

/// The gradient in one walk: the depth that it takes, the keys that a block has at a time, the tiles of queries whose sums it
/// keeps in shared memory, and how many blocks there are at most, one for each multiprocessor of an H100 or H200.
const WALK_DEPTH: usize = 64;
const WALK_KEYS: usize = 128;
const WALK_KEPT: usize = 5;
const WALK_BLOCKS: usize = MULTIPROCESSORS;
/// Numbers of its tiles: queries and their gradients three times, keys and values twice for two warpgroups, slopes twice.
const WALK_TILE: usize = 64 * WALK_DEPTH;
const WALK_TILES: usize = 3 * 2 + 2 * 2 * 2 + 2 * 2;
/// Its barriers: two for each step's queries, two for its slopes.
const WALK_BARRIERS: usize = 2 * 3 + 2 * 2;

/// How a kernel on tensor cores is cut: a block has so many warps, each so many times 16 rows, which walk past so many columns
/// at a time, and compute with a part of these at once.
#[derive(Clone, Copy)]
struct Cut {
    warps: usize,
    fragments: usize,
    columns: usize,
    part: usize,
    /// Whether a warp's rows stay in registers.
    kept: bool,
}

/// Threads of a block of the kernels that take any depth, rows and columns of their tiles, and the bytes of a tile.
const THREADS: usize = 256;
const TILE: usize = 64;
const TILE_BYTES: usize = TILE * (TILE + 1) * 4;

/// The sizes of an attention, and what it computes.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Independent sequences.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values; `heads` is a multiple of it.
    pub key_heads: usize,
    /// Queries of a sequence.
    pub queries: usize,
    /// Keys of a sequence; no fewer than queries if causal.
    pub keys: usize,
    /// Numbers in a query, a key and a value.
    pub depth: usize,
    /// Whether a query sees only the keys up to its own place, the last query being at the last key.
    pub causal: bool,
    /// How many keys a query sees at most, its own place's the last of them; no limit unless causal.
    pub window: usize,
    /// What scores are multiplied by.
    pub scale: f32,
}

/// The operands of the gradient of an attention.
#[derive(Clone, Debug)]
pub struct AttentionGradient {
    /// Queries [b, h, t, d].
    pub q: Operand,
    /// Keys [b, g, s, d].
    pub k: Operand,
    /// Values [b, g, s, d].
    pub v: Operand,
    /// The result [b, t, h, d].
    pub o: Operand,
    /// The binary logarithms of the sums of exponentials [b, h, t], dense.
    pub log_sum: Operand,
    /// The gradient of the result [b, t, h, d].
    pub g: Operand,
    /// The gradients of queries, keys and values side by side [b, max(t, s), h + 2 g, d], dense.
    pub joint: Operand,
}

impl Attention {
    /// From queries [b, h, t, d], keys and values [b, g, s, d], all of dense rows: the result [b, t, h, d] and the binary
    /// logarithms of the sums of exponentials [b, h, t].
    pub fn forward(&self, operands: [&Operand; 3], o: &Operand, log_sum: &Operand) -> Launch {
        let takes = |entry, text| {
            let source = self.by_head(Source::new(entry, text), operands);
            self.constants(by_place(source, "o", o).operand("log_sum", log_sum))
        };
        let heads = self.batch * self.heads;
        // On tensor cores the largest score is found before it is scaled.
        if !(self.scale > 0.0 && self.on_tensor_cores(&operands)) {
            return in_tiles(takes("attention", sources::ATTENTION), heads * self.queries.div_ceil(TILE), 3);
        }
        if !self.fills_warpgroups() {
            let source = takes("attention_mma", sources::ATTENTION_MMA);
            return self.cut(self.queries, 64, true).launch(source, heads, self.queries, self.depth, 1);
        }
        let source = takes("attention_wgmma", sources::ATTENTION_WGMMA).code(sources::MMA).code(sources::WGMMA);
        let source = source.code(sources::ATTENTION_WGMMA_TILES).constant("STAGES", FORWARD_STAGES);
        let blocks = heads * self.queries.div_ceil(GROUPS * 64);
        let tile = 64 * self.depth * 2;
        // Queries, a ring of keys and values, and a barrier.
        let shared = (GROUPS + FORWARD_STAGES * 2) * tile + 8;
        source.launch_on([blocks, 1, 1], GROUPS * 128, shared)
    }

    /// Whether the kernel whose warpgroups have 64 queries each takes this, and has more than one of them to give work to.
    fn fills_warpgroups(&self) -> bool {
        [64, 128].contains(&self.depth) && self.queries > 64 && self.keys > 0
    }

    /// Its gradient: what is subtracted from each row's slopes, then all in one walk, or that of the queries, then that of
    /// keys and values. `scratch` gives what lies between, numbers in f32 of a shape.
    pub fn gradient(&self, operands: &AttentionGradient, mut scratch: impl FnMut(&[usize]) -> Operand) -> Vec<Launch> {
        let delta = scratch(&[self.batch, self.heads, self.queries]);
        let mut launches = vec![self.delta(operands, &delta)];
        if self.in_one_walk(operands) {
            let tiles = self.queries.div_ceil(64);
            let sums = scratch(&[self.walk_blocks(), tiles - tiles.min(WALK_KEPT), WALK_TILE]);
            launches.push(self.walk(operands, &delta, &sums));
        } else {
            launches.extend([false, true].map(|for_keys| self.gradient_of(operands, &delta, for_keys)));
        }
        launches
    }

    /// A block has all of a head: where there are fewer heads than multiprocessors, two walks, of a block for each 128 queries
    /// or keys, use the device better, unless that is no more blocks.
    fn in_one_walk(&self, AttentionGradient { q, k, v, g, .. }: &AttentionGradient) -> bool {
        let plain = self.heads == self.key_heads && self.queries == self.keys && self.queries > 0;
        let enough = self.batch * self.heads >= WALK_BLOCKS || self.keys <= WALK_KEYS;
        plain && enough && self.depth == WALK_DEPTH && self.on_tensor_cores(&[q, k, v, g])
    }

    fn walk_blocks(&self) -> usize {
        (self.batch * self.heads).min(WALK_BLOCKS)
    }

    /// Seven products in two walks are five in one.
    fn walk(&self, operands: &AttentionGradient, delta: &Operand, sums: &Operand) -> Launch {
        let source = Source::new("attention_gradient_wgmma", sources::ATTENTION_GRADIENT_WGMMA);
        let kept = self.queries.div_ceil(64).min(WALK_KEPT);
        let source = self.constants(self.gradient_operands(source, operands, delta).operand("sums", sums));
        let source = source.size("ALL_HEADS", self.batch * self.heads).constant("BLOCKS", self.walk_blocks());
        let source = source.constant("KEPT", kept).code(sources::MMA).code(sources::WGMMA);
        let source = source.code(sources::ATTENTION_WGMMA_TILES);
        // A logarithm and what is subtracted, for each query of three tiles; and barriers.
        let shared = WALK_TILES * WALK_TILE * 2 + kept * WALK_TILE * 4 + 3 * 2 * 64 * 4 + WALK_BARRIERS * 8;
        source.launch_on([self.walk_blocks(), 1, 1], (GROUPS + 1) * 128, shared)
    }

    fn gradient_operands(&self, source: Source, operands: &AttentionGradient, delta: &Operand) -> Source {
        let AttentionGradient { q, k, v, log_sum, g, joint, .. } = operands;
        let source = by_place(self.by_head(source, [q, k, v]), "g", g).operand("log_sum", log_sum);
        source.operand("delta", delta).operand("joint", joint)
    }

    fn gradient_of(&self, operands: &AttentionGradient, delta: &Operand, for_keys: bool) -> Launch {
        let AttentionGradient { q, k, v, g, .. } = operands;
        let on_tensor_cores = self.on_tensor_cores(&[q, k, v, g]);
        let (entry, text) = match on_tensor_cores {
            true => ("attention_gradient_mma", sources::ATTENTION_GRADIENT_MMA),
            false => ("attention_gradient", sources::ATTENTION_GRADIENT),
        };
        let source = self.gradient_operands(Source::new(entry, text), operands, delta);
        let source = source.constant("FOR_KEYS", for_keys as u8);
        let (source, places) = (self.constants(source), self.queries.max(self.keys));
        let heads = self.batch * if for_keys { self.key_heads } else { self.heads };
        match on_tensor_cores {
            true => {
                let kept = self.depth <= DEEPEST / 2 && !for_keys;
                self.cut(places, 32, kept).launch(source, heads, places, self.depth, 2)
            }
            false => in_tiles(source, heads * places.div_ceil(TILE), if for_keys { 4 } else { 3 }),
        }
    }

    /// Whether the kernels on tensor cores take these: numbers of 16 bits, in rows that can be copied 16 bytes at a time.
    fn on_tensor_cores(&self, operands: &[&Operand]) -> bool {
        let aligned = |operand: &&Operand| {
            let mut outer = operand.shape.iter().zip(&operand.strides).take(3);
            operand.address.is_multiple_of(16) && outer.all(|(&size, &stride)| size == 1 || stride.is_multiple_of(8))
        };
        let halves = |operand: &&Operand| matches!(operand.element, Element::Bf16 | Element::F16);
        self.depth.is_multiple_of(16)
            && self.depth <= DEEPEST
            && operands.iter().all(halves)
            && operands.iter().all(aligned)
    }

    /// What a warp has of the columns is used for all of its rows: so many rows as its registers hold the sums of. Where
    /// there are few, as in decoding, a block has no more warps than they need.
    fn cut(&self, rows: usize, part: usize, kept: bool) -> Cut {
        let (warps, fragments) = if self.depth <= DEEPEST / 2 { (4, 2) } else { (8, 1) };
        Cut { warps: rows.div_ceil(16 * fragments).clamp(1, warps), fragments, columns: 64, part, kept }
    }

    fn delta(&self, AttentionGradient { o, g, .. }: &AttentionGradient, delta: &Operand) -> Launch {
        let source = by_place(Source::new("attention_delta", sources::ATTENTION_DELTA), "o", o);
        let source = by_place(source, "g", g).operand("delta", delta);
        let widths = [o, g].map(|operand| operand.vector(16 / operand.element.size()));
        let width = widths.into_iter().min().unwrap_or(1).min(1 << self.depth.trailing_zeros());
        let lanes = (self.depth / width).next_power_of_two().min(32);
        let rows = delta.elements();
        let source = source.size("ROWS", rows).constant("WIDTH", width).constant("LANES", lanes);
        self.constants(source.constant("THREADS", THREADS)).launch(rows.div_ceil(THREADS / lanes), THREADS)
    }

    fn by_head(&self, source: Source, operands: [&Operand; 3]) -> Source {
        ["q", "k", "v"].into_iter().zip(operands).fold(source, |source, (name, operand)| {
            rows(source.operand(name, operand), name, [0, 1, 2].map(|axis| operand.strides[axis]))
        })
    }

    fn constants(&self, source: Source) -> Source {
        let source = [
            ("HEADS", self.heads),
            ("KEY_HEADS", self.key_heads),
            ("GROUP", self.heads.checked_div(self.key_heads).unwrap_or(0)),
            ("QUERIES", self.queries),
            ("KEYS", self.keys),
            ("DEPTH", self.depth),
            ("WINDOW", self.window.min(self.keys)),
        ]
        .into_iter()
        .fold(source, |source, (name, size)| source.constant(name, size));
        let source = source.constant("CAUSAL", self.causal).number("SCALE", self.scale);
        source.number("BINARY_SCALE", self.scale * LOG2_E).code(sources::ATTENTION_PLACES)
    }
}

impl Cut {
    /// A kernel on tensor cores, for so many heads of so many rows. It holds so many tiles of rows, and twice two of columns,
    /// each with a statistic of its columns.
    fn launch(self, source: Source, heads: usize, rows: usize, depth: usize, tiles: usize) -> Launch {
        let Cut { warps, fragments, columns, part, kept } = self;
        let block = 16 * fragments * warps;
        let source = source.constant("WARPS", warps).constant("FRAGMENTS", fragments).constant("COLUMNS", columns);
        let source = source.constant("PART", part).constant("KEPT", kept);
        let source = source.code(sources::MMA).code(sources::ATTENTION_MMA_TILES);
        let shared = (tiles * block + 4 * columns) * (depth + 8) * 2 + 4 * columns * 4;
        source.launch_on([heads * rows.div_ceil(block), 1, 1], 32 * warps, shared)
    }
}

/// A kernel that takes any depth, and holds so many tiles.
fn in_tiles(source: Source, blocks: usize, tiles: usize) -> Launch {
    source.code(sources::ATTENTION_TILES).launch_on([blocks, 1, 1], THREADS, tiles * TILE_BYTES)
}

/// An operand [b, t, h, d].
fn by_place(source: Source, name: &str, operand: &Operand) -> Source {
    rows(source.operand(name, operand), name, [0, 2, 1].map(|axis| operand.strides[axis]))
}

/// The function `NAME_row(batch, head, place)`, where a row begins, and the constant `NAME_PLACE`, how far apart those of
/// neighboring places lie.
fn rows(source: Source, name: &str, [batch, head, place]: [usize; 3]) -> Source {
    source.size(&format!("{}_PLACE", name.to_uppercase()), place).code(&format!(
        "__device__ __forceinline__ index_t {name}_row(index_t batch, index_t head, index_t place) {{ \
         return batch * (index_t){batch}u + head * (index_t){head}u + place * (index_t){place}u; }}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a block may have on a device of compute capability 9.0.
    const SHARED_MOST: u32 = 227 << 10;

    fn attention(depth: usize, heads: usize, queries: usize) -> Attention {
        let (batch, key_heads, keys) = (2, heads, queries);
        Attention { batch, heads, key_heads, queries, keys, depth, causal: true, window: usize::MAX, scale: 1.0 }
    }

    /// All launches of the operands that a joint projection [b, t, 3 h d] gives, which begins `offset` bytes in.
    fn launches(attention: Attention, element: Element, offset: u64) -> Vec<Launch> {
        let Attention { batch, heads, queries, depth, .. } = attention;
        let row = 3 * heads * depth;
        let dense = |element: Element, shape: &[usize]| {
            let mut strides = vec![1; shape.len()];
            (1..shape.len()).rev().for_each(|axis| strides[axis - 1] = strides[axis] * shape[axis]);
            Operand { element, shape: shape.to_vec(), strides, address: 1 << 20 }
        };
        let part = |index: usize| Operand {
            strides: vec![queries * row, depth, row, 1],
            address: (1 << 20) + offset + (index * heads * depth * element.size()) as u64,
            ..dense(element, &[batch, heads, queries, depth])
        };
        let [q, k, v] = [0, 1, 2].map(part);
        let o = dense(element, &[batch, queries, heads, depth]);
        let log_sum = dense(Element::F32, &[batch, heads, queries]);
        let joint = dense(element, &[batch, queries, 3 * heads, depth]);
        let forward = attention.forward([&q, &k, &v], &o, &log_sum);
        let operands = AttentionGradient { q, k, v, g: o.clone(), o, log_sum, joint };
        let gradient = attention.gradient(&operands, |shape| dense(Element::F32, shape));
        std::iter::once(forward).chain(gradient).collect()
    }

    #[test]
    fn tensor_cores_take_what_they_can_and_blocks_fit() {
        let general = ["attention", "attention_delta", "attention_gradient", "attention_gradient"];
        let mma = ["attention_mma", "attention_delta", "attention_gradient_mma", "attention_gradient_mma"];
        let wgmma = ["attention_wgmma", "attention_delta", "attention_gradient_mma", "attention_gradient_mma"];
        let in_one_walk = ["attention_wgmma", "attention_delta", "attention_gradient_wgmma"];
        let few = ["attention_mma", "attention_delta", "attention_gradient_wgmma"];
        for (depth, heads, queries, element, offset, expected) in [
            (64, 65, 300, Element::Bf16, 0, &wgmma[..]),
            (128, 66, 300, Element::F16, 0, &wgmma),
            (96, 66, 300, Element::F16, 0, &mma),
            (64, 66, 64, Element::F16, 0, &few),
            (16, 1, 300, Element::F16, 16, &mma),
            (64, 66, 300, Element::Bf16, 0, &in_one_walk),
            (64, 200, 1024, Element::F16, 0, &in_one_walk),
            (64, 1, 128, Element::Bf16, 0, &in_one_walk),
            (64, 1, 129, Element::Bf16, 0, &wgmma),
            (64, 66, 300, Element::F32, 0, &general),
            (64, 66, 300, Element::Bf16, 8, &general),
            (24, 2, 300, Element::Bf16, 0, &general),
            (144, 2, 300, Element::Bf16, 0, &general),
            (3, 1, 300, Element::Bf16, 0, &general),
        ] {
            let launches = launches(attention(depth, heads, queries), element, offset);
            let what = format!("depth {depth}, {heads} heads, {queries} queries");
            assert_eq!(launches.iter().map(|launch| launch.entry).collect::<Vec<_>>(), expected, "{what}");
            assert!(launches.iter().all(|launch| launch.shared <= SHARED_MOST), "{what}");
        }
    }

    #[test]
    fn every_row_has_a_block() {
        let blocks =
            |element: Element| launches(attention(64, 12, 300), element, 0).into_iter().map(|launch| launch.grid[0]);
        let (tiles, block) = (300u32.div_ceil(64), 300u32.div_ceil(128));
        // Sixteen lanes have a row of f32, eight a row of bf16.
        let deltas = [16, 8].map(|lanes| (2 * 12 * 300u32).div_ceil(256 / lanes));
        assert_eq!(blocks(Element::F32).collect::<Vec<_>>(), [24 * tiles, deltas[0], 24 * tiles, 24 * tiles]);
        assert_eq!(blocks(Element::Bf16).collect::<Vec<_>>(), [24 * block, deltas[1], 24 * block, 24 * block]);
        let walk = launches(attention(64, 200, 300), Element::Bf16, 0).pop().expect("a launch");
        assert_eq!(walk.grid, [132, 1, 1], "as many as run at a time");
    }
}

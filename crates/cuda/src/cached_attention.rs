//! Attention of few queries over the filled places of a cache, as in decoding.

use crate::{Append, Launch, Operand, Source, common_vector, sources};
use std::f32::consts::LOG2_E;

/// Threads of a block.
const THREADS: usize = 128;
/// Numbers of queries that a thread holds at most, and as many of results.
const HELD: usize = 64;
/// Keys that a thread asks for at once: more where it has one row to use them for.
const UNROLLED: [usize; 2] = [4, 2];
/// Blocks that keep the memory of an H100 or H200 busy: four for each multiprocessor.
const BLOCKS: usize = 528;

/// The sizes of an attention over a cache.
#[derive(Clone, Copy, Debug)]
pub struct CachedAttention {
    /// Independent sequences.
    pub batch: usize,
    /// Heads of the queries.
    pub heads: usize,
    /// Heads of the keys and values; `heads` is a multiple of it.
    pub key_heads: usize,
    /// Queries of a sequence, the last of which is at the last filled place.
    pub queries: usize,
    /// Places of the cache.
    pub places: usize,
    /// Numbers in a query, a key and a value.
    pub depth: usize,
    /// How many keys a query sees at most, its own place's the last of them.
    pub window: usize,
    /// What scores are multiplied by.
    pub scale: f32,
}

/// How it is shared out: by the shapes alone, so that one program serves every length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sharing {
    /// Elements read at once.
    width: usize,
    /// Threads that have a key, and how many times that many elements each has of it.
    lanes: usize,
    items: usize,
    /// Rows of a block, and how many blocks have the rows that share keys.
    rows: usize,
    tiles: usize,
    /// Keys that a thread asks for at once.
    unrolled: usize,
    /// Blocks that share the keys of a row.
    shares: usize,
}

impl CachedAttention {
    /// From queries [n, h, t, d] that lie in any way and caches of keys and values [n, g, places, d], dense, to which rows
    /// [n, g, t, d] are appended at `position`, one i32, the result [n, t, h, d], dense, and the caches with these rows. The
    /// position counts as the nearest at which all queries have places; query i sees the keys up to its own. Nothing else is
    /// read. `scratch` gives what lies between, numbers in f32 of a shape.
    pub fn launches(
        &self,
        q: &Operand,
        appended: [Append<'_>; 2],
        position: &Operand,
        o: &Operand,
        mut scratch: impl FnMut(&[usize]) -> Operand,
    ) -> Vec<Launch> {
        let appends = o.elements() > 0 && appended.iter().all(is_written_by_attention);
        let mut launches: Vec<Launch> = match appends {
            true => vec![],
            false => appended.iter().map(|one| one.launch(position)).collect(),
        };
        if o.elements() == 0 {
            return launches;
        }
        let [k, v] = appended.each_ref().map(|one| one.output);
        let vectors = appended.iter().map(Append::width);
        let width = if appends { vectors.min().expect("two caches") } else { common_vector(self.depth, &[k, v]) };
        let sharing = self.sharing(width);
        let Sharing { rows, tiles, shares, .. } = sharing;
        let source = Source::new("cached_attention", sources::CACHED_ATTENTION).operand("q", q).operand("k", k);
        let source = source.operand("v", v).address(position.address).early(position.address, 4).operand("o", o);
        let mut source = self.constants(sharing.constants(source)).constant("APPENDS", appends as u8);
        if appends {
            source = source.operand("new_k", appended[0].new).operand("new_v", appended[1].new);
        }
        let blocks = self.batch * self.key_heads * tiles * shares;
        let shared = THREADS / 32 * rows * (self.depth + 2) * 4;
        if shares == 1 {
            launches.push(source.launch_on([blocks, 1, 1], THREADS, shared));
            return launches;
        }
        let results = self.batch * self.queries * self.heads;
        let parts = scratch(&[shares, results, self.depth]);
        let statistics = scratch(&[shares, results, 2]);
        let source = source.operand("parts", &parts).operand("statistics", &statistics);
        launches.push(source.launch_on([blocks, 1, 1], THREADS, shared));
        launches.push(self.join(&parts, &statistics, o));
        launches
    }

    fn join(&self, parts: &Operand, statistics: &Operand, o: &Operand) -> Launch {
        let source = Source::new("cached_attention_join", sources::CACHED_ATTENTION_JOIN).operand("parts", parts);
        let source = source.operand("statistics", statistics).operand("o", o).constant("SHARES", parts.shape[0]);
        self.constants(source.constant("THREADS", THREADS)).launch(o.elements().div_ceil(THREADS), THREADS)
    }

    /// With so many elements read at once.
    fn sharing(&self, width: usize) -> Sharing {
        let pieces = self.depth / width;
        let lanes = pieces.next_power_of_two().min(32);
        let items = pieces.div_ceil(lanes);
        let all_rows = self.heads / self.key_heads * self.queries;
        let tiles = all_rows.div_ceil((HELD / (items * width)).max(1));
        let rows = all_rows.div_ceil(tiles);
        let unrolled = UNROLLED[(rows > 1) as usize];
        let steps = self.places.div_ceil(THREADS / lanes * unrolled);
        let shares = BLOCKS.div_ceil(self.batch * self.key_heads * tiles).min(steps).max(1);
        Sharing { width, lanes, items, rows, tiles, unrolled, shares }
    }

    fn constants(&self, source: Source) -> Source {
        let source = [
            ("HEADS", self.heads),
            ("KEY_HEADS", self.key_heads),
            ("GROUP", self.heads / self.key_heads),
            ("QUERIES", self.queries),
            ("PLACES", self.places),
            ("DEPTH", self.depth),
            ("WINDOW", self.window.min(self.places)),
        ]
        .into_iter()
        .fold(source, |source, (name, size)| source.constant(name, size));
        let source = source.number("BINARY_SCALE", self.scale * LOG2_E);
        source.size("RESULTS", self.batch * self.queries * self.heads)
    }
}

/// Whether the kernel itself puts rows into a cache: as they are, where it lies.
fn is_written_by_attention(append: &Append<'_>) -> bool {
    append.is_in_place() && append.new.element == append.cache.element
}

impl Sharing {
    fn constants(self, source: Source) -> Source {
        [
            ("THREADS", THREADS),
            ("WIDTH", self.width),
            ("LANES", self.lanes),
            ("ITEMS", self.items),
            ("ROWS", self.rows),
            ("TILES", self.tiles),
            ("UNROLLED", self.unrolled),
            ("SHARES", self.shares),
        ]
        .into_iter()
        .fold(source, |source, (name, size)| source.constant(name, size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Element;

    /// How an attention over a cache of bf16 is shared out.
    fn sharing(batch: usize, heads: [usize; 2], queries: usize, places: usize, depth: usize) -> Sharing {
        let [heads, key_heads] = heads;
        let attention =
            CachedAttention { batch, heads, key_heads, queries, places, depth, window: usize::MAX, scale: 1.0 };
        let cache = Operand::dense(Element::Bf16, &[batch, key_heads, places, depth], 1 << 20);
        attention.sharing(common_vector(depth, &[&cache, &cache]))
    }

    #[test]
    fn rows_that_share_keys_share_a_block() {
        let grouped = sharing(64, [32, 8], 1, 512, 128);
        assert_eq!((grouped.rows, grouped.tiles, grouped.lanes, grouped.items), (4, 1, 16, 1));
        let many = sharing(64, [12, 1], 3, 512, 128);
        assert_eq!((many.rows, many.tiles), (8, 5), "36 rows");
        let odd = sharing(1, [4, 2], 1, 512, 250);
        assert_eq!((odd.width, odd.lanes, odd.items, odd.rows), (2, 32, 4, 2));
    }

    #[test]
    fn keys_are_shared_out_where_sequences_are_few() {
        let shares = |batch: usize, places: usize| sharing(batch, [12, 12], 1, places, 64).shares;
        assert_eq!([shares(64, 512), shares(8, 512), shares(1, 512), shares(1, 64), shares(1, 1)], [1, 6, 8, 1, 1]);
        assert_eq!(shares(1, 100_000), 44, "no more than keep the memory busy");
    }

    #[test]
    fn rows_are_appended_by_the_kernel_itself_where_they_may_stay_as_they_are() {
        let attention = CachedAttention {
            batch: 64,
            heads: 12,
            key_heads: 12,
            queries: 1,
            places: 512,
            depth: 64,
            window: usize::MAX,
            scale: 1.0,
        };
        let cache = |address: u64| Operand::dense(Element::Bf16, &[64, 12, 512, 64], address);
        let rows = |element: Element| Operand::dense(element, &[64, 12, 1, 64], 1 << 30);
        let (q, o) = (rows(Element::Bf16), Operand::dense(Element::Bf16, &[64, 1, 12, 64], 1 << 31));
        let launches = |element: Element, to: u64| {
            let (caches, new, outputs) = ([1 << 32, 1 << 33].map(cache), rows(element), [to, 1 << 33].map(cache));
            let appended = [0, 1].map(|of| Append { cache: &caches[of], new: &new, output: &outputs[of] });
            let scratch = |_: &[usize]| unreachable!("blocks enough without shares");
            attention.launches(&q, appended, &Operand::dense(Element::I32, &[1], 1 << 34), &o, scratch)
        };
        let entries = |launches: Vec<Launch>| launches.iter().map(|launch| launch.entry).collect::<Vec<_>>();
        assert_eq!(entries(launches(Element::Bf16, 1 << 32)), ["cached_attention"]);
        assert_eq!(entries(launches(Element::F32, 1 << 32)), ["append", "append", "cached_attention"]);
        assert_eq!(entries(launches(Element::Bf16, 1 << 35)), ["append", "append", "cached_attention"]);
    }
}

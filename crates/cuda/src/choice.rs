//! Which of the algorithms that the library proposes for a product is taken: the fastest of those that give the bits of the
//! first. So a choice by timing changes no result, whatever was chosen.

use crate::device::{Device, Function};
use crate::disk_cache::Cached;
use crate::error::{Error, Result};
use crate::host::HostMemory;
use crate::prepared::Kernel;
use crate::product::{Algorithm, LibraryProduct, alignment, shares};
use crate::stream::Event;
use crate::{Element, Gelu, Launch, Matrix, Product, Source, sources};
use cudarc::driver::result;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many proposals are looked at.
const PROPOSALS: usize = 16;
/// Products of fewer multiplications take as long as it takes to begin them.
const LEAST_WORK: usize = 1 << 20;
/// Launches that are timed together, and how often they are.
const LAUNCHES: usize = 3;
const ROUNDS: usize = 3;
/// What all measurements of a program may take; products that are left then take the first proposal.
const MOST: Duration = Duration::from_secs(3);

impl Device {
    /// Chooses algorithms for products whose choice is not known yet, by trying them where they will run. What is there is
    /// overwritten, and so are the eight bytes at `cell`.
    ///
    /// # Safety
    /// The addresses of the products, and the cell, must be those of live memory of the device, as large as their sizes say,
    /// which nobody needs.
    pub unsafe fn choose_products<'a>(
        self: &Arc<Device>,
        products: impl Iterator<Item = &'a Product>,
        cell: u64,
    ) -> Result<()> {
        self.bind()?;
        let (began, mut tests) = (Instant::now(), None);
        for product in products.filter(|product| work(product) >= LEAST_WORK) {
            let key = key(product);
            if self.choice(&key).is_some() {
                continue;
            }
            let library = LibraryProduct::new(self, product)?;
            let proposals = library.proposals(PROPOSALS)?;
            let cached = Cached::new(format!("{}\n{key}", self.description()), "product");
            let kept = cached.read().and_then(|bytes| proposals.iter().find(|proposal| proposal.bytes() == bytes[..]));
            let chosen = match kept {
                Some(kept) => *kept,
                None if began.elapsed() > MOST => continue,
                None => {
                    let tests = match &mut tests {
                        Some(tests) => tests,
                        none => none.insert(Tests::new(self, cell)?),
                    };
                    // SAFETY: the caller's promise.
                    let fastest = unsafe { tests.fastest(&library, proposals) }?;
                    cached.write(&fastest.bytes());
                    fastest
                }
            };
            self.choose(key, chosen);
        }
        Ok(())
    }
}

/// Multiplications of a product.
fn work(product: &Product) -> usize {
    [product.rows, product.columns, product.depth, product.batch].into_iter().fold(1, usize::saturating_mul)
}

/// What a choice depends on: everything but where the operands lie, of which only the alignment counts, and what lies in the
/// same place.
pub(crate) fn key(product: &Product) -> String {
    let aligned = |matrix: &Matrix| Matrix { address: u64::from(alignment(matrix)), ..*matrix };
    let alike = Product {
        a: aligned(&product.a),
        b: aligned(&product.b),
        d: aligned(&product.d),
        bias: product.bias.map(|bias| crate::Bias { address: 1 << (bias.address | 256).trailing_zeros(), ..bias }),
        added: product.added.as_ref().map(aligned),
        gelu: product.gelu.map(|gelu| match gelu {
            Gelu::Of => Gelu::Of,
            Gelu::Keeping(_) => Gelu::Keeping(0),
            Gelu::SlopeAt(_) => Gelu::SlopeAt(0),
        }),
        workspace: (0, product.workspace.1),
        ..product.clone()
    };
    let goes_on = product.added.is_some_and(|added| added.address == product.d.address);
    format!("{alike:?}, in place: {goes_on}")
}

/// What operands are filled with to tell algorithms apart.
#[derive(Clone, Copy, PartialEq)]
enum Filling {
    /// Along the depth, the second half takes off what the first adds: what is left is rounding alone, which depends on the
    /// order of the sums to the last bit.
    Cancelling,
    /// Results of about one, where what is done after the sums shows.
    Plain,
}

/// Trying algorithms out.
struct Tests {
    device: Arc<Device>,
    fill: Function,
    checksum: Function,
    cell: u64,
    seen: HostMemory,
    events: [Event; 2],
}

/// What fills operands, and what sums results up.
fn kernels() -> [Launch; 2] {
    ["fill", "checksum"].map(|entry| Source::new(entry, sources::PRODUCT_CHOICE).launch(1, 256))
}

impl Tests {
    fn new(device: &Arc<Device>, cell: u64) -> Result<Tests> {
        let [fill, checksum] = kernels();
        device.compile_all(&[&fill, &checksum])?;
        Ok(Tests {
            fill: device.function(&fill),
            checksum: device.function(&checksum),
            cell,
            seen: HostMemory::new(device, 8)?,
            events: [Event::new()?, Event::new()?],
            device: device.clone(),
        })
    }

    /// The fastest of the proposals that give what the first gives.
    ///
    /// # Safety
    /// As [`Device::choose_products`].
    unsafe fn fastest(&self, product: &LibraryProduct, proposals: Vec<Algorithm>) -> Result<Algorithm> {
        let first = proposals[0];
        let alike = |other: &Algorithm| shares(other) == shares(&first);
        let mut admitted: Vec<Algorithm> = proposals.into_iter().filter(alike).collect();
        for filling in [Filling::Cancelling, Filling::Plain] {
            let mut expected = None;
            let mut same = vec![];
            for algorithm in admitted {
                // SAFETY: the caller's promise.
                let sum = unsafe { self.sum_of(product, &algorithm, filling, 0) };
                // Another that is refused is left out; without the first there is nothing to compare with.
                let Ok(sum) = (if expected.is_some() { sum } else { Ok(sum?) }) else { continue };
                if *expected.get_or_insert(sum) == sum {
                    same.push(algorithm);
                }
            }
            admitted = same;
        }
        if admitted.len() == 1 {
            return Ok(first);
        }
        let mut times = vec![vec![]; admitted.len()];
        for _ in 0..ROUNDS {
            for (algorithm, times) in admitted.iter().zip(&mut times) {
                // SAFETY: the caller's promise.
                times.push(unsafe { self.time(product, algorithm) }?);
            }
        }
        Ok(quickest(&admitted, times).copied().unwrap_or(first))
    }

    /// What the bits of all results come to.
    unsafe fn sum_of(
        &self,
        product: &LibraryProduct,
        algorithm: &Algorithm,
        filling: Filling,
        seed: u64,
    ) -> Result<u64> {
        let stream = self.device.stream();
        for (number, operand) in (seed..).zip(operands(product.stated(), filling)) {
            // SAFETY: the caller's promise.
            unsafe { Kernel::new(self.fill, &operand.fill(number))?.send(stream, false) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { product.send(algorithm, stream) }?;
        // SAFETY: the caller's promise.
        unsafe { self.sum(product.stated()) }
    }

    /// What the bits come to that are there now.
    unsafe fn sum(&self, product: &Product) -> Result<u64> {
        let stream = self.device.stream();
        // SAFETY: the cell is live, by the caller's promise.
        unsafe { result::memset_d8_async(self.cell, 0, 8, stream) }.map_err(Error::call("cuMemsetD8Async"))?;
        for (number, address) in (0..).zip(results(product)) {
            let launch = Filled::result(product, address).checksum(number, self.cell);
            // SAFETY: the caller's promise.
            unsafe { Kernel::new(self.checksum, &launch)?.send(stream, false) }?;
        }
        // SAFETY: the cell is live, by the caller's promise.
        unsafe { self.seen.fetch(0, self.cell, 8, stream) }?;
        self.device.synchronize()?;
        Ok(self.seen.cell())
    }

    unsafe fn time(&self, product: &LibraryProduct, algorithm: &Algorithm) -> Result<Duration> {
        let (stream, [begin, end]) = (self.device.stream(), &self.events);
        begin.record(stream)?;
        for _ in 0..LAUNCHES {
            // SAFETY: the caller's promise.
            unsafe { product.send(algorithm, stream) }?;
        }
        end.record(stream)?;
        self.device.synchronize()?;
        begin.until(end)
    }
}

/// The one with the smallest median; of equal ones the first.
fn quickest<T>(algorithms: &[T], times: Vec<Vec<Duration>>) -> Option<&T> {
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let timed = algorithms.iter().zip(times.into_iter().map(median));
    timed.min_by_key(|&(_, time)| time).map(|(algorithm, _)| algorithm)
}

/// A matrix to be filled, or looked at, as it lies: rows of numbers one after another.
#[derive(Debug, PartialEq)]
struct Filled {
    address: u64,
    element: Element,
    inner: usize,
    outer: usize,
    stride: usize,
    batch: usize,
    batch_stride: usize,
    /// Numbers are within this of zero.
    scale: f32,
    /// If the second half of the depth repeats the first: whether the depth is the inner axis, half of it, and whether the
    /// sign is turned.
    repeated: Option<(bool, usize, bool)>,
}

impl Filled {
    /// A matrix of [rows, columns].
    fn new(matrix: &Matrix, [rows, columns]: [usize; 2], batch: usize, scale: f32) -> Filled {
        let &Matrix { element, address, stride, transposed, batch_stride } = matrix;
        let [outer, inner] = if transposed { [columns, rows] } else { [rows, columns] };
        Filled { address, element, inner, outer, stride, batch, batch_stride, scale, repeated: None }
    }

    /// What lies as the result does.
    fn result(product: &Product, address: u64) -> Filled {
        let like = Matrix { address, ..product.d };
        Filled::new(&like, [product.rows, product.columns], product.batch, 2.0)
    }

    fn grid(&self) -> [u32; 3] {
        let blocks = |count: usize, most: usize| count.clamp(1, most) as u32;
        [blocks(self.inner.div_ceil(256), 8), blocks(self.outer, 4096), blocks(self.batch, 64)]
    }

    fn kernel(&self, entry: &'static str, arguments: Vec<u64>) -> Launch {
        Launch {
            source: String::new(),
            entry,
            grid: self.grid(),
            block: 256,
            shared: 0,
            maps: vec![],
            arguments,
            early: None,
        }
    }

    fn fill(&self, seed: u64) -> Launch {
        let sizes = [self.inner, self.outer, self.stride, self.batch, self.batch_stride].map(|size| size as u64);
        let (is_inner, half, turned) = self.repeated.unwrap_or((false, 0, false));
        let element = [self.address, self.element.size() as u64, u64::from(self.element == Element::Bf16)];
        let repeated = [u64::from(is_inner), half as u64, u64::from(turned)];
        let numbers = [seed, u64::from(self.scale.to_bits())];
        self.kernel("fill", [&element[..], &sizes, &numbers, &repeated].concat())
    }

    fn checksum(&self, seed: u64, cell: u64) -> Launch {
        let sizes = [self.inner, self.outer, self.stride, self.batch, self.batch_stride].map(|size| size as u64);
        let element = [self.address, self.element.size() as u64];
        self.kernel("checksum", [&element[..], &sizes, &[seed, cell]].concat())
    }
}

/// Where a product writes.
fn results(product: &Product) -> Vec<u64> {
    let kept = match product.gelu {
        Some(Gelu::Keeping(address)) => Some(address),
        _ => None,
    };
    [product.d.address].into_iter().chain(kept).collect()
}

/// All that a product reads and writes, filled anew for every trial. Results come first: where one of them is an operand
/// too, it holds what the operand is to hold.
fn operands(product: &Product, filling: Filling) -> Vec<Filled> {
    let &Product { rows, columns, depth, batch, .. } = product;
    let cancelling = filling == Filling::Cancelling;
    // Sums of about 400, whose last bit is what is added; or sums of about one and a half.
    let [a, b, added] = if cancelling { [8.0, 8.0, 1.0 / 4096.0] } else { [1.0, 4.5 / (depth as f32).sqrt(), 1.0] };
    let along_depth = |matrix: &Matrix, sizes: [usize; 2], scale: f32, turned: bool| {
        // Rows of the first operand go along the depth, and columns of the second.
        let is_inner = matrix.transposed == turned;
        let repeated = cancelling.then_some((is_inner, depth / 2, turned)).filter(|&(_, half, _)| half > 0);
        Filled { repeated, ..Filled::new(matrix, sizes, batch, scale) }
    };
    let mut filled: Vec<Filled> = results(product).into_iter().map(|at| Filled::result(product, at)).collect();
    filled.push(along_depth(&product.a, [rows, depth], a, false));
    filled.push(along_depth(&product.b, [depth, columns], b, true));
    if let Some(bias) = product.bias {
        let row = Matrix { address: bias.address, batch_stride: 0, ..product.d };
        filled.push(Filled::new(&row, [1, columns], 1, added));
    }
    filled.extend(product.added.iter().map(|matrix| Filled::new(matrix, [rows, columns], batch, added)));
    if let Some(Gelu::SlopeAt(address)) = product.gelu {
        filled.push(Filled::result(product, address));
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bias, Memory, compile};

    /// A product of 16-bit matrices one after another from an address on, and where they end.
    fn product(address: u64, [rows, columns, depth]: [usize; 3]) -> (Product, u64) {
        let mut end = address;
        let mut matrix = |element: Element, stride: usize, count: usize, transposed: bool| {
            let matrix = Matrix { element, address: end, stride, transposed, batch_stride: 0 };
            end = (end + (stride * count * element.size()) as u64).next_multiple_of(256);
            matrix
        };
        let a = matrix(Element::Bf16, depth, rows, false);
        let b = matrix(Element::Bf16, depth, columns, true);
        let d = matrix(Element::Bf16, columns, rows, false);
        let workspace = (matrix(Element::F32, 1 << 20, 8, false).address, 32 << 20);
        let product = Product {
            rows,
            columns,
            depth,
            batch: 1,
            a,
            b,
            d,
            bias: None,
            added: None,
            gelu: None,
            tf32: false,
            workspace,
        };
        (product, end)
    }

    #[test]
    fn a_choice_depends_on_alignment_and_on_what_lies_in_one_place() {
        let (first, _) = product(1 << 20, [64, 64, 64]);
        let (moved, _) = product((1 << 21) + 512, [64, 64, 64]);
        assert_eq!(key(&first), key(&moved));
        let unaligned = Matrix { address: first.a.address + 2, ..first.a };
        assert_ne!(key(&first), key(&Product { a: unaligned, ..first.clone() }));
        assert_ne!(key(&first), key(&Product { tf32: true, ..first.clone() }));
        let apart = Matrix { address: first.d.address + 4096, ..first.d };
        let [apart, goes_on] = [apart, first.d].map(|added| Product { added: Some(added), ..first.clone() });
        assert_ne!(key(&apart), key(&goes_on));
        let slope = |at: u64| Product { gelu: Some(Gelu::SlopeAt(at)), ..first.clone() };
        assert_eq!(key(&slope(1 << 30)), key(&slope(1 << 31)));
        assert_ne!(key(&first), key(&slope(1 << 30)));
        let (wider, _) = product(1 << 20, [64, 65, 64]);
        assert_ne!(key(&first), key(&wider));
    }

    #[test]
    fn operands_are_filled_as_they_lie() {
        let (mut product, _) = product(1 << 20, [3, 5, 8]);
        product.bias = Some(Bias { element: product.d.element, address: 7 << 20 });
        product.added = Some(product.d);
        let [d, a, b, bias, added] = &operands(&product, Filling::Cancelling)[..] else { panic!("five of them") };
        assert_eq!((a.inner, a.outer, a.repeated), (8, 3, Some((true, 4, false))));
        assert_eq!((b.inner, b.outer, b.repeated), (8, 5, Some((true, 4, true))));
        assert_eq!((bias.inner, bias.outer, bias.batch), (5, 1, 1));
        assert_eq!((d.address, d.inner, d.outer), (added.address, 5, 3), "what goes on is filled last");
        assert_eq!(added.repeated, None);
        assert!(operands(&product, Filling::Plain).iter().all(|filled| filled.repeated.is_none()));
        product.b = Matrix { transposed: false, stride: 5, ..product.b };
        let b = &operands(&product, Filling::Cancelling)[2];
        assert_eq!((b.inner, b.outer, b.repeated), (5, 8, Some((false, 4, true))));
    }

    #[test]
    fn the_quickest_has_the_smallest_median_and_is_the_first_of_equals() {
        let times = [[3, 1, 9], [2, 2, 2], [2, 1, 8]].map(|times| times.map(Duration::from_micros).to_vec());
        assert_eq!(quickest(&["a", "b", "c"], times.to_vec()), Some(&"b"));
        assert_eq!(quickest::<()>(&[], vec![]), None);
    }

    #[test]
    #[ignore = "takes NVIDIA's compiler: run by bench/cuda"]
    fn what_fills_and_sums_up_compiles() {
        for launch in kernels() {
            compile(launch.entry, &launch.source).unwrap();
        }
    }

    #[test]
    #[ignore = "takes a CUDA device: run by bench/cuda"]
    fn a_choice_gives_the_bits_of_the_first_proposal() {
        let device = Device::new(0).unwrap();
        for sizes in [[4096, 768, 3072], [1000, 2304, 768], [768, 768, 16384], [256, 50304, 768]] {
            let bytes = product(0, sizes).1 as usize + 4096 * 50304 * 2;
            let mut memory = Memory::zeroed(&device, bytes + 8).unwrap();
            let ((mut product, kept), cell) = (product(memory.address(), sizes), memory.address() + bytes as u64);
            for gelu in [None, Some(Gelu::Keeping(kept)), Some(Gelu::SlopeAt(kept))] {
                product.gelu = gelu;
                // SAFETY: all of it lies in the memory, which is large enough.
                unsafe {
                    device.choose_products([&product].into_iter(), cell).unwrap();
                    let (tests, library) =
                        (Tests::new(&device, cell).unwrap(), LibraryProduct::new(&device, &product).unwrap());
                    let (first, chosen) = (library.first_proposal().unwrap(), device.choice(&key(&product)).unwrap());
                    for (filling, seed) in [(Filling::Cancelling, 100), (Filling::Plain, 200)] {
                        let [first, chosen] =
                            [first, chosen].map(|algorithm| tests.sum_of(&library, &algorithm, filling, seed).unwrap());
                        assert_eq!(first, chosen, "{sizes:?}, {gelu:?}: other numbers, the same bits");
                    }
                    let before = tests.sum(&product).unwrap();
                    memory.write((product.d.address - memory.address()) as usize + 6, &[0x12, 0x34]).unwrap();
                    assert_ne!(before, tests.sum(&product).unwrap(), "a number is another");
                    println!("{sizes:?}, {gelu:?}: the first proposal is taken: {}", first == chosen);
                }
            }
        }
    }
}

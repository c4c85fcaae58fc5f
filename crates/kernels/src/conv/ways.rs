//! How Winograd's method goes along an axis: tiles of sources and three weights become numbers at places, products of these are
//! summed over the channels, and two targets of each phase are made of the sums. Along both axes it is done one after the other.
//!
//! All transforms add and subtract, with no other factors than one half. Where targets or sources are two apart, three taps are two
//! that are neighbours, of which F(2, 2) makes three products for four, and one between them: five products for six.

use super::axis::Axis;
use super::vector::Vector;

/// The most numbers along an axis, of sources, places or sums.
pub(super) const MOST: usize = 5;
/// Places of the transformed weights along an axis.
pub(super) const WEIGHT_PLACES: usize = 4;

/// The place of the source, that of the weight, and the sum that a product belongs to.
pub(super) type Product = [usize; 3];

/// A way along an axis.
pub(super) trait Way: Copy {
    /// Sources of a tile.
    const SOURCES: usize;
    /// Sources from one tile to the next: two or four.
    const STEP: usize;
    /// Places of the transformed sources.
    const PLACES: usize;
    /// Sums, and the products that they are made of, in their order.
    const SUMS: usize;
    const PRODUCTS: &'static [Product];
    /// Targets of a tile: two of every phase.
    const TARGETS: usize;

    /// What is at the places, of tiles lane by lane.
    fn places<V: Vector>(self, sources: [V; MOST]) -> [V; MOST];
    fn targets<V: Vector>(self, sums: [V; MOST]) -> [V; 4];
}

/// Sources and targets are neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Near;

/// Sources are two apart for neighbouring targets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strided;

/// Targets of two phases, for neighbouring sources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Phased {
    /// The phase that has two taps.
    two: usize,
    /// Whether the first source of the other's tap is also that of these.
    same: bool,
}

impl Way for Near {
    const SOURCES: usize = 4;
    const STEP: usize = 2;
    const PLACES: usize = 4;
    const SUMS: usize = 4;
    const PRODUCTS: &'static [Product] = &[[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]];
    const TARGETS: usize = 2;

    #[inline(always)]
    fn places<V: Vector>(self, [a, b, c, d, _]: [V; MOST]) -> [V; MOST] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a.minus(c), b.plus(c), c.minus(b), b.minus(d), V::all(0.0)] }
    }

    #[inline(always)]
    fn targets<V: Vector>(self, [a, b, c, d, _]: [V; MOST]) -> [V; 4] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a.plus(b).plus(c), b.minus(c).minus(d), V::all(0.0), V::all(0.0)] }
    }
}

impl Way for Strided {
    const SOURCES: usize = 5;
    const STEP: usize = 4;
    const PLACES: usize = 5;
    const SUMS: usize = 3;
    const PRODUCTS: &'static [Product] = &[[0, 0, 0], [3, 3, 0], [1, 1, 1], [2, 2, 2], [4, 3, 2]];
    const TARGETS: usize = 2;

    #[inline(always)]
    fn places<V: Vector>(self, [a, b, c, d, e]: [V; MOST]) -> [V; MOST] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a.minus(c), c, e.minus(c), b, d] }
    }

    #[inline(always)]
    fn targets<V: Vector>(self, [a, b, c, ..]: [V; MOST]) -> [V; 4] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a.plus(b), b.plus(c), V::all(0.0), V::all(0.0)] }
    }
}

impl Way for Phased {
    const SOURCES: usize = 3;
    const STEP: usize = 2;
    const PLACES: usize = 4;
    const SUMS: usize = 5;
    const PRODUCTS: &'static [Product] = &[[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3], [1, 3, 4]];
    const TARGETS: usize = 4;

    #[inline(always)]
    fn places<V: Vector>(self, [a, b, c, ..]: [V; MOST]) -> [V; MOST] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a.minus(b), b, c.minus(b), if self.same { a } else { c }, V::all(0.0)] }
    }

    #[inline(always)]
    fn targets<V: Vector>(self, [a, b, c, d, e]: [V; MOST]) -> [V; 4] {
        // SAFETY: whoever has vectors has a machine that has them.
        let two = unsafe { [a.plus(b), b.plus(c)] };
        let one = if self.same { [d, e] } else { [e, d] };
        let [first, second] = if self.two == 0 { [two, one] } else { [one, two] };
        [first[0], second[0], first[1], second[1]]
    }
}

/// What the gradient of the weights takes besides: the transposes of what makes targets and of what transforms weights.
pub(super) trait WayOfWeights: Way {
    /// The factors of all sums, from two gradients of targets.
    fn factors<V: Vector>(self, gradients: [V; MOST]) -> [V; MOST];
    /// The gradients of three weights, in the order of [`Taps`], from those at all places.
    fn weights<V: Vector>(self, places: [V; WEIGHT_PLACES]) -> [V; 3];
}

impl WayOfWeights for Near {
    #[inline(always)]
    fn factors<V: Vector>(self, [a, b, ..]: [V; MOST]) -> [V; MOST] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a, a.plus(b), a.minus(b), V::all(0.0).minus(b), V::all(0.0)] }
    }

    #[inline(always)]
    fn weights<V: Vector>(self, [a, b, c, d]: [V; WEIGHT_PLACES]) -> [V; 3] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe {
            let half = V::all(0.5);
            let outer = half.times(b.plus(c));
            [a.plus(outer), half.times(b.minus(c)), outer.plus(d)]
        }
    }
}

impl WayOfWeights for Strided {
    #[inline(always)]
    fn factors<V: Vector>(self, [a, b, ..]: [V; MOST]) -> [V; MOST] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a, a.plus(b), b, V::all(0.0), V::all(0.0)] }
    }

    #[inline(always)]
    fn weights<V: Vector>(self, [a, b, c, d]: [V; WEIGHT_PLACES]) -> [V; 3] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe { [a.plus(b), b.plus(c), d] }
    }
}

/// How both axes go.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ways {
    Near,
    Strided,
    Phased([Phased; 2]),
}

impl Ways {
    /// Three weights of a filter, in the order of [`Taps`], at their places.
    #[inline(always)]
    pub fn weights<V: Vector>(&self, [a, b, c]: [V; 3]) -> [V; WEIGHT_PLACES] {
        // SAFETY: whoever has vectors has a machine that has them.
        unsafe {
            if let Ways::Near = self {
                let half = V::all(0.5);
                let (outer, inner) = (half.times(a.plus(c)), half.times(b));
                [a, outer.plus(inner), outer.minus(inner), c]
            } else {
                [a, a.plus(b), b, c]
            }
        }
    }

    /// Sources of a tile along an axis, and from one to the next.
    #[inline(always)]
    pub fn sources(&self) -> [usize; 2] {
        match self {
            Ways::Near => [Near::SOURCES, Near::STEP],
            Ways::Strided => [Strided::SOURCES, Strided::STEP],
            Ways::Phased(_) => [Phased::SOURCES, Phased::STEP],
        }
    }

    /// Places of the transformed sources along an axis, sums, and targets of a tile.
    #[inline(always)]
    pub fn counts(&self) -> [usize; 3] {
        match self {
            Ways::Near => [Near::PLACES, Near::SUMS, Near::TARGETS],
            Ways::Strided => [Strided::PLACES, Strided::SUMS, Strided::TARGETS],
            Ways::Phased(_) => [Phased::PLACES, Phased::SUMS, Phased::TARGETS],
        }
    }
}

/// The elements of a filter along an axis, and the source that target 0 reads under the nearest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taps {
    pub low: isize,
    /// For [`Near`] from the nearest to the farthest, else the two neighbours first.
    pub indices: [usize; 3],
}

/// The way along the phases of an axis, if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Along {
    Near(Taps),
    Strided(Taps),
    Phased(Taps, Phased),
}

impl Along {
    pub fn of(phases: &[Axis]) -> Option<Along> {
        match phases {
            [axis] => {
                let ([near, middle, far], low) =
                    (neighbours::<3>(axis)?, axis.taps.iter().map(|tap| tap.offset).min()?);
                match (axis.step, axis.source_step) {
                    (1, 1) => Some(Along::Near(Taps { low, indices: [near, middle, far] })),
                    (1, 2) => Some(Along::Strided(Taps { low, indices: [near, far, middle] })),
                    _ => None,
                }
            }
            [first, second] => {
                let (two, [pair, single]) =
                    if first.taps.len() == 2 { (0, [first, second]) } else { (1, [second, first]) };
                let ([near, far], [one]) = (neighbours::<2>(pair)?, neighbours::<1>(single)?);
                let low = pair.taps.iter().map(|tap| tap.offset).min()?;
                let apart = single.taps[0].offset - low;
                let taps = Taps { low, indices: [near, far, one] };
                let fits = [first, second].iter().all(|axis| axis.step == 2 && axis.source_step == 1);
                (fits && (0..2).contains(&apart)).then_some(Along::Phased(taps, Phased { two, same: apart == 0 }))
            }
            _ => None,
        }
    }
}

/// The products along both axes, in the order of what `key` gives.
pub(super) fn products_of<W: Way>(key: fn(&PlaceProduct) -> usize) -> Vec<PlaceProduct> {
    let pairs = W::PRODUCTS.iter().flat_map(|rows| W::PRODUCTS.iter().map(move |columns| [*rows, *columns]));
    let of = |[[a, b, c], [d, e, f]]: [Product; 2]| PlaceProduct {
        source: a * W::PLACES + d,
        weight: b * WEIGHT_PLACES + e,
        sum: c * W::SUMS + f,
        is_first: false,
    };
    let mut products: Vec<PlaceProduct> = pairs.map(of).collect();
    products.sort_by_key(key);
    for index in 0..products.len() {
        products[index].is_first = index == 0 || key(&products[index - 1]) != key(&products[index]);
    }
    products
}

/// Places of a product's operands and its sum, and whether it is the first of those that have the same key.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaceProduct {
    pub source: usize,
    pub weight: usize,
    pub sum: usize,
    pub is_first: bool,
}

/// Elements of a filter from the nearest to the farthest, if they are so many neighbours.
pub(super) fn neighbours<const N: usize>(axis: &Axis) -> Option<[usize; N]> {
    let mut taps = axis.taps.clone();
    taps.sort_by_key(|tap| tap.offset);
    let are_neighbours = taps.windows(2).all(|pair| pair[0].offset + 1 == pair[1].offset);
    let taps: [usize; N] = taps.iter().map(|tap| tap.index).collect::<Vec<_>>().try_into().ok()?;
    are_neighbours.then_some(taps)
}

//! Planes as filters read them: where they lie.

use super::rows::{load, numbers};
use super::vector::Vector;
use crate::Element;
use crate::window::inside;

/// A plane under filters: rows that lie so far apart, and zeros around them.
#[derive(Clone, Copy)]
pub(super) struct Plane<'a> {
    numbers: &'a [f32],
    pitch: usize,
    size: [usize; 2],
    /// The row and the column that the filter of the first target begins at.
    first: [isize; 2],
}

impl<'a> Plane<'a> {
    /// So many rows and columns of a plane of that width, from this row and column on: where it lies if it is of numbers, else as
    /// much as there is of them in scratch, which must have room for all.
    #[inline(always)]
    pub fn of<T: Element>(
        plane: &'a [T],
        width: usize,
        first: [isize; 2],
        counts: [usize; 2],
        scratch: &'a mut [f32],
    ) -> Plane<'a> {
        let size = [plane.len() / width, width];
        if let Some(numbers) = numbers(plane) {
            return Plane { numbers, pitch: width, size, first };
        }
        let [rows, columns] = [0, 1].map(|axis| inside(1, first[axis], size[axis], counts[axis]));
        // Of rows that lie beside the plane altogether, nothing is there to begin at.
        let rows = if columns.is_empty() { 0..0 } else { rows };
        for (index, row) in rows.clone().enumerate() {
            let start = row.wrapping_add_signed(first[0]) * width + columns.start.wrapping_add_signed(first[1]);
            load(&plane[start..], &mut scratch[index * columns.len()..][..columns.len()]);
        }
        let first = [-(rows.start as isize), -(columns.start as isize)];
        Plane { numbers: scratch, pitch: columns.len(), size: [rows.len(), columns.len()], first }
    }

    /// Whether all that is not zero is there.
    pub fn is_whole(&self) -> bool {
        let [rows, columns] = self.size;
        rows * columns == 0 || (rows - 1) * self.pitch + columns <= self.numbers.len()
    }

    /// Whether so many rows and columns from the first on are in it.
    pub fn has(&self, counts: [usize; 2]) -> bool {
        [0, 1].into_iter().all(|axis| {
            let left = self.size[axis].checked_add_signed(-self.first[axis]);
            self.first[axis] >= 0 && left.is_some_and(|left| counts[axis] <= left)
        })
    }

    /// Where the row under a row of a filter would begin, if it is not zero.
    #[inline(always)]
    pub fn row(&self, row: usize) -> Option<*const f32> {
        let line = self.first[0] + row as isize;
        let start = line * self.pitch as isize + self.first[1];
        (0..self.size[0] as isize).contains(&line).then(|| self.numbers.as_ptr().wrapping_offset(start))
    }

    /// The lanes of a vector from a column on that are not zero.
    #[inline(always)]
    pub fn lanes<V: Vector>(&self, column: usize) -> [usize; 2] {
        let column = self.first[1] + column as isize;
        [-column, self.size[1] as isize - column].map(|lane| lane.clamp(0, V::LANES as isize) as usize)
    }
}

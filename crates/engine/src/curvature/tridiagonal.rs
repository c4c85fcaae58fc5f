//! Eigenvalues of symmetric tridiagonal matrices, by the implicit QL method.

/// An eigenvalue, and the first and the last element of its eigenvector, which has the length 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Eigen {
    pub value: f64,
    pub first: f64,
    pub last: f64,
}

/// The eigenvalues of the matrix with this diagonal and these numbers beside it, smallest first. `None` where numbers are not
/// finite, of which there are none.
pub(super) fn eigen(diagonal: &[f64], beside: &[f64]) -> Option<Vec<Eigen>> {
    let size = diagonal.len();
    assert_eq!(beside.len() + 1, size.max(1), "a number between each two of the diagonal");
    let mut d = diagonal.to_vec();
    let mut e: Vec<f64> = beside.iter().copied().chain([0.0]).collect();
    // Of the eigenvectors, only the first and the last row are followed.
    let mut first: Vec<f64> = (0..size).map(|at| if at == 0 { 1.0 } else { 0.0 }).collect();
    let mut last: Vec<f64> = (0..size).map(|at| if at + 1 == size { 1.0 } else { 0.0 }).collect();
    for l in 0..size {
        // Each turn roughly cubes what is left beside the diagonal; it never takes many.
        for turn in 0.. {
            let m =
                (l..size - 1).find(|&m| e[m].abs() <= f64::EPSILON * (d[m].abs() + d[m + 1].abs())).unwrap_or(size - 1);
            if m == l {
                break;
            }
            if turn == 64 {
                return None;
            }
            turn_once(&mut d, &mut e, [&mut first, &mut last], l, m);
        }
    }
    let mut found: Vec<Eigen> = (0..size).map(|at| Eigen { value: d[at], first: first[at], last: last[at] }).collect();
    found.sort_by(|a, b| a.value.total_cmp(&b.value));
    Some(found)
}

/// One turn of the method on the rows from `l` to `m`.
fn turn_once(d: &mut [f64], e: &mut [f64], rows: [&mut Vec<f64>; 2], l: usize, m: usize) {
    let [first, last] = rows;
    let half = (d[l + 1] - d[l]) / (2.0 * e[l]);
    let root = half.hypot(1.0);
    let mut g = d[m] - d[l] + e[l] / (half + root.copysign(half));
    let (mut sine, mut cosine, mut shift) = (1.0, 1.0, 0.0);
    for i in (l..m).rev() {
        let (f, b) = (sine * e[i], cosine * e[i]);
        let length = f.hypot(g);
        e[i + 1] = length;
        if length == 0.0 {
            d[i + 1] -= shift;
            e[m] = 0.0;
            return;
        }
        (sine, cosine) = (f / length, g / length);
        g = d[i + 1] - shift;
        let turned = (d[i] - g) * sine + 2.0 * cosine * b;
        shift = sine * turned;
        d[i + 1] = g + shift;
        g = cosine * turned - b;
        for row in [&mut *first, &mut *last] {
            let (left, right) = (row[i], row[i + 1]);
            row[i + 1] = sine * left + cosine * right;
            row[i] = cosine * left - sine * right;
        }
    }
    d[l] -= shift;
    e[l] = g;
    e[m] = 0.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_eigenvalues_of_a_chain_are_cosines() {
        let size = 40;
        let found = eigen(&vec![2.0; size], &vec![-1.0; size - 1]).unwrap();
        for (at, eigen) in found.iter().enumerate() {
            let angle = std::f64::consts::PI * (at + 1) as f64 / (size + 1) as f64;
            assert!((eigen.value - (2.0 - 2.0 * angle.cos())).abs() < 1e-13, "{at}: {}", eigen.value);
            let amplitude = (2.0 / (size + 1) as f64).sqrt() * angle.sin();
            assert!((eigen.first.abs() - amplitude).abs() < 1e-12 && (eigen.last.abs() - amplitude).abs() < 1e-12);
        }
        assert!((found.iter().map(|eigen| eigen.first * eigen.first).sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn small_and_odd_ones_too() {
        assert_eq!(eigen(&[3.0], &[]).unwrap(), [Eigen { value: 3.0, first: 1.0, last: 1.0 }]);
        assert!(eigen(&[], &[]).unwrap().is_empty());
        let apart = eigen(&[5.0, -1.0, 2.0], &[0.0, 0.0]).unwrap();
        assert_eq!(apart.iter().map(|eigen| eigen.value).collect::<Vec<_>>(), [-1.0, 2.0, 5.0]);
        assert!(eigen(&[f64::NAN, 1.0], &[1.0]).is_none());
    }
}

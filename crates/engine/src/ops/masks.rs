//! Ranges, triangles and masks: made of constants and a choice.

use super::*;
use crate::{Array, DType, Error, Trace};

/// Every whole number below this is an f32.
const WHOLE: usize = 1 << 24;

impl Trace {
    /// 0, 1, 2 and so on, in this type.
    #[track_caller]
    pub fn arange(&self, count: usize, dtype: DType) -> Tensor {
        let ty = TensorType::new(dtype, [count]);
        if count > WHOLE {
            let problem = format!("a range has at most {WHOLE} numbers; add to a smaller one");
            return self.fail(Error::mismatch("arange", vec![ty], Mismatch::Parameter(problem), self.location()));
        }
        let numbers: Vec<f64> = (0..count).map(|number| number as f64).collect();
        self.constant(Array::from_f64(ty, &numbers).expect("as many numbers as were counted"))
    }
}

impl Tensor {
    /// The lower triangle of matrices [..., rows, columns], zero above the diagonal; of a diagonal that lies so many
    /// places above the main one, below it if negative.
    #[track_caller]
    pub fn tril(&self, diagonal: isize) -> Tensor {
        self.triangle("tril", diagonal, Tensor::less_equal)
    }

    /// The upper triangle of matrices [..., rows, columns], zero below the diagonal; of a diagonal that lies so many
    /// places above the main one, below it if negative.
    #[track_caller]
    pub fn triu(&self, diagonal: isize) -> Tensor {
        self.triangle("triu", diagonal, Tensor::greater_equal)
    }

    /// A number wherever the mask is not zero. The mask broadcasts, and may be of any type.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, number: f32) -> Tensor {
        mask.select(&self.full_like(number), self)
    }

    /// The elements whose distance from the main diagonal compares with this one, else zeros: also of those that are not
    /// finite.
    #[track_caller]
    fn triangle(&self, op: &str, diagonal: isize, compare: fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
        if self.is_poisoned() {
            return self.clone();
        }
        let shape = self.shape();
        let &[.., rows, columns] = &shape[..] else {
            return self.parameter_error(op, format!("takes matrices of at least 2 axes, not {}", shape.rank()));
        };
        let [row, column] = [rows, columns].map(|count: usize| self.trace().arange(count, DType::F32));
        let distance = column - row.unsqueeze(-1); // [rows, columns]
        let diagonal = distance.full_like(diagonal.clamp(-(WHOLE as isize), WHOLE as isize) as f32);
        compare(&distance, &diagonal).select(self, &self.zeros_like())
    }
}

/// Cases of these methods.
pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = [-3, -1, 0, 2]
        .map(|diagonal| {
            Case::new(&format!("triangles from {diagonal}"), &[&[2, 4, 5]], move |x| {
                vec![x[0].tril(diagonal), x[0].triu(diagonal)]
            })
        })
        .into();
    let numbers = vec![CaseInput::integers(DType::I32, [3, 3], 9), CaseInput::uniform([2, 3], -2.0, 2.0)];
    cases.push(Case::with_inputs("masks of integers", numbers, |x| {
        let first = &x[0].tril(0).slice(0, 0..1).greater(&x[0].trace().arange(3, DType::I32)); // i32[1, 3]
        let chosen = x[1].greater(&x[1].full_like(0.0)).select(&x[0].slice(0, 0..2), &x[0].slice(0, 1..3)); // i32[2, 3]
        vec![x[1].masked_fill(first, 7.0), first.select(&x[1], &(&x[1] * 2.0)), chosen]
    }));
    cases
}

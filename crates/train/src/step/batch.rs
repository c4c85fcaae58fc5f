//! Inputs of a model while it is traced, and the batches that are written to them.

use crate::{Error, Result};
use gradus_engine::{Array, DType, Native, Shape, Tensor, TensorType, Trace};
use std::cell::RefCell;
use std::sync::Arc;

/// One of a model's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// The shape of one example's part of it.
    pub shape: Shape,
}

impl Field {
    /// Bytes of so many examples, or as many as can be counted.
    pub(super) fn bytes(&self, rows: usize) -> usize {
        rows.saturating_mul(self.shape.elements()).saturating_mul(self.dtype.size())
    }

    /// The type of so many examples.
    fn ty(&self, rows: usize) -> TensorType {
        let sizes: Vec<usize> = std::iter::once(rows).chain(self.shape.iter().copied()).collect();
        TensorType::new(self.dtype, sizes)
    }
}

/// The inputs of a model that is being traced: each holds the examples of a micro-batch along its first axis.
pub struct Inputs {
    trace: Trace,
    rows: usize,
    /// What an input of the model is called in the trace.
    called: fn(&str) -> String,
    made: RefCell<Vec<(Field, Tensor)>>,
}

impl Inputs {
    pub(crate) fn new(trace: &Trace, rows: usize) -> Inputs {
        Inputs::called(trace, rows, str::to_string)
    }

    /// As others that the same model takes, under other names.
    pub(super) fn called(trace: &Trace, rows: usize, called: fn(&str) -> String) -> Inputs {
        Inputs { trace: trace.clone(), rows, called, made: RefCell::default() }
    }

    /// The input of this name [micro-batch, ...]: one example has this shape. The same name again gives the same tensor.
    #[track_caller]
    pub fn get(&self, name: &str, dtype: DType, shape: impl Into<Shape>) -> Tensor {
        let field = Field { name: name.to_string(), dtype, shape: shape.into() };
        let mut made = self.made.borrow_mut();
        if let Some((known, tensor)) = made.iter().find(|(known, _)| known.name == name) {
            if *known == field {
                return tensor.clone();
            }
            let before = known.ty(self.rows);
            let problem = format!("it was {before} before and is {} here; give each its own name", field.ty(self.rows));
            return tensor.parameter_error(&format!("input {name:?}"), problem);
        }
        let ty = field.ty(self.rows);
        let tensor = self.trace.input(&(self.called)(name), dtype, ty.shape);
        made.push((field, tensor.clone()));
        tensor
    }

    /// Examples of a micro-batch.
    pub fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn fields(&self) -> Arc<[Field]> {
        self.made.borrow().iter().map(|(field, _)| field.clone()).collect()
    }
}

/// Examples for a step: for each of the model's inputs the numbers of one example after another. Made by whoever takes
/// it, with room for all; nothing is allocated when it is written.
#[derive(Clone, Debug)]
pub struct Batch {
    fields: Arc<[Field]>,
    rows: usize,
    /// By field, aligned for every element type.
    words: Vec<Vec<u64>>,
    /// By field: whether it was written since the batch was made, or given out to be filled.
    written: Vec<bool>,
}

impl Batch {
    pub(crate) fn new(fields: &Arc<[Field]>, rows: usize) -> Batch {
        let words = |field: &Field| vec![0; field.bytes(rows).div_ceil(size_of::<u64>())];
        let written = vec![false; fields.len()];
        Batch { fields: fields.clone(), rows, words: fields.iter().map(words).collect(), written }
    }

    /// Room for so many examples of the same inputs.
    pub(crate) fn like(&self, rows: usize) -> Batch {
        Batch::new(&self.fields, rows)
    }

    /// Takes its examples from a larger batch, from this one on.
    pub(crate) fn take_rows(&mut self, whole: &Batch, first: usize) {
        for index in 0..self.fields.len() {
            let (start, length) = (self.fields[index].bytes(first), self.fields[index].bytes(self.rows));
            self.bytes_mut(index).copy_from_slice(&whole.bytes(index)[start..start + length]);
        }
    }

    /// Nothing of it counts as written any more.
    pub(crate) fn begin(&mut self) {
        self.written.fill(false);
    }

    /// Refuses a batch of which an input was not written: it would hold zeros, or what another batch left there.
    pub(crate) fn check_whole(&self) -> Result<()> {
        match self.fields.iter().zip(&self.written).find(|(_, written)| !**written) {
            None => Ok(()),
            Some((field, _)) => {
                let (name, expected) = (format!("{:?}", field.name), field.ty(self.rows).to_string());
                let given = "nothing; write every input of the model in every batch".to_string();
                Err(gradus_engine::Error::Data { name, expected, given }.into())
            }
        }
    }

    /// Examples in it.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The numbers of an input.
    pub fn numbers<T: Native>(&self, name: &str) -> Result<&[T]> {
        let index = self.field::<T>(name)?;
        Ok(bytemuck::cast_slice(self.bytes(index)))
    }

    /// The numbers of an input, to be written.
    pub fn numbers_mut<T: Native>(&mut self, name: &str) -> Result<&mut [T]> {
        let index = self.field::<T>(name)?;
        Ok(bytemuck::cast_slice_mut(self.bytes_mut(index)))
    }

    /// Writes all numbers of an input.
    pub fn write<T: Native>(&mut self, name: &str, numbers: &[T]) -> Result<()> {
        let place = self.numbers_mut::<T>(name)?;
        if place.len() != numbers.len() {
            let (expected, given) = (format!("{} numbers", place.len()), format!("{} numbers", numbers.len()));
            return Err(gradus_engine::Error::Data { name: format!("{name:?}"), expected, given }.into());
        }
        place.copy_from_slice(numbers);
        Ok(())
    }

    /// Writes an input from an array of its type and size.
    pub fn write_array(&mut self, name: &str, array: &Array) -> Result<()> {
        let index = self.index(name)?;
        let ty = self.fields[index].ty(self.rows);
        if ty != *array.ty() {
            let (expected, given) = (ty.to_string(), array.ty().to_string());
            return Err(gradus_engine::Error::Data { name: format!("{name:?}"), expected, given }.into());
        }
        self.bytes_mut(index).copy_from_slice(array.bytes());
        Ok(())
    }

    /// Bytes that batches of so many rows take.
    pub(crate) fn size(fields: &[Field], rows: usize) -> usize {
        fields.iter().fold(0, |sum: usize, field| sum.saturating_add(field.bytes(rows)))
    }

    pub(super) fn is_of(&self, fields: &Arc<[Field]>) -> bool {
        Arc::ptr_eq(&self.fields, fields) || self.fields == *fields
    }

    pub(super) fn bytes(&self, index: usize) -> &[u8] {
        &bytemuck::cast_slice(&self.words[index])[..self.fields[index].bytes(self.rows)]
    }

    fn bytes_mut(&mut self, index: usize) -> &mut [u8] {
        self.written[index] = true;
        let bytes = self.fields[index].bytes(self.rows);
        &mut bytemuck::cast_slice_mut(&mut self.words[index])[..bytes]
    }

    fn index(&self, name: &str) -> Result<usize> {
        self.fields.iter().position(|field| field.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.fields.iter().map(|field| &field.name[..]).collect();
            Error::Config(format!("the model has no input {name:?}; it has {}", known.join(", ")))
        })
    }

    fn field<T: Native>(&self, name: &str) -> Result<usize> {
        let index = self.index(name)?;
        let field = &self.fields[index];
        if field.dtype != T::DTYPE {
            let (expected, given) = (field.ty(self.rows).to_string(), format!("numbers of {}", T::DTYPE));
            return Err(gradus_engine::Error::Data { name: format!("{name:?}"), expected, given }.into());
        }
        Ok(index)
    }
}

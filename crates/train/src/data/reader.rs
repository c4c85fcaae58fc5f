//! Batches of training windows, read from a file of tokens.

use super::{TokenFile, Windows};
use crate::Result;
use crate::language::{TARGETS, TOKENS};
use crate::step::Batch;
use crate::trainer::BatchSource;
use std::ops::Range;
use std::sync::Arc;

/// Reads windows of tokens, and for each token the one that follows it, from a position on.
pub struct WindowReader {
    /// The tokens.
    pub file: Arc<TokenFile>,
    /// Where each window begins.
    pub windows: Windows,
    /// The window that comes next, counted over all epochs.
    pub position: u64,
}

impl BatchSource for WindowReader {
    fn fill(&mut self, _: u64, batch: &mut Batch) -> Result<bool> {
        let all = 0..batch.rows();
        self.fill_with(all.clone(), all.len(), batch)
    }

    fn fill_rows(&mut self, _: u64, rows: Range<usize>, of: usize, batch: &mut Batch) -> Option<Result<bool>> {
        Some(self.fill_with(rows, of, batch))
    }
}

impl WindowReader {
    /// Reads these of the next windows, of which a step has so many.
    fn fill_with(&mut self, rows: Range<usize>, of: usize, batch: &mut Batch) -> Result<bool> {
        let sequence = self.windows.sequence();
        for (name, ahead) in [(TOKENS, 0), (TARGETS, 1)] {
            for (row, tokens) in batch.numbers_mut::<i32>(name)?.chunks_exact_mut(sequence).enumerate() {
                let position = self.position + (rows.start + row) as u64;
                self.file.read(self.windows.start(position) + ahead, tokens)?;
            }
        }
        self.position += of as u64;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::super::{Fingerprint, TokenWriter};
    use super::*;
    use crate::step::Field;
    use gradus_engine::{DType, Shape};

    /// A file of the tokens 0, 1, 2 and so on.
    fn counting(folder: &Folder, tokens: u32) -> Arc<TokenFile> {
        let path = folder.path().join("counting.tokens");
        let mut writer = TokenWriter::create(&path, tokens as usize, Fingerprint::new()).unwrap();
        writer.push(&(0..tokens).collect::<Vec<_>>()).unwrap();
        Arc::new(writer.finish(0).unwrap())
    }

    fn room(rows: usize, sequence: usize) -> Batch {
        let field = |name: &str| Field { name: name.to_string(), dtype: DType::I32, shape: Shape::new([sequence]) };
        Batch::new(&[field(TOKENS), field(TARGETS)].into(), rows)
    }

    #[test]
    fn batches_follow_the_windows_from_a_position_on() {
        let folder = Folder::new("batches");
        let windows = Windows::new(1000, 8, 5);
        let mut reader = WindowReader { file: counting(&folder, 1000), windows, position: 2 };
        let mut batch = room(3, 8);
        for step in 0..200 {
            assert_eq!(reader.position, 2 + step * 3);
            assert!(reader.fill(step, &mut batch).unwrap());
            let tokens = batch.numbers::<i32>(TOKENS).unwrap();
            for (row, tokens) in tokens.chunks(8).enumerate() {
                let start = windows.start(2 + step * 3 + row as u64) as i32;
                assert_eq!(tokens, (start..start + 8).collect::<Vec<_>>());
            }
            let following: Vec<i32> = tokens.iter().map(|token| token + 1).collect();
            assert_eq!(batch.numbers::<i32>(TARGETS).unwrap(), following);
        }
    }

    #[test]
    fn ranks_read_their_rows_alone() {
        let folder = Folder::new("rank-rows");
        let reader =
            |position| WindowReader { file: counting(&folder, 1000), windows: Windows::new(1000, 8, 5), position };
        let (mut whole, mut part) = (reader(4), reader(4));
        let (mut batch, mut rows) = (room(6, 8), room(2, 8));
        for step in 0..50 {
            whole.fill(step, &mut batch).unwrap();
            assert!(part.fill_rows(step, 3..5, 6, &mut rows).unwrap().unwrap());
            let tokens = batch.numbers::<i32>(TOKENS).unwrap();
            assert_eq!(rows.numbers::<i32>(TOKENS).unwrap(), &tokens[3 * 8..5 * 8]);
        }
        assert_eq!(whole.position, part.position);
    }

    #[test]
    fn a_read_that_fails_names_the_file() {
        let folder = Folder::new("failing");
        let mut reader = WindowReader { file: counting(&folder, 100), windows: Windows::new(5000, 8, 1), position: 0 };
        let failure = (0..100).find_map(|step| reader.fill(step, &mut room(4, 8)).err());
        assert!(failure.unwrap().to_string().contains("counting.tokens"));
    }
}

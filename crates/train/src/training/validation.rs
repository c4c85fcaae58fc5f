//! The loss on held-out text.

use super::setup::Session;
use crate::Result;
use crate::data::validation_windows;
use crate::models::IGNORED_TARGET;

/// Weights times tokens that a validation may cost: some tens of seconds, whatever the size of the model.
const WEIGHT_TOKENS_MAX: usize = 2_000_000_000_000;

impl Session {
    /// Batches of a validation of at most so many: fewer where the model is large or little text is held out.
    pub fn validation_batches(&self, batches: usize) -> usize {
        let Some(file) = &self.validation else { return 0 };
        let (batch, sequence) = (self.config.batch.size(), self.config.sequence);
        let affordable = WEIGHT_TOKENS_MAX / (self.parameter_count() * batch * sequence).max(1);
        batches.min(affordable.max(1)).min(validation_windows(file, sequence).len().div_ceil(batch))
    }

    /// The mean loss over at most so many batches of the held-out text, evenly spread over it; `None` if none is held
    /// out, or if `goes_on`, which is asked after each part with the parts done and all of them, says no.
    pub fn validation_loss(
        &mut self,
        batches: usize,
        goes_on: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Option<f32>> {
        let Some(file) = self.validation.clone() else { return Ok(None) };
        let (size, sequence) = (self.config.micro_batch, self.config.sequence);
        let all = validation_windows(&file, sequence);
        let wanted = (self.validation_batches(batches) * self.config.batch.size()).min(all.len());
        let starts: Vec<u64> = (0..wanted).filter_map(|index| all.clone().nth(index * all.len() / wanted)).collect();
        let parts = starts.len().div_ceil(size) as u64;
        let mut window = vec![0i32; sequence + 1];
        let (mut tokens, mut targets) = (vec![0i32; size * sequence], vec![0i32; size * sequence]);
        let (mut total, mut count) = (0.0f64, 0usize);
        for (part, rows) in starts.chunks(size).enumerate() {
            if !goes_on(part as u64, parts) {
                return Ok(None);
            }
            // Rows that the last batch does not fill are there, but do not count.
            tokens.fill(0);
            targets.fill(IGNORED_TARGET);
            for (row, &start) in rows.iter().enumerate() {
                file.read(start, &mut window)?;
                tokens[row * sequence..][..sequence].copy_from_slice(&window[..sequence]);
                targets[row * sequence..][..sequence].copy_from_slice(&window[1..]);
            }
            total += self.training.evaluate(&tokens, &targets)? as f64 * rows.len() as f64;
            count += rows.len();
        }
        Ok((count > 0).then(|| (total / count as f64) as f32))
    }
}

//! What a stage gives to the stages beside it, and gets from them.

use super::Stage;
use crate::ranks::Ranks;
use crate::step::{ALL_SQUARES, LOSS_SUM, SUMMED_LOSS, Staging, Tied};
use crate::{Error, Result};
use gradus_comm::Transport;
use gradus_engine::Program;

/// Numbers of a shared weight's sums that are swapped at once.
const SWAPPED: usize = 1 << 16;

/// A rank's stage of a pipeline, connected with the others.
pub(crate) struct Pipeline {
    /// All ranks of the run.
    ranks: Ranks,
    /// The stages of this pipeline.
    stages: Box<dyn Transport>,
    stage: Stage,
    /// What this stage was given of the micro-batches that are under way, each at its number modulo how many these are.
    given: Vec<Vec<f32>>,
    /// What it gives to the next stage, the gradient of that, and the gradient of what it was given.
    pub output: Vec<f32>,
    pub gradient: Vec<f32>,
    pub input_gradient: Vec<f32>,
    /// The squares of all gradients and the sum of all losses, and where each stage's are.
    squares: Vec<f32>,
    squares_at: Vec<usize>,
    own_squares: Vec<(String, usize)>,
    tied: Vec<Tied>,
    /// Room for what is swapped, both ways.
    swapped: [Vec<f32>; 2],
    /// Whether a number of this step was not finite where that is looked for.
    pub spoiled: bool,
}

/// How much a stage gives and gets.
pub(crate) struct Transfer {
    /// Numbers of a micro-batch between two stages.
    pub between: usize,
    /// Squares of all gradients, and the loss.
    pub squares: usize,
    /// Whether another stage has one of its weights too.
    pub is_tied: bool,
}

impl Transfer {
    pub fn of(staging: &Staging) -> Transfer {
        let squares = staging.squares_at.last().copied().unwrap_or(0);
        Transfer { between: staging.between, squares, is_tied: !staging.tied.is_empty() }
    }

    /// Bytes that it takes besides the arena.
    pub fn bytes(&self, stage: Stage, passes: usize) -> u64 {
        let [output, input] = [!stage.is_last(), !stage.is_first()].map(usize::from);
        let numbers = self.between * (slots(stage, passes) + 2 * output + input) + self.squares;
        let swapped = if self.is_tied { 2 * SWAPPED } else { 0 };
        (size_of::<f32>() * (numbers + swapped)) as u64
    }
}

/// Micro-batches that are under way at once, of which a stage keeps what it was given.
fn slots(stage: Stage, passes: usize) -> usize {
    if stage.is_first() { 0 } else { stage.ahead(passes) + 1 }
}

impl Pipeline {
    /// Connects a stage of so many micro-batches; gives besides the ranks that have the same stage.
    pub fn new(ranks: Ranks, stage: Stage, passes: usize, staging: &Staging) -> Result<(Pipeline, Ranks)> {
        let place = ranks.place();
        super::check_ranks(place.ranks, stage.count)?;
        let first = place.rank - stage.index;
        let stages = ranks.among(&Vec::from_iter(first..first + stage.count))?;
        let same = ranks.among(&Vec::from_iter((stage.index..place.ranks).step_by(stage.count)))?;
        let room = |is_there: bool| vec![0.0; if is_there { staging.between } else { 0 }];
        let swapped = if staging.tied.is_empty() { 0 } else { SWAPPED };
        let pipeline = Pipeline {
            ranks,
            stages,
            stage,
            given: vec![room(true); slots(stage, passes)],
            output: room(!stage.is_last()),
            gradient: room(!stage.is_last()),
            input_gradient: room(!stage.is_first()),
            squares: vec![0.0; staging.squares_at[stage.count]],
            squares_at: staging.squares_at.iter().map(|at| at * size_of::<f32>()).collect(),
            own_squares: staging.squares.clone(),
            tied: staging.tied.clone(),
            swapped: [vec![0.0; swapped], vec![0.0; swapped]],
            spoiled: false,
        };
        Ok((pipeline, Ranks::new(same)))
    }

    pub fn ranks(&mut self) -> &mut Ranks {
        &mut self.ranks
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What this stage was given of a micro-batch.
    pub fn given(&self, pass: usize) -> &[f32] {
        &self.given[pass % self.given.len()]
    }

    /// Gets what the stage before gives of a micro-batch.
    pub fn receive_given(&mut self, pass: usize) -> Result<()> {
        if self.stage.is_first() {
            return Ok(());
        }
        let slots = self.given.len();
        let given = bytemuck::cast_slice_mut(&mut self.given[pass % slots]);
        Ok(self.stages.receive(given, self.stage.index - 1)?)
    }

    /// Gives the next stage what came of a micro-batch.
    pub fn send_output(&mut self) -> Result<()> {
        match self.stage.is_last() {
            true => Ok(()),
            false => Ok(self.stages.send(bytemuck::cast_slice(&self.output), self.stage.index + 1)?),
        }
    }

    /// Gets the gradient of what the next stage was given.
    pub fn receive_gradient(&mut self) -> Result<()> {
        match self.stage.is_last() {
            true => Ok(()),
            false => Ok(self.stages.receive(bytemuck::cast_slice_mut(&mut self.gradient), self.stage.index + 1)?),
        }
    }

    /// Gives the stage before the gradient of what it gave.
    pub fn send_gradient(&mut self) -> Result<()> {
        match self.stage.is_first() {
            true => Ok(()),
            false => Ok(self.stages.send(bytemuck::cast_slice(&self.input_gradient), self.stage.index - 1)?),
        }
    }

    /// Both with the next stage, at once: so none waits for the other to begin.
    pub fn swap_with_next(&mut self) -> Result<()> {
        if self.stage.is_last() {
            return Ok(());
        }
        let Pipeline { stages, output, gradient, .. } = self;
        Ok(stages.swap(bytemuck::cast_slice(output), bytemuck::cast_slice_mut(gradient), self.stage.index + 1)?)
    }

    /// Both with the stage before, at once; what it gives is of this micro-batch.
    pub fn swap_with_previous(&mut self, pass: usize) -> Result<()> {
        if self.stage.is_first() {
            return Ok(());
        }
        let slots = self.given.len();
        let Pipeline { stages, input_gradient, given, .. } = self;
        let given = bytemuck::cast_slice_mut(&mut given[pass % slots]);
        Ok(stages.swap(bytemuck::cast_slice(input_gradient), given, self.stage.index - 1)?)
    }

    /// Brings the sums that another stage has of a shared weight to where the update finds them. Allocates nothing.
    pub fn share_sums(&mut self, program: &mut Program) -> Result<()> {
        let Pipeline { stages, tied, swapped: [sent, received], .. } = self;
        for Tied { sum, other, numbers, with } in &*tied {
            for first in (0..*numbers).step_by(SWAPPED) {
                let length = SWAPPED.min(numbers - first);
                let (start, end) = (first * size_of::<f32>(), (first + length) * size_of::<f32>());
                let (sent, received) = (&mut sent[..length], &mut received[..length]);
                bytemuck::cast_slice_mut(sent).copy_from_slice(&program.bytes(&sum[..])?[start..end]);
                stages.swap(bytemuck::cast_slice(sent), bytemuck::cast_slice_mut(received), *with)?;
                program.fill(&other[..], |bytes| {
                    bytes[start..end].copy_from_slice(bytemuck::cast_slice(received));
                    Ok::<(), Error>(())
                })?;
            }
        }
        Ok(())
    }

    /// Before the routine that squares the gradients that are here: the sum of the losses, which only the last stage has.
    /// After it: those of all stages are written to the inputs that the update reads. Allocates nothing.
    pub fn share_squares(&mut self, program: &mut Program) -> Result<()> {
        let Pipeline { stages, squares, squares_at, own_squares, stage, .. } = self;
        let mut at = squares_at[stage.index] / size_of::<f32>();
        for (name, count) in &*own_squares {
            program.read_into(&name[..], &mut squares[at..at + count])?;
            at += count;
        }
        let last = squares.len() - 1;
        if stage.is_last() {
            program.read_into(SUMMED_LOSS, &mut squares[last..])?;
        }
        stages.all_gather(bytemuck::cast_slice_mut(squares), squares_at)?;
        program.write(ALL_SQUARES, &squares[..last])?;
        Ok(program.write(LOSS_SUM, &squares[last..])?)
    }

    /// The last stage's number.
    pub fn of_last(&mut self, number: f32) -> Result<f32> {
        let mut bytes = number.to_ne_bytes();
        self.stages.broadcast(&mut bytes, self.stage.count - 1)?;
        Ok(f32::from_ne_bytes(bytes))
    }

    /// The first stage's answer.
    pub fn of_first(&mut self, answer: bool) -> Result<bool> {
        let mut bytes = [u8::from(answer)];
        self.stages.broadcast(&mut bytes, 0)?;
        Ok(bytes[0] != 0)
    }
}
